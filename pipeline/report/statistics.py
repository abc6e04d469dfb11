"""What is worth knowing about a corpus besides its manifest: the numbers behind `report.html`.

Gathered task by task as the corpus is built, added up by the driver, saved as `statistics.json`.
Every sample in it (examples of dropped text) is chosen by hash, so equal corpora have equal
statistics, but for the times of `stages`. Adding up gives the same in any order of tasks
(`Gathered` for the examples, tables of counts for the rest), so tasks may end, fail and be run
again at any time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.records import to_data

EXAMPLES = 4
"""Dropped documents to keep for each rule."""
EXAMPLE_CHARS = 600
"""Characters of a document to keep as an example."""
LONGEST_SENTENCE = 100
"""The last bin of `sentence_words`, which holds all longer sentences too."""

Row = tuple[int, str, int, str, str]
"""An example on its way to the driver: (hash, source, offset, text, detail)."""
Gathered = dict[str, tuple[Row, ...]]
"""Rule → its examples, by rising hash."""


@dataclass(frozen=True)
class Example:
    """The beginning of a document that a rule dropped."""

    source: str
    """The file it came from."""
    offset: int
    """Where in the file."""
    text: str
    """Its first few hundred characters, as they stood in the source: hostile, escape it."""
    detail: str = ""
    """What the rule saw, such as "mean word length 12.3", where it says."""


@dataclass(frozen=True)
class SourceCount:
    """What one entry of `corpus.sources` gave."""

    name: str
    """Its name, or its path."""
    licence: str
    """As the config says."""
    weight: float
    """As the config says."""
    files: int
    """Files read."""
    bytes: int
    """Their size as stored."""
    documents: int
    """Documents read."""
    words: int
    """Words read."""
    kept_documents: int
    """Documents left after all rules, held-out ones included."""
    kept_words: int
    """Words left after all rules."""
    broken: int
    """Records and files put aside."""


@dataclass(frozen=True)
class StageTime:
    """What one stage of the build took. From the newest build: stages not run again show 0 tasks
    run."""

    name: str
    """The stage."""
    tasks: int
    """Tasks it consists of."""
    ran: int
    """Tasks that had to be run; the others were done before."""
    seconds: float
    """From its first task to its last."""
    cpu_seconds: float
    """Of all tasks run, added up."""
    peak_mb: float
    """Largest memory (RSS) of any worker process at the end of one of its tasks."""


@dataclass(frozen=True)
class Statistics:
    """Numbers and examples for the report."""

    sources: tuple[SourceCount, ...]
    """One for each entry of `corpus.sources`."""
    examples: Mapping[str, tuple[Example, ...]]
    """A few dropped documents of each rule."""
    quarantine: Mapping[str, int]
    """Broken records and files, by reason."""
    languages: Mapping[str, int]
    """Documents by detected language ("un" where none could be told); empty if not looked at."""
    document_words: Mapping[int, int]
    """Kept documents by size: n → documents of 2**n up to 2**(n+1) - 1 words."""
    sentence_words: Mapping[int, int]
    """Kept sentences by their number of words; the last, 100, stands for 100 and more."""
    clusters: Mapping[int, int]
    """Groups of near-duplicates by size: documents in the group → groups."""
    duplicate_pairs: int
    """Links between near-duplicates that were found (the union-find's input)."""
    zipf: tuple[tuple[int, int], ...]
    """(rank, count) of train words, ranks growing by about a tenth."""
    coverage: tuple[tuple[int, float], ...]
    """(vocabulary size, share of train words it covers), sizes growing by about a tenth."""
    truncated: Mapping[int, float]
    """max_chars → share of train words a model with that setting cannot read to their end."""
    repaired: Mapping[str, int]
    """Documents changed, by what was done: "mojibake", "encoding", "email", "ip", "phone", "cut"
    (into pieces, by `corpus.cut_documents`)."""
    stages: tuple[StageTime, ...]
    """Speed, stage by stage."""


def to_json(statistics: Statistics) -> bytes:
    """The content of `statistics.json`: equal statistics are equal bytes.

    ASCII with escapes, because an example may hold half a surrogate pair, which UTF-8 cannot.
    """
    return json.dumps(to_data(statistics), sort_keys=True, indent=1).encode() + b"\n"


def gather(into: Gathered, rule: str, key: int, example: Example, *, keep: int = EXAMPLES) -> None:
    """Note a dropped document if its 64-bit hash `key` is among the rule's smallest so far."""
    rows = into.get(rule, ())
    if len(rows) < keep or key <= rows[-1][0]:
        text = example.text[:EXAMPLE_CHARS]
        row = (key, example.source, example.offset, text, example.detail)
        into[rule] = _smallest([*rows, row], keep)


def merge_examples(*parts: Gathered, keep: int = EXAMPLES) -> Gathered:
    """The examples of many tasks: of each rule those with the smallest hashes, in any order of
    tasks the same. Of equal hashes (copies of one text) one stays, the first by its place."""
    merged: dict[str, list[Row]] = {}
    for part in parts:
        for rule, rows in part.items():
            merged.setdefault(rule, []).extend(rows)
    return {rule: _smallest(merged[rule], keep) for rule in sorted(merged)}


def _smallest(rows: list[Row], keep: int) -> tuple[Row, ...]:
    first: dict[int, Row] = {}
    for row in sorted(rows):
        first.setdefault(row[0], row)
    return tuple(first.values())[:keep]


def examples_of(gathered: Gathered) -> dict[str, tuple[Example, ...]]:
    """The gathered examples without their hashes, as `Statistics` has them."""
    return {rule: tuple(Example(*row[1:]) for row in rows) for rule, rows in gathered.items()}


def zipf_points(counts: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """(rank, count) for ranks that grow by about a tenth; `counts` must fall."""
    return tuple((rank, int(counts[rank - 1])) for rank in _grid(counts.size))


def coverage_points(
    counts: NDArray[np.int64], total: int | None = None
) -> tuple[tuple[int, float], ...]:
    """(size, share of `total` that the `size` most frequent words make up); `counts` must fall.

    Without `total`, the counts are all there is.
    """
    covered = np.cumsum(counts, dtype=np.int64)
    whole = max(1, int(counts.sum()) if total is None else total)
    return tuple((size, int(covered[size - 1]) / whole) for size in _grid(counts.size))


def _grid(last: int) -> list[int]:
    """1, 2, 3 … growing by a tenth where that is more than 1; `last` is always there."""
    points = []
    point = 1
    while point < last:
        points.append(point)
        point = max(point + 1, point * 11 // 10)
    return [*points, last] if last else []


def document_histogram(words: NDArray[np.int64]) -> dict[int, int]:
    """Documents by the power of two that their number of words reaches; empty ones are left out."""
    powers = np.int64(1) << np.arange(63, dtype=np.int64)
    bins = np.searchsorted(powers, words[words > 0], side="right") - 1
    return _nonzero(np.bincount(bins))


def sentence_histogram(words: NDArray[np.int64]) -> dict[int, int]:
    """Sentences by their number of words, 100 and more together; empty ones are left out."""
    return _nonzero(np.bincount(np.minimum(words[words > 0], LONGEST_SENTENCE)))


def _nonzero(counts: NDArray[np.int64]) -> dict[int, int]:
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
