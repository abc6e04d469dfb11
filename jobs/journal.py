"""The run's own record of what happened, written before anybody else hears of it.

One JSON object a line, appended by rank 0, never rewritten. MLflow is fed from it (tracking.py) and
so is the progress display. A step that is computed again after a crash keeps the record, and with
it the timestamp, of the first time: so a replay to MLflow merges instead of doubling.

Records: {"kind": "metrics" | "eval" | "checkpoint" | "pruned", "step": n, "time": ms, …}.
"""

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Journal:
    """The writing end. Opening it repairs a last line that a kill left half written."""

    def __init__(self, path: Path, guard: Callable[[], None] = lambda: None) -> None:
        """`guard` is called before every write, and raises if this process may not write."""
        self._lock = threading.Lock()
        self._guard = guard
        self._path = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        end = complete_end(path)
        os.ftruncate(self._descriptor, end)
        self._held = {(r["kind"], r["step"]) for r, _ in read_journal(path, 0)}

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a record, unless the journal already holds one of this kind and step."""
        with self._lock:
            if (kind, step) in self._held or self._descriptor < 0:
                return
            self._guard()
            record = {"kind": kind, "step": step, "time": int(time.time() * 1000), **values}
            line = (json.dumps(record) + "\n").encode()
            end = os.fstat(self._descriptor).st_size
            if os.write(self._descriptor, line) != len(line):
                # Half a line would swallow the next one: take it back.
                os.ftruncate(self._descriptor, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            self._held.add((kind, step))

    def close(self) -> None:
        """Nothing is written after this, whoever still tries."""
        with self._lock:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def complete_end(path: Path) -> int:
    """Byte position after the last complete line."""
    with path.open("rb") as file:
        data = file.read()
    return data.rfind(b"\n") + 1


def read_journal(path: Path, start: int) -> Iterator[tuple[Record, int]]:
    """Complete records from byte `start` on, each with the position behind it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            yield json.loads(line), start
