"""A cluster on this machine, as plain processes: what `make cluster-up` starts.

    cluster.py up       Ray head (no work on it) and workers, an S3 server, an MLflow server
    cluster.py down     end exactly those processes
    cluster.py status   which of them are alive, and where

Everything is in one folder (`build/cluster`, or ELMWRIGHT_CLUSTER): a file `NAME.pid` and
`NAME.log` for each process, `env` to be sourced, the store's buckets, MLflow's database. `down`
leaves the data. Running `up` again changes nothing, unless a process has died: then all of them are
started again.

Every port is a free one unless ELMWRIGHT_RAY_PORT, _DASHBOARD_PORT, _STORE_PORT or _MLFLOW_PORT
names it. ELMWRIGHT_WORKERS (2) and ELMWRIGHT_WORKER_CPUS (1) give the size. Everything listens on
127.0.0.1 only, and Ray requires a token (in `auth_token`, readable only by you), because other
users of a machine can reach 127.0.0.1 too. RAY_AUTH_MODE=disabled turns that off. A token in ~/.ray
is not used.

Nothing else on the machine is touched: no `ray stop`, which ends every Ray of the user, no
/tmp/ray, where other clusters keep their address, and no process that was not started here. A
process is identified by its number and its start time, its descendants by a mark in their
environment.
"""

import argparse
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from local_processes import HOST, answers, carrying, free_port, wait, write_private

from elmwright.jobs.runbook.deployment import BUCKET
from elmwright.jobs.runbook.submission import ProcessHandle
from elmwright.jobs.submit.targets.background import is_alive, process_handle

BIN = Path(sys.executable).parent
STARTED_WITHIN = 300.0
STOPPED_WITHIN = 20.0
TRIES = 3
TOO_SLOW = "timed out"
"""What Ray's parts say when another one takes more than 30 s, a limit that cannot be set."""
RAY_TEMPORARY = "elmwright-ray-"
MARK = "ELMWRIGHT_CLUSTER_MARK"


class Trouble(Exception):  # noqa: N818 - shown to the user as it is
    """A problem to show to the user."""


