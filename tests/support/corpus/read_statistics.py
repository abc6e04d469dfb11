"""statistics.json as the dataclass that was written into it."""

import json
from pathlib import Path

from elmwright.pipeline.records import from_data
from elmwright.pipeline.report.statistics import Statistics


def read_statistics(content: bytes) -> Statistics:
    return from_data(Statistics, json.loads(content), largest=1 << 64)


def statistics_of(folder: Path) -> Statistics:
    """The statistics of a finished corpus."""
    return read_statistics((folder / "statistics.json").read_bytes())
