"""Lock files on a disk: `flock`, which the kernel releases when the holder dies, however it dies.

Not the package filelock, which empties a lock file when it opens it: ours name their holder.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright.jobs.rundir.lease import Holder, read_holder, this_process
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data


@contextmanager
def waiting_lock(path: Path) -> Iterator[int]:
    """Hold a lock file, after waiting for it; yields its descriptor.

    Each call opens the file anew, so that threads of one process exclude each other, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def refusing_lock(path: Path, what: Path | None = None) -> Iterator[int]:
    """Hold a lock file, or refuse and name its holder; yields its descriptor.

    `what` is in use while the lock is held: by default, the folder of the lock file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if _is_taken(descriptor, fcntl.LOCK_EX):
            raise UserError(
                "busy",
                f"{what or path.parent} is in use by {read_holder(path)}; wait for it or stop it "
                "first",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(to_data(this_process())).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock file, which names its last holder.

    Locks of this machine are listed in /proc/locks. Taking the lock to find out, if only for a
    moment, could refuse a run that starts at that moment: that is done only where another machine
    held the lock last, whose locks are not listed here.
    """
    holder = read_holder(path)
    if holder == Holder():
        return False
    try:
        inode = str(path.stat().st_ino)
        with open("/proc/locks", encoding="ascii") as locks:
            for line in map(str.split, locks):
                # "1: FLOCK ADVISORY WRITE 9218 fe:00:2151570 0 EOF": process, device and inode
                is_holders = line[1] == "FLOCK" and line[4] == str(holder.pid)
                if is_holders and line[5].rpartition(":")[2] == inode:
                    return True
    except FileNotFoundError:
        return False
    if holder.host == socket.gethostname():
        return False
    with path.open("rb") as file:
        return _is_taken(file.fileno(), fcntl.LOCK_SH)


def _is_taken(descriptor: int, kind: int) -> bool:
    """Whether the lock could not be taken without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
