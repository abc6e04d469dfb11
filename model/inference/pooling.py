"""The vectors of whole words from those of their pieces: the first, the last, or the mean."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from elmwright.model.inference.reading import Reading
from elmwright.model.text.text_input import Pool, Span


def pooled(reading: Reading, spans: Sequence[Sequence[Span]], pool: Pool) -> Reading:
    """The layers of words, from those of the pieces that each word of each sentence has.

    Gradients pass through. Two words may share a piece.
    """
    offsets = np.cumsum(reading.counts) - reading.counts
    counts = np.array([len(words) for words in spans], np.int64)
    ranges = np.array([*chain.from_iterable(spans)], np.int64).reshape(-1, 2)
    starts, ends = (ranges + np.repeat(offsets, counts)[:, np.newaxis]).T
    device = reading.layers[0].device
    if pool != "mean":
        places = torch.from_numpy(np.ascontiguousarray(starts if pool == "first" else ends - 1))
        chosen = places.to(device)
        return Reading([layer.index_select(0, chosen) for layer in reading.layers], counts)
    sizes = ends - starts
    words = np.repeat(np.arange(len(sizes)), sizes)
    pieces = np.arange(len(words)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    to, source, size = (torch.from_numpy(row).to(device) for row in (words, pieces, sizes))
    layers = []
    for layer in reading.layers:
        sums = layer.new_zeros(len(sizes), layer.size(1))
        sums = sums.index_add(0, to, layer.index_select(0, source))
        layers.append(sums / size.to(layer.dtype).unsqueeze(1))
    return Reading(layers, counts)


def mean_of_pieces(vectors: NDArray[np.float32], spans: Sequence[Span]) -> NDArray[np.float32]:
    """(layers, pieces, width) of a sentence → (layers, words, width)."""
    words = np.empty((len(vectors), len(spans), vectors.shape[2]), np.float32)
    for word, (start, end) in enumerate(spans):
        words[:, word] = vectors[:, start:end].mean(axis=1)
    return words
