"""The documents of a `Piece` (a source file or a part of one), in bounded memory.

Every format gives a stream of `Record`s. An unusable record has a problem instead of a text. A file
that breaks half-way gives the documents before the break, then one such record. With
`corpus.strict` the first problem stops the build instead.

Text and JSON Lines are read in blocks of whole lines, and documents are found by a search over a
block. Measured in MB of input per CPU second, with documents of 2.3 KB: plain text 290 to 580, JSON
Lines 200 (130 if many letters are not ASCII), the same in gzip 115, Parquet 330.

A line larger than `max_document_mb` is skipped without being held in memory. Only the objects that
are parsed from a line of JSON may take more memory than that.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import parquet, web
from elmwright.pipeline.reading.cutting import cut
from elmwright.pipeline.reading.decode import (
    BOM,
    blocks,
    decode,
    not_text,
    peek,
    recoded,
    wide,
    without_surrogates,
)
from elmwright.pipeline.reading.record import NO_FIELD, RAW, Broken, Record, too_large
from elmwright.pipeline.reading.sources import Piece, SourceFile
from elmwright.pipeline.storage.files import at

__all__ = ["Record", "read"]

MEGABYTE = 1_000_000
BLANK = re.compile(rb"\n(?:[ \t\r\x0b\x0c]*\n)+")
"""The end of a line and the blank lines after it."""
SURROGATE = re.compile(rb"\\u[dD]")
"""The escape in JSON that may be half a character."""
JSON = json.JSONDecoder(strict=False)
"""Accepts control characters in texts: tabs and zeros are common, and harmless."""

Span = tuple[int, bytes, int]
"""Offset, bytes and size of a document or of whole lines. Fewer bytes than the size are only the
beginning, because the document is too large."""


def read(piece: Piece, config: CorpusConfig) -> Iterator[Record]:
    """The documents and broken records of a piece, in order."""
    file = piece.file
    _check_unchanged(file)
    try:
        for record in _records(piece, config.max_document_mb * MEGABYTE):
            if record.text is None and config.strict:
                raise _refusal(file, record)
            if config.cut_documents and len(record.text or "") > config.cut_documents:
                yield from _cut_record(record, config.cut_documents, file.format)
            else:
                yield record
    except Broken as broken:
        record = Record(broken.offset, None, broken.problem, broken.detail, broken.raw)
        if config.strict:
            raise _refusal(file, record) from broken
        yield record


def _cut_record(record: Record, limit: int, format_: str) -> Iterator[Record]:
    """A document in pieces. No other piece or document of the file has the offset of a piece."""
    apart = 1 << 40 if format_ == "parquet" else 1  # offsets in Parquet are numbers of rows
    for number, text in enumerate(cut(record.text or "", limit)):
        yield record._replace(offset=record.offset + number * apart, text=text, piece=number + 1)


def _check_unchanged(file: SourceFile) -> None:
    if not at(file.path).is_unchanged(file.bytes, file.mtime_ns):
        raise UserError(
            "source", f"{file.path} changed while the corpus was being built; run the command again"
        )


def _refusal(file: SourceFile, record: Record) -> UserError:
    """The error that stops a strict build."""
    unit = "row" if file.format == "parquet" else "byte"
    place = f"{file.path}, {unit} {record.offset}"
    if record.problem == NO_FIELD:
        return UserError(
            "no-text",
            f'{place}: no text in the field "{file.text_field}" ({record.detail}); set '
            "corpus.text_field to the field that holds the text, or corpus.strict = false",
        )
    detail = f" ({record.detail})" if record.detail else ""
    return UserError(
        "source",
        f"{place}: {record.problem}{detail}; mend or remove it, or set corpus.strict = false",
    )


def _records(piece: Piece, limit: int) -> Iterator[Record]:
    file = piece.file
    if file.format == "parquet":
        yield from parquet.rows(piece, limit)
        return
    with at(file.path).reading() as stream:
        source = blocks(stream, file.path, piece.begin, piece.end)
        if file.format in ("warc", "arc"):
            read_archive = web.warc if file.format == "warc" else web.arc
            yield from read_archive(source, file.encoding, limit)
        else:
            yield from _text(source, piece, limit)


def _text(source: Iterator[bytes], piece: Piece, limit: int) -> Iterator[Record]:
    file, begin = piece.file, piece.begin
    encoding = file.encoding
    if piece.begin == 0:
        head, source = peek(source)
        if what := not_text(head, encoding):
            raise Broken("not text", what, 0, head[:RAW])
        if actual := wide(head, encoding):
            source, encoding = recoded(source, actual), "utf-8"
        begin, source = _without_bom(source)
    if file.format == "html":
        for offset, raw, size in _whole(source, begin, limit):
            if len(raw) < size:
                yield too_large(offset, raw, size)
            else:
                yield from web.page(raw, offset, encoding)
    elif file.format == "jsonl":
        yield from _jsonl(_lines(source, begin, limit), file.text_field, encoding)
    else:
        split = {"line": _lines, "blank-line": _blank_line, "file": _whole}[file.documents]
        for offset, raw, size in split(source, begin, limit):
            if len(raw) < size:
                yield too_large(offset, raw, size)
            else:
                text, repaired = decode(raw, encoding)
                # In text that was recoded, bad bytes are U+FFFD already.
                repaired = repaired or (encoding != file.encoding and "\ufffd" in text)
                yield Record(offset, text, repaired=repaired)


def _without_bom(source: Iterator[bytes]) -> tuple[int, Iterator[bytes]]:
    """Where the text begins after a byte-order mark, and the text from there on."""
    head, source = peek(source)
    if not head.startswith(BOM):
        return 0, source

    def rest() -> Iterator[bytes]:
        skipped = len(BOM)
        for block in source:
            yield block[skipped:]
            skipped = max(0, skipped - len(block))

    return len(BOM), rest()


def _whole_lines(source: Iterator[bytes], offset: int, limit: int) -> Iterator[Span]:
    """Blocks of whole lines; a line that is larger than the limit is a block, cut short."""
    held: list[bytes] = []
    size = 0
    for block in source:
        first = block.find(b"\n")
        if first < 0:
            if size <= limit:
                held.append(block)
            size += len(block)
            continue
        start = 0
        if size + first > limit:
            yield _cut_short(offset, b"".join(held) + block[:first], size + first, limit)
            offset += size + first + 1
            start, held = first + 1, []
        last = block.rfind(b"\n") + 1
        if data := b"".join([*held, block[start:last]]):
            yield offset, data, len(data)
            offset += len(data)
        held = [block[last:]]
        size = len(held[0])
    if size > limit:
        yield _cut_short(offset, b"".join(held), size, limit)
    elif size:
        yield offset, b"".join(held), size


def _cut_short(offset: int, raw: bytes, size: int, limit: int) -> Span:
    return offset, raw[: min(RAW, limit)], size


def _lines(source: Iterator[bytes], offset: int, limit: int) -> Iterator[Span]:
    """Lines that are not blank."""
    for begin, data, total in _whole_lines(source, offset, limit):
        if len(data) < total:
            yield begin, data, total
            continue
        place = begin
        for line in data.split(b"\n"):
            size = len(line)
            if size > limit:
                yield _cut_short(place, line, size, limit)
            elif size and not line.isspace():
                yield place, line, size
            place += size + 1


def _blank_line(source: Iterator[bytes], offset: int, limit: int) -> Iterator[Span]:
    """Runs of lines that are not blank."""
    document = _Document(limit)
    for place, data, total in _whole_lines(source, offset, limit):
        if len(data) < total:
            document.add(place, data, total + 1)  # with its line end
            continue
        # With a line end in front, blank lines at the beginning look like all others.
        lines = b"\n" + data
        begin = 1
        for blank in BLANK.finditer(lines):
            last = blank.start() + 1
            if document.size:
                document.add(place, lines[begin:last], last - begin)
                yield from document.take()
            elif 0 < last - begin <= limit + 1:
                yield place + begin - 1, lines[begin : last - 1], last - 1 - begin
            elif last > begin:
                yield _cut_short(place + begin - 1, lines[begin:last], last - 1 - begin, limit)
            begin = blank.end()
        if begin < len(lines):
            document.add(place + begin - 1, lines[begin:], len(lines) - begin)
    yield from document.take()


class _Document:
    """A document of which only a part has been seen."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.begin = self.size = 0
        self.parts: list[bytes] = []

    def add(self, offset: int, data: bytes, size: int) -> None:
        """Append `size` bytes, of which `data` may be only the beginning."""
        if not self.size:
            self.begin = offset
        if self.size <= self.limit:
            self.parts.append(data)
        self.size += size

    def take(self) -> Iterator[Span]:
        """The document without its last line end, unless it is blank, and start the next one."""
        raw, size = b"".join(self.parts), self.size
        self.parts, self.size = [], 0
        if raw.endswith(b"\n"):
            raw, size = raw[:-1], size - 1
        if size > self.limit:
            yield _cut_short(self.begin, raw, size, self.limit)
        elif raw and not raw.isspace():
            yield self.begin, raw, size


