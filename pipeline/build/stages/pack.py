"""The last stages of a build: the vocabulary, and the shards.

Words are counted exactly and in ranges of their hash, so that no task holds all of them. The
vocabulary task reads only words that are frequent enough for the vocabulary. A shard is one range
of the shuffle hash, gathered from all parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow
import pyarrow.compute as pc
from numpy.typing import NDArray

from elmwright.pipeline.build.stages.keep import sort_order
from elmwright.pipeline.config import VocabConfig
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.format import vocab
from elmwright.pipeline.format.manifest import Shard
from elmwright.pipeline.format.packing import pack_words, words_of
from elmwright.pipeline.format.shards import ShardReader, write_shard
from elmwright.pipeline.report.statistics import coverage_points, zipf_points
from elmwright.pipeline.storage.files import join

TYPES_PER_RANGE = 2_000_000
"""Entries of word counts that one task adds up: about 300 MB."""
LONGEST = 128
"""Longer words are counted as words of this many bytes."""
MAX_CHARS = (12, 20, 30, 40, 50, 100)
"""Settings of model.max_chars for which the report shows the share of words cut."""


@dataclass(frozen=True)
class WordCounts:
    """The counts of all words of one range of the hash."""

    name: str
    """The files, without their endings."""
    lengths: tuple[int, ...]
    """Words of train by their length in bytes."""


@dataclass(frozen=True)
class VocabFiles:
    """The vocabulary: its files and its measurements."""

    name: str
    """The files, without their endings."""
    size: int
    """Words in the vocabulary, including marks."""
    sha256: str
    counts_sha256: str
    zipf: tuple[tuple[int, int], ...]
    coverage: tuple[tuple[int, float], ...]
    truncated: Mapping[int, float]
    """As in `Statistics`."""


@dataclass(frozen=True)
class PackedShard:
    """One shard, or None if its range of the hash is empty, and the words in it."""

    shard: Shard | None
    words: int = 0


@dataclass(frozen=True)
class Unigram:
    """How well the unigram model of train predicts a held-out set."""

    perplexity: float


def count_range(work: str, out: str, names: Sequence[str], number: int, count: int) -> WordCounts:
    """Add up the counts of all words whose hash is in one range; most frequent first."""
    begin, end = tables.hash_range(number, count)
    counts_of = [tables.load_table(join(work, name), "hash", begin, end) for name in names]
    total = pyarrow.concat_tables(counts_of).group_by("text").aggregate([("count", "sum")])
    total = total.rename_columns({"count_sum": "count"})
    # Arrow compares texts by their bytes, which is the order the vocabulary wants.
    total = total.sort_by([("count", "descending"), ("text", "ascending")])
    tables.save_table(join(work, f"{out}.arrow"), total)
    counts = total["count"].to_numpy()
    lengths = np.minimum(pc.binary_length(total["text"]).to_numpy(), LONGEST)
    by_length = np.bincount(lengths, weights=counts, minlength=LONGEST + 1)
    values, types = np.unique(counts, return_counts=True)
    histogram = np.zeros(len(values), _HISTOGRAM)
    histogram["count"], histogram["types"] = values, types
    tables.save_npy(join(work, f"{out}.npy"), histogram)
    return WordCounts(out, tuple(int(n) for n in by_length))


_HISTOGRAM = np.dtype([("count", "<i8"), ("types", "<i8")])


def make_vocab(
    work: str,
    out: str,
    names: Sequence[str],
    lengths: Sequence[Sequence[int]],
    config: VocabConfig,
    sentences: int,
    given: str,
) -> VocabFiles:
    """Choose the vocabulary from the counts of all ranges, or count the words of a given one.

    `given` is the digest of the file `config.file`, or empty.
    """
    values, types = _histogram(work, names)
    total = int((values * types).sum())
    if given:
        chosen = vocab.load_vocab(config.file)
        counts = _counts_of(work, names, set(chosen))
    else:
        room = max(0, config.max_size - len(vocab.MARKS))
        counts = _frequent(work, names, _cutoff(values, types, room, config.min_count))
        chosen = vocab.choose(counts, config.max_size, config.min_count)
    by_id = vocab.counts_by_id(chosen, counts, sentences, total)
    sha256, counts_sha256 = vocab.save_vocab(join(work, out), chosen, by_id)
    falling = np.repeat(values[::-1], types[::-1])
    by_length = np.sum(np.array(lengths, np.int64), axis=0)
    return VocabFiles(
        name=out,
        size=len(chosen),
        sha256=sha256,
        counts_sha256=counts_sha256,
        zipf=zipf_points(falling),
        coverage=coverage_points(falling),
        truncated={
            chars: float(by_length[chars - 1 :].sum() / max(1, total)) for chars in MAX_CHARS
        },
    )


def _histogram(work: str, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts, rising, and how many words have each."""
    rows = np.concatenate([tables.load_npy(join(work, f"{name}.npy")) for name in names])
    values, place = np.unique(rows["count"], return_inverse=True)
    types = np.bincount(place, weights=rows["types"], minlength=len(values))
    return values.astype(np.int64), types.astype(np.int64)


