"""Runs the attempts at a submitted run one after another, each in its own process.

This is what a job on a Ray cluster, on Kubernetes or in the background of this machine consists of:
a small process that starts the driver, waits for its end, asks retries.py whether another attempt
is due, pauses and starts the next. Each attempt gets a new process, because a driver whose Ray has
died is not reusable, and because another process must notice if the driver is killed.

Signals:

- SIGTERM and SIGINT (`elmwright cancel`, `ray job stop`) end the job for good, also during a pause.
  Ray signals every process of a job, so the driver receives SIGTERM twice, from Ray and from this
  process. It treats the second like the first.
- SIGUSR1 (the head pod's preStop hook on Kubernetes) means that this machine is about to be shut
  down. The driver checkpoints, and then this process waits until it is killed with its machine:
  KubeRay resubmits a job whose machine is gone, but not one that has ended.

`ELMWRIGHT_DRIVER_FILE` names a file with the id of this process. It exists while a driver is
running, so that the hook can signal this process and wait for the driver to end.

The driver stays in the process group of this process: Ray and background.py kill the whole group.
On Linux the driver is also stopped when this process is killed alone.
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

DRIVER_FILE = "ELMWRIGHT_DRIVER_FILE"
"""The environment variable that names the file for the preStop hook."""
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that asks for a signal when the parent process dies."""


class Attempts:
    """A job: its driver, and the signals that it has received."""

    def __init__(
        self, command: list[str], submission: Submission, pauses: Sequence[float] = retries.PAUSES
    ) -> None:
        """`command` runs the submission once; `pauses` are seconds between attempts."""
        self._command = command
        self._submission = submission
        self._pauses = pauses
        self._driver: subprocess.Popen[bytes] | None = None
        self._is_cancelled = False
        self._is_evicted = False
        self._history = retries.History()

    def run(self) -> int:
        """Make attempts until no further one is due, and return the exit code of the last one."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._handle)
        while True:
            code = self._run_once()
            # A run that has just finished or failed has nothing to resume elsewhere.
            if self._is_evicted and retries.worth_another(code, late=False):
                self._wait_to_be_lost()
            if self._is_cancelled:
                return code
            self._history, is_due = retries.conclude(self._submission, code, self._history)
            if not is_due:
                return code
            self._pause()
            if self._is_cancelled:
                return retries.RESUMABLE

    def _run_once(self) -> int:
        with _announced():
            self._driver = subprocess.Popen(self._command)
            if self._is_cancelled or self._is_evicted:  # by a signal just before it was started
                self._stop_driver()
            code = self._driver.wait()
        if self._is_cancelled and code == -signal.SIGTERM:
            return retries.RESUMABLE  # stopped before it could handle signals or begin anything
        return code if code >= 0 else 128 - code

    def _pause(self) -> None:
        """Wait before the next attempt, or until the job is cancelled."""
        standstills = self._history.standstills
        seconds = self._pauses[min(standstills, len(self._pauses) - 1)]
        progress = "the last one got further"
        if standstills:
            progress = f"{standstills} of {retries.STANDSTILLS} without getting further"
        print(
            f"attempt {self._history.starts} was interrupted; the next one starts in "
            f"{seconds:.0f} s ({progress})",
            flush=True,
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (self._is_cancelled or self._is_evicted):
            time.sleep(0.1)
        if self._is_evicted:
            self._wait_to_be_lost()

    def _wait_to_be_lost(self) -> None:
        if not self._is_cancelled:
            print("this machine is being shut down; the run resumes on another one", flush=True)
        while not self._is_cancelled:
            time.sleep(0.5)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._is_evicted = True
        else:
            self._is_cancelled = True
        self._stop_driver()

    def _stop_driver(self) -> None:
        if self._driver is not None:
            with suppress(ProcessLookupError):
                self._driver.send_signal(signal.SIGTERM)


@contextmanager
def _announced() -> Iterator[None]:
    """Keep the id of this process in the file for the preStop hook while a driver is running."""
    name = os.environ.get(DRIVER_FILE)
    if name:
        Path(name).write_text(str(os.getpid()))
    try:
        yield
    finally:
        if name:
            Path(name).unlink(missing_ok=True)


def stop_with_parent(parent: int) -> None:
    """In a driver: receive SIGTERM when the process that started it dies."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or threading.current_thread() is not threading.main_thread():
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before prctl was called
        os.kill(os.getpid(), signal.SIGTERM)


def command_for(path: str) -> list[str]:
    """The command that runs a submission once, as a child of this process."""
    return [sys.executable, "-m", "elmwright.jobs.submit.job", path, str(os.getpid())]
