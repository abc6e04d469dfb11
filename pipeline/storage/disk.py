"""The one way this package touches local files: whole or not at all.

A file appears under its name only when every byte of it is on the disk: it is written under a
temporary name in the same folder, fsynced, renamed, and the folder fsynced. So a kill at any moment
leaves either the old file or the new one, never half of one. What the operating system refuses
(no space, no permission, a read-only disk) reaches the user as one sentence.

Cost: an fsync of each file and its folder; so the pipeline writes few large files, not many small
ones. `files.py` does the same for object stores.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import count_bytes

TEMPORARY = ".tmp-"
"""Prefix of files being written; one that is left over belongs to a killed process."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the user can put right about `path` into a `UserError`; let the rest pass."""
    try:
        yield
    except OSError as error:
        mistake = explain(error, path)
        if mistake is None:
            raise
        raise mistake from error


def explain(error: OSError, path: Path) -> UserError | None:
    """An operating-system error that is the user's to put right as a UserError, else None."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            "disk-full",
            f"no space left on the disk of {path.parent}; free some and run the same command "
            "again: nothing is lost",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UserError(
            "permission",
            f"no permission to use {path}; change its permissions or choose another place",
        )
    if error.errno == errno.EROFS:
        return UserError(
            "permission", f"{path.parent} is on a read-only disk; choose another place to write to"
        )
    return None


class NotAFile(OSError):  # noqa: N818 - what is there instead is no error of its own
    """A folder, a pipe or a device is where a file should be."""


def open_regular(path: Path) -> BinaryIO:
    """A file opened for reading. A pipe or a device is refused: it may have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise NotAFile(errno.EINVAL, "it is not a regular file", str(path))
    return path.open("rb")


def beginning(file: BinaryIO, limit: int) -> bytes:
    """All of a file of at most `limit` bytes; of a longer one more than `limit`, but not all."""
    pieces, size = [], 0
    while size <= limit and (piece := file.read(1 << 20)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` only if the block ends without an error."""
    path = Path(path)
    # The process id keeps apart a task that Ray retries from its first attempt, which may live on.
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{os.getpid()}")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_to_disk(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` as the whole content of `path`, atomically."""
    with atomic_file(path) as file:
        file.write(data)


def sync_to_disk(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """The sha256 of a file, in hexadecimal, in constant memory."""
    digest = hashlib.sha256()
    with explained(path), open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            count_bytes(len(block))
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """The sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def free_bytes(path: Path) -> int:
    """Bytes free for us on the disk that holds `path`, or will hold it."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
