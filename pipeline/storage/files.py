"""Files on a disk or in an object store, by path or URL, with the same few functions.

A path is a plain string: `/data/x.txt`, `s3://bucket/x.txt` or `gs://bucket/x.txt`.

Writing is atomic in both: on a disk by a rename (`disk.atomic_file`), in an object store because
an object appears only when it is complete. Nothing is ever appended to or changed in place. How a
store is reached is in `object_store.py`.
"""

import glob
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from elmwright.pipeline.progress import count_bytes
from elmwright.pipeline.storage import disk
from elmwright.pipeline.storage.disk import atomic_file, explained, write_atomic
from elmwright.pipeline.storage.object_store import StoredFile, explaining, file_system

URL = re.compile(r"(s3|gs)://")
SLACK = 10_000_000_000
"""Nanoseconds by which the times that a store tells of one object may differ."""
JSON_BYTES = 16 << 20
"""The largest JSON file of ours that is read (untrusted.py)."""


@dataclass(frozen=True)
class Stat:
    """What is known of a file without reading it."""

    path: str
    """Path or URL."""
    bytes: int
    """Its size."""
    mtime_ns: int
    """Its time of change."""


def is_url(path: str | Path) -> bool:
    """Whether this lies in an object store."""
    return bool(URL.match(str(path)))


def join(folder: str | Path, *names: str) -> str:
    """A path below a folder."""
    return "/".join([str(folder).rstrip("/"), *names])


@contextmanager
def reading(path: str | Path) -> Iterator[BinaryIO]:
    """A file opened for reading, seekable."""
    if not is_url(path):
        with explained(Path(path)), open(path, "rb") as file:
            yield file
        return
    system, inner = file_system(str(path))
    with explaining(str(path)):
        stream = system.open_input_file(inner)
    with stream, io.BufferedReader(StoredFile(stream, str(path)), 1 << 20) as file:
        yield file


@contextmanager
def writing(path: str | Path) -> Iterator[BinaryIO]:
    """A file that is there, whole, only if the block ends without an error."""
    if not is_url(path):
        with atomic_file(Path(path)) as file:
            yield file
        return
    system, inner = file_system(str(path))
    # Kept on the local disk until it is whole: an error half-way must leave no object behind.

    with tempfile.TemporaryFile() as file:
        yield file
        file.seek(0)
        with explaining(str(path)), system.open_output_stream(inner) as out:
            shutil.copyfileobj(file, out, 1 << 22)


@contextmanager
def arrow_file(path: str | Path) -> Iterator[Any]:
    """A file for pyarrow to read from: mapped into memory on a disk, by ranges in a store."""
    import pyarrow

    if not is_url(path):
        with explained(Path(path)), pyarrow.memory_map(str(path)) as file:
            yield file
        return
    system, inner = file_system(str(path))
    with explaining(str(path)), system.open_input_file(inner) as file:
        yield file


def read_bytes(path: str | Path) -> bytes:
    """The whole content of a file."""
    with reading(path) as file:
        return file.read()


def read_up_to(path: str | Path, limit: int) -> bytes:
    """The content of a regular file, or its beginning, where that has more than `limit` bytes."""
    with reading(path) if is_url(path) else disk.open_regular(Path(path)) as file:
        return disk.beginning(file, limit)


