"""For all tests: hypothesis does not take a slow moment of the machine for a failure, and a real S3
server is started once for the tests of a module that ask for it."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("elmwright", deadline=None)
settings.load_profile("elmwright")

KEY, SECRET = "AKIAELMWRIGHTTESTS00", "a-secret-of-normal-length-for-the-tests0"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that an S3 server shows as its buckets; `AWS_…` variables point to the server."""
    beside = Path(sys.executable).with_name("rclone")
    rclone = str(beside) if beside.exists() else shutil.which("rclone")
    if rclone is None:
        pytest.skip("rclone is not installed: no S3 server to test with")
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "bucket").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        rclone,
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        f"{KEY},{SECRET}",
    ]
    server = subprocess.Popen([*command, str(folder)], stderr=subprocess.DEVNULL)
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield folder
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
