"""Processes of this machine that are known beyond doubt, the ports they listen on, private files.

A process is known by its number and its start time, its descendants by a mark in their environment.
So a number that the system has given to somebody else's process is never signalled. Only the
standard library is needed.
"""

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Process:
    """One process of the cluster, remembered in a file."""

    name: str
    pid: int
    """Its number."""
    ticks: int
    """When it started, in clock ticks since boot."""

    @property
    def alive(self) -> bool:
        found = stat(self.pid)
        return found is not None and found.ticks == self.ticks and found.state != "Z"


@dataclass(frozen=True)
class _Stat:
    state: str
    ticks: int


def stat(pid: int) -> _Stat | None:
    """State and start time of a process, None if there is none of that number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[19]))


def carrying(mark: str) -> list[int]:
    """The numbers of all processes alive that have this `NAME=value` in their environment."""
    wanted = mark.encode()
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def kill(pid: int) -> None:
    """End a process at once, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait(done: Callable[[], bool], seconds: float) -> None:
    """Wait until `done()`, or until the time is over."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers(url: str, codes: set[int] | None = None) -> bool:
    """Whether a server answers, with one of these codes if any are named."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - http, see the callers
            return codes is None or answer.status in codes
    except urllib.error.HTTPError as error:
        return codes is None or error.code in codes
    except OSError:
        return False


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
