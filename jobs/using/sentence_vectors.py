"""A scikit-learn transformer that turns each sentence into one pooled ELMo vector.

    classifier = make_pipeline(SentenceVectors("runs/demo/bundle"), LogisticRegression())
    classifier.fit(sentences, labels)

A string is a raw sentence, which the model's tokeniser splits into words; a list is its words. A
bare string is a batch of one. `fit` learns nothing.

A sentence without words (an empty string or list, or one whose characters the model's cleaning
removes) becomes a row of zeros. Everywhere else an empty string is refused, because there it is
more likely a mistake than a sentence. Here a table of texts often has empty cells, a pipeline may
neither drop rows, which have labels, nor stop in `predict`, and `TfidfVectorizer` gives zeros, too.
What is no text, such as None or NaN for a missing cell, is refused.

scikit-learn is an optional dependency (`elmwright[sklearn]`) that only this file imports.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin

from elmwright.jobs.using.layer_choice import check_layers, choose_layers, width_of
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
        layers: str | int = "mean",
        device: str = "cpu",
        batch_size: int = 32,
    ) -> None:
        """`model` is a MODEL as in the commands, `pooling` (over the words) is mean or max, and
        `layers` is top, mean, a layer's number, or all (each pooled, then concatenated)."""
        self.model = model
        self.pooling = pooling
        self.layers = layers
        self.device = device
        self.batch_size = batch_size

    def fit(self, sentences: Any = None, labels: Any = None) -> "SentenceVectors":
        """Load the model; sentences and labels are not used."""
        if self.pooling not in POOLINGS:
            raise UserError(
                "input", f"pooling is one of {', '.join(POOLINGS)}, not {self.pooling!r}"
            )
        from elmwright.jobs.using.pretrained import Elmo

        elmo = Elmo.from_pretrained(self.model, device=self.device)
        check_layers(str(self.layers), elmo.bilm.config.n_layers)
        self.elmo_ = elmo.eval()
        return self

    def transform(self, sentences: str | Sequence[str | Sequence[str]]) -> npt.NDArray[np.float32]:
        """[sentences, features]; a sentence of no words is all zeros."""
        if not hasattr(self, "elmo_"):
            self.fit()
        items = items_of(sentences)
        items = [[] if isinstance(item, str) and self._is_blank(item) else item for item in items]
        pooled = np.zeros((len(items), self._width()), np.float32)
        for start in range(0, len(items), 512):
            batch = items[start : start + 512]
            for n, vectors in enumerate(self.elmo_.embed(batch, batch_size=self.batch_size)):
                if vectors.shape[1]:
                    pooled[start + n] = self._pool(vectors)
        return pooled

    def _is_blank(self, sentence: str) -> bool:
        """Whether a raw sentence has no words. One with a letter or a digit has."""
        return not any(map(str.isalnum, sentence)) and not (
            sentence.strip() and self.elmo_.text.words(sentence)
        )

    def get_feature_names_out(self, names: Any = None) -> npt.NDArray[np.object_]:
        """A name per column, such as `top_0` or, with all layers, `layer1_0`; `names` are those of
        the input and are not used."""
        if not hasattr(self, "elmo_"):
            self.fit()
        layers, width = str(self.layers), self.elmo_.width
        if layers == "all":
            parts = [f"layer{number}" for number in range(self._width() // width)]
        else:
            parts = [f"layer{layers}" if layers.isdecimal() else layers]
        found = [f"{part}_{column}" for part in parts for column in range(width)]
        return np.array(found, dtype=object)

    def _width(self) -> int:
        return width_of(str(self.layers), self.elmo_.bilm.config.n_layers, self.elmo_.width)

    def _pool(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(layers, words, width) → features."""
        vectors = choose_layers(vectors, str(self.layers))
        over_words = vectors.mean(axis=1) if self.pooling == "mean" else vectors.max(axis=1)
        return np.asarray(over_words.ravel(), np.float32)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "elmo_")
