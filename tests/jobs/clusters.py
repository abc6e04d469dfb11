"""Real clusters for the tests: a Ray of their own, with its own home, ports and folder.

Nothing here is machine-wide: processes are found by the folder in their command line, which only
ours have, and killed by number.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class RayHead:
    """A running Ray head."""

    address: str
    """Of its dashboard."""
    home: Path
    """HOME of its processes."""
    folder: Path
    """Its sessions and logs."""


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a cluster's node: nothing of ours on the path, a home of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "RAY_", "AWS_", "MLFLOW_", "XDG_"))
    }
    return kept | {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", **more}


@contextmanager
def ray_head(home: Path, *, cpus: int = 2, **environment: str) -> Iterator[RayHead]:
    """A Ray head with a dashboard, started as an administrator would."""
    folder = Path(tempfile.mkdtemp(prefix="elmray-", dir="/tmp"))
    ports = free_port(), free_port()
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        f"--port={ports[0]}", f"--dashboard-port={ports[1]}", f"--num-cpus={cpus}",
        f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}",
        f"--temp-dir={folder}", "--object-store-memory=150000000", "--disable-usage-stats",
    ]  # fmt: skip
    log = open(home / "ray.log", "wb")  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(
        command, cwd=home, env=clean_environment(home, **environment), stdout=log,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{ports[1]}"
    try:
        wait_for_http(f"{address}/api/version", process, home / "ray.log")
        # The dashboard answers before the node is there.
        while "will now block" not in (home / "ray.log").read_text():
            assert process.poll() is None, (home / "ray.log").read_text()[-2000:]
            time.sleep(0.2)
        yield RayHead(address, home, folder)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        kill_with(str(folder))
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mlflow_server(home: Path) -> Iterator[str]:
    """An MLflow server with a database of its own."""
    port = free_port()
    command = [
        str(BIN / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port),
        "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
        "--artifacts-destination", str(home / "artifacts"), "--workers", "1",
    ]  # fmt: skip
    with open(home / "mlflow.log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=home, env=clean_environment(home), stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for_http(f"http://127.0.0.1:{port}/health", process, home / "mlflow.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_http(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until a server answers anything but a refusal to connect."""
    end = time.monotonic() + 400
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310
        except urllib.error.HTTPError:
            return  # it wants a token: it is up
        except OSError:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.3)
        else:
            return


def kill_with(text: str) -> None:
    """Kill every process that has this text, which only ours have, in its command line."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if text.encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
