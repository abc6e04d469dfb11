"""A file or folder, whatever keeps it: what disks (disk.py) and object stores (object_store.py) do.

`files.at` chooses between the two where a path is known, so that callers need not ask. Writing is
atomic in both: on a disk by a rename, in a store because an object appears only when it is
complete. Nothing is ever appended to or changed in place.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

from elmwright.pipeline.progress import count_bytes

JSON_BYTES = 16 << 20
"""The largest JSON file that describes a model, a checkpoint or a run; real ones have kilobytes.
Parsed, the worst of them takes twenty times its size."""


class NotAFile(OSError):  # noqa: N818 - it describes the path, not a failure
    """A folder, a pipe or a device is where a file should be."""


@dataclass(frozen=True)
class Stat:
    """What is known of a file without reading it."""

    path: str
    """Path or URL."""
    bytes: int
    """Its size."""
    mtime_ns: int
    """Its time of change."""


class Location(Protocol):
    """A file or folder by its path or URL."""

    path: str
    is_url: ClassVar[bool]
    """Whether it is in an object store."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def is_relative(self) -> bool:
        """Whether the path depends on the current folder."""

    def absolute(self) -> str:
        """The same path, independent of the current folder."""

    def resolved(self) -> str:
        """The absolute path without symbolic links: the same for the same file."""

    def local(self, otherwise: Path) -> Path:
        """The path on this machine's disks; `otherwise` for a store."""

    def is_folder(self) -> bool:
        """Whether there is such a folder; always true in a store, which has no folders."""

    def exists(self) -> bool:
        """Whether there is such a file (or folder, on a disk)."""

    def stat(self) -> Stat | None:
        """Size and time of the file; None where there is no such file."""

    def is_unchanged(self, size: int, mtime_ns: int) -> bool:
        """Whether the file still has this size and time."""

    def free_bytes(self) -> int:
        """Bytes that can still be written where the path is, or will be."""

    def list_files(self) -> list[Stat]:
        """All files below the folder, sorted by path; none if there is no such folder."""

    def glob(self) -> list[Stat]:
        """The files that the path names by `*`, `?`, `[…]` and `**`, sorted by path."""

    def reading(self) -> AbstractContextManager[BinaryIO]:
        """The file, opened for reading, seekable."""

    def writing(self) -> AbstractContextManager[BinaryIO]:
        """A file that appears, complete, only if the block ends without an error."""

    def arrow_file(self) -> AbstractContextManager[Any]:
        """A file for pyarrow to read by ranges."""

    def read_range(self, begin: int, end: int) -> bytes:
        """Some bytes of the file, in one request; fewer where it ends before `end`."""

    def remove(self) -> None:
        """Remove the file, if it is there."""

    def clear(self) -> None:
        """Remove a small file, or leave it empty where removing is risky."""

    def remove_folder(self) -> None:
        """Remove the folder and everything in it, if it is there."""

    def read_bytes(self) -> bytes:
        """The whole content of the file."""
        with self.reading() as file:
            return file.read()

    def read_up_to(self, limit: int) -> bytes:
        """All of a file of at most `limit` bytes; of a longer one more than `limit`, but not all.

        Raises `NotAFile` for a pipe or a device, which may have no end.
        """
        pieces, size = [], 0
        with self.reading() as file:
            while size <= limit and (piece := file.read(1 << 20)):
                pieces.append(piece)
                size += len(piece)
        return b"".join(pieces)

    def read_json(self) -> dict[str, Any] | None:
        """The object in a JSON file of ours; None where there is none or it is damaged."""
        stat = self.stat()
        if stat is None or stat.bytes > JSON_BYTES:
            return None
        try:
            data = self.read_up_to(JSON_BYTES)
            content = json.loads(data) if len(data) <= JSON_BYTES else None
        except (FileNotFoundError, NotAFile, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None

    def write_bytes(self, data: bytes) -> None:
        """Write `data` as the whole content of the file, atomically."""
        with self.writing() as file:
            file.write(data)

    def write_json(self, content: Mapping[str, Any]) -> None:
        """Write an object as a JSON file, atomically."""
        self.write_bytes(json.dumps(content, indent=1).encode())

    def copy_from(self, source: "Location") -> None:
        """Give this file the content of `source`: by a link on one disk, else by a copy."""
        with source.reading() as file, self.writing() as out:
            shutil.copyfileobj(file, out, 1 << 22)

    def sha256(self) -> str:
        """The sha256 of the file, in hexadecimal, in constant memory."""
        digest = hashlib.sha256()
        with self.reading() as file:
            while block := file.read(1 << 20):
                digest.update(block)
                count_bytes(len(block))
        return digest.hexdigest()