def _cutoff(values: NDArray[np.int64], types: NDArray[np.int64], room: int, min_count: int) -> int:
    """The smallest count a word of the vocabulary can have (words with it may have to be cut)."""
    place = int(np.searchsorted(np.cumsum(types[::-1]), room))
    enough = int(values[::-1][place]) if place < len(values) else 0
    return max(enough, min_count)


def _frequent(work: str, names: Sequence[str], cutoff: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        columns, texts = tables.load_texts(join(work, f"{name}.arrow"))
        last = int(np.searchsorted(-columns["count"], -cutoff, side="right"))
        counts.update(zip(texts[:last], columns["count"][:last].tolist(), strict=True))
    return counts


def _counts_of(work: str, names: Sequence[str], wanted: set[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        columns, texts = tables.load_texts(join(work, f"{name}.arrow"))
        pairs = zip(texts, columns["count"].tolist(), strict=True)
        counts.update((word, times) for word, times in pairs if word in wanted)
    return counts


def make_shard(
    work: str,
    out: str,
    names: Sequence[str],
    split: str,
    number: int,
    n_shards: int,
    *,
    steps: int,
    vocab_name: str,
    vocab_sha256: str,
) -> PackedShard:
    """Gather one range of the shuffle hash from all parts, in its order, and pack it."""
    begin, end = tables.hash_range(number, n_shards)
    gathered: list[tuple[tables.Columns, list[str]]] = [
        tables.load_texts(join(work, name), "order", begin, end) for name in names
    ]
    columns = {
        name: np.concatenate([columns[name] for columns, _ in gathered]) for name in gathered[0][0]
    }
    texts = [text for _, texts in gathered for text in texts]
    if not texts:
        return PackedShard(None)
    words = words_of([texts[row] for row in sort_order(columns).tolist()])
    ids = _word_ids(join(work, f"{vocab_name}.{vocab.VOCAB}"), vocab_sha256)
    blocks = pack_words(words, np.arange(len(texts)), ids, steps)
    shard = write_shard(join(work, out), split, number, blocks)
    return PackedShard(shard, shard.words)


@lru_cache(maxsize=1)
def _word_ids(path: str, _sha256: str) -> dict[str, int]:
    """The vocabulary, kept by a worker from one shard to the next."""
    return {word: number for number, word in enumerate(vocab.load_vocab(path))}


def unigram(work: str, _out: str, counts_name: str, tars: Sequence[str]) -> Unigram:
    """Perplexity of the train unigram model over the blocks of a held-out set."""
    counts = vocab.load_counts(join(work, counts_name))
    heldout = np.zeros_like(counts)
    for tar in tars:
        reader = ShardReader(join(work, tar))
        blocks = (reader.read(number) for number in range(len(reader)))
        heldout += vocab.target_counts(blocks, counts.size)
    return Unigram(vocab.unigram_perplexity(counts, heldout))
