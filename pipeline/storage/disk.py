"""Files on this machine's disks, written whole or not at all.

A file appears under its name only when every byte of it is on the disk: it is written under a
temporary name in the same folder, fsynced, renamed, and the folder fsynced. So a kill at any moment
leaves either the old file or the new one, never half of one. What the operating system refuses
(no space, no permission, a read-only disk) reaches the user as one sentence.

Each file costs an fsync of itself and of its folder, so the pipeline writes few large files.
"""

import errno
import glob
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.location import Location, NotAFile, Stat

TEMPORARY = ".tmp-"
"""Prefix of files being written; one that is left over belongs to a killed process."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors about `path` that the user can fix into `UserError`s; let the rest pass."""
    try:
        yield
    except OSError as error:
        mistake = explain(error, path)
        if mistake is None:
            raise
        raise mistake from error


def explain(error: OSError, path: Path) -> UserError | None:
    """An operating-system error as a `UserError` if the user can fix it, else None."""
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


class DiskLocation(Location):
    """A file or folder on a disk of this machine."""

    is_url = False

    @property
    def is_relative(self) -> bool:
        return not self.path.startswith(("/", "~"))

    def absolute(self) -> str:
        return os.path.abspath(os.path.expanduser(self.path))

    def resolved(self) -> str:
        return os.path.realpath(os.path.expanduser(self.path))

    def local(self, otherwise: Path) -> Path:
        return Path(self.path)

    def is_folder(self) -> bool:
        return os.path.isdir(self.path)

    def exists(self) -> bool:
        return Path(self.path).exists()

    def stat(self) -> Stat | None:
        try:
            facts = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stat(self.path, facts.st_size, facts.st_mtime_ns)

    def is_unchanged(self, size: int, mtime_ns: int) -> bool:
        return self.stat() == Stat(self.path, size, mtime_ns)

    def free_bytes(self) -> int:
        path = Path(self.path).absolute()
        while not path.exists():
            path = path.parent
        return shutil.disk_usage(path).free

    def list_files(self) -> list[Stat]:
        walk = os.walk(self.path)
        return _stats(os.path.join(folder, name) for folder, _, names in walk for name in names)

    def glob(self) -> list[Stat]:
        paths = glob.glob(os.path.expanduser(self.path), recursive=True)
        return _stats(filter(os.path.isfile, paths))

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        with explained(Path(self.path)), open(self.path, "rb") as file:
            yield file

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        path = Path(self.path)
        # Ray may retry a task while its first attempt is still alive: process ids differ.
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

    @contextmanager
    def arrow_file(self) -> Iterator[Any]:
        import pyarrow

        # Not mapped into memory: a read error would be a SIGBUS, which kills the process.
        with explained(Path(self.path)), pyarrow.OSFile(self.path) as file:
            yield file

    def read_up_to(self, limit: int) -> bytes:
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise NotAFile(errno.EINVAL, "it is not a regular file", self.path)
        return super().read_up_to(limit)

    def read_range(self, begin: int, end: int) -> bytes:
        with explained(Path(self.path)), open(self.path, "rb") as file:
            end = min(end, os.fstat(file.fileno()).st_size)  # memory is allocated before reading
            return os.pread(file.fileno(), max(0, end - begin), begin)

    def remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)

    clear = remove

    def remove_folder(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def copy_from(self, source: Location) -> None:
        if source.is_url:
            super().copy_from(source)
            return
        target = Path(self.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        link = target.with_name(f".link-{target.name}.{os.getpid()}")
        link.unlink(missing_ok=True)
        try:
            os.link(source.path, link)
        except OSError:
            super().copy_from(source)  # this file system has no links
            return
        os.replace(link, target)
        # A rename between two names of the same file does nothing, and leaves both.
        link.unlink(missing_ok=True)


def _stats(paths: Iterable[str]) -> list[Stat]:
    return [facts for path in sorted(paths) if (facts := DiskLocation(path).stat())]


def sync_to_disk(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_bytes(data: bytes) -> str:
    """The sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
