"""The batch script itself, run by bash: signals, exit codes and what it leaves behind.

`srun`, `scontrol` and the Python of the cluster are played by small scripts; Ray by a port that is
open. The real thing is in test_slurm_cluster.py.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.runbook import work_folder
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit import retries
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets import slurm
from elmwright.jobs.submit.targets.slurm import render
from tests.support.tiny import write_config

pytestmark = pytest.mark.slow(7)

SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do [ "$1" = -w ] && shift; shift; done
[ "$1" = hostname ] && { echo 127.0.0.1; exit; }
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>"$TEST_HOME/calls"
[ "$1" = show ] && echo n1
true
"""
RAY = """
import re, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = re.search(r"--port=(\\d+)", " ".join(sys.argv))[1]
server = socket.create_server(("127.0.0.1", int(port)))
open(sys.argv[1] + "/ray-up", "w").close()
while True:
    server.accept()[0].close()
"""
DRIVER = """
import os, sys, time
from elmwright.jobs.terminal.signals import stop_signals
home = sys.argv[1]
with stop_signals() as stop, stop.saving("stopping", print):
    open(home + "/driver-up", "w").close()
    while not stop.is_set():
        time.sleep(0.05)
        if os.path.exists(home + "/lose-a-machine"):
            sys.exit(75)
    time.sleep(0.7)
    open(home + "/checkpoint", "w").close()
sys.exit(75)
"""
CLUSTER_PYTHON = """#!/bin/bash
case "$*" in
*ray.scripts*) [ -e "$TEST_HOME/no-ray" ] && exec sleep 600; exec {python} "$TEST_HOME/ray.py" "$TEST_HOME" "$@" ;;
*elmwright.jobs.submit.job*) exec {python} "$TEST_HOME/driver.py" "$TEST_HOME" ;;
*) PYTHONPATH="$TEST_PYTHONPATH" exec {python} "$@" ;;
esac
"""  # noqa: E501


