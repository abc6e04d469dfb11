"""Real clusters for the tests: a Ray of their own, with its own home, ports and folder.

Nothing here is machine-wide: processes are found by the folder in their command line, which only
ours have, and killed by number.
"""

import json
import os
import shutil
import signal
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

from tests.support.servers import free_port

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class RayHead:
    """A running Ray head."""

    address: str
    """Of its dashboard."""
    home: Path
    """HOME of its processes."""
    folder: Path
    """Its sessions and logs."""
    gcs: str = ""
    """Where drivers and further nodes connect."""

    def alive(self) -> int:
        """Nodes that Ray counts."""
        with urllib.request.urlopen(f"{self.address}/nodes?view=summary", timeout=30) as answer:  # noqa: S310
            nodes = json.load(answer)["data"]["summary"]
        return sum(node.get("raylet", {}).get("state") == "ALIVE" for node in nodes)

    def wait_for_nodes(self, count: int, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while self.alive() != count:
            assert time.monotonic() < end, f"{self.alive()} nodes, not {count}"
            time.sleep(0.5)


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
    process = None
    try:
        for _ in range(4):
            process, address, gcs = start_head(home, folder, cpus, environment)
            if process.poll() is None:
                break
        else:
            raise AssertionError((home / "ray.log").read_text()[-3000:])
        yield RayHead(address, home, folder, gcs)
    finally:
        if process is not None:
            process.kill()
            process.wait()
        kill_with(str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def start_head(
    home: Path, folder: Path, cpus: int, environment: dict[str, str]
) -> tuple["subprocess.Popen[bytes]", str, str]:
    """Start a head and wait for it; the addresses are those of its dashboard and of its GCS. On a
    busy machine Ray gives up on itself after half a minute; the process has ended then."""
    ports = free_port(), free_port()
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={ports[0]}",
        f"--dashboard-port={ports[1]}",
        f"--num-cpus={cpus}",
        f"--dashboard-agent-listen-port={free_port()}",
        f"--ray-client-server-port={free_port()}",
        f"--temp-dir={folder}",
        "--object-store-memory=150000000",
        "--disable-usage-stats",
    ]
    with open(home / "ray.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=clean_environment(home, **environment),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while "will now block" not in (home / "ray.log").read_text() and process.poll() is None:
        time.sleep(0.2)
    if process.poll() is not None:
        kill_with(str(folder))
    else:
        wait_for_http(f"http://127.0.0.1:{ports[1]}/api/version", process, home / "ray.log")
    return process, f"http://127.0.0.1:{ports[1]}", f"127.0.0.1:{ports[0]}"


@contextmanager
def ray_worker(
    head: RayHead, *, cpus: int = 0, gpus: int = 0, **environment: str
) -> Iterator[None]:
    """One more node of a head's cluster. Its GPUs are pretended: Ray counts what it is told."""
    folder, before = Path(tempfile.mkdtemp(prefix="elmray-", dir="/tmp")), head.alive()
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        f"--address={head.gcs}",
        f"--num-cpus={cpus}",
        f"--num-gpus={gpus}",
        f"--temp-dir={folder}",
        f"--dashboard-agent-listen-port={free_port()}",
        "--object-store-memory=150000000",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--disable-usage-stats",
    ]
    with open(head.home / "worker.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=head.home,
            env=clean_environment(head.home, **environment),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        head.wait_for_nodes(before + 1)
        yield
    finally:
        process.kill()
        process.wait()
        kill_with(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
    head.wait_for_nodes(before)


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
