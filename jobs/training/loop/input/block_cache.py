"""A cache on the local disk for blocks of a corpus in an object store, limited in size.

A file is named by the sha256 of its content and checked whenever it is read. A damaged file is
removed and fetched again, so the cache cannot give training wrong data. All processes of a machine
share the folder. The lock file has the folder's total size, and a writer adds the size of a file
before writing it. So several processes together keep to the limit. A killed process can only leave
the total too large, until the files are counted again. The least recently used files are removed
first, by their modification time, which is updated on use.

If the disk is full or cannot be written, there is one warning, and blocks come from the store.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from elmwright.jobs.rundir.file_lock import waiting_lock
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.disk import TEMPORARY, sha256_bytes
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import is_digest

log = logging.getLogger("elmwright")

FREED_SHARE = 0.1
"""Share of the limit that is freed at a time, because counting the files takes time."""
ABANDONED_SECONDS = 600.0
"""Seconds after which an unfinished file is treated as that of a killed process."""
_LOCK = "size"
_CACHE_FILE = re.compile(rf"[0-9a-f]{{64}}|{re.escape(TEMPORARY)}[0-9a-f]{{64}}\.\d+")


def block_cache(corpus: str, folder: Path, megabytes: int) -> "BlockCache | None":
    """A cache for this corpus, if it is in a store and the limit is not 0."""
    return BlockCache(folder, megabytes * 1_000_000) if at(corpus).is_url and megabytes else None


class BlockCache:
    """Files named by their sha256, in a folder of limited size; safe for threads and processes."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Keep at most `limit` bytes in `folder`, including the files of earlier runs."""
        self.folder, self.limit = Path(folder), limit
        self._warned = False
        self._writing: set[str] = set()
        try:
            with self._locked() as size:
                size.set(self._shrink(limit))
        except OSError as error:
            self._warn(error)

    def get_or_read(self, digest: str, read: Callable[[], bytes]) -> bytes:
        """The content with this sha256, from the cache, else from `read`, which must check it."""
        if not is_digest(digest):  # not fit for a file name
            return read()
        data = self._get(digest)
        if data is None:
            data = read()
            try:
                self._put(digest, data)
            except (OSError, UserError) as error:
                self._warn(error)
        return data

    def _get(self, digest: str) -> bytes | None:
        path = self.folder / digest
        try:
            data = path.read_bytes() if path.stat().st_size <= self.limit else b""
            if sha256_bytes(data) == digest:
                with suppress(OSError):
                    os.utime(path)
                return data
            path.unlink()
            log.warning("%s was damaged and is fetched again", path)
        except FileNotFoundError:
            pass  # never cached, or removed by another process
        except OSError as error:
            self._warn(error)
        return None

    def _put(self, digest: str, data: bytes) -> None:
        if len(data) > self.limit:
            return
        path = self.folder / digest
        with ExitStack() as stack:
            with self._locked() as size:
                if digest in self._writing or path.exists():
                    return
                total = size.get()
                if total is None or total + len(data) > self.limit:
                    total = self._shrink(self.limit - max(len(data), int(self.limit * FREED_SHARE)))
                size.set(total + len(data))
                self._writing.add(digest)
                stack.callback(self._writing.discard, digest)
                file = stack.enter_context(at(path).writing())
                # A process that counts the files must see this one at its final size, and
                # exactly once, so it is also renamed under the lock, when the stack closes.
                file.truncate(len(data))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            with self._locked():
                stack.close()

    def _shrink(self, limit: int) -> int:
        """Remove abandoned files, and the least recently used until the rest fits into `limit`;
        returns the size of the rest."""
        files, total = [], 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not _CACHE_FILE.fullmatch(entry.name):
                    continue
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process has removed it
                total += stat.st_size
                if not entry.name.startswith(TEMPORARY):
                    files.append((stat.st_mtime_ns, entry.path, stat.st_size))
                elif stat.st_mtime < time.time() - ABANDONED_SECONDS:
                    files.append((0, entry.path, stat.st_size))
        for used_at, path, size in sorted(files):
            if total <= limit and used_at:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
        return total

    @contextmanager
    def _locked(self) -> "Iterator[_Size]":
        """Lock the folder against other threads and processes; yields its total size."""
        with waiting_lock(self.folder / _LOCK) as descriptor:
            yield _Size(descriptor)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "blocks cannot be kept in %s (%s); they are read from the store each time",
                self.folder,
                str(error).partition(";")[0],
            )


class _Size:
    """The total size of the folder's files, stored in the lock file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def get(self) -> int | None:
        text = os.pread(self._descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None

    def set(self, value: int) -> None:
        os.pwrite(self._descriptor, b"%-31d\n" % value, 0)
