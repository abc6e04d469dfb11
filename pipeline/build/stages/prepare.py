"""The stages before cleaning: digests of the inputs, n-grams to avoid, a sentencepiece model.

Like the stages in `clean.py`, each is a plain function `stage(work, out, …)` whose output is the
same bytes every time. N-grams are made only if there are evaluation or held-out files, a sample and
its model only if the tokeniser is sentencepiece.
"""

import heapq
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.build.stages.clean import read_batches
from elmwright.pipeline.build.stages.hashes import Purpose, mix
from elmwright.pipeline.cleaning import words
from elmwright.pipeline.cleaning.cleaner import Cleaner
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.dedup import ngrams
from elmwright.pipeline.dedup.keys import keys_of
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading.sources import Chunk
from elmwright.pipeline.storage.files import at, join

SAMPLE_BYTES = 4000
"""Longer sentences are left out of the sample for sentencepiece, which would skip them."""


@dataclass(frozen=True)
class FileDigests:
    """sha256 of some files, in their order."""

    sha256: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """The file that a task wrote, and how many n-grams, sentences or pieces are in it."""

    name: str
    entries: int


def digest_files(
    _work: str, _out: str, paths: Sequence[str], _stats: Sequence[tuple[int, int]]
) -> FileDigests:
    """sha256 of each input file."""
    return FileDigests(tuple(at(path).sha256() for path in paths))


def make_ngrams(work: str, out: str, chunks: Sequence[Chunk], config: CorpusConfig) -> Output:
    """Write the n-grams of evaluation files, which train must not share."""
    cleaner = Cleaner(config, filters=False)
    hashes: list[NDArray[np.uint64]] = []
    for chunk in chunks:
        for _, texts in read_batches(chunk, config):
            tokens = cleaner.clean(texts).tokens
            hashes.append(np.unique(ngrams.ngram_hashes(tokens, config.decontaminate_ngram)[0]))
    joined = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    ngrams.save_set(join(work, f"{out}.npy"), joined)
    return Output(f"{out}.npy", len(np.unique(joined)))


def sample_chunk(
    work: str, out: str, chunk: Chunk, config: CorpusConfig, seed: int, limit: int
) -> Output:
    """Write the sentences of a chunk with the smallest hashes, for training sentencepiece."""
    smallest: dict[int, str] = {}
    most = config.sentencepiece.sample

    def shrink() -> dict[int, str]:
        return {number: smallest[number] for number in sorted(smallest)[:most]}

    cleaner = Cleaner(config)
    for _, texts in read_batches(chunk, config):
        cleaned = cleaner.clean(texts)
        kept = [n for n, verdict in enumerate(cleaned.verdicts) if verdict is None]
        if not kept:
            continue
        keys = keys_of(cleaned.words[n] for n in kept)
        is_train = mix(keys, seed, Purpose.HELDOUT) >= np.uint64(limit)
        for number, in_train in zip(kept, is_train.tolist(), strict=True):
            sentences = cleaned.texts[number].split("\n") if in_train else []
            fitting = [s for s in sentences if len(s.encode()) <= SAMPLE_BYTES]
            if fitting:
                hashes = mix(keys_of(fitting), seed, Purpose.SAMPLE)
                smallest.update(zip(hashes.tolist(), fitting, strict=True))
        if len(smallest) > 2 * most:
            smallest = shrink()
    smallest = shrink()
    data = "".join(f"{number:020d} {text}\n" for number, text in smallest.items()).encode()
    at(join(work, f"{out}.txt")).write_bytes(data)
    return Output(f"{out}.txt", len(smallest))


def train_pieces(work: str, out: str, samples: Sequence[str], config: CorpusConfig) -> Output:
    """Train the sentencepiece model on the smallest hashes of all samples."""
    with ExitStack() as stack:
        opened = [stack.enter_context(at(join(work, name)).reading()) for name in samples]
        # Every sample is sorted by its hashes, which begin the lines with all their digits.
        merged = (line for line, _ in groupby(heapq.merge(*opened)))
        chosen = [line.decode() for line in islice(merged, config.sentencepiece.sample)]
    sentences = (line.partition(" ")[2].rstrip("\n") for line in chosen)
    try:
        model = words.train_sentencepiece(sentences, config.sentencepiece, config.language)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            "no-text",
            f"sentencepiece cannot be trained ({reason}); change [corpus.sentencepiece], most "
            "likely its size, or give more text",
        ) from error
    at(join(work, f"{out}.model")).write_bytes(model)
    return Output(f"{out}.model", config.sentencepiece.size)
