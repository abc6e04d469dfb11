"""The numbers behind `report.html`, saved as `statistics.json`.

Tasks count, and the driver adds up. Examples of dropped text are chosen by hash, so equal corpora
have equal statistics, except for the times of `stages`. The sums do not depend on the order of the
tasks, so tasks may end, fail and run again at any time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.records import to_data

EXAMPLES = 4
"""Dropped documents that are kept for each rule."""
EXAMPLE_CHARS = 600
"""Characters of an example that are kept."""
LONGEST_SENTENCE = 100
"""The last bin of `sentence_words`, which counts all longer sentences too."""

Row = tuple[int, str, int, str, str]
"""An example on its way to the driver: (hash, source, offset, text, detail)."""
Gathered = dict[str, tuple[Row, ...]]
"""Rule → its examples, smallest hash first."""


@dataclass(frozen=True)
class Example:
    """The beginning of a document that a rule dropped."""

    source: str
    """The file it came from."""
    offset: int
    """Where in the file."""
    text: str
    """Its first few hundred characters as in the source. They are hostile: escape them."""
    detail: str = ""
    """What the rule measured, such as "mean word length 12.3", or empty."""


@dataclass(frozen=True)
class SourceCount:
    """What was read and kept of one entry of `corpus.sources`."""

    name: str
    """Its name, or its path."""
    licence: str
    weight: float
    files: int
    bytes: int
    """Size of the files as stored."""
    documents: int
    words: int
    kept_documents: int
    """Documents left after all rules, including held-out documents."""
    kept_words: int
    broken: int
    """Records and files that could not be read."""


@dataclass(frozen=True)
class StageTime:
    """The time and memory of one stage in the newest build."""

    name: str
    tasks: int
    ran: int
    """Tasks that had to be run. The others were done before."""
    seconds: float
    """From its first task to its last."""
    cpu_seconds: float
    """Sum over all tasks run."""
    peak_mb: float
    """Largest memory (RSS) of any worker process at the end of one of its tasks."""


@dataclass(frozen=True)
class Statistics:
    """Numbers and examples for the report."""

    sources: tuple[SourceCount, ...]
    """In the order of `corpus.sources`."""
    examples: Mapping[str, tuple[Example, ...]]
    """A few dropped documents of each rule."""
    quarantine: Mapping[str, int]
    """Broken records and files, by reason."""
    languages: Mapping[str, int]
    """Documents by detected language ("un" if unknown); empty if not detected."""
    document_words: Mapping[int, int]
    """Kept documents by size: n → documents of 2**n up to 2**(n+1) - 1 words."""
    sentence_words: Mapping[int, int]
    """Kept sentences by their number of words. 100 means 100 and more."""
    clusters: Mapping[int, int]
    """Groups of near-duplicates by size: documents in the group → groups."""
    duplicate_pairs: int
    """Links between near-duplicates."""
    zipf: tuple[tuple[int, int], ...]
    """(rank, count) of train words, ranks growing by about a tenth."""
    coverage: tuple[tuple[int, float], ...]
    """(vocabulary size, share of train words it covers), sizes growing by about a tenth."""
    truncated: Mapping[int, float]
    """max_chars → share of train words that a model with that setting reads only in part."""
    repaired: Mapping[str, int]
    """Documents changed, by repair: "mojibake", "encoding", "email", "ip", "phone", "cut" (into
    pieces, by `corpus.cut_documents`)."""
    stages: tuple[StageTime, ...]


def to_json(statistics: Statistics) -> bytes:
    """The content of `statistics.json`: equal statistics give equal bytes.

    ASCII with escapes, because UTF-8 cannot encode a lone surrogate in an example.
    """
    return json.dumps(to_data(statistics), sort_keys=True, indent=1).encode() + b"\n"


def gather(into: Gathered, rule: str, key: int, example: Example) -> None:
    """Add a dropped document if its 64-bit hash `key` is among the rule's smallest so far."""
    rows = into.get(rule, ())
    if len(rows) < EXAMPLES or key <= rows[-1][0]:
        text = example.text[:EXAMPLE_CHARS]
        row = (key, example.source, example.offset, text, example.detail)
        into[rule] = _smallest([*rows, row])


def merge_examples(*parts: Gathered) -> Gathered:
    """The examples with the smallest hashes of each rule, whatever the order of the tasks.

    Copies of a text have equal hashes. Of those, the first by source and offset is kept.
    """
    merged: dict[str, list[Row]] = {}
    for part in parts:
        for rule, rows in part.items():
            merged.setdefault(rule, []).extend(rows)
    return {rule: _smallest(merged[rule]) for rule in sorted(merged)}


def _smallest(rows: list[Row]) -> tuple[Row, ...]:
    first: dict[int, Row] = {}
    for row in sorted(rows):
        first.setdefault(row[0], row)
    return tuple(first.values())[:EXAMPLES]


def examples_of(gathered: Gathered) -> dict[str, tuple[Example, ...]]:
    """The gathered examples without their hashes, as `Statistics` has them."""
    return {rule: tuple(Example(*row[1:]) for row in rows) for rule, rows in gathered.items()}


def zipf_points(counts: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """(rank, count) for ranks that grow by about a tenth; `counts` must be in falling order."""
    return tuple((rank, int(counts[rank - 1])) for rank in _grid(counts.size))


def coverage_points(counts: NDArray[np.int64]) -> tuple[tuple[int, float], ...]:
    """(size, share of all words that the `size` most frequent ones make up); `counts` must be
    in falling order."""
    covered = np.cumsum(counts, dtype=np.int64)
    return tuple((size, int(covered[size - 1]) / int(covered[-1])) for size in _grid(counts.size))


def _grid(last: int) -> list[int]:
    """1, 2, 3 … growing by a tenth where that is more than 1; `last` is always there."""
    points = []
    point = 1
    while point < last:
        points.append(point)
        point = max(point + 1, point * 11 // 10)
    return [*points, last] if last else []


def document_histogram(words: NDArray[np.int64]) -> dict[int, int]:
    """n → number of documents of 2**n up to 2**(n+1) - 1 words; empty ones are left out."""
    powers = np.int64(1) << np.arange(63, dtype=np.int64)
    bins = np.searchsorted(powers, words[words > 0], side="right") - 1
    return _nonzero(np.bincount(bins))


def sentence_histogram(words: NDArray[np.int64]) -> dict[int, int]:
    """Sentences by their number of words, 100 and more together; empty ones are left out."""
    return _nonzero(np.bincount(np.minimum(words[words > 0], LONGEST_SENTENCE)))


def _nonzero(counts: NDArray[np.int64]) -> dict[int, int]:
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
