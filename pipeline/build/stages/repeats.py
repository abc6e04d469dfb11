"""Runs the tasks that find repeated text: documents, near-copies, lines, sentences, held-out text.

Each step writes one key table per part, then decides for each range of keys which rows are dropped
(the losers). The steps are exact copies of documents, near-copies, lines and sentences, and each
reads only what the steps before it have left. The results are tables of losers, which `keep.py`
drops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from elmwright.pipeline.build.ray_tasks import Runner, Task, task
from elmwright.pipeline.build.stages import select
from elmwright.pipeline.build.stages.select import HashSplit, KeyCount, Part
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.dedup import keys as dedup
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.dedup.clusters import NO_CLUSTERS, Clusters

PARTS_PER_TASK = 64
"""Parts whose held-out documents one task gathers."""


@dataclass
class Lost:
    """Paths of the tables of losers, and the clusters of near-copies."""

    documents: list[str] = field(default_factory=list)
    """Whole documents: copies, near-copies, and near-copies between train and held-out text."""
    lines: list[str] = field(default_factory=list)
    """Lines that occur earlier in the corpus."""
    sentences: list[str] = field(default_factory=list)
    """Sentences that occur earlier in the corpus, or that train and held-out text share."""
    near: Clusters = NO_CLUSTERS
    """Clusters and links, for the report."""


def count_progress_pieces(corpus: CorpusConfig, has_heldout: bool) -> int:
    """The number of times that the stage "finding copies" runs tasks, for the progress display: 1
    to choose held-out documents, the others in `find_repeats`."""
    return (
        1
        + 2 * (corpus.dedup != "none")
        + (3 if corpus.dedup == "near" else 5 * has_heldout)
        + 2 * (corpus.dedup_lines == "line")
        + 2 * (corpus.dedup_lines == "sentence" or has_heldout)
    )


def find_repeats(
    runner: Runner, corpus: CorpusConfig, parts: Sequence[Part], hash_split: HashSplit
) -> Lost:
    """Decide which documents, lines and sentences are dropped."""
    train = [part for part in parts if part.split == "train"]
    if corpus.heldout_overlap == "keep":
        # Nothing is dropped because of a given held-out set if its parts are left out here.
        parts = train
    has_heldout = len(train) < len(parts) or bool(hash_split.names)
    lost = Lost()
    if corpus.dedup != "none":
        keys = [task("keys", select.document_keys, part, hash_split) for part in train]
        lost.documents = _reduce(runner, "documents", keys, train, dedup.DOCUMENT, once=True)
    if corpus.dedup == "near" or has_heldout:
        clusters, losers = _find_clusters(runner, corpus, parts, lost, hash_split)
        lost.near, lost.documents = clusters, [*lost.documents, losers]
    if corpus.dedup_lines == "line":
        keys = _sentence_keys("lines", train, lost, hash_split, dedup.LINE)
        lost.lines = _reduce(runner, "lines", keys, train, dedup.LINE, once=True)
    once = corpus.dedup_lines == "sentence"
    if once or has_heldout:
        keys = _sentence_keys("sentences", parts, lost, hash_split, dedup.SENTENCE)
        lost.sentences = _reduce(runner, "sentences", keys, parts, dedup.SENTENCE, once=once)
    return lost


def _sentence_keys(
    name: str, parts: Sequence[Part], lost: Lost, hash_split: HashSplit, unit: str
) -> list[Task[KeyCount]]:
    return [
        task(name, select.sentence_keys, part, lost.documents, lost.lines, hash_split, unit)
        for part in parts
    ]


def _reduce(
    runner: Runner,
    name: str,
    keys: Sequence[Task[KeyCount]],
    parts: Sequence[Part],
    unit: str,
    *,
    once: bool,
) -> list[str]:
    """Write key tables, then decide for each range of keys which rows are dropped; returns the
    paths of the losers.

    Text that train and held-out sets share stays in one of them (`keys.py`). With `once`, further
    copies in the same one are dropped too.
    """
    count = tables.count_ranges(sum(table.keys for table in runner.run(name, keys)))
    key_tables = [(part.number, one.out) for part, one in zip(parts, keys, strict=True)]
    reducers = [
        task("losers", select.reduce_keys, key_tables, number, count, unit=unit, once=once)
        for number in range(count)
    ]
    runner.run(f"same {name}", reducers)
    return [one.out for one in reducers]


def _find_clusters(
    runner: Runner, corpus: CorpusConfig, parts: Sequence[Part], lost: Lost, hash_split: HashSplit
) -> tuple[Clusters, str]:
    """The clusters of documents that share a MinHash band, and the path of the losers.

    With near-dedup only one document of a cluster is kept. Without it, only near-copies between
    train and held-out text are dropped, from one of the two.
    """
    only_one = corpus.dedup == "near"
    heldout = None if only_one else _heldout_bands(runner, parts, lost, hash_split)
    bands = [
        task("bands", select.band_keys, part, lost.documents, hash_split, heldout) for part in parts
    ]
    count = tables.count_ranges(sum(table.keys for table in runner.run("signatures", bands)))
    band_tables = [(part.number, one.out) for part, one in zip(parts, bands, strict=True)]
    links = [task("links", select.link_keys, band_tables, n, count) for n in range(count)]
    runner.run("similar", links)
    resolve = task("clusters", select.resolve_clusters, [one.out for one in links], only_one)
    return runner.run("clusters", [resolve])[0], resolve.out


def _heldout_bands(runner: Runner, parts: Sequence[Part], lost: Lost, hash_split: HashSplit) -> str:
    """The path of the keys of all MinHash bands of held-out documents."""
    groups = [parts[n : n + PARTS_PER_TASK] for n in range(0, len(parts), PARTS_PER_TASK)]
    sets = [
        task("near", select.heldout_bands, group, lost.documents, hash_split) for group in groups
    ]
    runner.run("held-out", sets)
    joined = task("nearset", select.join_sets, [one.out for one in sets])
    runner.run("held-out set", [joined])
    return joined.out
