"""Words as integers: what every rule that counts words works on.

A document is tokenised once. Its words become numbers of a `Lexicon`, which knows of every distinct
word what the rules ask (length, letters, a hash of its lower-case form). A rule over millions of
words is then a few numpy operations over a batch of documents, never a Python object a word.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

LETTER, WORD, STOP = 1, 2, 4
"""Flags of a word: it holds a letter; it holds more than punctuation; it is one of the English
function words that the Gopher rules look for."""

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Bit n of `Lexicon.stops` is set for the word n of these."""

MOST_TYPES = 1_000_000
"""Distinct words a lexicon remembers before it begins anew: about 300 MB."""

_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W_]")


class Lexicon:
    """Distinct words met so far, numbered in order of appearance, and what is known of each."""

    def __init__(self) -> None:
        """Empty."""
        self._numbers = _Numbers()
        self._known = 0
        self._chars = np.zeros(1024, np.int32)
        self._flags = np.zeros(1024, np.uint8)
        self._stops = np.zeros(1024, np.uint8)
        self._hashes = np.zeros(1024, np.uint64)

    def __len__(self) -> int:
        """How many words it knows."""
        return len(self._numbers)

    def number(self, words: Sequence[str]) -> NDArray[np.int32]:
        """The numbers of some words; new words are added."""
        return np.fromiter(map(self._numbers.__getitem__, words), np.int32, len(words))

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

    def _learn(self) -> None:
        count = len(self._numbers)
        if count == self._known:
            return
        if count > self._chars.size:
            room = max(count, 2 * self._chars.size)
            self._chars, self._flags = _grown(self._chars, room), _grown(self._flags, room)
            self._stops, self._hashes = _grown(self._stops, room), _grown(self._hashes, room)
        for number, word in enumerate(self._numbers.fresh, self._known):
            self._chars[number] = len(word)
            lower = word.lower()
            flags = (LETTER if _LETTER.search(word) else 0) | (WORD if _WORD.search(word) else 0)
            if lower in STOP_WORDS:
                flags |= STOP
                self._stops[number] = 1 << STOP_WORDS.index(lower)
            self._flags[number] = flags
            if flags & WORD:
                self._hashes[number] = xxhash.xxh3_64_intdigest(lower.encode()) or 1
        self._numbers.fresh.clear()
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


def _grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    larger = np.zeros(room, array.dtype)
    larger[: array.size] = array
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

    def __len__(self) -> int:
        """Documents in the batch."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[documents] Words of each."""
        return np.diff(self.offsets)

    def total(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """[documents] Sum over each document of a value for each word ([words])."""
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        sums: NDArray[np.int64] = running[self.offsets[1:]] - running[self.offsets[:-1]]
        return sums


def tokens_of(documents: Iterable[Sequence[str]], lexicon: Lexicon) -> Tokens:
    """Documents given as tokenised sentences (words separated by single spaces), as integers."""
    rows, sizes = [], [0]
    for sentences in documents:
        words = " ".join(sentences).split(" ") if sentences else []
        rows.append(lexicon.number(words))
        sizes.append(len(words))
    ids = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return Tokens(ids, np.cumsum(sizes, dtype=np.int64), lexicon)
