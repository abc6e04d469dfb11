"""A lock for a run that lives in an object store, which has none.

The holder writes an object that names it and carries a counter, and counts up every few seconds.
Whoever finds such an object watches it: if the counter moves, the run is in use; if it stands still
for `EXPIRES` seconds, its holder is gone and the lease is taken over. Nobody's clock is compared
with anybody else's. Two commands that take over at the same moment both write and then look again:
the one whose name stayed has it.

A lease can be lost (a machine that slept, a network that was away): the holder then finds another's
name in it and stops renewing. That does no harm, because the newer command has taken a higher
attempt number and nothing of an older attempt writes a checkpoint (checkpoint.py).
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
from typing import Any

from elmwright.jobs.secrets.hiding import shown_word
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import read_json, stat, write_json

log = logging.getLogger("elmwright")

RENEW = 5.0
"""Seconds between renewals."""
EXPIRES = 20.0
"""Seconds without a renewal after which a lease is free."""
SETTLE = 1.0
"""Seconds after which two that took a lease at once look who has it."""


def about() -> dict[str, Any]:
    """This process, for those who find the run in use."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": " ".join(["elmwright", *map(shown_word, sys.argv[1:])]),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def holder(who: dict[str, Any] | None) -> str:
    """Whoever `about` spoke of, in words."""
    try:
        return (
            f"'{who['command']}' (process {who['pid']} on {who['host']}, since {who['since']})"
            if who
            else "another command"
        )
    except KeyError:
        return "another command"


@contextmanager
def leased(path: str, who: dict[str, Any]) -> Iterator[None]:
    """Hold the lease at `path` for as long as the block lasts."""
    mine = uuid.uuid4().hex
    _take(path, mine, who)
    done = threading.Event()
    thread = threading.Thread(
        target=_renew, args=(path, mine, who, done), name="lease", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        try:
            if (read_json(path) or {}).get("owner") == mine:
                # Not removed: some stores cannot write again into a folder that became empty.
                write_json(path, {"owner": ""})
        except (OSError, UserError) as error:
            log.warning("the lease %s was left to expire: %s", path, error)


def _take(path: str, mine: str, who: dict[str, Any]) -> None:
    found = read_json(path) or {}
    if found.get("owner") and not _is_dead(found):
        until = time.monotonic() + EXPIRES
        while time.monotonic() < until:
            time.sleep(1.0)
            now = read_json(path)
            if not now or not now.get("owner"):
                break
            if (now.get("owner"), now.get("count")) != (found.get("owner"), found.get("count")):
                raise UserError(
                    "busy",
                    f"{path.rpartition('/')[0]} is in use by {holder(now)}; wait for it or "
                    "stop it first",
                )
    write_json(path, {"owner": mine, "count": 0, **who})
    time.sleep(SETTLE)
    now = read_json(path) or {}
    if now.get("owner") != mine:
        raise UserError(
            "busy", f"{path.rpartition('/')[0]} was taken at the same moment by {holder(now)}"
        )


def is_held(path: str) -> bool:
    """Whether somebody holds the lease, asked without taking it.

    One that was renewed lately is. One that seems old, by a clock that need not agree with the
    store's, is watched for as long as a renewal takes.
    """
    found = read_json(path) or {}
    if not found.get("owner") or _is_dead(found):
        return False
    written = stat(path)
    if written and time.time() - written.mtime_ns / 1e9 < EXPIRES:
        return True
    until = time.monotonic() + RENEW + SETTLE
    while time.monotonic() < until:
        time.sleep(min(1.0, RENEW))
        now = read_json(path) or {}
        if (now.get("owner"), now.get("count")) != (found["owner"], found.get("count")):
            return bool(now.get("owner"))
    return False


def _is_dead(found: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is no more: no need to wait then."""
    if found.get("host") != about()["host"]:
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, KeyError, ValueError):
        pass
    return False


def _renew(path: str, mine: str, who: dict[str, Any], done: threading.Event) -> None:
    count = 0
    while not done.wait(RENEW):
        try:
            now = read_json(path)
            if now is not None and now.get("owner") != mine:
                log.error("the lease %s was taken by %s", path, holder(now))
                return
            count += 1
            write_json(path, {"owner": mine, "count": count, **who})
        except (OSError, UserError) as error:
            log.warning("the lease %s could not be renewed: %s", path, error)
