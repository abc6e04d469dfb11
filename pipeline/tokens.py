"""Words as integers: what every rule that counts words works on.

A document is tokenised once. Its words become numbers of a `Lexicon`, which knows of every distinct
word what the rules ask (length, letters, a hash of its lower-case form). A rule over millions of
words is then a few numpy operations over a batch of documents, never a Python object a word.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

LETTER, WORD, STOP = 1, 2, 4
"""Flags of a word: it holds a letter; it holds more than punctuation; it is one of the English
function words that the Gopher rules look for."""

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Bit n of `Lexicon.stops` is set for the word n of these."""

_STOP_BITS = {word: 1 << bit for bit, word in enumerate(STOP_WORDS)}

COUNTED = ("tokens", "words", "characters", "lettered")
"""What is counted of text: tokens; those that are more than punctuation, and their characters;
those with a letter."""

Counts = tuple[int, int, int, int]

# Hyphens between words or numbers, and a full stop without its blank (`the end.The beginning`).
_COMPOUND = re.compile(r"((?<=\w)-(?=[^\W\d_])|(?<=\d)-(?=\d)|(?<=[a-z])\.(?=[A-Z]))")
_ALPHANUMERIC = re.compile(r"[^\W_]")


class Lexicon:
    """Distinct words met so far, numbered in order of appearance, and what is known of each."""

    def __init__(self) -> None:
        """Empty."""
        self._numbers = _Numbers()
        self.number: Callable[[str], int] = self._numbers.__getitem__
        """The number of a word, which may be new."""
        self._known = 0
        self._chars = np.zeros(1024, np.int32)
        self._flags = np.zeros(1024, np.uint8)
        self._stops = np.zeros(1024, np.uint8)
        self._hashes = np.zeros(1024, np.uint64)
        self._parts = np.zeros((1024, len(COUNTED)), np.int32)

    def __len__(self) -> int:
        """How many words it knows."""
        return len(self._numbers)

    @property
    def chars(self) -> NDArray[np.int32]:
        """[types] Characters of each word."""
        self._learn()
        return self._chars

    @property
    def flags(self) -> NDArray[np.uint8]:
        """[types] `LETTER`, `WORD` and `STOP`, or-ed."""
        self._learn()
        return self._flags

    @property
    def stops(self) -> NDArray[np.uint8]:
        """[types] For each word, the bit of its place in `STOP_WORDS`."""
        self._learn()
        return self._stops

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """[types] 64-bit hash of the lower-case word; 0 for pure punctuation."""
        self._learn()
        return self._hashes

    @property
    def parts(self) -> NDArray[np.int32]:
        """[types, 4] What each word adds to what is `COUNTED`: compounds add their parts."""
        self._learn()
        return self._parts

    def _learn(self) -> None:
        count = len(self._numbers)
        if count == self._known:
            return
        if count > self._chars.size:
            room = max(count, 2 * self._chars.size)
            self._chars, self._flags = _grown(self._chars, room), _grown(self._flags, room)
            self._stops, self._hashes = _grown(self._stops, room), _grown(self._hashes, room)
            self._parts = _grown(self._parts, room)
        fresh, new = self._numbers.fresh, slice(self._known, count)
        flags = list(map(flags_of, fresh))
        self._chars[new] = list(map(len, fresh))
        self._flags[new] = flags
        self._parts[new] = list(map(counted_word, fresh))
        self._hashes[new] = [
            xxhash.xxh3_64_intdigest(word.lower().encode()) or 1 if flag & WORD else 0
            for word, flag in zip(fresh, flags, strict=True)
        ]
        for number in _STOP_BITS.keys() & self._numbers.keys():
            self._stops[self._numbers[number]] = _STOP_BITS[number]
        fresh.clear()
        self._known = count


class _Numbers(dict[str, int]):
    """Word → number; a word asked for and not known is numbered."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[str] = []

    def __missing__(self, word: str) -> int:
        self.fresh.append(word)
        number = self[word] = len(self)
        return number


def flags_of(word: str) -> int:
    if word.isalpha() or any(map(str.isalpha, word)):
        return LETTER | WORD | (STOP if word in _STOP_BITS else 0)
    return WORD if _ALPHANUMERIC.search(word) or not all(map(_is_punctuation, word)) else 0


def counted_word(word: str) -> Counts:
    if word.isalpha():
        return 1, 1, len(word), 1
    flags = flags_of(word)
    if not ("-" in word or "." in word or "_" in word):
        is_word = int(flags & WORD != 0)
        return 1, is_word, len(word) * is_word, flags & LETTER
    core = word.strip("_")
    parts = _COMPOUND.split(core) if core else []
    known = [flags_of(part) for part in parts]
    words = [part for part, flag in zip(parts, known, strict=True) if flag & WORD]
    letters = sum(flag & LETTER for flag in known)
    return len(word) - len(core) + len(parts), len(words), sum(map(len, words)), letters


def _is_punctuation(character: str) -> bool:
    return character in "$+<=>^`|~´" or unicodedata.category(character)[0] in "PC"


def _grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    larger = np.zeros((room, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


@dataclass(frozen=True, eq=False)
class Tokens:
    """The words of a batch of documents, one after the other."""

    ids: NDArray[np.int32]
    """[words] Numbers of the lexicon."""
    offsets: NDArray[np.int64]
    """[documents + 1] Where each document begins in `ids`, and where the last ends."""
    lexicon: Lexicon
    """What the numbers mean."""
    counts: NDArray[np.int64] | None = None
    """[documents, 4] What is `COUNTED`, where asked for."""

    def __len__(self) -> int:
        """Documents in the batch."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[documents] Words of each."""
        return np.diff(self.offsets)

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        """[words] The document of each word."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.sizes)

    def take(self, documents: Sequence[int] | NDArray[np.int64]) -> "Tokens":
        """Some of the documents, in ascending order."""
        if len(documents) == len(self):
            return self
        chosen = np.zeros(len(self), bool)
        chosen[documents] = True
        offsets = np.concatenate([[0], np.cumsum(self.sizes[chosen])])
        counts = None if self.counts is None else self.counts[chosen]
        return Tokens(self.ids[chosen[self.owners]], offsets, self.lexicon, counts)

    def largest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """[documents] The largest of a value for each word ([words]); 0 without words."""
        result = np.zeros(len(self), np.int64)
        full = np.flatnonzero(self.sizes)
        if full.size:
            result[full] = np.maximum.reduceat(values, self.offsets[full])
        return result

    def total(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """[documents] Sum over each document of a value for each word ([words])."""
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        sums: NDArray[np.int64] = running[self.offsets[1:]] - running[self.offsets[:-1]]
        return sums
