"""The files of a source, cut into tasks.

A task reads about `chunk_mb` of input. Text and JSON Lines are cut at document boundaries, found by
a seek and a short scan, and Parquet at row groups. Compressed files, web archives and pages stay
whole. So a few large .gz files make a few long tasks: split such files before, or use Parquet.

A document's place is (number of its file, offset in the uncompressed text), which does not depend
on the cuts and decides every later order. A task never mixes sources, so adding a source does not
change the tasks of the others.
"""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from elmwright.pipeline.config import CorpusConfig, Source
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading.decode import (
    HEAD,
    check_encoding,
    compression,
    not_text,
    plain_name,
    wide,
)
from elmwright.pipeline.storage.disk import explained
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import Stat

MEGABYTE = 1_000_000
EXPANSION = 4
"""Bytes of text per compressed byte, about."""
LINE = 1 << 16
"""Bytes of a line that are read at once in search of a cut."""
FORMATS = {
    (".jsonl", ".ndjson"): "jsonl",
    (".parquet",): "parquet",
    (".warc", ".wet"): "warc",
    (".arc",): "arc",
    (".html", ".htm", ".xhtml"): "html",
}
"""The format of a file by the ending of its name; any other is text."""


@dataclass(frozen=True)
class SourceFile:
    """One input file, as it was when the build began, and how to read it."""

    path: str
    """Path or URL."""
    number: int
    """Its rank among the files of its split: the first part of a document's place."""
    bytes: int
    """Its size."""
    mtime_ns: int
    """Its time of change."""
    split: str
    """`train`, or the name of the held-out set it was given for."""
    source: int = 0
    """Which of `corpus.sources` it belongs to; 0 for held-out files."""
    format: str = "text"
    """text, jsonl, parquet, warc, arc or html."""
    documents: str = "blank-line"
    """What separates documents in plain text."""
    text_field: str = "text"
    """Field or column that holds the text."""
    encoding: str = "auto"
    """Its encoding."""
    name: str = ""
    """Its name in lists and reports: relative to the current folder, if it is below that."""
    sha256: str = ""
    """Digest of its content, once it is known."""

    def identity(self) -> tuple[str, ...]:
        """Names of the fields that determine the result of a task.

        If the digest is known, path and time do not matter, so tasks still count as done after a
        project was moved or copied.
        """
        irrelevant = ("path", "mtime_ns") if self.sha256 else ()
        return tuple(item.name for item in fields(self) if item.name not in irrelevant)


@dataclass(frozen=True)
class Piece:
    """A range of a file that begins and ends at document boundaries."""

    file: SourceFile
    begin: int
    """First byte; first row group in Parquet."""
    end: int
    """One past the last; -1 for the whole file."""


Chunk = tuple[Piece, ...]
"""The input of one task, all of one split and one source."""


def expand(source: str, what: str = "corpus.sources") -> list[Stat]:
    """The files that a path, folder, glob or URL names, sorted by path."""
    if at(source).is_url:
        return _expand_url(source, what)
    path = os.path.abspath(os.path.expanduser(source))
    with explained(Path(path)):
        if os.path.isdir(path):
            found = [file for file in at(path).list_files() if os.path.isfile(file.path)]
            return _visible(found, path, source, what)
        if os.path.isfile(path) and (stat := at(path).stat()):
            return [stat]
        if os.path.exists(path):
            raise UserError(
                "file-unreadable", f"{source} in {what} is neither a file nor a folder; name a file"
            )
        return _expand_glob(path, source, what)


def _expand_url(source: str, what: str) -> list[Stat]:
    if not source.endswith("/") and (stat := at(source).stat()):
        return [stat]
    if glob.has_magic(source):
        return _expand_glob(source, source, what)
    if found := at(source.rstrip("/")).list_files():
        return _visible(found, source, source, what)
    raise UserError("file-missing", f"{source} in {what} does not exist; check the path")


def _expand_glob(pattern: str, source: str, what: str) -> list[Stat]:
    if not glob.has_magic(source):
        raise UserError("file-missing", f"{source} in {what} does not exist; check the path")
    found = at(pattern).glob()
    if not found:
        raise UserError("file-missing", f"{source} in {what} matches no file; check the pattern")
    return found


def _visible(found: list[Stat], folder: str, source: str, what: str) -> list[Stat]:
    """Without hidden files, and without the empty markers that stores keep for folders."""
    start = len(folder.rstrip("/"))
    kept = [file for file in found if "/." not in file.path[start:] and not file.path.endswith("/")]
    if not kept:
        raise UserError("no-text", f"the folder {source} in {what} holds no files; put text there")
    return kept


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(
            "file-unreadable",
            f"the name {path.encode('utf-8', 'backslashreplace').decode()} is not UTF-8; rename "
            "the file or leave it out of corpus.sources",
        ) from None


