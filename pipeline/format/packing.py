"""From tokenised texts to blocks, and to word counts, by array operations.

A whole shard is packed at once: Arrow numbers the distinct words, and each block is then cut out of
one array of numbers. That is several times as fast as packing sentence by sentence, and a test
compares the two. Words are counted the same way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from elmwright.pipeline.format.block import BOS, BOS_ID, EOS, EOS_ID, UNK_ID, Block

SPACE, BREAK = ord(" "), ord("\n")


@dataclass(frozen=True, eq=False)
class Words:
    """The words of some texts as numbers."""

    numbers: NDArray[np.int32]
    """[words] Indices into `types`."""
    types: list[str]
    """The distinct words, in order of first appearance."""
    lengths: NDArray[np.int64]
    """[sentences] Number of words in each sentence."""
    sentences: NDArray[np.int64]
    """[texts] Number of sentences in each text."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each distinct word occurs."""
        return np.bincount(self.numbers, minlength=len(self.types))


def words_of(texts: Sequence[str]) -> Words:
    """The words of texts with one sentence per line and one space between words."""
    data = np.frombuffer("\n".join([*texts, ""]).encode(), np.uint8)
    is_break = data == BREAK
    is_separator = is_break | (data == SPACE)
    ends = np.flatnonzero(is_separator)
    lengths = np.diff(np.flatnonzero(is_break[ends]), prepend=-1)
    # Arrow expects the words one after the other, without separators.
    offsets = np.zeros(ends.size + 1, np.int32)
    offsets[1:] = ends - np.arange(ends.size)
    buffers = [pyarrow.py_buffer(offsets), pyarrow.py_buffer(data[~is_separator].tobytes())]
    encoded = pyarrow.StringArray.from_buffers(ends.size, *buffers).dictionary_encode()
    return Words(
        numbers=np.asarray(encoded.indices),
        types=encoded.dictionary.to_pylist(),
        lengths=lengths.astype(np.int64),
        sentences=np.fromiter((text.count("\n") + 1 for text in texts), np.int64, len(texts)),
    )


def pack_words(
    words: Words, documents: NDArray[Any], word_id: Mapping[str, int], steps: int
) -> Iterator[Block]:
    """The texts as blocks of `steps` steps, filled in order; `documents` numbers the texts."""
    if {BOS, EOS, ""} & set(words.types):
        raise ValueError(f"{BOS} and {EOS} are marks, not words, and a word is not empty")
    ids = np.fromiter(map(word_id.get, words.types, repeat(UNK_ID)), np.int32, len(words.types))
    sentence_documents = np.repeat(documents, words.sentences)
    lengths, sentence_documents = _cut_long(words.lengths, sentence_documents, steps - 1)
    # A sentence of n words takes n + 1 steps: its end is predicted, too.
    step_starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    word_starts = np.concatenate([[0], np.cumsum(lengths)])
    begin = 0
    while begin < lengths.size:
        end = int(np.searchsorted(step_starts, step_starts[begin] + steps, side="right")) - 1
        numbers = words.numbers[word_starts[begin] : word_starts[end]]
        distinct, first, place = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(order.size, np.int32)
        rank[order] = np.arange(2, order.size + 2)  # after BOS and EOS
        distinct = distinct[order]
        yield Block(
            types=(BOS, EOS, *map(words.types.__getitem__, distinct.tolist())),
            ids=np.concatenate([[BOS_ID, EOS_ID], ids[distinct]]).astype(np.int32),
            tokens=rank[place],
            lengths=lengths[begin:end].astype(np.int32),
            documents=sentence_documents[begin:end].astype(np.int32),
            steps=steps,
        )
        begin = end


def _cut_long(
    lengths: NDArray[np.int64], documents: NDArray[Any], most: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The lengths and documents of sentences, after cutting those of more than `most` words into
    pieces of `most` words and a rest."""
    if not lengths.size or int(lengths.max()) <= most:
        return lengths, documents
    counts = -(-lengths // most)
    pieces = np.full(int(counts.sum()), most, np.int64)
    pieces[np.cumsum(counts) - 1] = lengths - (counts - 1) * most
    return pieces, np.repeat(documents, counts)
