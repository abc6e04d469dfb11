"""Runs on a real Slurm of two nodes: submitted, watched, cancelled, warned, requeued.

Heavy: `make slurm-test`. The daemons (Debian: slurm-wlm, munge) are started with a key, folders and
ports of their own; both nodes are this machine. Slurm's daemons want to be root.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.submit.targets.network_address import address_of
from elmwright.pipeline.errors import UserError
from tests.support.cluster.ray_nodes import clean_environment, kill_with
from tests.support.cluster.user import digests, until
from tests.support.servers import free_port, mlflow_server
from tests.support.tiny import elmwright, write_config, write_text

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        any(
            shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None
            for name in DAEMONS
        ),
        reason="Slurm is not installed",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons want to be root"),
]

STEPS = 120
PLANTED = "planted-secret-90ab"
IN_FILE = "planted-secret-in-a-file-77e4"

CONF = """\
ClusterName=elmwright
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=5
ReturnToService=2
MailProg=/bin/true
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A Slurm cluster, and a user who submits to it."""

    def __init__(self, home: Path, conf: Path, tracking: str) -> None:
        self.home, self.tracking = home, tracking
        (home / "config" / "elmwright").mkdir(parents=True)
        (home / "config" / "elmwright" / "targets.toml").write_text(
            f'[night]\nkind = "slurm"\nnodes = 2\ncpus = 1\ntime = "01:00:00"\n'
            f'env_file = "{home}/secrets.env"\nsecrets = ["SLURM_TEST_SECRET"]\n'
            f'interface = "{outward()}"\n'
        )
        # A job that does not find it ends at once: that runs go through shows that it was read.
        (home / "secrets.env").write_text(f"SLURM_TEST_SECRET={IN_FILE}\n")
        self.tokens: set[str] = set()
        self.user = {
            "SLURM_CONF": str(conf),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "LAB_SECRET_TOKEN": PLANTED,
        }
        self.text = write_text(home / "text.txt")

    def run(self, *arguments: object, code: int = 0) -> str:
        done = elmwright(*arguments, timeout=1200, **self.user)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def slurm(self, *command: str) -> str:
        return subprocess.run(
            command, env=os.environ | self.user, capture_output=True, text=True, check=True
        ).stdout

    def submit(self, name: str) -> Path:
        folder = self.home / name
        folder.mkdir()
        config = write_config(
            folder,
            self.text,
            run_name=name,
            tracking_uri=self.tracking,
            train_max_steps=STEPS,
            checkpoint_every_steps=20,
            eval_every_steps=60,
        )
        self.run("submit", config, "--to", "night", "--until", "export")
        return folder / "run"

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", name, "--json"))
        return found

    def number(self, name: str) -> str:
        page = self.home / "state" / "elmwright" / "runs" / f"{name}.json"
        return str(json.loads(page.read_text())["attempts"][-1]["handle"]["job"])

    def wait(self, name: str, *words: str, seconds: float = 900) -> dict[str, Any]:
        return until(
            lambda: (found := self.status(name))["state"] in words and found,
            seconds,
            self.about(name),
        )

    def wait_for_step(self, name: str, folder: Path, step: int) -> None:
        journal = folder / "train" / "journal.jsonl"
        until(
            lambda: any(r.step >= step for r, _ in read_journal(journal, 0)), 900, self.about(name)
        )

    def note_tokens(self) -> bool:
        """The token of the job's own Ray, as its processes have it."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.home) not in (entry / "cmdline").read_text(errors="replace"):
                    continue
                variables = (entry / "environ").read_text(errors="replace").split("\0")
            except OSError:
                continue
            found = [v.partition("=")[2] for v in variables if v.startswith("RAY_AUTH_TOKEN=")]
            self.tokens.update(token for token in found if token)
        return bool(self.tokens)

    def about(self, name: str) -> Callable[[], str]:
        def tell() -> str:
            logs = [
                p.read_text()[-2000:] for p in self.home.glob(f"{name}/run/submissions/*/*.log")
            ]
            return "\n".join([self.run("status", name), *logs])

        return tell


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    home = tmp_path_factory.mktemp("slurm")
    folder = Path(tempfile.mkdtemp(prefix="elmslurm-", dir="/tmp"))
    folder.chmod(0o755)
    conf = folder / "slurm.conf"
    ports = [free_port() for _ in range(3)]
    conf.write_text(CONF.format(host=socket.gethostname(), ports=ports, folder=folder))
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o400)
    environment = clean_environment(home, SLURM_CONF=str(conf))
    environment["PATH"] += ":/usr/sbin:/sbin"
    munge = [
        "munged",
        "--foreground",
        "--force",
        f"--key-file={key}",
        f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/munged.log",
        f"--seed-file={folder}/munged.seed",
    ]
    daemons = []
    try:
        daemons.append(start(munge, environment, folder))
        until((folder / "munge.socket").exists, 20, (folder / "munged.log").read_text)
        daemons.append(start(["slurmctld", "-D", "-f", str(conf)], environment, folder))
        for node in ("n1", "n2"):
            (folder / f"spool-{node}").mkdir()
            daemons.append(
                start(["slurmd", "-D", "-N", node, "-f", str(conf)], environment, folder)
            )
        with mlflow_server(home) as tracking:
            cluster = Slurm(home, conf, tracking)
            until(lambda: idle(cluster) == 2, 60, lambda: logs(folder))
            yield cluster
            for line in cluster.slurm("squeue", "-h", "-o", "%i").split():
                cluster.slurm("scancel", line)
            time.sleep(3)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        kill_with(str(folder))
        kill_with(str(home))
        shutil.rmtree(folder, ignore_errors=True)


