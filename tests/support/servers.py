"""The servers of a real installation, private to a test: PostgreSQL, an S3 store, MLflow.

Each is a context manager that starts one on a free port of 127.0.0.1, waits until it answers, and
stops exactly what it started. What is missing on a machine is a skip, unless
ELMWRIGHT_SERVERS=required, as `make publish-test` says.

    with postgres(tmp_path) as database, s3_server(tmp_path) as store, environment(store):
        with mlflow_server(tmp_path, database, "s3://bucket/mlflow") as uri: …
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.s3_server import environment, rclone
from tests.support.s3_server import s3_server as serve

__all__ = ["BUCKET", "environment", "mlflow_server", "postgres", "s3_server"]

BUCKET = "bucket"


def missing(what: str) -> NoReturn:
    """A skip; where the servers are what is tested, a failure."""
    if os.environ.get("ELMWRIGHT_SERVERS") == "required":
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """An empty PostgreSQL database; its SQLAlchemy URI. The server's log is in `folder`."""
    if find_spec("psycopg2") is None:
        missing("psycopg2 is not installed: MLflow cannot speak to PostgreSQL")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("postgres") or (binaries and binaries[-1] / "postgres")
    if not found:
        missing("PostgreSQL is not installed")
    here = Path(found).resolve().parent
    # Its data is outside pytest's folders, which other users cannot read.
    data = Path(tempfile.mkdtemp(prefix="elmwright-pg-"))
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(data, user)
    port = free_port()
    try:
        subprocess.run(
            [here / "initdb", "-D", data / "db", "-U", "postgres", "-A", "trust", "--no-sync"],
            user=user,
            check=True,
            capture_output=True,
            cwd=data,
        )
        command = [
            here / "postgres",
            "-D",
            data / "db",
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-k",
            data,
            "-c",
            "fsync=off",
        ]
        with running(command, folder / "postgres.log", stop=signal.SIGINT, user=user, cwd=data):
            ready = [here / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
            wait_for(
                lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0
            )
            # SQLAlchemy 2.1 would otherwise look for psycopg 3.
            yield f"postgresql+psycopg2://postgres@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(data)


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[dict[str, str]]:
    """An S3 store with one empty `BUCKET`, kept in `folder/buckets`; the `AWS_…` variables that
    lead to it."""
    if rclone() is None:
        missing("rclone is not installed: no S3 server to test with")
    buckets = folder / "buckets"
    (buckets / BUCKET).mkdir(parents=True)
    with serve(buckets, host) as settings:
        yield settings


@contextmanager
def mlflow_server(
    folder: Path,
    database: str = "",
    artifacts: str = "",
    port: int = 0,
    host: str = "127.0.0.1",
) -> Iterator[str]:
    """An MLflow server that also hands out the artifacts; its URL.

    `database` is a SQLAlchemy URI (by default a SQLite file in `folder`), `artifacts` a folder or
    s3://… (by default a folder there). The store's variables must be in the environment.
    """
    if artifacts.startswith("s3://") and find_spec("boto3") is None:
        missing("boto3 is not installed: MLflow cannot keep artifacts in S3")
    port = port or free_port(host)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        host,
        "--port",
        str(port),
        "--workers",
        "1",
        "--allowed-hosts",
        "*",
        "--backend-store-uri",
        database or f"sqlite:///{folder / 'server.db'}",
        "--artifacts-destination",
        artifacts or str(folder / "artifacts"),
    ]
    # It starts uvicorn from PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {
        **os.environ,
        "PATH": path,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes that do nothing here
    }
    log = folder / "mlflow.log"
    with running(command, log, env=settings, cwd=folder) as process:
        url = f"http://{host}:{port}"
        wait_for(lambda: answers(f"{url}/health") or process.poll() is not None, 600)
        assert process.poll() is None, log.read_text()[-3000:]
        yield url


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a web server answers with success."""
    try:
        with urlopen(url, timeout=2) as response:  # noqa: S310 - our own server
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def wait_for(ready: Callable[[], bool], seconds: float = 90) -> None:
    """Until something is so; an error if that takes too long."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"a server did not come up within {seconds:.0f} s")
        time.sleep(0.1)


@contextmanager
def running(
    command: Sequence[object],
    log: Path,
    *,
    stop: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a session of its own, so that what it starts ends with it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user,
            cwd=cwd,
            env=env,
        )
    try:
        yield process
    finally:
        for number in (stop, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                continue
        process.wait()
