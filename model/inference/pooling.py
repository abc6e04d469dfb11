"""The vectors of whole words from those of their pieces: the first, the last, or the mean."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmwright.model.text.text_input import Pool, Span

Vectors = NDArray[np.float32]


def pool_array(vectors: Vectors, spans: Sequence[Span], pool: Pool) -> Vectors:
    """(layers, pieces, width) → (layers, words, width)."""
    if pool == "mean":
        words = np.empty((len(vectors), len(spans), vectors.shape[2]), vectors.dtype)
        for word, (start, end) in enumerate(spans):
            words[:, word] = vectors[:, start:end].mean(axis=1)
        return words
    places = [start if pool == "first" else end - 1 for start, end in spans]
    return vectors[:, np.array(places, np.int64)]


def pool_layers(
    layers: Sequence[Tensor], spans: Sequence[Sequence[Span]], pool: Pool
) -> list[Tensor]:
    """Each layer [sentences, pieces, width] → [sentences, words, width], zero past the end of a
    sentence. Gradients pass through."""
    rows, columns = len(spans), max(map(len, spans), default=0)
    shares = torch.zeros(rows, columns, layers[0].size(1))
    for row, words in enumerate(spans):
        for column, (start, end) in enumerate(words):
            if pool == "mean":
                shares[row, column, start:end] = 1 / (end - start)
            else:
                shares[row, column, start if pool == "first" else end - 1] = 1
    shares = shares.to(layers[0])
    return [torch.bmm(shares, layer) for layer in layers]
