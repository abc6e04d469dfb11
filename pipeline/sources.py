"""Where raw text comes from: find the files, cut them into tasks, read their documents.

Plain text and JSON Lines, each also as .gz, .bz2, .xz or .zst; anything else is taken for plain
text. Files are read as a stream, a document at a time. A document's place is (file, byte offset in
the uncompressed text), which does not depend on how the files were cut into tasks: every later
order that could matter is decided by it.

A broken JSON record is counted and skipped; a file that cannot be read as what it claims to be
stops the build with a sentence, because half a corpus that looks whole is worse than none.
"""

import codecs
import glob
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage import explain

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
JSON_LINES = (".jsonl", ".ndjson")
BOM = b"\xef\xbb\xbf"
EXPANSION = 4
"""How many bytes of text a compressed byte is, about."""


@dataclass(frozen=True)
class SourceFile:
    """One input file, as it was when the build began."""

    path: str
    """Where it is."""
    number: int
    """Its rank among the files of its split: the first part of a document's place."""
    bytes: int
    """Its size."""
    mtime_ns: int
    """Its time of change."""
    split: str
    """`train`, or the name of the held-out set it was given for."""


@dataclass(frozen=True)
class Piece:
    """A byte range of a file that begins and ends at document boundaries."""

    file: SourceFile
    """The file."""
    begin: int
    """First byte."""
    end: int
    """One past the last byte; -1 for the whole file."""


Chunk = tuple[Piece, ...]
"""What one task reads; all of one split."""


def expand(sources: Iterable[str], what: str = "corpus.sources") -> list[Path]:
    """The files that `sources` name, in their order, sorted within each; each file once."""
    found: dict[str, Path] = {}
    for source in sources:
        for path in _expand_one(source, what):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _expand_one(source: str, what: str) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_dir():
        files = [p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path))]
        if not files:
            raise UserError(f"the folder {source} in {what} holds no files; put text there")
        return sorted(files)
    if path.exists():
        return [path]
    if glob.has_magic(source):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        files = sorted(match for match in matches if match.is_file())
        if not files:
            raise UserError(f"{source} in {what} matches no file; check the pattern")
        return files
    raise UserError(f"{source} in {what} does not exist; check the path")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def stat_files(paths: Sequence[Path], split: str) -> list[SourceFile]:
    """Note the size and time of each file; a file that cannot be opened is the user's to mend."""
    files = []
    for number, path in enumerate(paths):
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
        except OSError as error:
            raise UserError(explain(error, path) or f"cannot read {path}: {error}") from error
        files.append(SourceFile(str(path), number, stat.st_size, stat.st_mtime_ns, split))
    return files


def cut(files: Sequence[SourceFile], config: CorpusConfig) -> list[Chunk]:
    """Divide files into tasks of about `chunk_mb` each, the same way every time."""
    limit = max(1, config.chunk_mb * 1_000_000)
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    filled = 0
    for file in files:
        for piece in _pieces(file, config, limit):
            size = file.bytes if piece.end < 0 else piece.end - piece.begin
            if file.path.endswith(COMPRESSED):
                size *= EXPANSION
            if pieces and (filled + size > limit or pieces[0].file.split != file.split):
                chunks.append(tuple(pieces))
                pieces, filled = [], 0
            pieces.append(piece)
            filled += size
    if pieces:
        chunks.append(tuple(pieces))
    return chunks


def _pieces(file: SourceFile, config: CorpusConfig, limit: int) -> list[Piece]:
    by_lines = file.path.endswith(JSON_LINES) or config.documents == "line"
    by_blanks = not by_lines and config.documents == "blank-line"
    whole = file.bytes <= 2 * limit or file.path.endswith(COMPRESSED)
    if whole or not (by_lines or by_blanks) or not _line_bytes(config.encoding):
        return [Piece(file, 0, -1)]
    edges = [0]
    with open(file.path, "rb") as stream:
        while edges[-1] + limit < file.bytes:
            # The line in which we land belongs to the piece before.
            stream.seek(edges[-1] + limit)
            stream.readline()
            if by_blanks:
                while (line := stream.readline()) and line.strip():
                    pass
            if stream.tell() >= file.bytes:
                break
            edges.append(stream.tell())
    ends = [*edges[1:], file.bytes]
    return [Piece(file, begin, end) for begin, end in zip(edges, ends, strict=True)]


