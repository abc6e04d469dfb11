"""The choice of layers: all of them, the top one, their mean, or one by its number."""

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.errors import UserError

LAYERS = ("all", "top", "mean")


def choose_layers(vectors: NDArray[np.float32], layers: str) -> NDArray[np.float32]:
    """(layers + 1, words, width) → (chosen layers, words, width)."""
    if layers == "all":
        return vectors
    if layers == "mean":
        return np.asarray(vectors.mean(axis=0, keepdims=True), np.float32)
    number = len(vectors) - 1 if layers == "top" else int(layers) if layers.isdecimal() else -1
    if not 0 <= number < len(vectors):
        raise UserError(
            "argument", f"layer {layers} is none of all, top, mean, 0 … {len(vectors) - 1}"
        )
    return vectors[number : number + 1]
