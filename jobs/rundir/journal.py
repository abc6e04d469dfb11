"""Writes a run's journal: the record of what happened, which everything else is read from.

It has one JSON object per line (journal_records.py), appended by rank 0 and by `elmwright prune`. A
complete record is never changed. The tracker sends the records to MLflow (tracker.py), and the
progress display shows them. A step that is computed again after a crash keeps its first record and
timestamp, so sending it to MLflow again does not duplicate it.

A thread writes the records, so a slow disk or store does not delay training. On a disk the journal
is one file. A store cannot append, so there it is a folder of segments, each named after the byte
at which it begins (`000000004096.jsonl`). The newest segment is replaced by a longer one every few
seconds until it is full. Positions count bytes over all segments, so readers see no difference.

While the journal cannot be written (a full disk, a store that does not answer), training continues
and records wait in memory. They must be written before a checkpoint is committed (`flush`), because
steps before a checkpoint are never computed again.

Steps 1, 5 and 10 of an attempt have their own record. So the remaining time is known from the tenth
step on, even if metrics are rarely written, and the slow first step does not distort it.

`journal_lines.py` skips damaged lines. Opening the journal notes new ones in a file beside it,
whose name ends in `.damaged`, and writes a record of kind "warning", which the terminal shows.
"""

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elmwright.jobs.rundir.journal_lines import (
    LINE_BYTES,
    Line,
    damage_note,
    damage_notes_path,
    is_whole,
    known_damage,
    read_lines,
    segments,
)
from elmwright.jobs.rundir.journal_records import (
    CheckpointPruned,
    CheckpointSaved,
    Record,
    WarningGiven,
)
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at, join

log = logging.getLogger("elmwright")

FILE_SECONDS, SEGMENT_SECONDS = 0.2, 5.0
"""Seconds between writes to a file and to a store. A failed write is retried after the latter."""
SEGMENT_BYTES = 1 << 20
"""Size at which a segment in a store is full."""
LARGEST_HOLE = 16 << 20
"""The most bytes that may be missing between two segments. A larger gap suggests a wrong name."""
HOLE_SECONDS = 2.0
"""Seconds after which a segment that is not listed is treated as missing."""


class Journal:
    """Writes a journal.

    Opening one on a disk removes an incomplete last line, and completes a last record that lacks
    only its newline. Opening one in a store replaces missing segments with blank ones. Both note
    damaged lines.
    """

    def __init__(self, path: str | Path, guard: Callable[[], None] = lambda: None) -> None:
        """`guard` is called before every write, and raises if this process may not write."""
        self._path, self._guard = str(path), guard
        self._lock = threading.Lock()
        """Protects `_identities` and `_waiting`; not held while records are written."""
        self._sending = threading.Lock()
        self._waiting: list[Record] = []
        self._identities: dict[tuple[type[Record], int], str] = {}
        """(kind, step) → identity of the last such record."""
        self._begin = self._end = 0
        self._segment = b""
        """The newest segment, from byte `_begin` on."""
        self._closed = threading.Event()
        self._has_waiting = threading.Event()
        self._guard_error: RuntimeError | None = None
        self._descriptor = -1
        if not at(path).is_url:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _end_last_line(self._descriptor)
        else:
            _fill_holes(self._path)
        damaged: list[Line] = []
        last = 0
        for line in read_lines(path, 0):
            self._begin = self._end = line.end
            damaged += [line] if line.damaged else []
            for record in line.records:
                self._remember(record)
                last = max(last, record.step)
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, self._end)
        self.damage = _note_damage(self._path, damaged) if damaged else ""
        """A sentence about newly damaged lines, if there are any."""
        if self.damage:
            self.write(WarningGiven(step=last, text=self.damage))
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, record: Record) -> None:
        """Append a record, unless the journal has one of its kind, step and identity.

        Raises the guard's error if the guard refused an earlier record.
        """
        if self._guard_error is not None:
            raise self._guard_error
        with self._lock:
            written = self._identities.get((type(record), record.step))
            if written == record.identity or self._closed.is_set():
                return
            self._waiting.append(record)
            self._remember(record)
        self._has_waiting.set()

    def flush(self) -> None:
        """Write every record to the disk or store."""
        self._send()
        if self._descriptor >= 0:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Write the waiting records and end the thread; later records are ignored."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._has_waiting.set()
        self._thread.join()
        try:
            self._send()
        finally:
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def _remember(self, record: Record) -> None:
        """Remember a record's identity. A pruned checkpoint may be saved and pruned again."""
        if isinstance(record, CheckpointSaved):
            self._identities.pop((CheckpointPruned, record.step), None)
        elif isinstance(record, CheckpointPruned):
            self._identities.pop((CheckpointSaved, record.step), None)
        self._identities[type(record), record.step] = record.identity

    def _work(self) -> None:
        pause = usual = SEGMENT_SECONDS if self._descriptor < 0 else FILE_SECONDS
        while not self._closed.wait(pause):
            self._has_waiting.wait()
            self._has_waiting.clear()
            pause = SEGMENT_SECONDS
            try:
                self._send()
                pause = usual
            except Exception as error:  # a store fails in many ways; `flush` reports it
                if self._guard_error is not None:
                    return
                self._has_waiting.set()
                log.warning("the journal cannot be written, its records wait in memory: %s", error)

    def _send(self) -> None:
        """Write the waiting records, or keep them if that fails."""
        with self._sending:
            with self._lock:
                records = list(self._waiting)
            if not records:
                return
            try:
                self._guard()
            except RuntimeError as error:
                self._guard_error = error
                with self._lock:
                    self._waiting.clear()  # a newer attempt has begun
                raise
            lines = [json.dumps({"kind": r.kind, **to_data(r)}) + "\n" for r in records]
            data = "".join(lines).encode()
            if self._descriptor >= 0:
                self._append(data)
            else:
                self._replace_segment(data)
            with self._lock:
                del self._waiting[: len(records)]

    def _append(self, data: bytes) -> None:
        end = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        except OSError:
            os.ftruncate(self._descriptor, end)  # half a line would damage the next one
            raise

    def _replace_segment(self, data: bytes) -> None:
        """Write the newest segment again with `data` added. Two weeks of training fill a few
        hundred segments."""
        at(join(self._path, f"{self._begin:012d}.jsonl")).write_bytes(self._segment + data)
        self._segment += data
        self._end += len(data)
        if len(self._segment) >= SEGMENT_BYTES:
            self._begin, self._segment = self._end, b""


