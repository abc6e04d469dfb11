"""A job and its drivers, as real processes: killed, interrupted, cancelled, evicted.

The driver is a script that does what a list of words says, one word per attempt.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.attempts import DRIVER_FILE, Attempts
from elmwright.jobs.submit.retries import STANDSTILLS
from elmwright.jobs.submit.send import prepare
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.tiny import write_config
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow(7)

JOB = """
import json, sys
from pathlib import Path
from elmwright.jobs.submit.attempts import Attempts
from elmwright.jobs.runbook.submission import Submission
home, pause = sys.argv[1:]
submission = Submission.load(Path(home, "submission.json"))
command = [sys.executable, home + "/driver.py", home]
sys.exit(Attempts(command, submission, pauses=[float(pause)]).run())
"""
DRIVER = """
import json, os, signal, sys, time
from pathlib import Path
from elmwright.jobs.submit import retries
from elmwright.jobs.submit.attempts import stop_with_parent
from elmwright.jobs.runbook.submission import Submission
home = Path(sys.argv[1])
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
stop_with_parent(os.getppid())
number = len(list(home.glob("start-*")))
submission = Submission.load(home / "submission.json")
if retries.begin(submission).used_up:
    sys.exit(75)
words = (home / "plan").read_text().split()
word = words[min(number, len(words) - 1)]
if word.startswith("step"):
    made = home / "run/train/checkpoints" / f"step-{number:08d}"
    made.mkdir(parents=True)
    (made / "MANIFEST.json").write_text("{}")
(home / f"start-{number}").write_text(str(os.getpid()))
if word == "work":
    while not told:
        time.sleep(0.02)
    (home / "checkpoint").touch()
    sys.exit(75)
if word == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(word.removeprefix("step")))
"""


class Job:
    """A job that makes attempts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        config = load_config(str(write_config(home, home / "text.txt")))
        submission = prepare(config, Target("ray", address="http://head:8265"), "train")
        (home / "submission.json").write_text(submission.to_json())
        (home / "job.py").write_text(JOB)
        (home / "driver.py").write_text(DRIVER)
        self.process: subprocess.Popen[str] | None = None

    def start(self, plan: str, pause: float = 0.05) -> "subprocess.Popen[str]":
        (self.home / "plan").write_text(plan)
        self.process = subprocess.Popen(
            [sys.executable, self.home / "job.py", self.home, str(pause)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, DRIVER_FILE: str(self.home / "driver.pid")},
        )
        return self.process

    def run(self, plan: str) -> tuple[int, str]:
        process = self.start(plan)
        output = process.communicate(timeout=120)[0]
        return process.returncode, output

    @property
    def starts(self) -> int:
        return len(list(self.home.glob("start-*")))

    def wait_for(self, name: str) -> None:
        assert wait_until((self.home / name).exists, 60), name


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    one = Job(tmp_path)
    yield one
    if one.process is not None and one.process.poll() is None:
        os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_interrupted_and_a_killed_driver_are_started_again(job: Job) -> None:
    code, output = job.run("step75 killed 75 0")
    assert (code, job.starts) == (0, 4), output
    assert "attempt 1 was interrupted; the next one starts in" in output
    assert "(the last one got further)" in output
    assert f"2 of {STANDSTILLS} without getting further" in output


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_codes_0_1_and_2_end_the_job(job: Job, code: int) -> None:
    assert job.run(f"{code}") == (code, "")
    assert job.starts == 1


def test_run_with_progress_is_restarted_without_limit(job: Job) -> None:
    code, output = job.run("step75 " * (STANDSTILLS + 2) + "0")
    assert (code, job.starts) == (0, STANDSTILLS + 3), output


def test_run_without_progress_is_given_up_and_can_be_resumed(job: Job) -> None:
    code, output = job.run("75")
    assert (code, job.starts) == (75, STANDSTILLS + 1)
    assert "'elmwright resume tiny' when its cause is gone" in output


def test_a_cancel_ends_the_job_with_a_checkpoint(job: Job) -> None:
    process = job.start("work")
    job.wait_for("start-0")
    # As Ray does it: every process of the job is signalled.
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert (process.returncode, job.starts) == (75, 1)
    assert (job.home / "checkpoint").exists()


def test_a_cancel_between_two_attempts_ends_the_job(job: Job) -> None:
    process = job.start("75 0", pause=600)
    assert process.stdout is not None
    assert "the next one starts in 600 s" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (process.returncode, job.starts) == (75, 1)


def test_a_job_whose_machine_goes_away_checkpoints_and_does_not_end(job: Job) -> None:
    """KubeRay submits a job again whose head is gone, but not one that has ended."""
    process = job.start("work")
    job.wait_for("start-0")
    assert (job.home / "driver.pid").read_text() == str(process.pid)
    process.send_signal(signal.SIGUSR1)
    assert wait_until(lambda: not (job.home / "driver.pid").exists(), 60), "the hook would wait"
    assert (job.home / "checkpoint").exists()
    time.sleep(1)
    assert process.poll() is None
    assert job.starts == 1
    process.send_signal(signal.SIGTERM)  # cancelled after all
    process.communicate(timeout=60)
    assert process.returncode == 75


def test_driver_checkpoints_when_the_job_process_is_killed(job: Job) -> None:
    process = job.start("work")
    job.wait_for("start-0")
    driver = int((job.home / "start-0").read_text())
    process.kill()
    assert wait_until(lambda: not alive(driver), 60)
    assert (job.home / "checkpoint").exists()


def test_attempts_are_limited_even_if_they_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The cause of the interruption, such as a full disk, also prevents the record of its end."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DiskLocation, "write_json", full)
    config = load_config(str(write_config(tmp_path, tmp_path, tracking_uri="http://m:5000")))
    submission = prepare(config, Target("local"), "publish")
    count = tmp_path / "count"
    driver = [sys.executable, "-c", f"open({str(count)!r}, 'a').write('x'); raise SystemExit(75)"]
    assert Attempts(driver, submission, pauses=[0.0]).run() == 75
    assert len(count.read_text()) == STANDSTILLS + 1
    assert "cannot be noted" in capfd.readouterr().out
    mistake = [sys.executable, "-c", "raise SystemExit(2)"]
    assert Attempts(mistake, submission, pauses=[0.0]).run() == 2
