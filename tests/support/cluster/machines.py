"""Machines for the tests: Ray nodes that can be lost one by one.

Where the machine allows it, each node is in a network namespace with an address and an interface of
its own, as on a network of real machines; otherwise the nodes are processes side by side, which
share an address, so that their network cannot be cut. ELMWRIGHT_MACHINES=plain asks for the latter.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tests.support.cluster.ray_nodes import clean_environment, kill_with, wait_for_http
from tests.support.servers import free_port

MARK = "ELMWRIGHT_TEST_MACHINE"
"""A variable that every process of a machine without a namespace has."""


class Machine(ABC):
    """A machine with a Ray node of one CPU on it."""

    address: str

    def __init__(self, network: "Network", number: int) -> None:
        self.network, self.number = network, number

    @abstractmethod
    def wrap(self, command: list[str]) -> list[str]:
        """The command that runs another one on this machine."""

    @abstractmethod
    def all_processes(self) -> list[int]:
        """Everything that runs on it."""

    @abstractmethod
    def build(self) -> None:
        """Let it be there."""

    @abstractmethod
    def remove(self) -> None:
        """Take down what is there of it; its processes are gone already."""

    def start(self, *options: str) -> None:
        """Start Ray here, and wait until it says that it runs."""
        network = self.network
        log = network.home / f"machine-{self.number}.log"
        # A disk of its own: nodes that unpack what they are sent into one folder take it from under
        # each other.
        command = self.wrap(
            [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--block",
                "--num-cpus=1",
                f"--node-ip-address={self.address}",
                f"--temp-dir={network.folder / f'm{self.number}'}",
                f"--dashboard-agent-listen-port={free_port()}",
                "--min-worker-port=0",
                "--max-worker-port=0",
                "--object-store-memory=150000000",
                "--disable-usage-stats",
                *options,
            ]
        )
        environment = clean_environment(network.home, RAY_AUTH_MODE="disabled", **network.variables)
        environment[MARK] = f"{network.folder}/{self.number}"
        for _ in range(4):
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdout=out,
                    stderr=out,
                    cwd=network.home,
                    start_new_session=True,
                )
            while "will now block" not in log.read_text() and process.poll() is None:
                time.sleep(0.2)
            if process.poll() is None:
                if "--head" in options:
                    wait_for_http(f"{network.dashboard}/api/version", process, log)
                return
            self.kill()
        raise AssertionError(log.read_text()[-3000:])

    def kill(self) -> None:
        """The machine is gone: every process of it, at once."""
        end = time.monotonic() + 30
        while pids := self.all_processes():
            assert time.monotonic() < end, pids
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    def processes(self, text: str) -> list[int]:
        """Those of this machine that have this text in their command line."""
        lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in self.all_processes()}
        return [pid for pid, line in lines.items() if text in _read(line)]

    def trains(self) -> bool:
        """Whether a training process is on this machine."""
        return bool(self.processes("RayTrainWorker"))


class Namespace(Machine):
    """A machine that is a network namespace."""

    def __init__(self, network: "Network", number: int) -> None:
        super().__init__(network, number)
        self.name = f"{network.bridge}n{number}"
        self.address = f"{network.prefix}.{number + 1}"
        self.outside = f"{network.bridge}v{number}"

    def build(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self.outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.outside, "master", self.network.bridge, "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def wrap(self, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def all_processes(self) -> list[int]:
        done = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in done.stdout.split() if not _is_zombie(int(pid))]

    def cut(self) -> None:
        """The machine is there, its network is not."""
        ip("-n", self.name, "link", "set", "eth0", "down")

    def remove(self) -> None:
        for command in (["link", "del", self.outside], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True, check=False)


class Neighbour(Machine):
    """A machine that is only a set of processes on this one."""

    address = "127.0.0.1"

    def wrap(self, command: list[str]) -> list[str]:
        return command

    def all_processes(self) -> list[int]:
        mark = f"{MARK}={self.network.folder}/{self.number}".encode()
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and not _is_zombie(int(path.name)):
                try:
                    if mark in (path / "environ").read_bytes().split(b"\0"):
                        found.append(int(path.name))
                except OSError:  # it has ended
                    continue
        return found

    def build(self) -> None:
        return

    def remove(self) -> None:
        return


class Network:
    """Machines that form a Ray cluster; the first is its head."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        """The user's files, and where the machines keep what Ray writes."""
        self.separate = can_separate()
        self.machines: list[Machine] = []
        self.count = 0
        self.variables: dict[str, str] = {}
        """In the environment of every machine."""
        number = os.getpid() % 200 + 20
        self.bridge, self.prefix = f"elm{number}", f"10.213.{number}"
        self.host = f"{self.prefix}.254" if self.separate else "127.0.0.1"
        """Where the machines reach the servers of the test."""
        self.ports = (6379, 8265) if self.separate else (free_port(), free_port())

    def build(self) -> None:
        """What connects the machines."""
        if self.separate:
            ip("link", "add", self.bridge, "type", "bridge")
            ip("addr", "add", f"{self.host}/24", "dev", self.bridge)
            ip("link", "set", self.bridge, "up")

    @property
    def head(self) -> Machine:
        return self.machines[0]

    @property
    def dashboard(self) -> str:
        return f"http://{self.head.address}:{self.ports[1]}"

    def join(self) -> Machine:
        """One more machine for the cluster."""
        kind = Namespace if self.separate else Neighbour
        machine = kind(self, self.count)
        self.count += 1
        self.machines.append(machine)
        machine.build()
        if machine is self.head:
            machine.start(
                "--head",
                f"--port={self.ports[0]}",
                f"--dashboard-host={machine.address}",
                f"--dashboard-port={self.ports[1]}",
                f"--ray-client-server-port={free_port()}",
            )
        else:
            machine.start(f"--address={self.head.address}:{self.ports[0]}")
        return machine

    def leave(self, machine: Machine) -> None:
        """A machine is gone for good."""
        machine.kill()
        machine.remove()
        self.machines.remove(machine)

    def close(self) -> None:
        """Whatever state things are in: no process and no interface stays."""
        kill_with(str(self.folder))
        for machine in list(self.machines):
            self.leave(machine)
        if self.separate:
            subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


def can_separate() -> bool:
    """Whether network namespaces can be made here."""
    if os.environ.get("ELMWRIGHT_MACHINES") == "plain":
        return False
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"elt{os.getpid()}"
    tries = (
        ["netns", "add", name],
        ["link", "add", f"{name}b", "type", "bridge"],
        ["link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name],
    )
    undo = (["link", "del", f"{name}v"], ["link", "del", f"{name}b"], ["netns", "del", name])
    try:
        return all(_ip_works(command) for command in tries)
    finally:
        for command in undo:
            _ip_works(command)


def _ip_works(command: list[str]) -> bool:
    done = subprocess.run(["ip", *command], capture_output=True, check=False)
    return done.returncode == 0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _is_zombie(pid: int) -> bool:
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] == ["Z"]
