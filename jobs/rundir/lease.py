"""A lock for a run in an object store, which has no locks, and the holder of a lock.

The holder writes an object with its name and a counter, and increases the counter every few
seconds. Another command watches the counter: if it changes, the run is in use. If it does not
change for `EXPIRES` seconds, the holder is gone and the lease is taken over. The clocks of two
machines are never compared. If two commands take over at the same moment, both write and then read
again, and the one whose name remained has the lease.

A lease can be lost (the machine slept, the network failed). The holder then finds another name in
it and stops renewing. That does no harm, because the newer command has a higher attempt number and
an older attempt never writes a checkpoint (checkpoint.py).
"""

import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from elmwright.jobs.secrets.hiding import shown_word
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import at

log = logging.getLogger("elmwright")

Part = TypeVar("Part")

RENEW = 5.0
"""Seconds between renewals."""
EXPIRES = 20.0
"""Seconds without a renewal after which a lease is free."""
SETTLE = 1.0
"""Seconds after which a command that took a lease checks that it still has it."""


@dataclass(frozen=True)
class Holder:
    """The command that holds a lock, or held it last; empty if unknown."""

    pid: int = 0
    """Its process."""
    host: str = ""
    """The machine of that process."""
    command: str = ""
    """Its command line, without secrets."""
    since: str = ""
    """When it took the lock, local time."""

    def __str__(self) -> str:
        if not all((self.pid, self.host, self.command, self.since)):
            return "another command"
        return f"'{self.command}' (process {self.pid} on {self.host}, since {self.since})"


def this_process() -> Holder:
    """This process as a holder."""
    return Holder(
        pid=os.getpid(),
        host=socket.gethostname(),
        command=" ".join(["elmwright", *map(shown_word, sys.argv[1:])]),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
    )


def read_holder(path: str | Path) -> Holder:
    """The holder in a lock file; an empty one if the file is missing or damaged."""
    return _part(Holder, at(path).read_json())


@dataclass(frozen=True)
class _Turn:
    """The owner of a lease and its number of renewals; a lease without an owner is free."""

    owner: str = ""
    count: int = 0


def _part(cls: type[Part], data: object) -> Part:
    try:
        return from_data(cls, data or {}, ignore_unknown=True)
    except BadField:
        return cls()


def _read(path: str) -> tuple[_Turn, Holder]:
    data = at(path).read_json()
    return _part(_Turn, data), _part(Holder, data)


def _write(path: str, turn: _Turn, holder: Holder) -> None:
    at(path).write_json(to_data(turn) | to_data(holder))


@contextmanager
def leased(path: str, holder: Holder) -> Iterator[None]:
    """Hold the lease at `path` during the block."""
    owner = uuid.uuid4().hex
    _take(path, owner, holder)
    done = threading.Event()
    thread = threading.Thread(
        target=_renew, args=(path, owner, holder, done), name="lease", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        try:
            if _read(path)[0].owner == owner:
                # Not removed: some stores cannot write again into a folder that became empty.
                at(path).write_json({"owner": ""})
        except (OSError, UserError) as error:
            log.warning("the lease %s was left to expire: %s", path, error)


def _take(path: str, owner: str, holder: Holder) -> None:
    before, other = _read(path)
    if before.owner and not _is_dead(other):
        until = time.monotonic() + EXPIRES
        while time.monotonic() < until:
            time.sleep(1.0)
            now, other = _read(path)
            if not now.owner:
                break
            if now != before:
                raise UserError(
                    "busy",
                    f"{path.rpartition('/')[0]} is in use by {other}; wait for it or stop it first",
                )
    _write(path, _Turn(owner), holder)
    time.sleep(SETTLE)
    now, other = _read(path)
    if now.owner != owner:
        raise UserError(
            "busy", f"{path.rpartition('/')[0]} was taken at the same moment by {other}"
        )


def is_held(path: str) -> bool:
    """Whether the lease is held, without taking it.

    A lease that was renewed lately is held. One that seems old, by a clock that may differ from the
    store's, is watched for the time of a renewal.
    """
    before, holder = _read(path)
    if not before.owner or _is_dead(holder):
        return False
    written = at(path).stat()
    if written and time.time() - written.mtime_ns / 1e9 < EXPIRES:
        return True
    until = time.monotonic() + RENEW + SETTLE
    while time.monotonic() < until:
        time.sleep(min(1.0, RENEW))
        now, _ = _read(path)
        if now != before:
            return bool(now.owner)
    return False


def _is_dead(holder: Holder) -> bool:
    """Whether the holder is a process of this machine that has ended."""
    if not holder.pid or holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # it lives, or its number is none
    return False


def _renew(path: str, owner: str, holder: Holder, done: threading.Event) -> None:
    turn = _Turn(owner)
    while not done.wait(RENEW):
        try:
            data = at(path).read_json()
            if data is not None and _part(_Turn, data).owner != owner:
                log.error("the lease %s was taken by %s", path, _part(Holder, data))
                return
            turn = replace(turn, count=turn.count + 1)
            _write(path, turn, holder)
        except (OSError, UserError) as error:
            log.warning("the lease %s could not be renewed: %s", path, error)
