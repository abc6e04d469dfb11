"""The driver of the stages that find what is repeated: copies, near-copies, lines, held-out text.

Each step writes key tables part by part, then decides range by range which rows lose. The next step
looks only at what is still in: exact copies of documents, then near-copies, then lines, then
sentences. The results are tables of losers, which `keep.py` drops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from elmwright.pipeline.build.ray_tasks import Runner, Task, task
from elmwright.pipeline.build.stages import select
from elmwright.pipeline.build.stages.select import KeyCount, Part, Sides
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.dedup import keys as dedup
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.dedup.clusters import NO_CLUSTERS, Clusters

PARTS_PER_LOOK = 64
"""Parts whose held-out documents one task gathers."""


@dataclass
class Lost:
    """Tables of losers, and the clusters of near-copies."""

    documents: list[str] = field(default_factory=list)
    """Whole documents: exact copies, near-copies, near-copies of held-out documents."""
    lines: list[str] = field(default_factory=list)
    """Lines that occurred before."""
    sentences: list[str] = field(default_factory=list)
    """Sentences that occurred before, or that are held out."""
    near: Clusters = NO_CLUSTERS
    """Clusters and links, for the report."""


def count_pieces(corpus: CorpusConfig, has_heldout: bool) -> int:
    """How often `find_repeats` runs tasks, for the progress display, and 1 for `_sides`."""
    return (
        1
        + 2 * (corpus.dedup != "none")
        + (3 if corpus.dedup == "near" else 5 * has_heldout)
        + 2 * (corpus.dedup_lines == "line")
        + 2 * (corpus.dedup_lines == "sentence" or has_heldout)
    )


def find_repeats(runner: Runner, corpus: CorpusConfig, parts: Sequence[Part], sides: Sides) -> Lost:
    """Decide what loses, from documents down to sentences."""
    train = [part for part in parts if part.split == "train"]
    if corpus.heldout_overlap == "keep":
        # Given sets lose nothing themselves. Without them here, nothing loses to them.
        parts = train
    has_heldout = len(train) < len(parts) or bool(sides.names)
    lost = Lost()
    if corpus.dedup != "none":
        keys = [task("keys", select.document_keys, part, sides) for part in train]
        lost.documents = _reduce(runner, "documents", keys, train, dedup.DOCUMENT, once=True)
    if corpus.dedup == "near" or has_heldout:
        lost.documents = [*lost.documents, _near(runner, corpus, parts, lost, sides)]
    if corpus.dedup_lines == "line":
        keys = _sentence_keys("lines", train, lost, sides, dedup.LINE)
        lost.lines = _reduce(runner, "lines", keys, train, dedup.LINE, once=True)
    once = corpus.dedup_lines == "sentence"
    if once or has_heldout:
        keys = _sentence_keys("sentences", parts, lost, sides, dedup.SENTENCE)
        lost.sentences = _reduce(runner, "sentences", keys, parts, dedup.SENTENCE, once=once)
    return lost


def _sentence_keys(
    name: str, parts: Sequence[Part], lost: Lost, sides: Sides, unit: str
) -> list[Task[KeyCount]]:
    return [
        task(name, select.sentence_keys, part, lost.documents, lost.lines, sides, unit)
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
    """Write key tables, then decide range by range which rows lose."""
    count = tables.count_ranges(sum(table.keys for table in runner.run(name, keys)))
    key_tables = [(part.number, one.out) for part, one in zip(parts, keys, strict=True)]
    reducers = [
        task("losers", select.reduce_keys, key_tables, number, count, unit=unit, once=once)
        for number in range(count)
    ]
    runner.run(f"same {name}", reducers)
    return [one.out for one in reducers]


def _near(
    runner: Runner, corpus: CorpusConfig, parts: Sequence[Part], lost: Lost, sides: Sides
) -> str:
    """Link documents that share a band, and keep the best of each cluster."""
    only_one = corpus.dedup == "near"
    heldout = None if only_one else _heldout_bands(runner, parts, lost, sides)
    bands = [
        task("bands", select.band_keys, part, lost.documents, sides, heldout) for part in parts
    ]
    count = tables.count_ranges(sum(table.keys for table in runner.run("signatures", bands)))
    band_tables = [(part.number, one.out) for part, one in zip(parts, bands, strict=True)]
    links = [task("links", select.link_keys, band_tables, n, count) for n in range(count)]
    runner.run("similar", links)
    resolve = task("clusters", select.resolve_clusters, [one.out for one in links], only_one)
    lost.near = runner.run("clusters", [resolve])[0]
    return resolve.out


def _heldout_bands(runner: Runner, parts: Sequence[Part], lost: Lost, sides: Sides) -> str:
    """The file of all held-out band keys. Without near-dedup, only these matter."""
    groups = [parts[n : n + PARTS_PER_LOOK] for n in range(0, len(parts), PARTS_PER_LOOK)]
    look = [task("near", select.heldout_bands, group, lost.documents, sides) for group in groups]
    runner.run("held-out", look)
    join = task("nearset", select.join_sets, [one.out for one in look])
    runner.run("held-out set", [join])
    return join.out