def _end_last_line(descriptor: int) -> None:
    """Write the newline of a last record that lacks only that."""
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, LINE_BYTES, max(0, size - LINE_BYTES))
    if is_whole(end.rpartition(b"\n")[2]):
        try:
            os.write(descriptor, b"\n")
        except OSError as error:  # a full disk: the record will be removed
            log.warning("the last record of the journal will be written again: %s", error)


def _note_damage(path: str, damaged: list[Line]) -> str:
    """Note damaged lines beside the journal; return a sentence about the new ones."""
    try:
        known = known_damage(path)
        new = [line for line in damaged if line.mark not in known]
        if not new:
            return ""
        notes = damage_notes_path(path)
        before = at(notes).read_bytes() if at(notes).exists() else b""
        at(notes).write_bytes(before + b"".join(map(damage_note, new)))
    except (OSError, UserError) as error:
        log.warning("damaged lines of the journal %s could not be noted: %s", path, error)
        return ""
    return (
        f"the journal {path} has {plural(len(new), 'damaged line')}, the first at byte "
        f"{new[0].begin}; what is readable is used, and the damaged bytes are noted in {notes}"
    )


def _fill_holes(folder: str) -> None:
    """Replace missing segments with blank ones, so that readers can continue after them."""
    for pause in (HOLE_SECONDS, 0.0):
        holes, end = [], 0
        for begin, segment in segments(folder):
            if begin > end:
                holes.append((end, begin))
            end = max(end, begin + segment.bytes)
        if not holes:
            return
        time.sleep(pause)  # a listing may be out of date
    for begin, end in holes:
        if end - begin > LARGEST_HOLE:
            raise UserError(
                "file-damaged",
                f"the journal {folder} is missing bytes {begin} to {end}; move the segment after "
                f"them ({end:012d}.jsonl) to another folder, or copy the missing segment back",
            )
        name = join(folder, f"{begin:012d}.jsonl")
        segment_stat = at(name).stat()
        if segment_stat is not None and segment_stat.bytes:  # an empty one is missing, too
            raise UserError(
                "store-failed",
                f"the store does not list {name}, which exists; run the same command again later",
            )
        at(name).write_bytes(b" " * (end - begin - 1) + b"\n")
        log.warning("the journal %s is missing bytes %d to %d", folder, begin, end)
