"""The choice of layers: all of them, the top one, their mean, or one by its number."""

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.errors import UserError

LAYERS = ("all", "top", "mean")


def choose_layers(vectors: NDArray[np.float32], layers: str) -> NDArray[np.float32]:
    """(layers + 1, words, width) → (chosen layers, words, width)."""
    check_layers(layers, len(vectors) - 1)
    if layers == "all":
        return vectors
    if layers == "mean":
        return np.asarray(vectors.mean(axis=0, keepdims=True), np.float32)
    number = len(vectors) - 1 if layers == "top" else int(layers)
    return vectors[number : number + 1]


def check_layers(layers: str, top: int) -> None:
    """Refuse what names no layer of a model whose last one has the number `top`."""
    if layers in LAYERS or (layers.isascii() and layers.isdecimal() and int(layers[:9]) <= top):
        return
    raise UserError("argument", f"layer {layers:.40} is none of all, top, mean, 0 … {top}")


def width_of(layers: str, top: int, width: int) -> int:
    """How many numbers a word has in the chosen layers together, each of `width`."""
    return width * (top + 1) if layers == "all" else width


def words_of(vectors: NDArray[np.float32], layers: str) -> NDArray[np.float32]:
    """(layers + 1, words, width) → (words, numbers): the chosen layers of a word, concatenated."""
    chosen = choose_layers(vectors, layers).transpose(1, 0, 2)
    return np.ascontiguousarray(chosen).reshape(len(chosen), -1)
