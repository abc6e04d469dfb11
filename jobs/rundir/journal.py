"""The run's own record of what happened, written before it is sent anywhere else.

One JSON object per line, appended by rank 0 (and by `elmwright prune`); a record, once whole, is
never changed. MLflow is fed from it (tracker.py) and so is the progress display. A step that is
computed again after a crash keeps the record, and with it the timestamp, of the first time: so a
replay to MLflow merges instead of doubling.

The loop only hands its records over; a thread writes them, so that a slow disk or store costs no
training time. On a disk the journal is one file. A store cannot append, so there it is a folder of
segments, each named after the byte at which it begins (`000000004096.jsonl`); the newest grows,
written again every few seconds, until it is full. Positions count bytes over all segments, so
readers see no difference.

A journal that cannot be written for the moment (a full disk, a store that does not answer) does not
stop training: lines wait in memory and are written with the next ones. Before a checkpoint is
committed they must be on disk (`flush`): steps before a checkpoint are never computed again.

Records are JSON objects that begin with "kind", "step" and "time" (journal_records.py). Steps 1, 5
and 10 of an attempt have a record of their own: the time left is known from the tenth on, however
rarely metrics are written, and the slow first step does not spoil it.

A damaged line stops nobody: `journal_lines.py` reads around it. Opening the journal notes it in a
file beside it, whose name ends in `.damaged`, and writes one record of kind "warning", which the
terminal shows.
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
    damaged_lines,
    is_whole,
    journal_end,
    known_damage,
    note_of,
    read_journal,
    read_lines,
    segments,
    set_aside_path,
)
from elmwright.jobs.rundir.journal_records import (
    CheckpointPruned,
    CheckpointSaved,
    Record,
    WarningGiven,
    record_data,
)
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at, join

__all__ = [
    "Journal",
    "Record",
    "damaged_lines",
    "journal_end",
    "read_journal",
    "set_aside_path",
]

log = logging.getLogger("elmwright")

FILE_SECONDS, SEGMENT_SECONDS = 0.2, 5.0
"""Seconds between writes to a file and to a store; a failed write is tried again after the latter.
"""
SEGMENT_BYTES = 1 << 20
"""When a segment in a store is full."""
LARGEST_HOLE = 16 << 20
"""Bytes that may be missing between two segments: some that were lost, not a name that is wrong."""
HOLE_SECONDS = 2.0
"""Seconds after which a segment that is not listed is not there."""


class Journal:
    """Writes a journal.

    Opening one on a disk removes a last line that a kill left half written; a last record that
    lacks only its newline gets it. Opening one in a store puts blank segments where some were lost.
    Both note damaged lines.
    """

    def __init__(self, path: str | Path, guard: Callable[[], None] = lambda: None) -> None:
        """`guard` is called before every write, and raises if this process may not write."""
        self._path, self._guard = str(path), guard
        self._lock = threading.Lock()
        """For what is held and what waits: never kept while anything is sent."""
        self._sending = threading.Lock()
        self._waiting: list[Record] = []
        self._held: dict[tuple[type[Record], int], str] = {}
        self._begin = self._end = 0
        self._segment = b""
        """What the newest segment holds, from byte `_begin` on."""
        self._closed = threading.Event()
        self._news = threading.Event()
        self._refusal: RuntimeError | None = None
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
                self._note(record)
                last = max(last, record.step)
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, self._end)
        self.damage = _set_aside(self._path, damaged) if damaged else ""
        """A sentence about damaged lines that nobody was told of before; empty if there are none.
        """
        if self.damage:
            self.write(WarningGiven(step=last, text=self.damage))
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, record: Record) -> None:
        """Append a record, unless the journal holds one of its kind, step and identity.

        Raises what the guard raised for an earlier record.
        """
        if self._refusal is not None:
            raise self._refusal
        with self._lock:
            held = self._held.get((type(record), record.step))
            if held == record.identity or self._closed.is_set():
                return
            self._waiting.append(record)
            self._note(record)
        self._news.set()

    def flush(self) -> None:
        """Put every record where a crash cannot reach it."""
        self._send()
        if self._descriptor >= 0:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Nothing is written after this, whoever still tries."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._news.set()
        self._thread.join()
        try:
            self._send()
        finally:
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def _note(self, record: Record) -> None:
        """Remember what is held. A checkpoint that was pruned may come again, and be pruned."""
        if isinstance(record, CheckpointSaved):
            self._held.pop((CheckpointPruned, record.step), None)
        elif isinstance(record, CheckpointPruned):
            self._held.pop((CheckpointSaved, record.step), None)
        self._held[type(record), record.step] = record.identity

    def _work(self) -> None:
        pause = usual = SEGMENT_SECONDS if self._descriptor < 0 else FILE_SECONDS
        while not self._closed.wait(pause):
            self._news.wait()
            self._news.clear()
            pause = SEGMENT_SECONDS
            try:
                self._send()
                pause = usual
            except Exception as error:  # a store has many ways to be away; `flush` will say it
                if self._refusal is not None:
                    return
                self._news.set()
                log.warning("the journal waits in memory: %s", error)

    def _send(self) -> None:
        """Write what waits, or keep it if that fails."""
        with self._sending:
            with self._lock:
                records = list(self._waiting)
            if not records:
                return
            try:
                self._guard()
            except RuntimeError as error:
                self._refusal = error
                with self._lock:
                    self._waiting.clear()  # a newer attempt has begun: nobody wants these lines
                raise
            data = "".join(json.dumps(record_data(record)) + "\n" for record in records).encode()
            if self._descriptor >= 0:
                self._append(data)
            else:
                self._grow(data)
            with self._lock:
                del self._waiting[: len(records)]

    def _append(self, data: bytes) -> None:
        end = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        except OSError:
            # Half a line would swallow the next one: take it back.
            os.ftruncate(self._descriptor, end)
            raise

    def _grow(self, data: bytes) -> None:
        """Write the newest segment again, longer; two weeks of training stay a few hundred."""
        at(join(self._path, f"{self._begin:012d}.jsonl")).write_bytes(self._segment + data)
        self._segment += data
        self._end += len(data)
        if len(self._segment) >= SEGMENT_BYTES:
            self._begin, self._segment = self._end, b""


def _end_last_line(descriptor: int) -> None:
    """Write the newline of a last record that is whole otherwise."""
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, LINE_BYTES, max(0, size - LINE_BYTES))
    if is_whole(end.rpartition(b"\n")[2]):
        try:
            os.write(descriptor, b"\n")
        except OSError as error:  # a full disk: without its newline the record does not count
            log.warning("the last record of the journal is written again: %s", error)


def _set_aside(path: str, damaged: list[Line]) -> str:
    """Note damaged lines beside the journal; a sentence about those that are new."""
    try:
        known = known_damage(path)
        new = [line for line in damaged if line.mark not in known]
        if not new:
            return ""
        beside = set_aside_path(path)
        before = at(beside).read_bytes() if at(beside).exists() else b""
        at(beside).write_bytes(before + b"".join(map(note_of, new)))
    except (OSError, UserError) as error:
        log.warning("damaged lines of the journal %s could not be noted: %s", path, error)
        return ""
    return (
        f"the journal {path} has {plural(len(new), 'damaged line')}, the first at byte "
        f"{new[0].begin}; what is readable is used, and the damaged bytes are noted in {beside}"
    )


def _fill_holes(folder: str) -> None:
    """Put a blank segment where one was lost, so that readers get past it."""
    for pause in (HOLE_SECONDS, 0.0):
        holes, end = [], 0
        for begin, segment in segments(folder):
            if begin > end:
                holes.append((end, begin))
            end = max(end, begin + segment.bytes)
        if not holes:
            return
        time.sleep(pause)  # a listing may be behind
    for begin, end in holes:
        if end - begin > LARGEST_HOLE:
            raise UserError(
                "file-damaged",
                f"the journal {folder} lacks its bytes {begin} to {end}; move what is behind them "
                f"({end:012d}.jsonl) to another folder, or copy the missing segment back",
            )
        name = join(folder, f"{begin:012d}.jsonl")
        found = at(name).stat()
        if found is not None and found.bytes:  # an empty one is a hole itself
            raise UserError(
                "store-failed",
                f"the store does not list {name}, which exists; run the same command again when it "
                "does",
            )
        at(name).write_bytes(b" " * (end - begin - 1) + b"\n")
        log.warning("the journal %s lacks its bytes %d to %d", folder, begin, end)
