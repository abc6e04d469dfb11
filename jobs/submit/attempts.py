"""Runs the attempts at a submitted run, one after another, each in a process of its own.

This is what a job on a Ray cluster, on Kubernetes or in the background of this machine consists of:
a small process that starts the driver, waits for its end, asks retries.py whether another attempt
is due, pauses and starts the next. A fresh process each time, because nothing of a driver whose Ray
has died is worth keeping, and because a driver that is killed must leave somebody who notices.

Signals:

- SIGTERM and SIGINT (`elmwright cancel`, `ray job stop`) end the job for good, also in a pause.
  Ray signals every process of a job; a driver takes a second SIGTERM for the first.
- SIGUSR1 (the head pod's preStop hook on Kubernetes) says that this machine goes away. The driver
  checkpoints, and then this process waits to be lost with its machine: whoever finds the machine
  gone (KubeRay) sends the job again, while a job that ends is over.

`ELMWRIGHT_DRIVER_FILE` names a file that holds the number of this process for as long as a driver
is at work, so that such a hook knows whom to signal and how long to wait.

The driver stays in the process group of this one: Ray and background.py kill the whole group. On
Linux it is also told to stop when this process is killed alone.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.submit import retries
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.object_store import with_patience

DRIVER_FILE = "ELMWRIGHT_DRIVER_FILE"
DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class Attempts:
    """The job: its driver, and what it was asked to do."""

    def __init__(
        self,
        command: list[str],
        submission: Submission,
        pauses: Sequence[float] = retries.PAUSES,
    ) -> None:
        """`command` runs the submission once; `pauses` are seconds between attempts."""
        self._command, self._submission, self._pauses = command, submission, pauses
        self._driver: subprocess.Popen[bytes] | None = None
        self._asked, self._leaving = False, False
        self._made, self._history = 0, retries.History()

    def run(self) -> int:
        """Run the submission to its end; the exit code of the last attempt."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._handle)
        while True:
            code = self._once()
            self._made += 1
            if self._leaving and not self._asked and retries.worth_another(code, late=False):
                self._wait_to_be_lost()
            history = None if self._asked else self._another(code)
            if history is None:
                return code
            if not self._pause(history):
                return retries.RESUMABLE

    def _once(self) -> int:
        with _announced():
            self._driver = subprocess.Popen(self._command)
            if self._asked or self._leaving:  # between two lines of ours
                self._tell()
            code = self._driver.wait()
        if self._asked and code == -signal.SIGTERM:
            return retries.RESUMABLE  # told before it could listen: nothing was begun
        return code if code >= 0 else 128 - code

    def _another(self, code: int) -> retries.History | None:
        """The attempts so far, if another one is due; what is not started again is told.

        What interrupted the driver may also keep us from noting it: a full disk, a store that does
        not answer. Then the attempt counts here, as one without progress.
        """
        try:
            before = with_patience(lambda: retries.read(self._submission))
            due = with_patience(lambda: retries.end(self._submission, code))
            after = retries.read(self._submission)
        except (OSError, UserError) as error:
            where = self._submission.dir
            print(f"how the attempt ended cannot be noted in {where} ({error})", flush=True)
            self._history = after = retries.unnoted(self._history)
            if not retries.worth_another(code, late=self._made > 1):
                return None
            if after.used_up:
                print(retries.given_up(after, self._submission.run), flush=True)
            return None if after.used_up else after
        self._history = after
        if after.used_up and not before.used_up:  # else the driver itself has said it
            print(retries.given_up(after, self._submission.run), flush=True)
        return after if due else None

    def _pause(self, history: retries.History) -> bool:
        """Wait before the next attempt; whether there is to be one."""
        seconds = self._pauses[min(history.standstills, len(self._pauses) - 1)]
        further = (
            f"{history.standstills} of {retries.STANDSTILLS} without getting further"
            if history.standstills
            else "the last one got further"
        )
        print(
            f"attempt {history.starts} was interrupted; the next one starts in {seconds:.0f} s "
            f"({further})",
            flush=True,
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (self._asked or self._leaving):
            time.sleep(0.1)
        if self._leaving and not self._asked:
            self._wait_to_be_lost()
        return not self._asked

    def _wait_to_be_lost(self) -> None:
        print("this machine goes away; the run resumes on another one", flush=True)
        while not self._asked:
            time.sleep(0.5)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._leaving = True
        else:
            self._asked = True
        self._tell()

    def _tell(self) -> None:
        if self._driver is not None:
            with suppress(ProcessLookupError):
                self._driver.send_signal(signal.SIGTERM)


@contextmanager
def _announced() -> Iterator[None]:
    """Name this process in the file that a hook reads, for as long as a driver is at work."""
    name = os.environ.get(DRIVER_FILE)
    if not name:
        yield
        return
    Path(name).write_text(str(os.getpid()))
    try:
        yield
    finally:
        Path(name).unlink(missing_ok=True)


def stop_with_parent(parent: int) -> None:
    """In a driver: be asked to stop when the process that watches it dies, however it dies."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or threading.current_thread() is not threading.main_thread():
        return
    prctl(DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it died just now
        os.kill(os.getpid(), signal.SIGTERM)


def command_for(path: str) -> list[str]:
    """What runs a submission once, as a child of this process."""
    return [sys.executable, "-m", "elmwright.jobs.submit.job", path, str(os.getpid())]
