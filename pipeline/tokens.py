"""Words as integers: what every rule that counts words works on.

A document is tokenised once. Its words become numbers of a `Lexicon`, which knows of every distinct
word what the rules ask (length, letters, a hash of its lower-case form). A rule over millions of
words is then a few numpy operations over a batch of documents, never a Python object a word.

`Reader` does both at once, for a batch. Arrow numbers the distinct chunks between white space;
their words come from a memory of all chunks met so far, as text and as numbers; two gathers then
give the tokenised text and the `Tokens`. Python sees only distinct chunks (one in ten), which
matters because its objects lie scattered: a look-up a chunk takes four times as long (measured).
"""

import re
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

LETTER, WORD, STOP = 1, 2, 4
"""Flags of a word: it holds a letter; it holds more than punctuation; it is one of the English
function words that the Gopher rules look for."""

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Bit n of `Lexicon.stops` is set for the word n of these."""

MOST_TYPES, MOST_CHUNKS, MOST_CHARACTERS = 1_000_000, 700_000, 20_000_000
"""Distinct words, chunks and characters of chunks a reader remembers before it begins anew: about
300 MB."""

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
            flags = LETTER if word.isalpha() or any(map(str.isalpha, word)) else 0
            if flags or _ALPHANUMERIC.search(word) or not all(map(_is_punctuation, word)):
                flags |= WORD
                self._hashes[number] = xxhash.xxh3_64_intdigest(word.lower().encode()) or 1
            if word in STOP_WORDS:
                flags |= STOP
                self._stops[number] = 1 << STOP_WORDS.index(word)
            self._flags[number] = flags
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


def _is_punctuation(character: str) -> bool:
    return character in "$+<=>^`|~´" or unicodedata.category(character)[0] in "PC"


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
        return Tokens(self.ids[chosen[self.owners]], offsets, self.lexicon)

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


class Reader:
    """Sentences → tokenised text and `Tokens`, by the words of chunks met before."""

    def __init__(self, words_of: Callable[[str, bool], str]) -> None:
        """`words_of` gives the words of a chunk that is, or is not, the last of its sentence."""
        self._words_of = words_of
        self.lexicon = Lexicon()
        self._chunks = _Chunks(words_of, self.lexicon)

    def refresh(self) -> None:
        """Begin anew where too much is remembered; earlier `Tokens` keep their own lexicon."""
        if len(self.lexicon) > MOST_TYPES:
            self.lexicon = Lexicon()
        elif len(self._chunks) < MOST_CHUNKS and self._chunks.characters < MOST_CHARACTERS:
            return
        self._chunks = _Chunks(self._words_of, self.lexicon)

    def read(self, documents: Sequence[Sequence[str]]) -> tuple[list[str], Tokens]:
        """Of each document (its sentences): its tokenised sentences, a line each; and the words.

        Sentences are normal text (see `clean.normalise`) without line breaks, and not empty.
        """
        joined = ["\n".join([*sentences, ""]).encode() for sentences in documents]
        data = b"".join(joined)
        # Every chunk with the space or line break behind it: `end. ` is not `end.\n`.
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) <= ord(" ")) + 1
        borders = np.searchsorted(ends, np.cumsum([0, *map(len, joined)]), side="right")
        chunks = _strings(data, ends).dictionary_encode()
        numbers = self._chunks.numbers(chunks.dictionary.to_pylist())
        where = np.asarray(chunks.indices)
        texts = self._chunks.texts(numbers).take(chunks.indices)
        ids, starts = self._chunks.words(numbers[where])
        return _cut(texts, borders), Tokens(ids, starts[borders], self.lexicon)


def _strings(data: bytes, ends: NDArray[np.int64]) -> Any:
    """Strings that lie one after the other, as an Arrow array."""
    offsets = np.zeros(ends.size + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.StringArray.from_buffers(ends.size, *buffers[1:])


def _cut(texts: Any, borders: NDArray[np.int64]) -> list[str]:
    """Runs of strings of an Arrow array, each joined, without their last character."""
    _, offsets, data = texts.buffers()
    if data is None:
        return [""] * (borders.size - 1)
    places = np.frombuffer(offsets, np.int32)[borders].tolist()
    view = memoryview(data)
    return [str(view[a : max(a, b - 1)], "utf-8") for a, b in pairwise(places)]


class _Chunks(dict[str, int]):
    """Chunk, with the space or line break behind it → number; of each number its words."""

    def __init__(self, words_of: Callable[[str, bool], str], lexicon: Lexicon) -> None:
        super().__init__()
        self._words_of, self._number = words_of, lexicon.number
        self._texts: list[str] = []
        self.characters = 0
        self._ids = array("i")
        self._starts = array("q", [0])

    def __missing__(self, chunk: str) -> int:
        number = self[chunk] = len(self)
        words, end = chunk[:-1], chunk[-1]
        if words.isalpha():
            self._texts.append(chunk)
            self._ids.append(self._number(words))
        else:
            words = self._words_of(words, end == "\n")
            self._texts.append(words + end)
            self._ids.extend(map(self._number, words.split(" ")))
        self.characters += len(chunk)
        self._starts.append(len(self._ids))
        return number

    def numbers(self, chunks: list[str]) -> NDArray[np.int32]:
        """The numbers of some chunks; new ones are tokenised."""
        return np.fromiter(map(self.__getitem__, chunks), np.int32, len(chunks))

    def texts(self, numbers: NDArray[np.int32]) -> Any:
        """The words of some chunks as an Arrow array of strings."""
        return pa.array(list(map(self._texts.__getitem__, numbers.tolist())), pa.string())

    def words(self, chunks: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The words of chunks as numbers, and [chunks + 1] where those of each begin."""
        ids, starts = np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, np.int64)
        sizes = starts[chunks + 1] - starts[chunks]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        shifts = np.repeat(starts[chunks] - ends[:-1], sizes)
        shifts += np.arange(shifts.size)
        return ids[shifts], ends
