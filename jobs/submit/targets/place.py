"""What every kind of target does with jobs, and the steps that several kinds share."""

import subprocess
from abc import ABC, abstractmethod
from math import ceil
from pathlib import Path
from typing import ClassVar

from elmwright.jobs.environment.wheel import wheel_members
from elmwright.jobs.runbook.deployment import STOP_SECONDS
from elmwright.jobs.runbook.runbook import work_folder
from elmwright.jobs.runbook.submission import Handle, Job, NoHandle, State, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.pipeline.errors import UserError

GPU_CPUS = 4
"""CPUs of a machine with GPUs, at least."""
PROGRAM_SECONDS = 60
"""Time limit for a command-line program of a cluster."""


class Unreachable(UserError):  # noqa: N818 - a state of the world
    """The cluster does not answer."""


class AccessRefused(Unreachable):
    """The cluster answers but refuses access, so asking again does not help."""


class ProgramFailed(Exception):  # noqa: N818 - its caller decides what kind of error it is
    """A command-line program of a cluster failed; the text is the last line of its errors."""

    is_timeout = False


class ProgramTimedOut(ProgramFailed):
    """It gave no answer in time, so what it was asked to do may still happen."""

    is_timeout = True


class Place(ABC):
    """A target that takes, watches and stops jobs."""

    cluster_address: ClassVar[str] = "auto"
    """cluster.address of a run there: "auto" to join the Ray around the job, "" to start one."""
    starts_ray: ClassVar[bool] = False
    """Whether a job brings a Ray cluster, whose machines may come up after the driver."""
    repeats_attempts: ClassVar[bool] = False
    """Whether the target itself starts the next attempt of a job, not attempts.py."""
    grace_seconds: ClassVar[float] = STOP_SECONDS + 30
    """How long a job may take to stop."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @staticmethod
    def own_handle() -> Handle:
        """The handle of this process's own job; `NoHandle` if its submission's id is enough."""
        return NoHandle()

    def check(self, submission: Submission) -> None:  # noqa: B027 - nothing to check by default
        """Raise UserError if the job could never run here."""

    def check_follow(self) -> None:  # noqa: B027 - it works on most targets
        """Raise UserError if the log of a job cannot be followed from its submission on."""

    def note(self, submission: Submission) -> str:
        """What the user should know before the job is sent; empty if nothing."""
        return ""

    def running(self, run: str) -> str:
        """The id of a job of this run that has not ended; empty if the target knows of none."""
        return ""

    @abstractmethod
    def describe(self, submission: Submission) -> str:
        """What submitting would send, for a person to read."""

    @abstractmethod
    def submit(self, submission: Submission) -> Handle:
        """Send a submission and return how the target identifies the job."""

    @abstractmethod
    def state(self, job: Job) -> State:
        """The state of a job."""

    def log(self, job: Job, start: int) -> tuple[str, int]:
        """The log of a job from a position on, and the position of its end."""
        try:
            with open(work_folder(job.submission) / "output.log", "rb") as file:
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return "", start
        return data.decode(errors="replace"), start + len(data)

    @abstractmethod
    def stop(self, job: Job) -> None:
        """Ask a job to checkpoint and end."""

    def kill(self, job: Job) -> None:  # noqa: B027 - Ray kills a job by itself
        """End a job that has not stopped in time."""


def job_size(submission: Submission) -> tuple[int, int]:
    """The number of machines and the CPUs of each: as the target says, else as few as will do.

    On a machine with GPUs each process gets one more CPU than train.threads, for loading its data
    and for Ray's agent. Otherwise the GPU would wait for them.
    """
    target = submission.target
    train = submission.read_config().train
    nodes = target.nodes or (ceil(train.processes / target.gpus) if target.gpus else 1)
    processes = ceil(train.processes / nodes)
    cpus = processes * train.threads
    if target.gpus:
        cpus = max(GPU_CPUS, cpus + processes)
    return nodes, target.cpus or cpus


def unpack(submission: Submission, folder: Path) -> None:
    """Write the code and the submission into a folder, so that later edits do not matter."""
    for name, content in wheel_members().items():
        path = folder / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "submission.json").write_text(submission.to_json(), encoding="utf-8")


def run_program(command: list[str], text: str = "", *, if_missing: str) -> str:
    """The output of a cluster's command-line program, which reads `text`."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_SECONDS,
        )
    except FileNotFoundError:
        raise Unreachable(
            "cluster-unreachable", f"{command[0]} is not on this machine's PATH; {if_missing}"
        ) from None
    except subprocess.TimeoutExpired:
        raise ProgramTimedOut(f"timed out after {PROGRAM_SECONDS} s") from None
    if done.returncode:
        raise ProgramFailed(last_line(done.stderr))
    return done.stdout


def last_line(text: str) -> str:
    """The last line of an error text, which in a traceback says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
