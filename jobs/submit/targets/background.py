"""The target `local`: a background process of this machine that outlives the terminal.

The same commands then watch, stop and resume it as they would on a cluster. A process is known by
its number and the moment it started, so that a number that the system has given to somebody else is
never taken for it, let alone sent a signal.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from elmwright.jobs.environment.wheel import wheel_members
from elmwright.jobs.runbook.runbook import handle_left, outcome_of, work_folder
from elmwright.jobs.runbook.submission import GRACE_SECONDS, Job, State, Submission, state_of_exit
from elmwright.pipeline.errors import UserError


class Background:
    """Jobs as processes of this machine."""

    def check(self, submission: Submission) -> None:
        """A laptop has what it has: the run itself says what is missing."""

    def running(self, run: str) -> str:
        """Nothing but the run book knows; it has been asked."""
        return ""

    def describe(self, submission: Submission) -> str:
        return (
            f"a background process on {socket.gethostname()}:\n"
            f"  cd {shlex.quote(submission.cwd)}\n"
            f"  {shlex.join(_command(submission))}\n"
            f"  output to {work_folder(submission) / 'output.log'}"
        )

    def submit(self, submission: Submission) -> dict[str, Any]:
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
        return process_mark(process.pid)

    def state(self, job: Job) -> State:
        code = outcome_of(job.submission)
        if code is not None:
            return state_of_exit(code)
        mark = mark_of(job)
        if mark["host"] != socket.gethostname():
            return State("running", f"as far as its files tell: it is on {mark['host']}")
        if is_alive(mark):
            return State("running", f"process {mark['pid']}")
        code = outcome_of(job.submission)  # it may have ended while we looked
        if code is not None:
            return state_of_exit(code)
        return State("interrupted", "its process is gone")

    def log(self, job: Job, start: int) -> tuple[str, int]:
        return read_from(work_folder(job.submission) / "output.log", start)

    def stop(self, job: Job) -> None:
        mark = mark_of(job)
        if mark["host"] != socket.gethostname():
            raise UserError(
                "run-state", f"{job.submission.run} is a process of {mark['host']}; cancel it there"
            )
        send(mark, signal.SIGTERM)

    def kill(self, job: Job) -> None:
        """The time to checkpoint is over: for the driver, which is in the same group, too."""
        mark = mark_of(job)
        if is_alive(mark):
            os.killpg(mark["pid"], signal.SIGKILL)

    @property
    def grace(self) -> float:
        return GRACE_SECONDS


def unpack(submission: Submission) -> Path:
    """Lay the code and the submission into the attempt's own folder: later edits do not matter."""
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


def mark_of(job: Job) -> dict[str, Any]:
    """The mark of a job's process; where its submission was cut off, what the process left."""
    nobody = {"pid": 0, "started": 0, "host": socket.gethostname()}
    return job.handle or handle_left(job.submission) or nobody


def process_mark(pid: int) -> dict[str, Any]:
    """What tells a process from any other that ever had its number."""
    return {"pid": pid, "started": _started(pid), "host": socket.gethostname()}


def is_alive(mark: dict[str, Any]) -> bool:
    started = _started(mark["pid"])
    return started != 0 and started == int(mark["started"])


def _started(pid: int) -> int:
    """Clock ticks between the start of the machine and of the process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def send(mark: dict[str, Any], number: int) -> None:
    """Signal the process, if it is still that one."""
    if is_alive(mark):
        os.kill(mark["pid"], number)


def read_from(path: Path, start: int) -> tuple[str, int]:
    """What a log has from a byte on, and where it ends."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return "", start
    return data.decode(errors="replace"), start + len(data)
