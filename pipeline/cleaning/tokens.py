"""Words as integers: what every rule that counts words works on.

A document is tokenised once. Its words become numbers in a `Lexicon`, which stores what the rules
need of every distinct word (length, letters, a hash of its lower-case form). A rule over millions
of words is then a few numpy operations over a batch of documents, without a Python object per word.

`Reader` does this for a batch. Arrow numbers the distinct chunks between white space. A cache has
the words of every chunk seen so far, as text and as numbers. Indexed with the chunks of the batch,
it gives the tokenised text and the `Tokens`. Python sees only distinct chunks (one in ten): a
look-up per chunk took three times as long. A new chunk costs about ten microseconds, so the first
megabytes of a corpus are read at half the speed.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from elmwright.pipeline.cleaning.countable import (
    COUNTED,
    LETTER,
    STOP_BITS,
    WORD,
    counted,
    counted_word,
    flags_of,
)

MOST_TYPES, MOST_CHUNKS, MOST_CHARACTERS = 1_000_000, 700_000, 20_000_000
"""The most distinct words, chunks and characters of chunks that a reader caches before it empties
the cache: several hundred MB (estimated)."""


class Facts(NamedTuple):
    """What is known of every distinct word, by its number."""

    chars: NDArray[np.int32]
    """[types] Number of characters."""
    flags: NDArray[np.uint8]
    """[types] `LETTER` and `WORD`, or-ed."""
    stops: NDArray[np.uint8]
    """[types] `STOP_BITS` of a stop word; 0 for other words."""
    hashes: NDArray[np.uint64]
    """[types] 64-bit hash of the lower-case word; 0 for pure punctuation."""
    parts: NDArray[np.int32]
    """[types, 4] What a word adds to each count of `COUNTED`. A compound counts as its parts."""


class Lexicon:
    """Distinct words seen so far, numbered in order of appearance, and what is known of each."""

    def __init__(self) -> None:
        self._numbers = _Numbers()
        self.number: Callable[[str], int] = self._numbers.__getitem__
        """The number of a word, which may be new."""
        self._known = 0
        self._facts = Facts(
            np.zeros(1024, np.int32),
            np.zeros(1024, np.uint8),
            np.zeros(1024, np.uint8),
            np.zeros(1024, np.uint64),
            np.zeros((1024, len(COUNTED)), np.int32),
        )

    def __len__(self) -> int:
        """How many words it knows."""
        return len(self._numbers)

    @property
    def facts(self) -> Facts:
        """The facts of all words, computed for new ones."""
        count = len(self._numbers)
        if count > self._known:
            if count > self._facts.chars.size:
                size = max(count, 2 * self._facts.chars.size)
                self._facts = Facts(*(_grown(column, size) for column in self._facts))
            self._learn(self._facts, count)
        return self._facts

    def _learn(self, facts: Facts, count: int) -> None:
        fresh, new = self._numbers.fresh, slice(self._known, count)
        lengths = np.fromiter(map(len, fresh), np.int32, len(fresh))
        flags = np.full(len(fresh), LETTER | WORD, np.uint8)
        parts = np.ones((len(fresh), len(COUNTED)), np.int32)
        parts[:, COUNTED.index("characters")] = lengths
        # Correct for plain words. The others are computed one by one.
        plain = np.fromiter(map(str.isalpha, fresh), bool, len(fresh))
        for number in np.flatnonzero(~plain).tolist():
            flags[number] = flags_of(fresh[number])
            parts[number] = counted_word(fresh[number])
        facts.chars[new], facts.flags[new], facts.parts[new] = lengths, flags, parts
        facts.hashes[new] = [
            xxhash.xxh3_64_intdigest(word.lower().encode()) or 1 if flag & WORD else 0
            for word, flag in zip(fresh, flags.tolist(), strict=True)
        ]
        for word in STOP_BITS.keys() & self._numbers.keys():
            facts.stops[self._numbers[word]] = STOP_BITS[word]
        fresh.clear()
        self._known = count


class _Numbers(dict[str, int]):
    """Word → number. A new word gets the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[str] = []

    def __missing__(self, word: str) -> int:
        self.fresh.append(word)
        number = self[word] = len(self)
        return number


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    larger = np.zeros((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


@dataclass(frozen=True, eq=False)
class Tokens:
    """The words of a batch of documents, one after the other."""

    ids: NDArray[np.int32]
    """[words] The number of each word in the lexicon."""
    offsets: NDArray[np.int64]
    """[documents + 1] Where each document begins in `ids`, and where the last ends."""
    lexicon: Lexicon
    """What the numbers mean."""
    counts: NDArray[np.int64] | None = None
    """[documents, 4] The counts that `COUNTED` names, if requested."""

    def __len__(self) -> int:
        """Documents in the batch."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[documents] Number of words in each document."""
        return np.diff(self.offsets)

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        """[words] The index of each word's document."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.sizes)

    def take(self, documents: Sequence[int] | NDArray[np.int64]) -> "Tokens":
        """Only these documents, in the order of the batch."""
        if len(documents) == len(self):
            return self
        chosen = np.zeros(len(self), bool)
        chosen[documents] = True
        offsets = np.concatenate([[0], np.cumsum(self.sizes[chosen])])
        counts = None if self.counts is None else self.counts[chosen]
        return Tokens(self.ids[chosen[self.owners]], offsets, self.lexicon, counts)

    def largest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """[documents] The largest of `values` ([words]) in each document; 0 if it has no words."""
        result = np.zeros(len(self), np.int64)
        full = np.flatnonzero(self.sizes)
        if full.size:
            result[full] = np.maximum.reduceat(values, self.offsets[full])
        return result

    def total(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """[documents] The sum of `values` ([words]) over each document."""
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(running[self.offsets])


class Reader:
    """Turns sentences into tokenised text and `Tokens`, and caches the words of chunks."""

    def __init__(
        self, words_of: Callable[[str, bool], str], divided: Mapping[str, str] | None = None
    ) -> None:
        """`words_of(chunk, is_last)` gives the words of a chunk, separated by spaces; `is_last`:
        whether it is the last chunk of its sentence. With `divided`, it is not asked about chunks
        of letters, which are what that says, or a word."""
        self._words_of, self._divided = words_of, divided
        self.lexicon = Lexicon()
        self._chunks = _Chunks(words_of, divided, self.lexicon)

    def refresh(self) -> None:
        """Empty the cache if it is too large; earlier `Tokens` keep their own lexicon."""
        if len(self.lexicon) > MOST_TYPES:
            self.lexicon = Lexicon()
        elif len(self._chunks) < MOST_CHUNKS and self._chunks.characters < MOST_CHARACTERS:
            return
        self._chunks = _Chunks(self._words_of, self._divided, self.lexicon)

    def read(
        self, documents: Sequence[Sequence[str]], *, counts: bool = False
    ) -> tuple[list[str], Tokens]:
        """The tokenised sentences of each document, one per line, and the words of all documents.

        Sentences are normal text (see `repair.normalise`) without line breaks, and not empty.
        """
        joined = ["\n".join([*sentences, ""]).encode() for sentences in documents]
        data = b"".join(joined)
        # Every chunk includes the space or line break after it: `end. ` is not `end.\n`.
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) <= ord(" ")) + 1
        borders = np.searchsorted(ends, np.cumsum([0, *map(len, joined)]), side="right")
        chunks = _strings(data, ends).dictionary_encode()
        numbers = self._chunks.numbers(chunks.dictionary.to_pylist())
        where = np.asarray(chunks.indices)
        texts = pa.array(self._chunks.texts(numbers), pa.string()).take(chunks.indices)
        ids, starts = self._chunks.words(numbers[where])
        sums = _sums(self._chunks.counts(numbers)[where], borders) if counts else None
        return _cut(texts, borders), Tokens(ids, starts[borders], self.lexicon, sums)

    def text(self, sentences: Sequence[str]) -> str:
        """The tokenised sentences of one small text, without the cost of a batch."""
        chunks = " ".join(f"{sentence}\n" for sentence in sentences).split(" ")
        keys = [chunk if chunk[-1] == "\n" else f"{chunk} " for chunk in chunks if chunk]
        return "".join(self._chunks.texts(self._chunks.numbers(keys)))[:-1]


def _sums(rows: NDArray[np.int32], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the rows between each two borders."""
    running = np.zeros((len(rows) + 1, rows.shape[1]), np.int64)
    np.cumsum(rows, axis=0, out=running[1:])
    return np.diff(running[borders], axis=0)


def _strings(data: bytes, ends: NDArray[np.int64]) -> Any:
    """Consecutive strings, as an Arrow array."""
    offsets = np.zeros(ends.size + 1, np.int32)
    offsets[1:] = ends
    return pa.StringArray.from_buffers(ends.size, pa.py_buffer(offsets), pa.py_buffer(data))


def _cut(texts: Any, borders: NDArray[np.int64]) -> list[str]:
    """The strings between each two borders as one text, without its last character."""
    _, offsets, data = texts.buffers()
    if data is None:
        return [""] * (borders.size - 1)
    places = np.frombuffer(offsets, np.int32)[borders].tolist()
    view = memoryview(data)
    return [str(view[a : max(a, b - 1)], "utf-8") for a, b in pairwise(places)]


class _Chunks(dict[str, int]):
    """Chunk with the space or line break after it → number; and the words of each number."""

    def __init__(
        self,
        words_of: Callable[[str, bool], str],
        divided: Mapping[str, str] | None,
        lexicon: Lexicon,
    ) -> None:
        super().__init__()
        self._divided = divided
        self._words_of, self._lexicon, self._number = words_of, lexicon, lexicon.number
        self._texts: list[str] = []
        self.characters = 0
        self._ids = array("i")
        self._starts = array("q", [0])
        self._counts = array("i")

    def numbers(self, chunks: list[str]) -> NDArray[np.int32]:
        """The numbers of some chunks; new ones are tokenised."""
        numbers = np.fromiter(map(self.__getitem__, chunks), np.int32, len(chunks))
        new = np.flatnonzero(numbers < 0).tolist()
        if new:
            self._learn(list(dict.fromkeys(map(chunks.__getitem__, new))))
            numbers[new] = [self[chunks[place]] for place in new]
        return numbers

    def __missing__(self, chunk: str) -> int:
        return -1

    def _learn(self, fresh: list[str]) -> None:
        words_of = self._words_of
        divided = self._divided
        if divided is None:
            words = [words_of(chunk[:-1], chunk[-1] == "\n") for chunk in fresh]
        else:
            words = [
                divided.get(word, word)
                if (word := chunk[:-1]).isalpha()
                else words_of(word, chunk[-1] == "\n")
                for chunk in fresh
            ]
        self.update(zip(fresh, range(len(self), len(self) + len(fresh)), strict=True))
        self._texts += [word + chunk[-1] for word, chunk in zip(words, fresh, strict=True)]
        self._ids.extend(map(self._number, " ".join(words).split(" ")))
        sizes = [word.count(" ") + 1 for word in words]
        self._starts.extend(accumulate(sizes[1:], initial=self._starts[-1] + sizes[0]))
        self.characters += sum(map(len, fresh))

    def counts(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """[chunks, 4] The counts of some chunks, computed when first needed."""
        known = len(self._counts) // len(COUNTED)
        if known < len(self):
            self._counts.frombytes(self._count(known).tobytes())
        return np.frombuffer(self._counts, np.int32).reshape(-1, len(COUNTED))[numbers]

    def _count(self, known: int) -> NDArray[np.int32]:
        """[chunks, 4] The counts of new chunks: sums over words, unless symbols join words."""
        starts = np.frombuffer(self._starts, np.int64)[known:]
        ids = np.frombuffer(self._ids, np.int32)[starts[0] :]
        begins = starts[:-1] - starts[0]
        parts = self._lexicon.facts.parts[ids]
        sums = np.add.reduceat(parts, begins, axis=0, dtype=np.int32)
        is_word, places = parts[:, COUNTED.index("words")] > 0, np.arange(ids.size)
        words = np.add.reduceat(is_word, begins, dtype=np.int64)
        first = np.minimum.reduceat(np.where(is_word, places, ids.size), begins)
        last = np.maximum.reduceat(np.where(is_word, places, -1), begins)
        flags = self._lexicon.facts.flags
        # A symbol between two words may join them into one (`countable.counted`).
        for number in np.flatnonzero((words > 1) & (last - first + 1 > words)).tolist():
            span = slice(starts[number] - starts[0], starts[number + 1] - starts[0])
            chunk = self._texts[known + number][:-1].split(" ")
            sums[number] = counted(chunk, flags[ids[span]].tolist(), parts[span].tolist())
        return sums

    def texts(self, numbers: NDArray[np.int32]) -> list[str]:
        """The words of some chunks, with the space or line break after them."""
        return list(map(self._texts.__getitem__, numbers.tolist()))

    def words(self, chunks: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The words of chunks as numbers, and [chunks + 1] where those of each begin."""
        ids, starts = np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, np.int64)
        sizes = starts[chunks + 1] - starts[chunks]
        begins = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(starts[chunks] - begins[:-1], sizes)
        places += np.arange(places.size)
        return ids[places], begins
