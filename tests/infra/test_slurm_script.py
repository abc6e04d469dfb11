"""`infra/slurm/elmwright.sbatch` on a real Slurm: signals, exit codes and requeueing.

The script and Slurm are real; `ray`, `python` and `elmwright` are stand-ins in `VENV`, so that each
behaviour of a driver can be had at once.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.infra.slurm_cluster import missing, slurm_cluster
from tests.infra.validators import INFRA

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

TEMPORARY = "/tmp"  # noqa: S108 - where the script puts Ray's sockets

RAY = """#!/bin/sh
# `ray start --block`: notes how it was called, and stays until it is told to end.
echo "$SLURMD_NODENAME $RAY_AUTH_MODE ${#RAY_AUTH_TOKEN} $*" >> "$NOTES/ray"
for word in "$@"; do case $word in --temp-dir=*) mkdir -p "${word#*=}";; esac; done
trap 'echo "$SLURMD_NODENAME" >> "$NOTES/ray-ended"; exit 0' TERM
while true; do sleep 0.2; done
"""

PYTHON = """#!/bin/sh
cat > /dev/null    # the program that waits for the nodes
touch "$NOTES/ray"
want=$(( 2 + 2 * ${SLURM_RESTART_COUNT:-0} ))
while [ "$(wc -l < "$NOTES/ray")" -lt "$want" ]; do sleep 0.2; done
"""

DRIVER = """#!/bin/sh
echo "$*" >> "$NOTES/driver"
if [ "$CONFIG" = finish ] || [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then exit 0; fi
case $CONFIG in [0-9]*) exit "$CONFIG";; esac
trap 'echo checkpoint >> "$NOTES/signals"; sleep 1; exit 75' TERM
touch "$NOTES/running"
while true; do sleep 0.2; done
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if missing() or os.geteuid() != 0:
        pytest.skip(f"no Slurm to be started here ({', '.join(missing()) or 'not root'})")
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


class Job:
    """One submission of the script, and what its parts noted."""

    def __init__(self, slurm: dict[str, str], folder: Path, config: str, *options: str) -> None:
        self.slurm, self.folder, self.notes = slurm, folder, folder / "notes"
        self.notes.mkdir()
        programs = folder / "venv" / "bin"
        programs.mkdir(parents=True)
        for name, text in (("ray", RAY), ("python", PYTHON), ("elmwright", DRIVER)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        exports = f"ALL,VENV={folder / 'venv'},CONFIG={config},NOTES={self.notes}"
        self.id = self._run(
            "sbatch", "--parsable", "--nodes=2", "--cpus-per-task=1", f"--export={exports}",
            f"--output={folder}/out", *options, str(INFRA / "slurm" / "elmwright.sbatch"),
        ).strip()  # fmt: skip

    def _run(self, *command: str) -> str:
        return subprocess.run(
            command, env=self.slurm, capture_output=True, text=True, check=True
        ).stdout

    def wait_for(self, name: str) -> None:
        self._until((self.notes / name).exists)

    def signal(self, name: str) -> None:
        self._run("scancel", "--batch", f"--signal={name}", self.id)

    def stop(self) -> None:
        """Whatever happened: the next job needs the nodes."""
        subprocess.run(["scancel", self.id], env=self.slurm, capture_output=True, check=False)

    def begin_again(self) -> None:
        """Slurm may let a requeued job wait some time; we do not."""

        def restarted() -> bool:
            about = self.about()
            if "JobState=PENDING" in about:
                command = ["scontrol", "update", f"JobId={self.id}", "StartTime=now"]
                subprocess.run(command, env=self.slurm, capture_output=True, check=False)
            return "Restarts=1" in about and "JobState=PENDING" not in about

        self._until(restarted)

    def end(self) -> str:
        """State and exit code."""
        going = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        self._until(lambda: not any(f"JobState={state}" in self.about() for state in going))
        words = dict(word.split("=", 1) for word in self.about().split() if "=" in word)
        return f"{words['JobState']} {words['ExitCode']} restarts {words['Restarts']}"

    def about(self) -> str:
        return self._run("scontrol", "show", "job", self.id)

    def lines(self, name: str) -> list[str]:
        path = self.notes / name
        return path.read_text().splitlines() if path.exists() else []

    def _until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not ready():
            assert time.monotonic() < deadline, self.about() + (self.folder / "out").read_text()
            time.sleep(0.3)


@pytest.fixture
def submit(slurm: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def new(config: str, *options: str, **environment: str) -> Job:
        jobs.append(Job(slurm | environment, tmp_path, config, *options))
        return jobs[-1]

    yield new
    for job in jobs:
        job.stop()


def test_a_run_that_finishes_gives_its_cluster_back(submit):
    job = submit("finish")
    assert job.end() == "COMPLETED 0:0 restarts 0"
    head, worker = sorted(job.lines("ray"))
    assert head.startswith("node1 token 64 start --block")
    assert " --head " in f"{head} "
    assert worker.startswith("node2 token 64 start --block")
    address = (
        head.split("--node-ip-address=")[1].split()[0] + ":" + head.split("--port=")[1].split()[0]
    )
    assert f"--address={address}" in worker
    assert job.lines("driver") == [f"run finish --until publish --set cluster.address={address}"]
    assert sorted(job.lines("ray-ended")) == ["node1", "node2"]
    assert not list(Path(TEMPORARY).glob(f"elmwright-{job.id}-*"))


@pytest.mark.parametrize("code", [1, 2])
def test_failures_and_mistakes_are_passed_on_and_not_queued_again(submit, code):
    assert submit(str(code)).end() == f"FAILED {code}:0 restarts 0"


def test_the_warning_gives_a_checkpoint_and_the_job_goes_on_later(submit):
    job = submit("until-told", "--time=1")  # minutes: the warning comes at once
    job.wait_for("signals")
    job.begin_again()
    assert job.end() == "COMPLETED 0:0 restarts 1"
    assert job.lines("signals") == ["checkpoint"]
    assert len(job.lines("driver")) == 2
    assert sorted(job.lines("ray-ended")) == ["node1", "node1", "node2", "node2"]


def test_exit_75_without_a_warning_is_queued_again_too(submit):
    job = submit("75")
    job.wait_for("driver")
    job.begin_again()
    assert job.end() == "COMPLETED 0:0 restarts 1"


def test_a_term_signal_to_the_batch_shell_gives_a_checkpoint_and_the_end(submit):
    job = submit("until-told")
    job.wait_for("running")
    job.signal("TERM")
    assert job.end() == "FAILED 75:0 restarts 0"
    assert job.lines("signals") == ["checkpoint"]
    assert sorted(job.lines("ray-ended")) == ["node1", "node2"]


def test_queueing_again_has_a_limit(submit, tmp_path):
    job = submit("75", MAX_REQUEUES="0")
    assert job.end() == "FAILED 75:0 restarts 0"
    assert "not queued again" in (tmp_path / "out").read_text()
