"""The client of S3 and Google Cloud Storage: connecting, retrying, and errors a user understands.

Object stores are reached through pyarrow, which reads its credentials and endpoint from the usual
environment variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …). A URL never carries a secret.
Connections that drop are tried again by the client itself, then by `with_patience`. Code that only
reads and writes files uses `files.py`, which does both for disks and for stores.
"""

import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from elmwright.pipeline.errors import UserError

RETRIES = 5
"""Attempts of the store's client at one request."""
ATTEMPTS = 4
"""How often something is tried whose store does not answer; the pause doubles from `PAUSE`."""
PAUSE = 1.0

T = TypeVar("T")


def with_patience(call: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """Try again where a store drops the connection (an OSError without a number)."""
    pause = PAUSE
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except OSError as error:
            if error.errno is not None:
                raise
            if attempt == attempts:
                reason = " ".join(str(error).split())[:300]
                raise UserError(
                    "store-failed",
                    f"the object store failed {attempts} times ({reason}); run the same command "
                    "again when it answers: nothing is lost",
                ) from error
            time.sleep(pause)
            pause *= 2
    raise AssertionError


_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_SIGNATURE|SIGNATURE_DOES_NOT_MATCH"
    r"|UNAUTHENTICATED|HTTP response code 40[13]\b|(?:find|resolve|load) credentials"
)
"""How Arrow tells that a store refuses us, as opposed to failing."""


@contextmanager
def explaining(path: str) -> Iterator[None]:
    """Say what a store's error means, where the user can put it right."""
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
            "secret", f"the {scheme}:// address must not hold a login; remove it and set {keys}"
        )
    return _connect(scheme, os.getpid()), inner


@lru_cache(maxsize=4)
def _connect(scheme: str, _process: int) -> Any:
    """One client per process for each kind of store.

    A forked process (a worker of torch's DataLoader) must not use its parent's: both would read
    from the same connections, and each request waits for a minute before it is tried again.
    """
    from pyarrow import fs

    if scheme == "gs":
        return fs.GcsFileSystem()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        allow_bucket_creation=False,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=RETRIES),
        connect_timeout=10,
        request_timeout=60,
    )


class StoredFile(io.RawIOBase):
    """A store's file as Python's raw file: what is read goes through `io.BufferedReader`."""

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
