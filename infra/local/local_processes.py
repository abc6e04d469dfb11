"""Helpers of the local cluster: marked processes, free ports, private files."""

import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

HOST = "127.0.0.1"


def carrying(mark: str) -> list[int]:
    """The numbers of all living processes that have this `NAME=value` in their environment."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                numbers.append(int(path.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return numbers


def wait(done: Callable[[], bool], seconds: float) -> None:
    """Wait until `done()` is true, but no longer than this."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers(url: str, codes: set[int] | None = None) -> bool:
    """Whether a server answers, with one of these codes if given."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - http, see the callers
            return codes is None or answer.status in codes
    except urllib.error.HTTPError as error:
        return codes is None or error.code in codes
    except OSError:
        return False


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can ever read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
