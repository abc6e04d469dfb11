"""What MLflow loads a published model with: `mlflow.pyfunc.load_model`, `mlflow models serve`.

The published folder holds the bundle and the name of this module, nothing that is executed. The
bundle's digests are checked before anything is loaded, and it must be the one that MLmodel beside
it was written for; where ELMWRIGHT_REQUIRE_SIGNATURE names a public key, its signature is checked,
too. MLflow does not tell us which version it was asked for: who can write MLmodel as well can put
one version in another's place, and only `elmwright.Elmo` or a signature would notice.

The input is a list (or a column) of sentences, each a raw sentence as a string, or a list of words.
(A model that an earlier version published splits a string at spaces, and so gives the same vectors
as before.) The answer has, for each, the vectors of `elmwright embed`:
[layers + 1][words][2 × projection_dim], or with the parameter `layers` = "top" or "mean" one layer.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmwright.jobs.using.layer_choice import LAYERS, choose_layers
from elmwright.pipeline.errors import UserError

BATCH = 32


class Embedder:
    """A bundle behind MLflow's `predict`."""

    def __init__(self, folder: Path, expected: str = "") -> None:
        from elmwright.jobs.bundles.bundle import digest
        from elmwright.jobs.registry.resolve import resolve
        from elmwright.model.inference.elmo import Elmo

        if expected not in ("", digest(folder)):  # which there must be: a bundle has a list
            raise UserError(
                "untrusted", f"{folder} is not the model that was published; do not trust it"
            )
        self.elmo = Elmo.from_pretrained(resolve(str(folder)))
        self.elmo.eval()

    def predict(
        self, model_input: Any, params: dict[str, Any] | None = None
    ) -> list[npt.NDArray[np.float32]]:
        """Vectors of each sentence."""
        layers = (params or {}).get("layers", "all")
        if layers not in LAYERS:
            raise _mistake(f"layers is {layers!r}; it may be all, top or mean")
        sentences = _column(model_input)
        if self.elmo.text.tokenisation is None:
            split = self.elmo.text.words  # at spaces, and an empty string has no words
            sentences = [split(item) if isinstance(item, str) else item for item in sentences]
        try:
            embedded = self.elmo.embed(sentences, batch_size=BATCH)
        except UserError as error:
            raise _mistake(str(error)) from error
        return [choose_layers(vectors, layers) for vectors in embedded]


def _column(model_input: Any) -> list[Any]:
    """The sentences, from whatever MLflow made of a request: a table, an array, a list."""
    if hasattr(model_input, "columns"):
        if len(model_input.columns) != 1:
            raise _mistake(f"give one column of sentences, not {len(model_input.columns)}")
        model_input = model_input.iloc[:, 0]
    if isinstance(model_input, dict):
        if len(model_input) != 1:
            raise _mistake(f"give one column of sentences, not {len(model_input)}")
        (model_input,) = model_input.values()
    if isinstance(model_input, np.ndarray) and model_input.ndim == 0:
        model_input = model_input.item()
    return [model_input] if isinstance(model_input, str) else list(model_input)


def _mistake(sentence: str) -> Exception:
    """What a server answers with 400 and this sentence."""
    from mlflow.exceptions import MlflowException

    mistake: Exception = MlflowException.invalid_parameter_value(sentence)
    return mistake


def _load_pyfunc(path: str) -> Embedder:
    from mlflow.models import Model

    from elmwright.jobs.registry.logged_models import DIGEST

    described = Path(path).with_name("MLmodel")
    saved = (Model.load(str(described)).metadata or {}) if described.is_file() else {}
    return Embedder(Path(path), str(saved.get(DIGEST, "")))