def outward() -> str:
    """The interface of this machine's first address; none where it has no name."""
    first = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout
    for _, name in socket.if_nameindex():
        with suppress(UserError):
            if address_of(name) == first.split()[0]:
                return name
    return ""


def start(
    command: list[str], environment: dict[str, str], folder: Path
) -> "subprocess.Popen[bytes]":
    with open(folder / f"{command[0]}.out", "ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)


def idle(cluster: Slurm) -> int:
    return cluster.slurm("sinfo", "-h", "-N", "-o", "%T").split().count("idle")


def logs(folder: Path) -> str:
    return "\n".join(f"{path}\n{path.read_text()[-1500:]}" for path in folder.glob("*.log"))


@pytest.fixture(scope="module")
def undisturbed(slurm: Slurm) -> Path:
    folder = slurm.submit("peace")
    assert slurm.status("peace")["state"] in ("pending", "running")
    refused = slurm.run("submit", folder.parent / "tiny.toml", "--to", "night", code=2)
    assert "'peace' is already running" in refused
    until(slurm.note_tokens, 300, slurm.about("peace"))
    assert slurm.wait("peace", "finished", "failed", "interrupted")["state"] == "finished"
    return folder


def test_a_run_goes_through_on_both_nodes(slurm: Slurm, undisturbed: Path) -> None:
    found = slurm.status("peace")
    assert found["progress"]["step"] == STEPS
    output = slurm.run("logs", "peace")
    assert "2 machines, Ray head on n1" in output
    assert "Bundle written and checked" in output
    assert "nothing to cancel" in slurm.run("cancel", "peace", code=2)


def test_cancelled_and_resumed_ends_identical(slurm: Slurm, undisturbed: Path) -> None:
    folder = slurm.submit("stopped")
    slurm.wait_for_step("stopped", folder, 25)
    assert "stopped is interrupted, with a checkpoint at step" in slurm.run("cancel", "stopped")
    before = slurm.status("stopped")
    assert 20 < before["progress"]["checkpoint_step"] < STEPS
    assert slurm.slurm("squeue", "-h", "--name", "elmwright-stopped") == ""  # not requeued
    slurm.run("resume", "stopped", "--follow")
    assert digests(folder) == digests(undisturbed)


def test_warned_checkpointed_requeued_ends_identical(slurm: Slurm, undisturbed: Path) -> None:
    """Slurm's own warning goes to the batch shell alone; so does this one."""
    folder = slurm.submit("warned")
    number = slurm.number("warned")
    slurm.wait_for_step("warned", folder, 25)
    slurm.slurm("scancel", "--batch", "--signal=USR1", number)
    slurm.wait("warned", "pending", seconds=120)
    step = slurm.status("warned")["progress"]["checkpoint_step"]
    assert 20 < step < STEPS
    # Slurm lets a requeued job wait for two minutes.
    until(
        lambda: "JobState=PENDING" in slurm.slurm("scontrol", "show", "job", number),
        60,
        slurm.about("warned"),
    )
    slurm.slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert slurm.wait("warned", "finished", "failed", "interrupted")["state"] == "finished"
    assert slurm.number("warned") == number
    output = slurm.run("logs", "warned")
    assert "back into the queue" in output
    assert f"job {number}, start 1:" in output
    assert digests(folder) == digests(undisturbed)


def test_a_killed_driver_goes_back_into_the_queue_and_a_cancel_there_is_the_last_word(
    slurm: Slurm,
) -> None:
    folder = slurm.submit("killed")
    number = slurm.number("killed")
    slurm.wait_for_step("killed", folder, 25)
    os.kill(json.loads((folder / "run.lock").read_text())["pid"], signal.SIGKILL)
    slurm.wait("killed", "pending", seconds=120)
    assert "interrupted (exit 137); back into the queue" in slurm.run("logs", "killed")
    slurm.run("cancel", "killed")
    assert slurm.status("killed")["state"] == "interrupted"
    assert slurm.slurm("squeue", "-h", "--jobs", number, "--states=all", "-o", "%T").split() in (
        [],
        ["CANCELLED"],
    )


def test_what_the_cluster_can_never_give_is_refused_at_once(slurm: Slurm) -> None:
    config = write_config(slurm.home, slurm.text, tracking_uri=slurm.tracking)
    large = ["submit", config, "--name", "large", "--set", "train.processes=4"]
    refused = slurm.run(*large, "--to", "slurm", "--set", "train.threads=64", code=2)
    assert "needs 1 machines with 256 CPUs each, but the cluster has 2 with 2" in refused
    assert "needs 4 CPUs, but" in slurm.run(*large, "--to", "night", code=2)


def test_the_doctor_knows_the_cluster(slurm: Slurm) -> None:
    config = write_config(slurm.home, slurm.text, tracking_uri=slurm.tracking)
    output = slurm.run("doctor", "night", "--config", config)
    assert "every secret is set" in output
    assert "slurm-wlm" in output
    assert "partition main" in output


def test_no_planted_secret_is_in_a_file(slurm: Slurm, undisturbed: Path) -> None:
    conf = Path(slurm.user["SLURM_CONF"]).parent
    assert slurm.tokens
    secrets = [secret.encode() for secret in (PLANTED, IN_FILE, *slurm.tokens)]
    looked = 0
    for root in (slurm.home, conf):
        for path in root.rglob("*"):
            if path.is_file() and path != slurm.home / "secrets.env":
                content = path.read_bytes()
                assert not any(secret in content for secret in secrets), path
                looked += 1
    assert looked > 50