def _whole(source: Iterator[bytes], offset: int, limit: int) -> Iterator[Span]:
    """Everything, as one document."""
    document = _Document(limit)
    for block in source:
        document.add(offset, block, len(block))
    yield from document.take()


def _jsonl(spans: Iterator[Span], field: str, encoding: str) -> Iterator[Record]:
    for offset, line, size in spans:
        if len(line) < size:
            yield too_large(offset, line, size)
            continue
        content, repaired = decode(line, encoding)
        try:
            record = _parse(content.strip())
        except (ValueError, RecursionError) as error:
            yield Record(offset, None, "broken JSON", str(error)[:200], line[:RAW])
            continue
        text = record.get(field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            yield Record(offset, None, NO_FIELD, _describe(record), line[:RAW])
            continue
        if not text.isascii() and SURROGATE.search(line):
            text, halves = without_surrogates(text)
            repaired = repaired or halves
        yield Record(offset, text, repaired=repaired)


def _parse(content: str) -> Any:
    # The scanner alone is a quarter faster than `decode`, which explains errors.
    try:
        record, end = JSON.scan_once(content, 0)  # type: ignore[attr-defined]
    except StopIteration:
        return JSON.decode(content)
    return record if end == len(content) else JSON.decode(content)


def _describe(record: Any) -> str:
    if isinstance(record, dict):
        return "the fields are " + ", ".join(list(record)[:20])[:200]
    return "not a JSON object"