def read_json(path: str | Path) -> dict[str, Any] | None:
    """The object in a JSON file of ours; None where there is none or it is damaged."""
    found = stat(path)
    if found is None or found.bytes > JSON_BYTES:
        return None
    try:
        data = read_up_to(path, JSON_BYTES)
        content = json.loads(data) if len(data) <= JSON_BYTES else None
    except (FileNotFoundError, disk.NotAFile, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write an object as a JSON file, atomically."""
    write_bytes(path, json.dumps(content, indent=1).encode())


def read_range(path: str | Path, begin: int, end: int) -> bytes:
    """Some bytes of a file, in one request; fewer where it ends before `end`."""
    if not is_url(path):
        with open(path, "rb") as file:
            end = min(end, os.fstat(file.fileno()).st_size)  # room is taken before it is read
            return os.pread(file.fileno(), max(0, end - begin), begin)
    system, inner = file_system(str(path))
    with explaining(str(path)), system.open_input_file(inner) as stream:
        return bytes(stream.read_at(max(0, min(end, stream.size()) - begin), begin))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` as the whole content of a file, atomically."""
    if is_url(path):
        system, inner = file_system(str(path))
        with explaining(str(path)), system.open_output_stream(inner) as out:
            out.write(data)
    else:
        write_atomic(Path(path), data)


def exists(path: str | Path) -> bool:
    """Whether there is such a file (or folder, on a disk)."""
    if not is_url(path):
        return Path(path).exists()
    return stat(path) is not None


def stat(path: str | Path) -> Stat | None:
    """Size and time of a file, None where there is no such file."""
    if not is_url(path):
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stat(str(path), found.st_size, found.st_mtime_ns)
    system, inner = file_system(str(path))
    with explaining(str(path)):
        info = system.get_file_info(inner)
    return _remote_stat(str(path), info) if info.is_file else None


def _remote_stat(path: str, info: Any) -> Stat:
    return Stat(path, info.size or 0, info.mtime_ns or 0)


def unchanged(path: str, size: int, mtime_ns: int) -> bool:
    """Whether a file still has this size and time.

    In a store the time may differ by `SLACK`, or not be known (0): a listing, the object itself and
    the moment it was complete do not always agree.
    """
    found = stat(path)
    if found is None or found.bytes != size:
        return False
    if not is_url(path):
        return found.mtime_ns == mtime_ns
    return 0 in (found.mtime_ns, mtime_ns) or abs(found.mtime_ns - mtime_ns) <= SLACK


def list_folder(folder: str | Path) -> list[Stat]:
    """All files below a folder, sorted by path; none if there is no such folder."""
    if not is_url(folder):
        paths = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
        return [found for path in sorted(paths) if (found := stat(path))]
    from pyarrow import fs

    system, inner = file_system(str(folder))
    scheme = str(folder).partition("://")[0]
    with explaining(str(folder)):
        infos = system.get_file_info(fs.FileSelector(inner, recursive=True, allow_not_found=True))
    files = [_remote_stat(f"{scheme}://{info.path}", info) for info in infos if info.is_file]
    return sorted(files, key=lambda file: file.path)


def matching(pattern: str) -> list[Stat]:
    """Files that a glob (`*`, `?`, `[…]`, `**`) names, sorted by path."""
    if not is_url(pattern):
        paths = glob.glob(os.path.expanduser(pattern), recursive=True)
        return [found for path in sorted(paths) if os.path.isfile(path) and (found := stat(path))]
    # List the part of the path before the first wildcard, and match the rest.
    parts = pattern.split("/")
    fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    expression = re.compile(_translate(pattern))
    listed = list_folder("/".join(parts[:fixed]))
    return [file for file in listed if expression.fullmatch(file.path)]


def _translate(pattern: str) -> str:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        meaning.get(piece) or (_choice(piece) if piece.startswith("[") else re.escape(piece))
        for piece in pieces
    )


def _choice(piece: str) -> str:
    """`[abc]` and `[!abc]` as a regular expression."""
    inside = piece[1:-1].replace("\\", r"\\")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"


def remove(path: str | Path) -> None:
    """Remove a file, if it is there."""
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
        return
    system, inner = file_system(str(path))
    with explaining(str(path)):
        if not system.get_file_info(inner).is_file:
            return
        try:
            system.delete_file(inner)
        except OSError:
            # Arrow then writes an empty object for the folder, which some stores refuse.
            if system.get_file_info(inner).is_file:
                raise


def clear(path: str | Path) -> None:
    """Let a small file say nothing any more: remove it, or leave it empty in a store.

    With every object that Arrow deletes it writes an empty one in the name of its folder, and some
    stores then show nothing of what else lies there. So among things that must stay seen nothing is
    deleted.
    """
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
    elif (found := stat(path)) and found.bytes:
        write_bytes(path, b"")


def remove_folder(folder: str | Path) -> None:
    """Remove a folder and all below it, if it is there."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for file in list_folder(folder):
        remove(file.path)


def place(source: str | Path, target: str | Path) -> None:
    """Let `target` have the content of `source`, which stays: a link on one disk, else a copy."""
    if is_url(source) or is_url(target):
        with reading(source) as file, writing(target) as out:
            shutil.copyfileobj(file, out, 1 << 22)
        return
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    link = target.with_name(f".link-{target.name}.{os.getpid()}")
    link.unlink(missing_ok=True)
    try:
        os.link(source, link)
    except OSError:
        # No links on this file system.
        with reading(source) as file, writing(target) as out:
            shutil.copyfileobj(file, out, 1 << 22)
        return
    os.replace(link, target)
    # A rename between two names of the same file does nothing, and leaves both.
    link.unlink(missing_ok=True)


def sha256(path: str | Path) -> str:
    """The sha256 of a file, in hexadecimal, in constant memory."""
    digest = hashlib.sha256()
    with reading(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            count_bytes(len(block))
    return digest.hexdigest()
