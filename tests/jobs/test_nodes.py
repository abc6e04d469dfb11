"""Training across machines of which one is lost: nodes in network namespaces of their own.

Heavy: part of `make cluster-test`; needs root and iproute2. Each node has an address, an interface
and one CPU, so that two training processes never share one. Three nodes leave a spare; with two
there is none.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elmwright.jobs.journal import read_journal
from tests.jobs.clusters import RayHead, clean_environment, kill_with, mlflow_server
from tests.jobs.test_cluster import Cluster, digests, until

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces want root"),
]

GOES_ON_WITHIN = 120.0
"""Seconds from the loss of a node to the next step in the journal."""


class Node:
    """A machine: a network namespace with a Ray node in it."""

    def __init__(self, net: "Net", number: int) -> None:
        self.net, self.number = net, number
        self.name = f"{net.bridge}n{number}"
        self.address = f"{net.prefix}.{number + 1}"
        outside = f"{net.bridge}v{number}"
        ip("netns", "add", self.name)
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", outside, "master", net.bridge, "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments: str) -> None:
        ip("-n", self.name, *arguments)

    def start(self, *options: str) -> None:
        """Start Ray here, and wait until it says that it runs."""
        log = self.net.home / f"{self.name}.log"
        command = [
            "ip", "netns", "exec", self.name, sys.executable, "-m", "ray.scripts.scripts", "start",
            "--block", f"--node-ip-address={self.address}", "--num-cpus=1",
            "--object-store-memory=150000000", "--disable-usage-stats", *options,
        ]  # fmt: skip
        for _ in range(4):
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    command, env=clean_environment(self.net.home, RAY_AUTH_MODE="disabled"),
                    stdout=out, stderr=out, cwd=self.net.home, start_new_session=True,
                )  # fmt: skip
            while "will now block" not in log.read_text() and process.poll() is None:
                time.sleep(0.2)
            if process.poll() is None:
                return
            self.kill()
        raise AssertionError(log.read_text()[-3000:])

    def kill(self) -> None:
        """The machine is gone: every process of it, at once."""
        for pid in subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        ).stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def cut(self) -> None:
        """The machine is there, its network is not."""
        self.ip("link", "set", "eth0", "down")

    def trains(self) -> bool:
        """Whether a training process is on this machine."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        ).stdout.split()
        lines = [Path(f"/proc/{pid}/cmdline") for pid in pids]
        return any(b"RayTrainWorker" in line.read_bytes() for line in lines if line.exists())


class Net:
    """A network of machines."""

    def __init__(self, home: Path) -> None:
        self.home = home
        number = os.getpid() % 200 + 20
        self.bridge = f"elm{number}"
        self.prefix = f"10.213.{number}"
        self.nodes: list[Node] = []
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.prefix}.254/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def add(self) -> Node:
        self.nodes.append(Node(self, len(self.nodes)))
        return self.nodes[-1]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            subprocess.run(["ip", "netns", "del", node.name], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def cluster_of(home: Path, nodes: int) -> Iterator[tuple[Cluster, Net]]:
    folder = Path(tempfile.mkdtemp(prefix="elmnet-", dir="/tmp"))
    net = Net(home)
    try:
        with mlflow_server(home, f"{net.prefix}.254") as tracking:
            head = net.add()
            head.start("--head", "--port=6379", "--dashboard-host=0.0.0.0",
                       f"--temp-dir={folder}")  # fmt: skip
            for _ in range(nodes - 1):
                net.add().start(f"--address={head.address}:6379")
            there = RayHead(f"http://{head.address}:8265", home, folder)
            cluster = Cluster(home, there, tracking)
            # In a namespace the host's name is 127.0.0.1, where gloo finds nobody.
            cluster.user["GLOO_SOCKET_IFNAME"] = "eth0"
            yield cluster, net
    finally:
        net.close()
        kill_with(str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def newest_step(folder: Path) -> int:
    records = read_journal(folder / "train" / "journal.jsonl", 0)
    return max((record["step"] for record, _ in records), default=0)


def lose(node: Node, folder: Path, cluster: Cluster, *, cut: bool = False) -> float:
    """Take a node away; seconds until training goes on behind where it was."""
    step, begun = newest_step(folder), time.monotonic()
    node.cut() if cut else node.kill()
    until(lambda: newest_step(folder) > step + 1, 3 * GOES_ON_WITHIN,
          lambda: (folder / "elmwright.log").read_text()[-5000:])  # fmt: skip
    return time.monotonic() - begun


def test_a_lost_node_is_replaced_by_the_spare_and_the_run_ends_identical(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as (cluster, net):
        steps = {"train_max_steps": 600, "checkpoint_every_steps": 20}
        peace = cluster.submit("peace", **steps)
        assert cluster.wait("peace", "finished", "failed", "interrupted")["state"] == "finished"
        folder = cluster.submit("hurt", **steps)
        cluster.wait_for_step(folder, 45)
        victim = until(lambda: next((n for n in net.nodes[1:] if n.trains()), None), 30, str)
        seconds = lose(victim, folder, cluster)
        print(f"training went on {seconds:.0f} s after the loss of {victim.address}")
        assert cluster.wait("hurt", "finished", "failed", "interrupted")["state"] == "finished"
        assert cluster.status("hurt")["progress"]["restarts"] >= 1
        assert digests(folder) == digests(peace)
        assert seconds < GOES_ON_WITHIN


def test_without_a_spare_the_run_is_interrupted_and_resumes_identical(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2) as (cluster, net):
        steps = {"train_max_steps": 600, "checkpoint_every_steps": 20}
        peace = cluster.submit("peace", **steps)
        assert cluster.wait("peace", "finished", "failed", "interrupted")["state"] == "finished"
        folder = cluster.submit("hurt", **steps)
        cluster.wait_for_step(folder, 45)
        net.nodes[1].kill()
        found = cluster.wait("hurt", "interrupted", "failed", "finished", seconds=600)
        assert (found["state"], found["exit_code"]) == ("interrupted", 75)
        net.add().start(f"--address={net.nodes[0].address}:6379")
        cluster.run("resume", "hurt", "--follow")
        assert digests(folder) == digests(peace)
