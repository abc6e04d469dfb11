"""A folder beside an output, in which one command at a time makes it.

The lock is a file in the folder (file_lock.py), so the next command continues the work of one that
was killed. The folder is removed when the work is done. A command that opened the lock just before
that notices, because the file it has open no longer has a name.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from elmwright.jobs.rundir.file_lock import refusing_lock
from elmwright.pipeline.storage.disk import explained

LOCK = "lock"


@contextmanager
def alone_in(work: Path, output: Path) -> Iterator[None]:
    """Create and lock the folder `work` for making `output`; refuse if another command has it."""
    with ExitStack() as locks:
        is_ours = False
        while not is_ours:
            with explained(work):
                work.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # the holder has just removed it
                    lock = locks.enter_context(refusing_lock(work / LOCK, output))
                    is_ours = os.path.samestat(os.fstat(lock), os.stat(work / LOCK))
        yield
