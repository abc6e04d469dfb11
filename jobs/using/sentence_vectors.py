"""A scikit-learn transformer that turns each sentence into one pooled ELMo vector.

    classifier = make_pipeline(SentenceVectors("runs/demo/bundle"), LogisticRegression())
    classifier.fit(sentences, labels)

A string is a raw sentence, which the model's tokeniser splits into words; a list is its words. A
bare string is a batch of one. `fit` learns nothing.
scikit-learn is an optional dependency (`elmwright[sklearn]`) that only this file imports.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin

from elmwright.jobs.using.layer_choice import LAYERS, choose_layers
from elmwright.model.text.text_input import items_of
from elmwright.pipeline.errors import UserError

POOLINGS = ("mean", "max")


class SentenceVectors(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns sentences into vectors, pooled over their words."""

    def __init__(
        self,
        model: str = "",
        *,
        pooling: str = "mean",
        layers: str = "mean",
        device: str = "cpu",
        batch_size: int = 32,
    ) -> None:
        """`model` is a MODEL as in the commands, `pooling` (over the words) is mean or max, and
        `layers` is top, mean, or all (each pooled, then concatenated)."""
        self.model = model
        self.pooling = pooling
        self.layers = layers
        self.device = device
        self.batch_size = batch_size

    def fit(self, sentences: Any = None, labels: Any = None) -> "SentenceVectors":
        """Load the model; sentences and labels are not used."""
        if self.pooling not in POOLINGS or self.layers not in LAYERS:
            raise UserError(
                "input",
                f"pooling is one of {', '.join(POOLINGS)} and layers one of {', '.join(LAYERS)}, "
                f"not {self.pooling!r} and {self.layers!r}",
            )
        from elmwright.jobs.using.pretrained import Elmo

        self.elmo_ = Elmo.from_pretrained(self.model, device=self.device)
        self.elmo_.eval()
        return self

    def transform(self, sentences: str | Sequence[str | Sequence[str]]) -> npt.NDArray[np.float32]:
        """[sentences, features]; a sentence of no words is all zeros."""
        if not hasattr(self, "elmo_"):
            self.fit()
        items = items_of(sentences)
        items = [[] if isinstance(item, str) and not item.strip() else item for item in items]
        width = self.elmo_.width
        if self.layers == "all":
            width *= self.elmo_.bilm.config.n_layers + 1
        pooled = np.zeros((len(items), width), np.float32)
        for start in range(0, len(items), 512):
            batch = items[start : start + 512]
            for n, vectors in enumerate(self.elmo_.embed(batch, batch_size=self.batch_size)):
                if vectors.shape[1]:
                    pooled[start + n] = self._pool(vectors)
        return pooled

    def _pool(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(layers, words, width) → features."""
        vectors = choose_layers(vectors, self.layers)
        over_words = vectors.mean(axis=1) if self.pooling == "mean" else vectors.max(axis=1)
        return np.asarray(over_words.ravel(), np.float32)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "elmo_")
