"""A real S3 server on this machine, for tests and benches."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elmwright.pipeline.storage import object_store

KEY, SECRET = "AKIAELMWRIGHTTESTS00", "a-secret-of-normal-length-for-the-tests0"


def rclone() -> str | None:
    """The program that serves it, if it is installed."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[dict[str, str]]:
    """Show the folders in `folder` as buckets; yields the `AWS_…` variables that lead there."""
    program = rclone()
    if program is None:
        raise FileNotFoundError("rclone is not installed")
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    address, keys = f"{host}:{port}", f"{KEY},{SECRET}"
    command = [program, "serve", "s3", "--addr", address, "--auth-key", keys, str(folder)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_for(host, port)
        yield {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }
    finally:
        server.kill()
        server.wait()


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, and of those it starts, for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    object_store._connect.cache_clear()  # another server, another client
    try:
        yield
    finally:
        object_store._connect.cache_clear()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _wait_for(host: str, port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
