"""Reading a journal (journal.py), whatever has become of some of its lines.

A power cut, a bad disk or a careless editor can damage a line in the middle: zeros, random bytes,
half a record joined with the next. Readers take every record that is whole and skip the rest.
Positions count the bytes that are in the file, so a reader that remembers one continues there.
Where a line holds several records, all but the last come with the position before it: a reader that
is killed between them reads the line again.

The writer notes what it has not seen before beside the journal, in `journal.jsonl.damaged`: one
JSON object per damaged line, with its place and its first bytes. The journal itself is never
rewritten, so nothing is lost and no position moves.

What a record must have is in journal_records.py. A line of more than a megabyte is not kept in
memory and never a record.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from elmwright.jobs.rundir.journal_records import Record, parse_record
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import Stat

LINE_BYTES = 1 << 20
"""The longest line that can be a record; real ones have about a kilobyte."""
KEPT_BYTES = 1 << 16
"""How much of a damaged line is noted beside the journal."""
_FAILURES = 16
"""Beginnings in one damaged line that may turn out to be no records; then the rest is given up."""
_BEGIN, _DAMAGE = '{"kind": ', "\ufffd"


@dataclass(frozen=True)
class Line:
    """A complete line of the journal."""

    begin: int
    """Byte at which it begins."""
    end: int
    """Byte behind its newline."""
    data: bytes
    """Its bytes, at most `LINE_BYTES` of them."""
    records: tuple[Record, ...]
    """The whole records in it."""
    damaged: bool
    """Whether it holds anything else."""

    @property
    def mark(self) -> tuple[int, int, str]:
        """Tells this damage from any other."""
        return self.begin, self.end, hashlib.sha256(self.data).hexdigest()


def read_journal(path: str | Path, start: int) -> Iterator[tuple[Record, int]]:
    """Whole records from byte `start` on, each with the position at which to continue."""
    for line in read_lines(path, start):
        for number, record in enumerate(line.records, 1):
            yield record, line.end if number == len(line.records) else line.begin


def damaged_lines(path: str | Path) -> list[Line]:
    """The lines that hold anything but records."""
    return [line for line in read_lines(path, 0) if line.damaged]


def journal_end(path: str | Path) -> int:
    """Bytes in the journal; 0 where there is none."""
    if at(path).is_url:
        return max((begin + segment.bytes for begin, segment in segments(path)), default=0)
    return Path(path).stat().st_size if Path(path).is_file() else 0


def read_lines(path: str | Path, start: int) -> Iterator[Line]:
    """Complete lines from byte `start` on: of one file, or of the segments in a store."""
    if at(path).is_url:
        yield from _lines_of_segments(path, start)
    elif Path(path).is_file():
        with open(path, "rb") as file:
            file.seek(start)
            yield from _lines_of_file(file, start)


def _lines_of_file(file: BinaryIO, start: int) -> Iterator[Line]:
    """Without the last line, if that has no end: it is still being written."""
    while first := file.readline(LINE_BYTES):
        end, piece = start + len(first), first
        while not piece.endswith(b"\n"):  # too long to be a record: find its end
            piece = file.readline(LINE_BYTES)
            if not piece:
                return
            end += len(piece)
        yield _line(first, start, end)
        start = end


def segments(folder: str | Path) -> list[tuple[int, Stat]]:
    """The segments of a journal in a store, each with the byte at which it begins, in order."""
    found = []
    for file in at(folder).list_files():
        name, _, kind = file.path.rpartition("/")[2].partition(".")
        if kind == "jsonl" and name.isascii() and name.isdigit():
            found.append((int(name), file))
    return sorted(found, key=lambda pair: pair[0])


def _lines_of_segments(folder: str | Path, start: int) -> Iterator[Line]:
    for begin, segment in segments(folder):
        if begin + segment.bytes <= start:
            continue
        if begin > start:  # a listing that is behind: what is between comes with the next one
            return
        data = at(segment.path).read_range(start - begin, segment.bytes)
        for piece in data.removesuffix(b"\n").split(b"\n"):  # a segment holds whole lines
            end = min(start + len(piece) + 1, begin + segment.bytes)
            yield _line(piece[:LINE_BYTES], start, end)
            start = end


def _line(data: bytes, begin: int, end: int) -> Line:
    # Records are written in ASCII: any other byte was not there before.
    text = data.decode("ascii", "replace") if end - begin <= LINE_BYTES else ""
    record = None if _DAMAGE in text else _parsed(text, json.loads)
    if record is not None:
        return Line(begin, end, data, (record,), damaged=False)
    # A blank line is what fills a hole in a store's journal.
    return Line(begin, end, data, tuple(_salvaged(text)), damaged=bool(data.strip()))


def is_whole(data: bytes) -> bool:
    """Whether these bytes are a record that lacks nothing but its newline."""
    line = _line(data, 0, len(data) + 1)
    return bool(line.records) and not line.damaged


def _salvaged(text: str) -> Iterator[Record]:
    """Whole records inside a damaged line, such as the one that a cut line was joined with."""
    decoder, at, behind = json.JSONDecoder(), -1, 0

    def decode(part: str) -> Any:
        nonlocal behind
        content, end = decoder.raw_decode(part, at)
        if _DAMAGE in part[at:end]:
            raise ValueError("a byte that no record has")
        behind = end
        return content

    failures = 0
    while failures < _FAILURES:
        at = text.find(_BEGIN, max(at + 1, behind))
        if at < 0:
            return
        record = _parsed(text, decode)
        if record is None:
            failures += 1
        else:
            yield record


def _parsed(text: str, parse: Callable[[str], Any]) -> Record | None:
    try:
        return parse_record(parse(text))
    except (ValueError, RecursionError):
        return None


def set_aside_path(path: str | Path) -> str:
    """Where damaged lines of a journal are noted."""
    return f"{str(path).rstrip('/')}.damaged"


def known_damage(path: str | Path) -> set[tuple[int, int, str]]:
    """The marks of damaged lines that were noted before."""
    beside = set_aside_path(path)
    marks = set()
    for line in at(beside).read_bytes().split(b"\n") if at(beside).exists() else []:
        try:
            note = json.loads(line)
            marks.add((int(note["begin"]), int(note["end"]), str(note["sha256"])))
        except (ValueError, RecursionError, KeyError, TypeError, OverflowError):
            continue  # damaged itself: the damage is noted again
    return marks


def note_of(line: Line) -> bytes:
    """What is noted of a damaged line; its bytes as characters of Latin-1."""
    begin, end, sha256 = line.mark
    kept = line.data[:KEPT_BYTES].decode("latin-1")
    note = {"begin": begin, "end": end, "sha256": sha256, "bytes": kept}
    return json.dumps(note).encode() + b"\n"
