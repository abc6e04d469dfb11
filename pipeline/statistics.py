"""What is worth knowing about a corpus besides its manifest: the numbers behind `report.html`.

Gathered task by task as the corpus is built, added up by the driver, saved as `statistics.json`.
Every sample in it (examples of dropped text) is chosen by hash, so equal corpora have equal
statistics, but for the times of `stages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass


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
    """Documents changed, by what was done: "mojibake", "encoding", "email", "ip", "phone"."""
    stages: tuple[StageTime, ...]
    """Speed, stage by stage."""
