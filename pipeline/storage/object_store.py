"""The client of S3 and Google Cloud Storage: connecting, retrying, and errors a user understands.

Object stores are reached through pyarrow, which reads its credentials and endpoint from the usual
environment variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …). A URL never carries a secret.
Requests whose connection drops are retried by pyarrow's client, then by `with_patience`.
"""

import glob
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.location import Location, Stat
from elmwright.pipeline.storage.retry import T, retry

CLIENT_ATTEMPTS = 5
"""Attempts of pyarrow's client at one request."""
ATTEMPTS = 4
"""Attempts of `with_patience`."""
PAUSE = 1.0
"""Seconds before its second attempt; each further pause is twice as long."""
MTIME_TOLERANCE_NS = 10_000_000_000
"""How much the times that a store reports for one object may differ."""


def with_patience(call: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """The result of `call`, tried again if the store drops the connection."""
    try:
        return retry(call, [PAUSE * 2**n for n in range(attempts - 1)], _is_dropped)
    except OSError as error:
        if not _is_dropped(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            "store-failed",
            f"the object store failed {attempts} times ({reason}); run the same command "
            "again when it answers: nothing is lost",
        ) from error


def _is_dropped(error: Exception) -> bool:
    """Whether the connection dropped, for which pyarrow raises an OSError without a number."""
    return isinstance(error, OSError) and error.errno is None


_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_SIGNATURE|SIGNATURE_DOES_NOT_MATCH"
    r"|UNAUTHENTICATED|HTTP response code 40[13]\b|(?:find|resolve|load) credentials"
)
"""Found in Arrow's message if a store denies access, but not if the store fails."""


@contextmanager
def explaining(path: str) -> Iterator[None]:
    """Turn the store's errors that a user can fix into `UserError`s."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(
            "file-missing", f"{path} does not exist; check the bucket and the path"
        ) from None
    except OSError as error:
        text = str(error)
        if _REFUSED.search(text):
            raise UserError(
                "store-refused",
                f"the store refuses {path}; check the credentials in the environment "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS)",
            ) from error
        if "NO_SUCH_BUCKET" in text or "bucket does not exist" in text.lower():
            raise UserError(
                "file-missing", f"the bucket of {path} does not exist; create it"
            ) from error
        raise


def file_system(path: str) -> tuple[Any, str]:
    """pyarrow's file system for a URL, and the path in it."""
    scheme, _, inner = path.partition("://")
    if re.search("[@:]", inner.partition("/")[0]):  # Arrow's error would repeat a password
        keys = "its keys in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://)"
        raise UserError(
            "secret", f"the {scheme}:// address must not contain a login; remove it and set {keys}"
        )
    return _connect(scheme, os.getpid()), inner


@lru_cache(maxsize=4)
def _connect(scheme: str, _process: int) -> Any:
    """One client per process for each kind of store.

    A forked process (a worker of torch's DataLoader) must not use its parent's: both would read
    from the same connections, and each request would wait for a minute before it is retried.
    """
    from pyarrow import fs

    if scheme == "gs":
        return fs.GcsFileSystem()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        allow_bucket_creation=False,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=CLIENT_ATTEMPTS),
        connect_timeout=10,
        request_timeout=60,
    )


class StoredFile(io.RawIOBase):
    """An open object as a raw file, which `io.BufferedReader` can read."""

    def __init__(self, stream: Any, path: str) -> None:
        self.stream, self.path = stream, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self.stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self.stream.tell())

    def readinto(self, buffer: Any) -> int:
        with explaining(self.path):
            return int(self.stream.readinto(buffer))


