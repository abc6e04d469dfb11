"""statistics.json as the dataclass that was written into it."""

import json
from pathlib import Path

from elmwright.pipeline.report.statistics import Example, SourceCount, StageTime, Statistics

INT_KEYS = ("document_words", "sentence_words", "clusters", "truncated")


def read_statistics(content: bytes) -> Statistics:
    values = json.loads(content)
    for name in INT_KEYS:
        values[name] = {int(key): value for key, value in values[name].items()}
    values["sources"] = tuple(SourceCount(**source) for source in values["sources"])
    values["stages"] = tuple(StageTime(**stage) for stage in values["stages"])
    values["examples"] = {
        rule: tuple(Example(**example) for example in examples)
        for rule, examples in values["examples"].items()
    }
    for name in ("zipf", "coverage"):
        values[name] = tuple((rank, value) for rank, value in values[name])
    return Statistics(**values)


def statistics_of(folder: Path) -> Statistics:
    """The statistics of a finished corpus."""
    return read_statistics((folder / "statistics.json").read_bytes())
