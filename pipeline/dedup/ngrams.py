"""N-grams of words as 64-bit hashes, and which documents share one with an evaluation set.

An n-gram is n consecutive words. Capitals and punctuation are ignored. Its hash is a polynomial of
the words' hashes, mixed, and salted with n. Hashes are computed in blocks that stay in the
processor's cache, so a document of any length takes 24 bytes per word besides its tokens.

Decontamination looks up every n-gram of the corpus in a set. A bitmap of the hashes' top bits (at
least 32 bits per known n-gram, but at most 8 MB) rules out 97 % of them, and a binary search finds
the rest: 9 ms per MB of English text with a million known n-grams.

A document of fewer than n words has no n-gram and cannot match. If shorter n-grams counted, every
training document with a common phrase ("thank you very much") would be dropped. Whole copies of
short held-out sentences are found by their keys (`keys.py`). With 10^6 known n-grams and 10^10
looked up, 5 × 10^-4 false hits are expected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.cleaning.tokens import Tokens
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.format.lanes import hash64, keyed_hash

BLOCK = 8192
"""Words in a block: their hashes fit in the processor's second-level cache."""

SEED = 0x6E6772616D73
"""Part of the format of saved sets, as is everything derived from it."""

FACTOR = np.uint64(keyed_hash(SEED) | 1)
"""The point at which the polynomial is evaluated: odd, so no bit of a word's hash is lost."""

SET = np.dtype([("hi", "<u8")])
"""A row of a saved set: the hash of one n-gram."""

_BITS_PER_HASH = 32
_FEWEST_BITS, _MOST_BITS = 16, 26
_cache: list[Any] = [None, None]
"""A set of n-grams and its bitmap."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a batch of documents without the punctuation."""

    hashes: NDArray[np.uint64]
    """[words] Hash of each word in lower case."""
    offsets: NDArray[np.int64]
    """[documents + 1] Where each document begins in `hashes`, and where the last ends."""
    places: NDArray[np.int64]
    """[words] Index of each word in the batch's `ids`."""


def words_of(tokens: Tokens) -> Words:
    """The words of a batch without punctuation."""
    hashes = tokens.lexicon.facts.hashes[tokens.ids]
    places = np.flatnonzero(hashes)
    return Words(hashes[places], np.searchsorted(places, tokens.offsets), places)


def polynomial(words: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """[words - n + 1] The unmixed hashes of the n-grams that begin at each word."""
    size = max(0, words.size - n + 1)
    hashes = words[:size].copy()
    for place in range(1, n):
        hashes *= FACTOR
        hashes += words[place : place + size]
    return hashes


def blocks(words: Words, n: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """The first word and unmixed hash of all n-grams, document by document, in blocks."""
    ends, last = words.offsets[1:], int(words.offsets[-1])
    for begin in range(int(words.offsets[0]), last - n + 1, BLOCK):
        hashes = polynomial(words.hashes[begin : min(begin + BLOCK + n - 1, last)], n)
        size = hashes.size
        # No n-gram crosses the end of its document, so none begins in the n - 1 words before it.
        inside = np.ones(size, bool)
        near = ends[np.searchsorted(ends, begin, "right") : np.searchsorted(ends, begin + size + n)]
        for back in range(1, n):
            crossing = near - begin - back
            inside[crossing[(crossing >= 0) & (crossing < size)]] = False
        first = np.flatnonzero(inside)
        yield first + begin, hashes[first]


def ngram_hashes(tokens: Tokens, n: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes of all n-grams, and [documents + 1] where those of each document begin.

    A document of fewer than n words has none.
    """
    words = words_of(tokens)
    counts = np.maximum(np.diff(words.offsets) - (n - 1), 0)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    mixed = [hash64(hashes, SEED, n) for _, hashes in blocks(words, n)]
    return np.concatenate([np.zeros(0, np.uint64), *mixed]), offsets


def save_set(path: str, hashes: NDArray[np.uint64]) -> None:
    """Write the hashes of n-grams, or other keys, as a set, atomically."""
    tables.save_rows(path, np.unique(hashes).view(SET))


def load_set(path: str) -> NDArray[np.uint64]:
    """The hashes of a saved set, sorted, each once."""
    return tables.load_rows(path, SET)["hi"]


def first_hit(tokens: Tokens, n: int, known: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[documents] Index in `tokens.ids` of the first n-gram that is in `known`, or -1.

    `known` is sorted, as `load_set` returns it, and was made with the same n.
    """
    hits = np.full(len(tokens), -1, np.int64)
    if not known.size:
        return hits
    words = words_of(tokens)
    bitmap, shift = _cached_bitmap(known)
    hit_words = []
    for first, hashes in blocks(words, n):
        mixed = hash64(hashes, SEED, n)
        slots = (mixed >> shift).view(np.int64)
        bits = bitmap.take(slots >> 3) >> (slots & 7).astype(np.uint8)
        likely = np.flatnonzero(bits & np.uint8(1))
        candidates = mixed[likely]
        place = np.searchsorted(known, candidates)
        place[place == known.size] = 0
        hit_words.append(first[likely[known[place] == candidates]])
    where = np.concatenate([np.zeros(0, np.int64), *hit_words])
    documents, earliest = np.unique(
        np.searchsorted(words.offsets, where, "right") - 1, return_index=True
    )
    hits[documents] = words.places[where[earliest]]
    return hits


def _cached_bitmap(known: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], np.uint64]:
    """The bitmap of `known`, kept for the next call: a task looks up many batches in one set."""
    if _cache[0] is not known:
        _cache[:] = known, _bitmap(known)
    bitmap: tuple[NDArray[np.uint8], np.uint64] = _cache[1]
    return bitmap


def _bitmap(known: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], np.uint64]:
    """A bit for each value of the hashes' top bits, and how far to shift a hash to find its bit."""
    bits = (_BITS_PER_HASH * known.size).bit_length()
    bits = min(max(bits, _FEWEST_BITS), _MOST_BITS)
    shift = np.uint64(64 - bits)
    seen = np.zeros(1 << bits, bool)
    seen[known >> shift] = True
    return np.packbits(seen, bitorder="little"), shift
