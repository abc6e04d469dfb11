"""MinHash: documents that share most of their 5-word shingles get a band key in common.

A document is the set of its shingles: `ngram` consecutive words, capitals and punctuation ignored.
Of each of `bands` × `rows` permutations of all shingles, the signature keeps the smallest. Two
documents agree in a row with a probability equal to the Jaccard similarity s of their sets, and in
all rows of at least one band with 1 - (1 - s^rows)^bands. Equal keys of the same band link two
documents (`clusters.py`).

A permutation is x → a·x + b modulo 2^32 with odd a, over shingles hashed to 32 well-mixed bits.
Shingles are permuted in blocks that stay in the processor's cache, so a document of any length
costs 24 bytes per word beside its tokens. Repeated shingles change no minimum.

Measured on English text (`tests/bench/bench_minhash.py`): 0.016 CPU seconds per MB for documents of
some hundred words, 0.05 for documents of ten. The library rensa is no faster with shingles as
strings, and its outputs changed between versions. Keys here are the same on every machine and in
every version, because all constants come from our own hash of a fixed seed.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.cleaning.tokens import Tokens
from elmwright.pipeline.config import MinHash
from elmwright.pipeline.dedup import ngrams
from elmwright.pipeline.format.lanes import hash64, keyed_hash

NOTHING = 0
"""The key, in every band, of a document without words. It links nothing, and no document with words
has it."""

SEED = 0x6D696E68617368
"""Part of the format of band keys, as is everything derived from it."""

_SHINGLE, _PERMUTATION, _BAND = 1, 2, 3

_GROUP = 16_384
"""Documents whose signatures are held at once: 7 MB at 14 × 8."""

_AT_ONCE = 8
"""Permutations of a block held at once: 256 KB with `ngrams.BLOCK`, half a core's cache."""


def bands(tokens: Tokens, config: MinHash) -> NDArray[np.uint64]:
    """[documents, bands] The band keys of a batch; `NOTHING` for a document without words."""
    words = ngrams.words_of(tokens)
    keys = np.full((len(tokens), config.bands), NOTHING, np.uint64)
    for begin in range(0, len(tokens), _GROUP):
        end = min(begin + _GROUP, len(tokens))
        group = ngrams.Words(words.hashes, words.offsets[begin : end + 1], words.places)
        filled = begin + np.flatnonzero(np.diff(group.offsets))
        keys[filled] = _band_keys(signatures(group, config), config)
    return keys


def signatures(words: ngrams.Words, config: MinHash) -> NDArray[np.uint32]:
    """[bands × rows, documents with words] The smallest permuted shingle, permutation by
    permutation."""
    sizes = np.diff(words.offsets)
    offsets = np.append(words.offsets[:-1][sizes > 0], words.offsets[-1])
    words = ngrams.Words(words.hashes, offsets, words.places)
    smallest = np.full((config.bands * config.rows, offsets.size - 1), 0xFFFFFFFF, np.uint32)
    for first, hashes in ngrams.blocks(words, config.ngram):
        if first.size:
            _lower(smallest, *_segments(offsets, first), hashes)
    short = np.flatnonzero(np.diff(offsets) < config.ngram)
    for begin in range(0, short.size, ngrams.BLOCK):
        some = short[begin : begin + ngrams.BLOCK]
        _lower(smallest, some, np.arange(some.size), _short_shingles(words, some))
    return smallest


def _segments(
    offsets: NDArray[np.int64], first: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The documents with shingles that begin at the words `first`, and where each one's begin."""
    begin, end = np.searchsorted(offsets, first[[0, -1]], "right") - [1, 0]
    starts = np.searchsorted(first, offsets[begin:end])
    filled = np.flatnonzero(np.diff(starts, append=first.size))
    return begin + filled, starts[filled]


def _short_shingles(words: ngrams.Words, documents: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The one shingle of each document that has fewer words than a shingle: all its words."""
    begins, ends = words.offsets[documents], words.offsets[documents + 1]
    hashes = words.hashes[begins]
    for word in range(1, int((ends - begins).max())):
        longer = np.flatnonzero(begins + word < ends)
        hashes[longer] = hashes[longer] * ngrams.FACTOR + words.hashes[begins[longer] + word]
    return hashes


def _lower(
    smallest: NDArray[np.uint32],
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    hashes: NDArray[np.uint64],
) -> None:
    """Lower the signatures of some documents by a block of shingles, each from `starts` on."""
    shingles = (hash64(hashes, SEED, _SHINGLE) >> np.uint64(32)).astype(np.uint32)
    columns: NDArray[np.int64] | slice = documents
    if int(documents[-1]) - int(documents[0]) == documents.size - 1:
        # No gap: a slice is several times faster where documents are short.
        columns = slice(int(documents[0]), int(documents[-1]) + 1)
    factors, terms = _permutations(smallest.shape[0])
    buffer = np.empty((_AT_ONCE, shingles.size), np.uint32)
    for row in range(0, smallest.shape[0], _AT_ONCE):
        some = slice(row, row + _AT_ONCE)
        permuted = buffer[: factors[some].size]
        np.multiply(shingles, factors[some], out=permuted)
        permuted += terms[some]
        least = np.minimum.reduceat(permuted, starts, axis=1)
        smallest[some, columns] = np.minimum(smallest[some, columns], least)


@lru_cache(maxsize=4)
def _permutations(count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """[count, 1] The factors (odd) and the terms of the permutations."""
    drawn = [keyed_hash(SEED, _PERMUTATION, row) for row in range(count)]
    factors = np.array([[value & 0xFFFFFFFF | 1] for value in drawn], np.uint32)
    return factors, np.array([[value >> 32] for value in drawn], np.uint32)


def _band_keys(smallest: NDArray[np.uint32], config: MinHash) -> NDArray[np.uint64]:
    """[documents, bands] One hash of each band's rows, salted with the band's number."""
    keys = np.empty((smallest.shape[1], config.bands), np.uint64)
    for band in range(config.bands):
        mixed = np.zeros(smallest.shape[1], np.uint64)
        for row in smallest[band * config.rows : (band + 1) * config.rows]:
            mixed *= ngrams.FACTOR
            mixed += row
        keys[:, band] = hash64(mixed, SEED, _BAND, band)
    keys[keys == NOTHING] = 1
    return keys