def _line_bytes(encoding: str) -> bool:
    """Whether lines of this encoding can be found as bytes, before decoding."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise UserError(
            f"corpus.encoding = {encoding!r} is not an encoding Python knows; use one such as "
            "utf-8, latin-1 or cp1252"
        ) from None
    return name in ("utf-8", "utf-8-sig", "ascii") or name.startswith(("iso8859-", "cp125", "koi8"))


def read(piece: Piece, config: CorpusConfig) -> Iterator[tuple[int, str | None]]:
    """(offset, text) of every document of a piece; the text is None where a record is broken."""
    path = Path(piece.file.path)
    stat = os.stat(path)
    if (stat.st_size, stat.st_mtime_ns) != (piece.file.bytes, piece.file.mtime_ns):
        raise UserError(f"{path} changed while the corpus was being built; run the command again")
    try:
        yield from _documents(piece, config)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); replace it") from error
    except OSError as error:
        sentence = explain(error, path) or f"{path} is truncated or damaged ({error}); replace it"
        raise UserError(sentence) from error


def _documents(piece: Piece, config: CorpusConfig) -> Iterator[tuple[int, str | None]]:
    name = _plain_name(piece.file.path)
    json_lines = name.endswith(JSON_LINES)
    with _open(piece.file.path) as stream:
        if not _line_bytes(config.encoding):
            # Lines cannot be told apart before decoding (UTF-16 and such): read all, as UTF-8.
            text = _decode(stream.read(), config.encoding, piece, 0)
            lines = _lines(io.BytesIO(text.encode("utf-8", "surrogatepass")), 0, -1)
            encoding = "utf-8"
        else:
            lines = _lines(stream, piece.begin, piece.end)
            encoding = config.encoding
        if json_lines:
            yield from _json_documents(lines, piece, config.text_field, encoding)
        else:
            for offset, raw in _gather(lines, config.documents):
                yield offset, _decode(raw, encoding, piece, offset)


def _lines(stream: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    offset = begin
    if begin:
        stream.seek(begin)
    while (end < 0 or offset < end) and (line := stream.readline()):
        # Some editors begin UTF-8 files with a byte-order mark; it is not text.
        yield offset, line.removeprefix(BOM) if offset == 0 else line
        offset += len(line)


def _gather(lines: Iterator[tuple[int, bytes]], how: str) -> Iterator[tuple[int, bytes]]:
    """Documents as bytes: single lines, lines up to an empty one, or everything."""
    begin, gathered = 0, list[bytes]()
    for offset, line in lines:
        blank = not line.strip()
        if how == "line":
            if not blank:
                yield offset, line
        elif blank and how == "blank-line":
            if gathered:
                yield begin, b"".join(gathered)
            gathered = []
        else:
            if not gathered:
                begin = offset
            gathered.append(line)
    if gathered:
        yield begin, b"".join(gathered)


def _json_documents(
    lines: Iterator[tuple[int, bytes]], piece: Piece, field: str, encoding: str
) -> Iterator[tuple[int, str | None]]:
    good = bad = 0
    for offset, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(_decode(line, encoding, piece, offset))
            text = record[field]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if isinstance(text, str):
            good += 1
            yield offset, text
        else:
            bad += 1
            yield offset, None
    if bad and not good and piece.begin == 0:
        raise UserError(
            f'no record of {piece.file.path} is a JSON object with a text in its field "{field}"; '
            "set corpus.text_field to the field that holds the text"
        )


def _decode(raw: bytes, encoding: str, piece: Piece, offset: int) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{piece.file.path} is not valid {encoding} at byte {offset + error.start}; set "
            "corpus.encoding to its encoding (latin-1, cp1252, …) or convert the file to UTF-8"
        ) from error


def _plain_name(path: str) -> str:
    """The name without the ending of a compression."""
    return path[: path.rindex(".")] if path.endswith(COMPRESSED) else path


def _open(path: str) -> BinaryIO:
    """The uncompressed content of a file, as a stream."""
    import bz2
    import gzip

    if path.endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.endswith(".bz2"):
        return io.BufferedReader(bz2.open(path, "rb"))
    if path.endswith(".xz"):
        return io.BufferedReader(lzma.open(path, "rb"))
    if path.endswith(".zst"):
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))
    return open(path, "rb")
