"""Run tasks on Ray, a bounded number at a time, each exactly once in effect.

A task that is done leaves a completion mark, a small JSON file with its report; one whose mark is
there is not run again. So after a kill the same calls go on where they stopped. Ray runs a task
again if its worker dies; what the user must put right comes back as the `UserError` it was.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.progress import Progress
from elmwright.pipeline.storage import write_atomic

Report = dict[str, Any]
"""What a task returns: counts and names, small, JSON."""

PATIENCE = 10.0
"""Seconds that tasks at work get to finish when the build stops."""


@dataclass(frozen=True)
class Task:
    """One call of a stage, and the name of its completion mark."""

    mark: str
    """The mark's name in the work folder."""
    call: Callable[..., Report]
    """The stage."""
    args: tuple[Any, ...]
    """What it takes."""
    named: dict[str, Any]
    """What it takes by name."""


def task(mark: str, call: Callable[..., Report], *args: Any, **named: Any) -> Task:
    """A task that calls `call(*args, **named)`."""
    return Task(mark, call, args, named)


class Runner:
    """Runs tasks on Ray, a bounded number at a time, passing over those already marked."""

    def __init__(
        self, work: Path, progress: Progress, in_flight: int | None, stop: Callable[[], bool]
    ) -> None:
        """Keep marks below `work`; run at most `in_flight` tasks, by default two a core."""
        self.root, self.progress, self.stop = work, progress, stop
        self.in_flight = in_flight
        self.work = work
        self.recall = work / f"recall-{os.getpid()}-{time.time_ns()}"

    def open(self, digest: str) -> Path:
        """The work folder for this digest; those of other settings or inputs are removed."""
        self.work = self.root / digest[:16]
        if self.root.exists():
            for other in self.root.iterdir():
                if other != self.work and other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
        return self.work

    def run(self, name: str, tasks: Sequence[Task], unit: str) -> list[Report]:
        """The reports of all tasks, in the order of the tasks."""
        import ray

        limit = self.in_flight or max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        reports: dict[int, Report] = {}
        waiting = list(range(len(tasks)))[::-1]
        running: dict[Any, int] = {}
        with self.progress(name, len(tasks), unit) as advance:
            try:
                while waiting or running:
                    if self.stop():
                        raise Interrupted(
                            f"while building the corpus ({name}); the same command goes on"
                        )
                    while waiting and len(running) < limit:
                        number = waiting.pop()
                        mark = self.work / f"{tasks[number].mark}.done.json"
                        if mark.exists():
                            reports[number] = json.loads(mark.read_bytes())
                            advance(1)
                        else:
                            one = tasks[number]
                            call = (str(mark), str(self.recall), one.call, one.args, one.named)
                            running[_remote().remote(*call)] = number
                    ready, _ = ray.wait(list(running), timeout=0.5) if running else ([], [])
                    for reference in ready:
                        reports[running.pop(reference)] = _result(reference)
                        advance(1)
            except BaseException:
                self._recall(running)
                raise
        return [reports[number] for number in range(len(tasks))]

    def _recall(self, running: Collection[Any]) -> None:
        """Let queued tasks end before they begin, and give those at work a moment to finish.

        Not by `ray.cancel`: in Ray 2.60 a task that ends while it is cancelled brings down the
        driver ("Tried to complete task that was not pending").
        """
        import ray

        with suppress(OSError, UserError):
            write_atomic(self.recall, b"")
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
        self.recall.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _remote() -> Any:
    """The one remote function: Ray keeps what it knows of a function for ever."""
    import ray

    return ray.remote(max_retries=5)(_once)


def _once(
    mark: str,
    recall: str,
    call: Callable[..., Report],
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> Report:
    """Call a stage and leave its mark: only now does its output count as there."""
    if Path(recall).exists():
        return {}
    report = call(*args, **named)
    write_atomic(Path(mark), json.dumps(report).encode())
    return report


def _result(reference: Any) -> Report:
    """A task's report; what went wrong for the user comes out as it went in."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        report: Report = ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from None
        raise
    return report