class Batch:
    """One job of Slurm's: the script and the folder it plays in."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[str] | None = None
        config = load_config(
            str(write_config(home, home / "text.txt", tracking_uri="http://mlflow:5000")),
            ["cluster.address=auto"],
        )
        bin_ = home / "bin"
        bin_.mkdir()
        (home / "driver.py").write_text(DRIVER)
        (home / "ray.py").write_text(RAY)
        for name, text in (
            ("srun", SRUN),
            ("scontrol", SCONTROL),
            ("python", CLUSTER_PYTHON.format(python=sys.executable)),
        ):
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        submission = prepare(config, Target("slurm", python=str(bin_ / "python")), "train")
        self.folder = work_folder(submission)
        self.folder.mkdir(parents=True)
        (self.folder / "submission.json").write_text(submission.to_json())
        # The driver of this test imports the package from here, not from the attempt's folder.
        (self.folder / "code").symlink_to(Path(slurm.__file__).parents[1].parent)
        self.script = home / "job.sbatch"
        self.script.write_text(render(submission))
        self.environment = {
            **os.environ,
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "TEST_HOME": str(home),
            "TEST_PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "SLURM_JOB_ID": f"{os.getpid()}",
            "SLURM_JOB_NODELIST": "n1",
        }

    def start(self) -> None:
        self.job = self.process = subprocess.Popen(
            ["bash", self.script],
            env=self.environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, name: str) -> None:
        until(lambda: (self.home / name).exists() or self.job.poll() is not None)
        assert (self.home / name).exists(), self.job.communicate()[0]

    def end(self) -> tuple[int, str]:
        output = self.job.communicate(timeout=60)[0]
        return self.job.returncode, output

    @property
    def requeued(self) -> bool:
        calls = self.home / "calls"
        return calls.exists() and "scontrol requeue" in calls.read_text()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    one = Batch(tmp_path)
    yield one
    if one.process is not None:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
    for left in scratches():
        shutil.rmtree(left, ignore_errors=True)


def scratches() -> list[Path]:
    return list(Path("/tmp").glob(f"elm-{os.getpid()}-*"))  # noqa: S108


@pytest.mark.parametrize(
    ("signals", "requeued"),
    [
        ((signal.SIGUSR1,), True),
        ((signal.SIGTERM, signal.SIGTERM), False),
        ((signal.SIGUSR1, signal.SIGTERM), False),
        ((signal.SIGTERM, signal.SIGUSR1), False),
    ],
)
def test_a_second_signal_leaves_the_checkpoint_alone_and_a_cancel_is_the_last_word(
    batch: Batch, signals: tuple[signal.Signals, ...], requeued: bool
) -> None:
    batch.start()
    batch.wait_for("driver-up")
    for number in signals:
        os.kill(batch.job.pid, number)
        time.sleep(0.2)
    code, output = batch.end()
    assert code == 75, output
    assert (batch.home / "checkpoint").exists()
    assert batch.requeued == requeued, output
    assert scratches() == []


def test_a_run_that_lost_machines_goes_back_into_the_queue(batch: Batch) -> None:
    (batch.home / "lose-a-machine").touch()
    batch.start()
    code, output = batch.end()
    assert (code, batch.requeued) == (75, True), output
    assert "back into the queue" in output


@pytest.mark.parametrize(
    ("ending", "code", "requeued"),
    [("sys.exit(1)", 1, False), ("sys.exit(2)", 2, False), ("os.kill(os.getpid(), 9)", 137, True)],
)
def test_what_goes_back_into_the_queue_is_what_is_worth_another_attempt(
    batch: Batch, ending: str, code: int, requeued: bool
) -> None:
    (batch.home / "driver.py").write_text(f"import os, sys\n{ending}\n")
    batch.start()
    ended, output = batch.end()
    assert (ended, batch.requeued) == (code, requeued), output


def test_a_job_at_a_standstill_ends_with_its_exit_code(batch: Batch) -> None:
    (batch.folder / "attempts.json").write_text(
        json.dumps(
            {
                "starts": 9,
                "running": True,
                "reached": [0, -1, 0],
                "standstills": retries.STANDSTILLS,
            }
        )
    )
    (batch.home / "lose-a-machine").touch()
    batch.start()
    code, output = batch.end()
    assert (code, batch.requeued) == (75, False), output
    assert "6 attempts in a row ended without getting further" in output


def test_a_jobs_ray_listens_on_the_interface_of_the_target(batch: Batch) -> None:
    script = batch.script.read_text()
    batch.script.write_text(script.replace('interface=""', 'interface="lo"'))
    # The address of the machine would be another one.
    (batch.home / "bin" / "srun").write_text(SRUN.replace("echo 127.0.0.1", "echo 192.0.2.1"))
    (batch.home / "lose-a-machine").touch()
    batch.start()
    code, output = batch.end()
    assert code == 75, output
    assert "Ray head on n1 (127.0.0.1:" in output


def test_an_interface_that_is_not_there_is_a_mistake(batch: Batch) -> None:
    script = batch.script.read_text()
    batch.script.write_text(script.replace('interface=""', 'interface="ib7"'))
    batch.start()
    code, output = batch.end()
    assert (code, batch.requeued) == (2, False), output
    assert "interface 'ib7' has no IPv4 address" in output
    assert scratches() == []


def test_a_ray_that_does_not_start_leaves_nothing_behind(batch: Batch) -> None:
    (batch.home / "no-ray").touch()
    # Ray is given two minutes to start; a test is not.
    batch.script.write_text(batch.script.read_text().replace("{1..240}", "{1..3}"))
    batch.start()
    code, output = batch.end()
    assert (code, batch.requeued) == (75, True), "another machine may be faster"
    assert "Ray did not start on n1" in output
    assert scratches() == []
    # The steps were ended: nothing of the job's session is left.
    with pytest.raises(ProcessLookupError):
        os.killpg(batch.job.pid, 0)


def test_a_cancel_while_ray_is_starting_ends_the_job_at_once(batch: Batch) -> None:
    (batch.home / "no-ray").touch()
    batch.start()
    until(lambda: bool(scratches()))
    time.sleep(0.5)
    os.kill(batch.job.pid, signal.SIGTERM)
    code, output = batch.end()
    assert (code, batch.requeued) == (75, False), output
