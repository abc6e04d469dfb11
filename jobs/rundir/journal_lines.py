"""Reads a journal (journal.py), even if some of its lines are damaged.

A power cut, a bad disk or a careless editor can damage a line in the middle: zeros, random bytes,
half a record joined with the next. Readers return every complete record and skip the rest.
Positions are byte offsets, so a reader that remembers one continues there. If a line contains
several records, all but the last come with the position before the line: a reader that is killed
between them reads the line again.

The writer notes new damage beside the journal, in `journal.jsonl.damaged`: one JSON object per
damaged line, with its position and its first bytes. The journal itself is never rewritten.

A line of more than a megabyte is never a record and is not kept in memory.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elmwright.jobs.rundir.journal_records import Record, parse_record
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import Stat

LINE_BYTES = 1 << 20
"""The longest line that can be a record; real ones have about a kilobyte."""
KEPT_BYTES = 1 << 16
"""Bytes of a damaged line that are noted beside the journal."""
_FAILURES = 16
"""After this many invalid records in one damaged line, its rest is skipped."""
_BEGIN, _DAMAGE = '{"kind": ', "\ufffd"


@dataclass(frozen=True)
class Mark:
    """Position and digest of a damaged line."""

    begin: int
    end: int
    sha256: str


@dataclass(frozen=True)
class Line:
    """A complete line of the journal."""

    begin: int
    """Byte at which it begins."""
    end: int
    """Byte after its newline."""
    data: bytes
    """Its bytes, at most `LINE_BYTES` of them."""
    records: tuple[Record, ...]
    """The complete records in it."""
    damaged: bool
    """Whether it contains anything else."""

    @property
    def mark(self) -> Mark:
        return Mark(self.begin, self.end, hashlib.sha256(self.data).hexdigest())


def read_journal(path: str | Path, start: int) -> Iterator[tuple[Record, int]]:
    """Complete records from byte `start` on, each with the position at which to continue."""
    for line in read_lines(path, start):
        for number, record in enumerate(line.records, 1):
            yield record, line.end if number == len(line.records) else line.begin


def damaged_lines(path: str | Path) -> list[Line]:
    """The lines that contain anything but records."""
    return [line for line in read_lines(path, 0) if line.damaged]


def journal_end(path: str | Path) -> int:
    """Size of the journal in bytes; 0 if there is none."""
    return max((begin + segment.bytes for begin, segment in segments(path)), default=0)


def read_lines(path: str | Path, start: int) -> Iterator[Line]:
    """Complete lines from byte `start` on: of one file, or of the segments in a store."""
    if at(path).is_url:
        yield from _lines_of_segments(path, start)
    elif Path(path).is_file():
        with open(path, "rb") as file:
            file.seek(start)
            yield from _lines_of_file(file, start)


def _lines_of_file(file: BinaryIO, start: int) -> Iterator[Line]:
    """Complete lines: a last line without a newline is still being written."""
    while first := file.readline(LINE_BYTES):
        end, piece = start + len(first), first
        while not piece.endswith(b"\n"):  # too long to be a record: find its end
            piece = file.readline(LINE_BYTES)
            if not piece:
                return
            end += len(piece)
        yield _line(first, start, end)
        start = end


def segments(path: str | Path) -> list[tuple[int, Stat]]:
    """The files of a journal, each with the byte at which it begins, in order; one on a disk."""
    if not at(path).is_url:
        stat = at(path).stat()
        return [(0, stat)] if stat else []
    files = {}
    for file in at(path).list_files():
        # A name with a folder in it is not a number: a copy below the journal is not read.
        name, _, kind = file.path.removeprefix(f"{str(path).rstrip('/')}/").partition(".")
        if kind == "jsonl" and name.isascii() and name.isdigit():
            files[int(name)] = file
    return sorted(files.items())


def _lines_of_segments(folder: str | Path, start: int) -> Iterator[Line]:
    for begin, segment in segments(folder):
        if begin + segment.bytes <= start:
            continue
        if begin > start:  # an old listing: a later one will have what is missing
            return
        data = at(segment.path).read_range(start - begin, segment.bytes)
        for piece in data.removesuffix(b"\n").split(b"\n"):  # a segment has complete lines only
            end = min(start + len(piece) + 1, begin + segment.bytes)
            yield _line(piece[:LINE_BYTES], start, end)
            start = end


def _line(data: bytes, begin: int, end: int) -> Line:
    # Records are written in ASCII, so any other byte is damage.
    text = data.decode("ascii", "replace") if end - begin <= LINE_BYTES else ""
    try:
        record = None if _DAMAGE in text else parse_record(json.loads(text))
    except (ValueError, RecursionError):
        record = None
    if record is not None:
        return Line(begin, end, data, (record,), damaged=False)
    # A blank line fills a hole in the journal of a store.
    return Line(begin, end, data, tuple(_salvage(text)), damaged=bool(data.strip()))


def is_whole(data: bytes) -> bool:
    """Whether these bytes are a record that lacks only its newline."""
    line = _line(data, 0, len(data) + 1)
    return bool(line.records) and not line.damaged


def _salvage(text: str) -> Iterator[Record]:
    """Complete records inside a damaged line, such as one that a cut line was joined with."""
    decoder = json.JSONDecoder()
    start = failures = 0
    while failures < _FAILURES and (start := text.find(_BEGIN, start)) >= 0:
        try:
            content, end = decoder.raw_decode(text, start)
            if _DAMAGE in text[start:end]:
                raise ValueError("a byte that no record has")
            record = parse_record(content)
        except (ValueError, RecursionError):
            record, end = None, start + 1
        if record is None:
            failures += 1
        else:
            yield record
        start = end


def damage_notes_path(path: str | Path) -> str:
    """The path of the notes about damaged lines of a journal."""
    return f"{str(path).rstrip('/')}.damaged"


def known_damage(path: str | Path) -> set[Mark]:
    """The marks of damaged lines that were noted before."""
    notes = at(damage_notes_path(path))
    marks = set()
    for line in notes.read_bytes().split(b"\n") if notes.exists() else []:
        try:
            marks.add(from_data(Mark, json.loads(line), ignore_unknown=True))
        except (ValueError, RecursionError):
            continue  # damaged itself: the damage is noted again
    return marks


def damage_note(line: Line) -> bytes:
    """The note about a damaged line, with its first bytes as Latin-1 characters."""
    note = to_data(line.mark) | {"bytes": line.data[:KEPT_BYTES].decode("latin-1")}
    return json.dumps(note).encode() + b"\n"
