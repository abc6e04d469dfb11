"""N-grams of words as 64-bit hashes, and which documents share one with an evaluation set.

An n-gram is n consecutive words. Capitals and punctuation are ignored. Its hash is a polynomial of
the words' hashes, mixed, and salted with n. Hashes are computed in blocks that stay in the
processor's cache, so a document of any length costs 24 bytes per word beside its tokens.

Decontamination looks up every n-gram of the corpus in a set. A bitmap of the hashes' top bits, at
least 32 bits for each known n-gram up to 8 MB, rules out 97 % of them, and only the rest are
searched for: 9 ms per MB of English text against a million n-grams.

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
"""Where the polynomial is evaluated. It is odd, which loses no bit of a word's hash."""

SET = np.dtype([("hi", "<u8")])
"""A set of n-grams on disk."""

_BITS_PER_HASH = 32
_FEWEST_BITS, _MOST_BITS = 16, 26
_last: list[Any] = [None, None]


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a batch of documents without the punctuation."""

    hashes: NDArray[np.uint64]
    """[words] Of the lower-case form."""
    offsets: NDArray[np.int64]
    """[documents + 1] Where each document begins in `hashes`, and where the last ends."""
    places: NDArray[np.int64]
    """[words] The place of each word in the batch's `ids`."""


def words_of(tokens: Tokens) -> Words:
    """The words of a batch without punctuation."""
    hashes = tokens.lexicon.facts.hashes[tokens.ids]
    places = np.flatnonzero(hashes)
    return Words(hashes[places], np.searchsorted(places, tokens.offsets), places)


def polynomial(words: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """[words - n + 1] The unmixed hash of the n words that begin at each word."""
    size = max(0, words.size - n + 1)
    mixed = words[:size].copy()
    for word in range(1, n):
        mixed *= FACTOR
        mixed += words[word : word + size]
    return mixed


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
            late = near - begin - back
            inside[late[(late >= 0) & (late < size)]] = False
        first = np.flatnonzero(inside)
        yield first + begin, hashes[first]


def ngram_hashes(tokens: Tokens, n: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes of all n-grams, and [documents + 1] where each document's begin.

    A document of fewer than n words has none.
    """
    words = words_of(tokens)
    counts = np.maximum(np.diff(words.offsets) - (n - 1), 0)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    mixed = [hash64(hashes, SEED, n) for _, hashes in blocks(words, n)]
    return np.concatenate([np.zeros(0, np.uint64), *mixed]), offsets


def save_set(path: str, hashes: NDArray[np.uint64]) -> None:
    """Write n-grams as a set, atomically."""
    tables.save_rows(path, np.unique(hashes).view(SET))


def load_set(path: str) -> NDArray[np.uint64]:
    """The n-grams of a set, sorted, each once."""
    return tables.load_rows(path, SET)["hi"]


def first_hit(tokens: Tokens, n: int, known: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[documents] Where in `tokens.ids` the first n-gram that is in `known` begins, else -1.

    `known` is sorted, as `load_set` returns it, and made with the same n.
    """
    hits = np.full(len(tokens), -1, np.int64)
    if not known.size:
        return hits
    words = words_of(tokens)
    bitmap, shift = _bitmap_of(known)
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


def _bitmap_of(known: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], np.uint64]:
    """`_bitmap`, kept from the last call, because a task looks up many batches in one set."""
    if _last[0] is not known:
        _last[:] = known, _bitmap(known)
    bitmap: tuple[NDArray[np.uint8], np.uint64] = _last[1]
    return bitmap


def _bitmap(known: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], np.uint64]:
    """A bit for each value of the hashes' top bits, and how far to shift a hash to find its bit."""
    bits = (_BITS_PER_HASH * known.size).bit_length()
    bits = min(max(bits, _FEWEST_BITS), _MOST_BITS)
    shift = np.uint64(64 - bits)
    seen = np.zeros(1 << bits, bool)
    seen[known >> shift] = True
    return np.packbits(seen, bitorder="little"), shift