def source_file(
    stat: Stat,
    number: int,
    split: str,
    config: CorpusConfig,
    source: Source | None = None,
    index: int = 0,
) -> SourceFile:
    """A file with its settings: those of its source, else those of the corpus."""
    _check_name(stat.path)
    source = source or Source()
    format_ = _format(stat.path, source.format)
    if format_ == "parquet" and compression(stat.path):
        raise UserError(
            "file-unreadable",
            f"{stat.path} is Parquet inside another compression, which cannot be read in parts; "
            "unpack it (Parquet is compressed inside)",
        )
    encoding = source.encoding or config.encoding
    check_encoding(encoding)
    return SourceFile(
        path=stat.path,
        number=number,
        bytes=stat.bytes,
        mtime_ns=stat.mtime_ns,
        split=split,
        source=index,
        format=format_,
        documents=source.documents or config.documents,
        text_field=source.text_field or config.text_field,
        encoding=encoding,
        name=relative_to(os.getcwd(), stat.path),
    )


def relative_to(folder: str, path: str) -> str:
    """A path relative to a folder that contains it; other paths and URLs unchanged."""
    prefix = f"{folder.rstrip('/')}/"
    return path[len(prefix) :] if path.startswith(prefix) else path


def _format(path: str, given: str) -> str:
    name = plain_name(path)
    by_name = next((kind for ends, kind in FORMATS.items() if name.endswith(ends)), "text")
    if given == "auto" or (given == "warc" and by_name == "arc"):
        return by_name
    return given


def check_readable(files_: Sequence[SourceFile]) -> None:
    """Open each local file once, so that a missing permission shows now and not in an hour."""
    for file in files_:
        if at(file.path).is_url:
            continue
        try:
            with at(file.path).reading():
                pass
        except OSError as error:
            raise UserError(
                "file-unreadable", f"cannot read {file.path} ({error.strerror}); check it"
            ) from error


def cut(files_: Sequence[SourceFile], config: CorpusConfig) -> list[Chunk]:
    """Divide files into tasks of about `chunk_mb` each, the same way every time."""
    limit = max(1, config.chunk_mb * MEGABYTE)
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    filled = 0
    for file in files_:
        for piece, size in _pieces(file, limit):
            first = pieces[0].file if pieces else file
            mixed = (first.split, first.source) != (file.split, file.source)
            if pieces and (mixed or filled + size > limit):
                chunks.append(tuple(pieces))
                pieces, filled = [], 0
            pieces.append(piece)
            filled += size
    if pieces:
        chunks.append(tuple(pieces))
    return chunks


def _pieces(file: SourceFile, limit: int) -> list[tuple[Piece, int]]:
    """The pieces of a file, each with its approximate bytes of text."""
    packed = EXPANSION if compression(file.path) else 1
    whole = [(Piece(file, 0, -1), file.bytes * packed)]
    if file.bytes <= 2 * limit or packed > 1:
        return whole
    if file.format == "parquet":
        return _row_groups(file, limit) or whole
    if file.format == "jsonl" or (file.format == "text" and file.documents != "file"):
        ranges = pairwise(_edges(file, limit))
        return [(Piece(file, begin, end), end - begin) for begin, end in ranges] or whole
    return whole


def _edges(file: SourceFile, limit: int) -> list[int]:
    """Where pieces begin, and the last ends; empty if lines cannot be found as bytes."""
    blanks = file.format == "text" and file.documents == "blank-line"
    with at(file.path).reading() as stream:
        head = stream.read(HEAD)
        if wide(head, file.encoding) or not_text(head, file.encoding):
            return []
        edges = [0]
        while edges[-1] + limit < file.bytes:
            # The line at this place belongs to the piece before.
            stream.seek(edges[-1] + limit)
            _skip_line(stream)
            while blanks and not _skip_line(stream):
                pass
            if stream.tell() >= file.bytes:
                break
            edges.append(stream.tell())
    return [*edges, file.bytes]


def _skip_line(stream: BinaryIO) -> bool:
    """Skip a line; whether it was blank (and short), or the end of the file."""
    line = part = stream.readline(LINE)
    while part and not part.endswith(b"\n"):
        part = stream.readline(LINE)
    return not line.strip() and len(line) < LINE


def _row_groups(file: SourceFile, limit: int) -> list[tuple[Piece, int]]:
    """Runs of row groups with about `limit` bytes of text; none if the file is damaged."""
    from pyarrow import parquet

    with at(file.path).reading() as stream:
        try:
            metadata = parquet.ParquetFile(stream).metadata
        except (ValueError, OSError):
            return []  # reported by the task that reads it
        sizes = [_text_bytes(metadata.row_group(n), file) for n in range(metadata.num_row_groups)]
    pieces: list[tuple[Piece, int]] = []
    begin = filled = 0
    for number, size in enumerate(sizes):
        if number > begin and filled + size > limit:
            pieces.append((Piece(file, begin, number), filled))
            begin, filled = number, 0
        filled += size
    if sizes:
        pieces.append((Piece(file, begin, len(sizes)), filled))
    return pieces


def _text_bytes(group: Any, file: SourceFile) -> int:
    """Uncompressed bytes of the text column in a row group."""
    columns = [group.column(n) for n in range(group.num_columns)]
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == file.text_field)
