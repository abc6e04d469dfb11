"""The target `local`: a background process of this machine that outlives the terminal.

The same commands then watch, stop and resume it as they would on a cluster. A process is known by
its number and the moment it started, so that a later process with the same number is never treated
as the job, let alone sent a signal.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from elmwright.jobs.environment.wheel import wheel_members
from elmwright.jobs.runbook.runbook import handle_of, outcome_of, work_folder
from elmwright.jobs.runbook.submission import (
    GRACE_SECONDS,
    Job,
    ProcessHandle,
    State,
    Submission,
    state_of_exit,
)
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.place import Place
from elmwright.pipeline.errors import UserError


class Background(Place):
    """Jobs as processes of this machine."""

    cluster_address = ""

    def __init__(self, target: Target) -> None:
        """A target of this kind has no options."""

    @staticmethod
    def own_handle() -> ProcessHandle:
        return process_handle(os.getppid())  # which starts the next attempt (attempts.py)

    def running(self, run: str) -> str:
        """Always empty: only the run book knows, and it was read before."""
        return ""

    def describe(self, submission: Submission) -> str:
        return (
            f"a background process on {socket.gethostname()}:\n"
            f"  cd {shlex.quote(submission.cwd)}\n"
            f"  {shlex.join(_command(submission))}\n"
            f"  output to {work_folder(submission) / 'output.log'}"
        )

    def submit(self, submission: Submission) -> ProcessHandle:
        folder = unpack(submission)
        environment = {**os.environ, **submission.settings, "PYTHONPATH": str(folder / "code")}
        with open(folder / "output.log", "ab") as log:
            process = subprocess.Popen(
                _command(submission),
                cwd=submission.cwd if os.path.isdir(submission.cwd) else folder,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process_handle(process.pid)

    def state(self, job: Job) -> State:
        code = outcome_of(job.submission)
        if code is not None:
            return state_of_exit(code)
        process = process_of(job)
        if process.host != socket.gethostname():
            return State("running", f"as far as its files tell: it is on {process.host}")
        if is_alive(process):
            return State("running", f"process {process.pid}")
        code = outcome_of(job.submission)  # it may have ended while we looked
        if code is not None:
            return state_of_exit(code)
        return State("interrupted", "its process is gone")

    def log(self, job: Job, start: int) -> tuple[str, int]:
        return read_from(work_folder(job.submission) / "output.log", start)

    def stop(self, job: Job) -> None:
        process = process_of(job)
        if process.host != socket.gethostname():
            raise UserError(
                "run-state", f"{job.submission.run} is a process of {process.host}; cancel it there"
            )
        if is_alive(process):
            os.kill(process.pid, signal.SIGTERM)

    def kill(self, job: Job) -> None:
        """Kill its process group, to which the driver belongs too."""
        process = process_of(job)
        if is_alive(process):
            os.killpg(process.pid, signal.SIGKILL)

    @property
    def grace(self) -> float:
        return GRACE_SECONDS


def unpack(submission: Submission) -> Path:
    """Copy the code and the submission into the attempt's own folder: later edits do not matter."""
    folder = work_folder(submission)
    _, members = wheel_members()
    for name, content in members.items():
        path = folder / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "submission.json").write_text(submission.to_json(), encoding="utf-8")
    return folder


def _command(submission: Submission) -> list[str]:
    path = work_folder(submission) / "submission.json"
    return [sys.executable, "-m", "elmwright.jobs.submit.job", str(path)]


def process_of(job: Job) -> ProcessHandle:
    """The process of a job; one that is not alive where its submission was cut off."""
    nobody = ProcessHandle(pid=0, started=0, host=socket.gethostname())
    return handle_of(job, ProcessHandle) or nobody


def process_handle(pid: int) -> ProcessHandle:
    """A process of this machine, as no other with its number can be."""
    return ProcessHandle(pid, _started(pid), socket.gethostname())


def is_alive(process: ProcessHandle) -> bool:
    started = _started(process.pid)
    return started != 0 and started == process.started


def _started(pid: int) -> int:
    """Clock ticks between the start of the machine and of the process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def read_from(path: Path, start: int) -> tuple[str, int]:
    """The text of a log from a byte on, and the position of its end."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return "", start
    return data.decode(errors="replace"), start + len(data)
