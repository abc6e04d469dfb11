"""The target `local`: a background process of this machine that outlives the terminal.

The same commands then watch, stop and resume it as they would on a cluster. A process is identified
by its number and the moment it started, so a later process with the same number is never treated
as the job or sent a signal.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from elmwright.jobs.runbook.deployment import STOP_SECONDS
from elmwright.jobs.runbook.runbook import handle_of, outcome_of, work_folder
from elmwright.jobs.runbook.submission import Job, ProcessHandle, State, Submission, state_of_exit
from elmwright.jobs.submit.targets.place import Place, unpack
from elmwright.pipeline.errors import UserError


class Background(Place):
    """Jobs as processes of this machine. Only the run book knows which of them are running."""

    cluster_address = ""
    grace_seconds = STOP_SECONDS

    @staticmethod
    def own_handle() -> ProcessHandle:
        return process_handle(os.getppid())  # which starts the next attempt (attempts.py)

    def describe(self, submission: Submission) -> str:
        return (
            f"a background process on {socket.gethostname()}:\n"
            f"  cd {shlex.quote(submission.cwd)}\n"
            f"  {shlex.join(_command(submission))}\n"
            f"  output to {work_folder(submission) / 'output.log'}"
        )

    def submit(self, submission: Submission) -> ProcessHandle:
        folder = work_folder(submission)
        unpack(submission, folder)
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
        process = _process_of(job)
        if process.host != socket.gethostname():
            return State("running", f"according to its files: it is on {process.host}")
        if is_alive(process):
            return State("running", f"process {process.pid}")
        return State("interrupted", "its process is gone")

    def stop(self, job: Job) -> None:
        process = _process_of(job)
        if process.host != socket.gethostname():
            raise UserError(
                "run-state", f"{job.submission.run} is a process of {process.host}; cancel it there"
            )
        if is_alive(process):
            os.kill(process.pid, signal.SIGTERM)

    def kill(self, job: Job) -> None:
        process = _process_of(job)
        if is_alive(process):
            os.killpg(process.pid, signal.SIGKILL)  # with its driver


def _command(submission: Submission) -> list[str]:
    path = work_folder(submission) / "submission.json"
    return [sys.executable, "-m", "elmwright.jobs.submit.job", str(path)]


def _process_of(job: Job) -> ProcessHandle:
    """The process of a job; a dead one if its submission was cut off."""
    dead = ProcessHandle(pid=0, started=0, host=socket.gethostname())
    return handle_of(job, ProcessHandle) or dead


def process_handle(pid: int) -> ProcessHandle:
    """A process of this machine, identified so that no later one can be mistaken for it."""
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