class StoreLocation(Location):
    """An object, or all objects whose names begin with this path."""

    is_url = True
    is_relative = False

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, str]]:
        """pyarrow's file system and the path in it; errors in the block are explained."""
        with explaining(self.path):
            yield file_system(self.path)

    def absolute(self) -> str:
        return self.path.rstrip("/")

    resolved = absolute

    def local(self, otherwise: Path) -> Path:
        return otherwise

    def is_folder(self) -> bool:
        return True

    def exists(self) -> bool:
        return self.stat() is not None

    def stat(self) -> Stat | None:
        with self._connected() as (system, inner):
            info = system.get_file_info(inner)
        return _stat(self.path, info) if info.is_file else None

    def is_unchanged(self, size: int, mtime_ns: int) -> bool:
        """Whether the object still has this size and about this time.

        A listing, the object itself and the end of its upload can give different times, or none
        (0). They may differ by `MTIME_TOLERANCE_NS`.
        """
        stat = self.stat()
        if stat is None or stat.bytes != size:
            return False
        return 0 in (stat.mtime_ns, mtime_ns) or abs(stat.mtime_ns - mtime_ns) <= MTIME_TOLERANCE_NS

    def free_bytes(self) -> int:
        return sys.maxsize

    def list_files(self) -> list[Stat]:
        from pyarrow import fs

        scheme = self.path.partition("://")[0]
        with self._connected() as (system, inner):
            selector = fs.FileSelector(inner, recursive=True, allow_not_found=True)
            infos = system.get_file_info(selector)
        files = [_stat(f"{scheme}://{info.path}", info) for info in infos if info.is_file]
        return sorted(files, key=lambda file: file.path)

    def glob(self) -> list[Stat]:
        # List the part of the path before the first wildcard, and match the rest.
        parts = self.path.split("/")
        fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
        expression = re.compile(_glob_to_regex(self.path))
        listed = StoreLocation("/".join(parts[:fixed])).list_files()
        return [file for file in listed if expression.fullmatch(file.path)]

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        with self._connected() as (system, inner):
            stream = system.open_input_file(inner)
        with stream, io.BufferedReader(StoredFile(stream, self.path), 1 << 20) as file:
            yield file

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        system, inner = file_system(self.path)  # refuses a bad address before any work is done
        # Collected on the local disk first, because an error must not leave half an object.
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with explaining(self.path), system.open_output_stream(inner) as out:
                shutil.copyfileobj(file, out, 1 << 22)

    @contextmanager
    def arrow_file(self) -> Iterator[Any]:
        with self._connected() as (system, inner), system.open_input_file(inner) as file:
            yield file

    def read_range(self, begin: int, end: int) -> bytes:
        with self.arrow_file() as file:
            return bytes(file.read_at(max(0, min(end, file.size()) - begin), begin))

    def write_bytes(self, data: bytes) -> None:
        with self._connected() as (system, inner), system.open_output_stream(inner) as out:
            out.write(data)

    def remove(self) -> None:
        with self._connected() as (system, inner):
            if not system.get_file_info(inner).is_file:
                return
            try:
                system.delete_file(inner)
            except OSError:
                # Some stores refuse the empty object that Arrow then writes for the folder.
                if system.get_file_info(inner).is_file:
                    raise

    def clear(self) -> None:
        """Make the object empty instead of deleting it.

        After deleting an object, Arrow writes an empty one with the name of its folder, and some
        stores then list nothing else in that folder. So nothing is deleted next to objects that
        must stay visible.
        """
        if (stat := self.stat()) and stat.bytes:
            self.write_bytes(b"")

    def remove_folder(self) -> None:
        for file in self.list_files():
            StoreLocation(file.path).remove()


def _stat(path: str, info: Any) -> Stat:
    return Stat(path, info.size or 0, info.mtime_ns or 0)


def _glob_to_regex(pattern: str) -> str:
    """A pattern with wildcards as a regular expression."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        meaning.get(piece) or (_set_to_regex(piece) if piece.startswith("[") else re.escape(piece))
        for piece in pieces
    )


def _set_to_regex(piece: str) -> str:
    """`[abc]` and `[!abc]` as a regular expression."""
    inside = piece[1:-1].replace("\\", r"\\")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
