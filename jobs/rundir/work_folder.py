"""A folder beside an output, in which one command at a time makes it.

The lock is `flock` on a file in the folder, so the kernel drops it when its holder dies, and what a
killed command left is taken over by the next one. The folder goes when the work is done; a command
that opened the lock just before that notices, because the file it holds has no name any more.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.disk import explained

LOCK = "lock"


@contextmanager
def alone_in(work: Path, output: Path) -> Iterator[None]:
    """Hold `work` (made if need be) for making `output`; refuse while another command does."""
    while True:
        with explained(work):
            work.mkdir(parents=True, exist_ok=True)
            try:
                lock = open(work / LOCK, "w")  # noqa: SIM115 - closed below
            except FileNotFoundError:
                continue  # its holder finished, and removed the folder, this very moment
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    "busy", f"another command is writing {output}; wait for it"
                ) from error
            if not _has_its_name(lock, work / LOCK):
                continue
            yield
            return


def _has_its_name(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
