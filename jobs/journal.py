"""The run's own record of what happened, written before anybody else hears of it.

One JSON object a line, appended by rank 0, never rewritten. MLflow is fed from it (tracking.py) and
so is the progress display. A step that is computed again after a crash keeps the record, and with
it the timestamp, of the first time: so a replay to MLflow merges instead of doubling.

The loop only hands its records over; a thread writes them, so that a slow disk or store costs no
training time. On a disk the journal is one file. A store cannot append, so there it is a folder of
segments, each named after the byte at which it begins (`000000004096.jsonl`); the newest grows,
written again every few seconds, until it is full. Positions count bytes over all segments, so
readers see no difference.

A journal that cannot be written for the moment (a full disk, a store that does not answer) does not
stop training: lines wait in memory and are written with the next ones. Before a checkpoint is
committed they must be on disk (`flush`): what lies behind a checkpoint is never computed again.

Records: {"kind": KIND, "step": n, "time": ms, …}, KIND one of begin, step, metrics, eval, scoring,
final, checkpoint, pruned, warning. "begin" says at which step an attempt begins, and "step" when
its steps 1, 5 and 10 were done: the time left is known from the tenth on, however rarely metrics
are written, and the slow first step does not spoil it. "scoring" says how far the last evaluation
is: about "done" of "tokens". The path of a checkpoint is relative to the run's folder, so that a
run can be moved.
"""

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elmwright.pipeline.files import is_url, join, list_folder, read_range, write_bytes

log = logging.getLogger("elmwright")

Record = dict[str, Any]
FILE_SECONDS, SEGMENT_SECONDS = 0.2, 5.0
"""Seconds between writes to a file and to a store; a failed write is tried again after the latter.
"""
SEGMENT_BYTES = 1 << 20
"""When a segment in a store is full."""


class Journal:
    """The writing end. Opening it repairs a last line that a kill left half written."""

    def __init__(self, path: str | Path, guard: Callable[[], None] = lambda: None) -> None:
        """`guard` is called before every write, and raises if this process may not write."""
        self._path, self._guard = str(path), guard
        self._lock = threading.Lock()
        """For what is held and what waits: never kept while anything is sent."""
        self._sending = threading.Lock()
        self._waiting: list[Record] = []
        self._held: dict[tuple[str, int], str] = {}
        self._begin = self._end = 0
        self._segment = b""
        """What the newest segment holds, from byte `_begin` on."""
        self._closed = threading.Event()
        self._news = threading.Event()
        self._refusal: RuntimeError | None = None
        self._descriptor = -1
        if not is_url(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._descriptor, complete_end(Path(path)))
        for record, position in read_journal(path, 0):
            self._note(record)
            self._begin = self._end = position
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a record, unless the journal already holds it: one of this kind and step, of a
        checkpoint one of the same bytes, of a beginning one of the same attempt, of scoring one
        that has got as far. Raises what the guard said of an earlier one."""
        if self._refusal is not None:
            raise self._refusal
        record = {"kind": kind, "step": step, "time": int(time.time() * 1000), **values}
        with self._lock:
            if self._held.get((kind, step)) == _key(record) or self._closed.is_set():
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
        other = {"checkpoint": "pruned", "pruned": "checkpoint"}.get(record["kind"], "")
        self._held.pop((other, record["step"]), None)
        self._held[record["kind"], record["step"]] = _key(record)

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
        """Write what waits; it goes on waiting if that fails."""
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
            data = "".join(json.dumps(record) + "\n" for record in records).encode()
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
        write_bytes(join(self._path, f"{self._begin:012d}.jsonl"), self._segment + data)
        self._segment += data
        self._end += len(data)
        if len(self._segment) >= SEGMENT_BYTES:
            self._begin, self._segment = self._end, b""


def _key(record: Record) -> str:
    return str(record.get("sha256") or record.get("attempt", record.get("done", "")))


def complete_end(path: Path) -> int:
    """Byte position after the last complete line."""
    with path.open("rb") as file:
        data = file.read()
    return data.rfind(b"\n") + 1


def read_journal(path: str | Path, start: int) -> Iterator[tuple[Record, int]]:
    """Complete records from byte `start` on, each with the position behind it."""
    if is_url(path):
        yield from _read_segments(str(path), start)
        return
    if not Path(path).exists():
        return
    with open(path, "rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            yield json.loads(line), start


def _read_segments(folder: str, start: int) -> Iterator[tuple[Record, int]]:
    for segment in list_folder(folder):
        begin = int(segment.path.rpartition("/")[2].removesuffix(".jsonl"))
        if begin + segment.bytes <= start:
            continue
        if begin > start:  # a listing that is behind: what lies between comes with the next one
            return
        data = read_range(segment.path, start - begin, segment.bytes)
        for line in data.splitlines(keepends=True):
            start += len(line)
            yield json.loads(line), start


def journal_end(path: str | Path) -> int:
    """Bytes in the journal; 0 where there is none."""
    if is_url(path):
        return sum(segment.bytes for segment in list_folder(path))
    return Path(path).stat().st_size if Path(path).is_file() else 0
