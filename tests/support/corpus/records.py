"""A file as a source of the corpus, and what is read from it."""

from pathlib import Path
from typing import Any

from elmwright.pipeline.config import CorpusConfig, Source
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.readers import Record
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at


def listed(path: Path, config: CorpusConfig | None = None, **fields: Any) -> SourceFile:
    stat = at(path).stat()
    assert stat is not None
    number, split = fields.pop("number", 0), fields.pop("split", "train")
    index = fields.pop("index", 0)
    return sources.source_file(
        stat, number, split, config or CorpusConfig(), Source(**fields), index
    )


def texts(records: list[Record]) -> list[str | None]:
    return [record.text for record in records]


def problems(records: list[Record]) -> list[tuple[int, str]]:
    return [(record.offset, record.problem) for record in records if record.text is None]
