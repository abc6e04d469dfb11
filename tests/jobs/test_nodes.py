"""Training across machines of which one is lost: nodes in network namespaces of their own.

Heavy: part of `make cluster-test`; needs root, iproute2, PostgreSQL and rclone. Each node has an
address, an interface and one CPU, so that two training processes never share one. Three nodes leave
a spare; with two there is none. The corpus is built and the model trained in an S3 store, tracked
by an MLflow server on PostgreSQL.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from elmwright.jobs.journal import read_journal
from elmwright.pipeline.files import read_json, write_bytes
from tests.jobs.clusters import RayHead, clean_environment, kill_with
from tests.jobs.servers import BUCKET, environment, mlflow_server, postgres, s3_server
from tests.jobs.test_cluster import PLANTED, Cluster, digests, until
from tests.jobs.tiny import write_config
from tests.s3_server import SECRET

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces want root"),
]

STEPS = 700
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
        # Each machine has a disk of its own where Ray unpacks what is sent: two nodes that unpack
        # into one folder take files from under each other.
        own = "" if "--head" in options else f"mount -t tmpfs tmpfs {self.net.folder} && "
        command = [
            "ip", "netns", "exec", self.name, "sh", "-c", f'{own}exec "$@"', "node",
            sys.executable, "-m", "ray.scripts.scripts", "start",
            "--block", f"--node-ip-address={self.address}", "--num-cpus=1",
            "--object-store-memory=150000000", "--disable-usage-stats", *options,
        ]  # fmt: skip
        for _ in range(4):
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    command,
                    env=clean_environment(
                        self.net.home, RAY_AUTH_MODE="disabled", **self.net.secrets
                    ),
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
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def cut(self) -> None:
        """The machine is there, its network is not."""
        self.ip("link", "set", "eth0", "down")

    def trains(self) -> bool:
        """Whether a training process is on this machine."""
        return bool(self.processes("RayTrainWorker"))

    def processes(self, text: str = "") -> list[int]:
        """Those of this machine that have this text in their command line."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        ).stdout.split()
        lines = {int(pid): Path(f"/proc/{pid}/cmdline") for pid in pids}
        return [p for p, line in lines.items() if line.exists() and text in line.read_text()]


