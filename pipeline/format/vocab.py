"""The vocabulary: which words the softmax can predict, and how often train has each.

`vocab.txt` has one word per line: `<S>`, `</S>`, `<UNK>`, then by falling frequency in train, ties
broken by the word's UTF-8 bytes, so that it is the same file wherever it is made. `counts.npy` has
the exact number of train occurrences by id (sentences for the two marks, all words outside the
vocabulary for `<UNK>`): the unigram model that a language model must beat.
"""

import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import BOS, BOS_ID, EOS, EOS_ID, UNK, UNK_ID, Block
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import TEXT_BYTES, read_row, read_small, read_words

VOCAB = "vocab.txt"
COUNTS = "counts.npy"
MARKS = (BOS, EOS, UNK)
"""The first words of every vocabulary."""
Counts = NDArray[np.int64]


def choose(counts: Mapping[str, int], max_size: int, min_count: int) -> list[str]:
    """The words of the vocabulary, marks first."""
    frequent = [
        (-count, word.encode(), word)
        for word, count in counts.items()
        if count >= min_count and word not in MARKS
    ]
    frequent.sort()
    return [*MARKS, *(word for _, _, word in frequent[: max(0, max_size - len(MARKS))])]


def counts_by_id(words: list[str], counts: Mapping[str, int], sentences: int, total: int) -> Counts:
    """Train occurrences of each vocabulary id; `total` counts the words of train, known or not."""
    by_id = np.fromiter((counts.get(word, 0) for word in words), np.int64, len(words))
    by_id[BOS_ID] = by_id[EOS_ID] = sentences
    by_id[UNK_ID] = total - int(by_id[UNK_ID + 1 :].sum())
    return by_id


def save_vocab(prefix: str, words: list[str], counts: Counts) -> tuple[str, str]:
    """The sha256 of `prefix`.vocab.txt and `prefix`.counts.npy, which are written here."""
    buffer = io.BytesIO()
    np.save(buffer, counts, allow_pickle=False)
    text = "".join(f"{word}\n" for word in words).encode()
    at(f"{prefix}.{COUNTS}").write_bytes(buffer.getvalue())
    at(f"{prefix}.{VOCAB}").write_bytes(text)
    return sha256_bytes(text), sha256_bytes(buffer.getvalue())


def load_vocab(path: str | Path) -> list[str]:
    """The words of a vocabulary file, by id."""
    try:
        words = read_words(path)
    except FileNotFoundError:
        raise UserError(
            "vocabulary", f"the vocabulary {path} does not exist; check the path"
        ) from None
    if tuple(words[:3]) != (BOS, EOS, UNK):
        raise UserError(
            "vocabulary",
            f"{path} must begin with the lines {BOS}, {EOS}, {UNK}; it is not a vocabulary",
        )
    seen: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if not word or word.split() != [word]:
            raise UserError(
                "vocabulary",
                f"line {number} of {path} is empty or has white space; write one word per line",
            )
        if word in seen:
            raise UserError(
                "vocabulary",
                f"line {number} of {path} repeats line {seen[word]}, {word!r}; remove it",
            )
        seen[word] = number
    return words


def load_counts(path: str | Path, sha256: str = "") -> Counts:
    """The counts in `counts.npy`, by id; with `sha256`, only from a file with that digest."""
    data = read_small(path, TEXT_BYTES)
    if sha256 and sha256_bytes(data) != sha256:
        raise UserError("file-damaged", f"{path} does not match its digest; build the corpus again")
    try:
        counts: Counts = read_row(data).astype(np.int64)
    except ValueError as error:
        raise UserError("file-damaged", f"{path} is {error}; build the corpus again") from error
    return counts


def target_counts(blocks: Iterable[Block], size: int) -> Counts:
    """How often each vocabulary id is a forward target (words and `</S>`) in some blocks."""
    counts = np.zeros(size, np.int64)
    for block in blocks:
        counts += np.bincount(block.ids[block.tokens], minlength=size)
        counts[EOS_ID] += block.lengths.size
    return counts


def unigram_perplexity(counts: Counts, heldout: Counts) -> float:
    """Perplexity of the train unigram model over held-out targets (`target_counts`).

    Maximum likelihood over words and `</S>`; a target never seen in train (which `<UNK>` may be, if
    the vocabulary holds every train word) is counted as seen once.
    """
    train = counts.astype(np.float64)
    train[BOS_ID] = 0
    train[(train == 0) & (heldout > 0)] = 1
    used = heldout > 0
    if not used.any():
        return math.nan
    nats = -(heldout[used] * np.log(train[used] / train.sum())).sum() / heldout.sum()
    return math.exp(nats)