class Cluster:
    """The folder, and the processes that are remembered in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env_file = folder / "env"

    def path(self, name: str) -> Path:
        return self.folder / name

    # --- processes ---
    def start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        """Start a process that is detached from this terminal, with its output in a file."""
        with self.path(f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        record = {"pid": child.pid, "ticks": process_handle(child.pid).started}
        self.path(f"{name}.pid").write_text(json.dumps(record))

    def processes(self) -> dict[str, ProcessHandle]:
        """The processes that were started here, dead or alive, by name."""
        handles = {}
        for path in sorted(self.folder.glob("*.pid")):
            record = json.loads(path.read_text())
            handles[path.stem] = ProcessHandle(record["pid"], record["ticks"], HOST)
        return handles

    def marked(self) -> list[int]:
        """The living descendants of these processes, which have our mark in their environment."""
        if not self.path("mark").exists():
            return []
        return carrying(f"{MARK}={self.path('mark').read_text()}")

    def stop(self) -> None:
        """End the processes that were started here, and their descendants."""
        processes = self.processes()
        for process in processes.values():
            if is_alive(process):
                os.kill(process.pid, signal.SIGTERM)
        wait(lambda: not any(map(is_alive, processes.values())), STOPPED_WITHIN)
        for pid in self.marked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait(lambda: not self.marked(), STOPPED_WITHIN)
        for name in processes:
            self.path(f"{name}.pid").unlink()
        self.env_file.unlink(missing_ok=True)
        link = self.path("ray")
        if link.is_symlink():
            target = link.readlink()
            if target.name.startswith(RAY_TEMPORARY):
                shutil.rmtree(target, ignore_errors=True)
            link.unlink()

    # --- what they are ---
    def up(self) -> None:
        names = _names()
        alive = {name for name, process in self.processes().items() if is_alive(process)}
        if alive >= set(names) and self.env_file.exists():
            print("the cluster is running already")
            self.show()
            return
        for more in reversed(range(TRIES)):
            self.stop()
            try:
                self._start_all(names)
                break
            except BaseException as problem:
                self.stop()
                if not more or TOO_SLOW not in str(problem).lower():
                    raise
            print("this machine is busy: a Ray node did not start in time; trying again")
        self.show()

    def _start_all(self, names: list[str]) -> None:
        ports = {
            name: int(os.environ.get(f"ELMWRIGHT_{name}_PORT", "0")) or free_port()
            for name in ("RAY", "DASHBOARD", "STORE", "MLFLOW")
        }
        exports = self._exports(ports)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | exports
        # MLflow starts uvicorn by that name.
        environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.path("mark").write_text(secrets.token_hex(16))
        environment[MARK] = self.path("mark").read_text()
        # Ray would otherwise wait 30 s for a stopping node to drain.
        environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
        self._start_store(ports["STORE"], environment)
        self._start_ray(ports, names, environment)
        deadline = time.monotonic() + STARTED_WITHIN
        store, dashboard = f"http://{HOST}:{ports['STORE']}/", ports["DASHBOARD"]
        self._wait_healthy("store", lambda: answers(store), deadline)
        self._wait_healthy("head", lambda: self._nodes(dashboard) >= len(names) - 2, deadline)
        # Last, because its start is heavy and Ray's nodes have only limited time for theirs.
        self._start_mlflow(ports["MLFLOW"], environment)
        health = f"http://{HOST}:{ports['MLFLOW']}/health"
        self._wait_healthy("mlflow", lambda: answers(health, {200}), deadline)
        lines = [f"export {key}={shlex.quote(value)}" for key, value in exports.items()]
        write_private(self.env_file, "\n".join(lines) + "\n")

    def _exports(self, ports: dict[str, int]) -> dict[str, str]:
        """What a user of the cluster needs in the environment."""
        keys = self.path("keys.json")
        if not keys.exists():
            write_private(
                keys,
                json.dumps({"key": secrets.token_hex(10).upper(), "secret": secrets.token_hex(20)}),
            )
        pair = json.loads(keys.read_text())
        exports = {
            "CLUSTER_ADDRESS": f"{HOST}:{ports['RAY']}",
            "RAY_API_SERVER_ADDRESS": f"http://{HOST}:{ports['DASHBOARD']}",
            "MLFLOW_TRACKING_URI": f"http://{HOST}:{ports['MLFLOW']}",
            "AWS_ENDPOINT_URL": f"http://{HOST}:{ports['STORE']}",
            "AWS_ACCESS_KEY_ID": pair["key"],
            "AWS_SECRET_ACCESS_KEY": pair["secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
            "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"),
        }
        if exports["RAY_AUTH_MODE"] == "token":
            token = self.path("auth_token")
            write_private(token, secrets.token_hex(32))
            exports["RAY_AUTH_TOKEN_PATH"] = str(token)
        return exports

    def _start_store(self, port: int, environment: dict[str, str]) -> None:
        rclone = shutil.which("rclone", path=environment["PATH"])
        if rclone is None:
            raise Trouble(
                "rclone is not installed, and it is the S3 server; 'make setup' brings it"
            )
        (self.path("store") / BUCKET).mkdir(parents=True, exist_ok=True)
        pair = f"{environment['AWS_ACCESS_KEY_ID']},{environment['AWS_SECRET_ACCESS_KEY']}"
        self.start(
            "store",
            [rclone, "serve", "s3", "--addr", f"{HOST}:{port}", str(self.path("store"))],
            # Not on the command line, where every user can read it.
            environment | {"RCLONE_AUTH_KEY": f'"{pair}"'},
        )

    def _start_mlflow(self, port: int, environment: dict[str, str]) -> None:
        database = self.path("mlflow.db")
        # The server must not act as a client of a server.
        own = {k: v for k, v in environment.items() if not k.startswith("MLFLOW_TRACKING")}
        own["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # 1.2 GB for what is not used here
        if database.exists():
            self._upgrade(database, own)
        command = [
            str(BIN / "mlflow"),
            "server",
            "--host",
            HOST,
            "--port",
            str(port),
            "--workers",
            "1",
            "--backend-store-uri",
            f"sqlite:///{database}",
            "--artifacts-destination",
            str(self.path("artifacts")),
        ]
        self.start("mlflow", command, own)

    def _upgrade(self, database: Path, environment: dict[str, str]) -> None:
        """Upgrade the tables of a database that an older MLflow wrote."""
        log = self.path("mlflow.log")
        with log.open("ab") as output:
            done = subprocess.run(
                [BIN / "mlflow", "db", "upgrade", f"sqlite:///{database}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode != 0:
            raise Trouble(f"{database} could not be upgraded; {log} says why")

    def _start_ray(
        self, ports: dict[str, int], names: list[str], environment: dict[str, str]
    ) -> None:
        # Ray's Unix sockets are below its temporary folder, and their paths must be short.
        temporary = Path(tempfile.mkdtemp(prefix=RAY_TEMPORARY, dir="/tmp"))
        self.path("ray").symlink_to(temporary)
        # A folder for each node, or they would delete each other's unpacked files.
        common = [
            str(BIN / "ray"),
            "start",
            "--block",
            f"--node-ip-address={HOST}",
            "--disable-usage-stats",
            f"--object-store-memory={256 * 2**20}",
            "--min-worker-port=0",
            "--max-worker-port=0",  # any: several nodes share this machine
        ]
        head = [
            "--head",
            "--num-cpus=0",
            f"--temp-dir={temporary / 'head'}",
            f"--port={ports['RAY']}",
            f"--dashboard-host={HOST}",
            f"--dashboard-port={ports['DASHBOARD']}",
            f"--ray-client-server-port={free_port()}",
            f"--dashboard-agent-listen-port={free_port()}",
        ]
        self.start("head", common + head, environment)
        self._wait_healthy(
            "head", lambda: self._nodes(ports["DASHBOARD"]) >= 1, time.monotonic() + STARTED_WITHIN
        )
        cpus = int(os.environ.get("ELMWRIGHT_WORKER_CPUS", "1"))
        for name in names:
            if name.startswith("worker"):
                worker = [
                    f"--temp-dir={temporary / name}",
                    f"--address={HOST}:{ports['RAY']}",
                    f"--num-cpus={cpus}",
                    f"--dashboard-agent-listen-port={free_port()}",
                    "--include-log-monitor=false",
                ]
                self.start(name, common + worker, environment)

    def _nodes(self, dashboard: int) -> int:
        """Ray nodes that are alive, asked through the dashboard (importing ray takes seconds)."""
        token = self.path("auth_token")
        headers = {"Authorization": f"Bearer {token.read_text()}"} if token.exists() else {}
        request = urllib.request.Request(
            f"http://{HOST}:{dashboard}/nodes?view=summary", headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - http above
                summary = json.load(answer)["data"]["summary"]
        except (OSError, ValueError, KeyError):
            return 0
        return sum(node.get("raylet", {}).get("state") == "ALIVE" for node in summary)

    def _wait_healthy(self, name: str, healthy: Callable[[], bool], deadline: float) -> None:
        while not healthy():
            dead = [name for name, process in self.processes().items() if not is_alive(process)]
            if dead or time.monotonic() > deadline:
                name = dead[0] if dead else name
                what = "ended" if dead else f"is not ready after {STARTED_WITHIN:.0f} s"
                log = self.path(f"{name}.log")
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise Trouble(f"{name} {what}; the end of its log, {log}:\n{tail}")
            time.sleep(0.2)

    def show(self) -> None:
        for name, process in self.processes().items():
            print(f"  {name:<9} {'running' if is_alive(process) else 'dead':<8} pid {process.pid}")
        if not self.env_file.exists():
            return
        values = dict(
            shlex.split(line)[1].split("=", 1) for line in self.env_file.read_text().splitlines()
        )
        print(f"  Ray       {values['CLUSTER_ADDRESS']}")
        print(f"  dashboard {values['RAY_API_SERVER_ADDRESS']}")
        print(f"  MLflow    {values['MLFLOW_TRACKING_URI']}")
        print(f"  store     {values['AWS_ENDPOINT_URL']} (bucket {BUCKET})")
        print(f"to use it: source {shlex.quote(str(self.env_file))}")


def _names() -> list[str]:
    workers = int(os.environ.get("ELMWRIGHT_WORKERS", "2"))
    return ["head", "store", "mlflow", *(f"worker-{n}" for n in range(1, workers + 1))]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One command at a time."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="A Ray cluster, S3 and MLflow on this machine.")
    parser.add_argument("what", choices=("up", "down", "status"))
    what = parser.parse_args().what
    here = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("ELMWRIGHT_CLUSTER") or here / "build" / "cluster").resolve()
    if what != "up" and not folder.is_dir():
        print("no cluster was started here")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder)
    with locked(folder):
        try:
            if what == "up":
                cluster.up()
            elif what == "down":
                cluster.stop()
                print(f"stopped; data stays in {folder}")
            else:
                cluster.show()
        except Trouble as trouble:
            print(f"error: {trouble}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
