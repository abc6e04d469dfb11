"""Sentences → tokenised text and `Tokens`, for a batch of documents at once.

Arrow numbers the distinct chunks between white space; their words come from a memory of all chunks
met so far, as text and as numbers; two gathers then give the tokenised text and the `Tokens`. Python
sees only distinct chunks (one in ten), which matters because its objects lie scattered: a look-up a
chunk takes four times as long (measured). A chunk that is new costs about ten microseconds, so the
first megabytes of a corpus are read at half the speed.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elmwright.pipeline.tokens import (
    COUNTED,
    LETTER,
    WORD,
    Counts,
    Lexicon,
    Tokens,
    counted_word,
    flags_of,
)

MOST_TYPES, MOST_CHUNKS, MOST_CHARACTERS = 1_000_000, 700_000, 20_000_000
"""Distinct words, chunks and characters of chunks a reader remembers before it begins anew: about
300 MB."""

_TIES, _NUMERIC = frozenset("([{×+*"), frozenset("–/")


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

    def read(
        self, documents: Sequence[Sequence[str]], *, counts: bool = False
    ) -> tuple[list[str], Tokens]:
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
        texts = pa.array(self._chunks.texts(numbers), pa.string()).take(chunks.indices)
        ids, starts = self._chunks.words(numbers[where])
        sums = _sums(self._chunks.counts(numbers)[where], borders) if counts else None
        return _cut(texts, borders), Tokens(ids, starts[borders], self.lexicon, sums)

    def text(self, sentences: Sequence[str]) -> str:
        """The tokenised sentences of one small text, without the cost of setting up a batch."""
        chunks = " ".join(f"{sentence}\n" for sentence in sentences).split(" ")
        keys = [chunk if chunk[-1] == "\n" else f"{chunk} " for chunk in chunks if chunk]
        return "".join(self._chunks.texts(self._chunks.numbers(keys)))[:-1]


def _sums(rows: NDArray[np.int32], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the rows between each two borders."""
    running = np.zeros((len(rows) + 1, rows.shape[1]), np.int64)
    np.cumsum(rows, axis=0, out=running[1:])
    return np.diff(running[borders], axis=0)


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
        self._words_of, self._lexicon, self._number = words_of, lexicon, lexicon.number
        self._texts: list[str] = []
        self.characters = 0
        self._ids = array("i")
        self._starts = array("q", [0])
        self._counts = array("i")

    def numbers(self, chunks: list[str]) -> NDArray[np.int32]:
        """The numbers of some chunks; new ones are tokenised."""
        self._learn(list(dict.fromkeys(chunk for chunk in chunks if chunk not in self)))
        return np.fromiter(map(self.__getitem__, chunks), np.int32, len(chunks))

    def _learn(self, fresh: list[str]) -> None:
        if not fresh:
            return
        words_of = self._words_of
        words = [
            word if (word := chunk[:-1]).isalpha() else words_of(word, chunk[-1] == "\n")
            for chunk in fresh
        ]
        self.update(zip(fresh, range(len(self), len(self) + len(fresh)), strict=True))
        self._texts += [word + chunk[-1] for word, chunk in zip(words, fresh, strict=True)]
        self._ids.extend(map(self._number, " ".join(words).split(" ")))
        sizes = [word.count(" ") + 1 for word in words]
        self._starts.extend(accumulate(sizes[1:], initial=self._starts[-1] + sizes[0]))
        self.characters += sum(map(len, fresh))

    def counts(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """[chunks, 4] What some chunks count as; worked out for all when first asked for."""
        known = len(self._counts) // len(COUNTED)
        if known < len(self):
            self._counts.frombytes(self._count(known).tobytes())
        return np.frombuffer(self._counts, np.int32).reshape(-1, len(COUNTED))[numbers]

    def _count(self, known: int) -> NDArray[np.int32]:
        """Words add up, but where symbols stand between two of them."""
        starts = np.frombuffer(self._starts, np.int64)[known:]
        ids = np.frombuffer(self._ids, np.int32)[starts[0] :]
        begins = starts[:-1] - starts[0]
        parts = self._lexicon.parts[ids]
        sums = np.add.reduceat(parts, begins, axis=0, dtype=np.int32)
        is_word, places = parts[:, 1] > 0, np.arange(ids.size)
        words = np.add.reduceat(is_word, begins, dtype=np.int64)
        first = np.minimum.reduceat(np.where(is_word, places, ids.size), begins)
        last = np.maximum.reduceat(np.where(is_word, places, -1), begins)
        for number in np.flatnonzero((words > 1) & (last - first + 1 > words)).tolist():
            sums[number] = counted(self._texts[known + number][:-1].split(" "))
        return sums

    def texts(self, numbers: NDArray[np.int32]) -> list[str]:
        """The words of some chunks, with the space or line break behind them."""
        return list(map(self._texts.__getitem__, numbers.tolist()))

    def words(self, chunks: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The words of chunks as numbers, and [chunks + 1] where those of each begin."""
        ids, starts = np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, np.int64)
        sizes = starts[chunks + 1] - starts[chunks]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        shifts = np.repeat(starts[chunks] - ends[:-1], sizes)
        shifts += np.arange(shifts.size)
        return ids[shifts], ends


def counted(words: Sequence[str]) -> Counts:
    """What the words of one chunk count as in spaCy, which datatrove counts with.

    It splits compounds at hyphens, and takes words with most other symbols between them for one:
    `1914–1918`, `f(x`, `6×4`, `so,—he`.
    """
    total = [0, 0, 0, 0]
    place = 0
    while place < len(words):
        end = place + 1
        if flags_of(words[place]) & WORD:
            while (further := _glued(words, end)) > end:
                end = further
        if end - place == 1:
            row = counted_word(words[place])
        else:
            letters = any(flags_of(word) & LETTER for word in words[place:end])
            row = 1, 1, sum(map(len, words[place:end])), int(letters)
        total = [a + b for a, b in zip(total, row, strict=True)]
        place = end
    return total[0], total[1], total[2], total[3]


def _glued(words: Sequence[str], place: int) -> int:
    """Where the word that symbols from `place` on tie to the one before ends; else `place`."""
    end = place
    while end < len(words) and not flags_of(words[end]) & WORD:
        end += 1
    if end in (place, len(words)):
        return place
    symbols = "".join(words[place:end])
    numeric = symbols in _NUMERIC and words[end][0].isdigit()
    return end + 1 if end - place > 1 or symbols in _TIES or numeric else place