class Net:
    """A network of machines."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        """The user's files, and where Ray keeps its own."""
        number = os.getpid() % 200 + 20
        self.bridge = f"elm{number}"
        self.prefix = f"10.213.{number}"
        self.nodes: list[Node] = []
        self.count = 0
        self.secrets: dict[str, str] = {}
        """Variables of every machine."""
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.prefix}.254/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def add(self) -> Node:
        self.nodes.append(Node(self, self.count))
        self.count += 1
        return self.nodes[-1]

    def join(self) -> None:
        """One more machine for the cluster."""
        self.add().start(f"--address={self.nodes[0].address}:6379")

    def leave(self, node: Node) -> None:
        """A machine is gone for good."""
        node.kill()
        subprocess.run(["ip", "netns", "del", node.name], check=False)
        self.nodes.remove(node)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            subprocess.run(["ip", "netns", "del", node.name], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class StoreCluster(Cluster):
    """A user whose runs live in an object store: the machines share nothing else."""

    def submit(self, name: str, **changes: Any) -> str:  # type: ignore[override]
        folder = self.home / name
        folder.mkdir()
        config = write_config(
            folder, self.text, run_name=name, run_dir=f"s3://{BUCKET}/{name}",
            corpus_sources=[f"s3://{BUCKET}/text.txt"], tracking_uri=self.tracking,
            train_max_steps=STEPS, checkpoint_every_steps=50, eval_every_steps=350, **changes,
        )  # fmt: skip
        self.run("submit", config, "--to", self.head.address, "--until", "publish")
        return f"s3://{BUCKET}/{name}"


@dataclass
class Lab:
    """Machines, what is on them, and a run that nothing happened to."""

    net: Net
    cluster: StoreCluster
    peace: str

    def begin(self, name: str) -> str:
        """Submit a run; it trains on two machines when this returns."""
        place = self.cluster.submit(name)
        until(lambda: newest_step(place) > 100, 600, lambda: self.cluster.run("logs", name))
        return place

    def ends_identical(self, name: str, place: str) -> None:
        words = ("finished", "failed", "interrupted")
        assert self.cluster.wait(name, *words)["state"] == "finished"
        assert digests(place) == digests(self.peace)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("lab")
    folder = Path(tempfile.mkdtemp(prefix="elmnet-", dir="/tmp"))
    with ExitStack() as stack:
        net = Net(home, folder)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(kill_with, str(folder))
        stack.callback(net.close)
        outside = f"{net.prefix}.254"
        store = stack.enter_context(s3_server(home, outside))
        stack.enter_context(environment(store))
        database = stack.enter_context(postgres(home))
        tracking = stack.enter_context(
            mlflow_server(home, database, f"s3://{BUCKET}/mlflow", host=outside)
        )
        net.secrets = store
        head = net.add()
        head.start("--head", "--port=6379", "--dashboard-host=0.0.0.0", f"--temp-dir={folder}")
        for _ in range(2):
            net.join()
        cluster = StoreCluster(home, RayHead(f"http://{head.address}:8265", home, folder), tracking)
        # In a namespace the host's name is 127.0.0.1, where gloo finds nobody.
        cluster.user |= {"GLOO_SOCKET_IFNAME": "eth0", **store}
        write_bytes(f"s3://{BUCKET}/text.txt", cluster.text.read_bytes())
        peace = cluster.submit("peace")
        found = cluster.wait("peace", "finished", "failed", "interrupted")
        assert found["state"] == "finished", cluster.run("logs", "peace")
        yield Lab(net, cluster, peace)


def newest_step(place: str) -> int:
    records = read_journal(f"{place}/train/journal", 0)
    return max((record["step"] for record, _ in records), default=0)


def attempts(place: str) -> int:
    return int((read_json(f"{place}/train/attempt.json") or {}).get("attempt", 0))


@pytest.mark.parametrize("how", ["killed", "cut"])
def test_a_lost_node_is_replaced_by_the_spare_and_the_run_ends_identical(
    how: str, lab: Lab
) -> None:
    place = lab.begin(how)
    victim = next(node for node in lab.net.nodes[1:] if node.trains())
    begun = time.monotonic()
    victim.kill() if how == "killed" else victim.cut()
    # What was done before the loss may still arrive: the next attempt must get further than that.
    until(lambda: attempts(place) > 1, 3 * GOES_ON_WITHIN, lambda: lab.cluster.run("logs", how))
    step = newest_step(place)
    until(lambda: newest_step(place) > step, 3 * GOES_ON_WITHIN,
          lambda: lab.cluster.run("logs", how))  # fmt: skip
    seconds = time.monotonic() - begun
    print(f"{how}: training went on {seconds:.0f} s after the loss of {victim.address}")
    lab.ends_identical(how, place)
    assert lab.cluster.status(how)["progress"]["restarts"] >= 1
    assert seconds < GOES_ON_WITHIN
    lab.net.leave(victim)
    lab.net.join()


def test_a_killed_driver_is_interrupted_and_resumes_identical(lab: Lab) -> None:
    place = lab.begin("driver")
    drivers = lab.net.nodes[0].processes("elmwright.jobs.entry")
    assert drivers
    for pid in drivers:
        os.kill(pid, signal.SIGKILL)
    words = ("interrupted", "failed", "finished")
    assert lab.cluster.wait("driver", *words, seconds=120)["state"] == "interrupted"
    lab.cluster.run("resume", place, "--follow")
    lab.ends_identical("driver", place)


def test_without_a_spare_the_run_is_interrupted_and_resumes_identical(lab: Lab) -> None:
    lab.net.leave(lab.net.nodes[-1])
    place = lab.begin("alone")
    lab.net.leave(lab.net.nodes[-1])
    words = ("interrupted", "failed", "finished")
    found = lab.cluster.wait("alone", *words, seconds=600)
    assert (found["state"], found["exit_code"]) == ("interrupted", 75)
    lab.net.join()
    lab.cluster.run("resume", "alone", "--follow")
    lab.ends_identical("alone", place)


def test_each_step_is_in_mlflow_once_and_no_secret_is_anywhere(lab: Lab) -> None:
    client = MlflowClient(lab.cluster.tracking, lab.cluster.tracking)
    experiment = client.get_experiment_by_name("elmwright")
    runs = {run.info.run_name: run.info.run_id for run in client.search_runs([
        experiment.experiment_id])}  # fmt: skip
    for name in ("peace", "killed", "cut", "driver", "alone"):
        history = client.get_metric_history(runs[name], "train/loss")
        assert [point.step for point in history] == list(range(2, STEPS + 1, 2)), name
        assert SECRET not in str(client.get_run(runs[name]).to_dictionary())
    looked = 0
    for root in (lab.cluster.home, lab.cluster.head.folder):
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                assert SECRET.encode() not in content, path
                assert PLANTED.encode() not in content, path
                looked += 1
    assert looked > 100
