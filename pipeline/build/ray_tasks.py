"""Run tasks on Ray, a bounded number at a time, each exactly once in effect.

A task is a stage (a plain function) and its arguments. Its *digest* is taken over both, and its
output files are named by it, relative to the work folder; the outputs of other tasks among its
arguments are such names. So a name stands for its whole history: whatever changed, a setting, an
input file, a task further up, gives another name, and what did not change is found already done.
That is all there is to resuming after a kill, and to building again after a change.

A task that is done leaves a completion mark, a small JSON file with its report; one whose mark is
there is not run again. Ray runs a task again if its worker dies, we run it again if a store drops
the connection, and what the user must put right comes back as the `UserError` it was.
"""

import glob
import json
import os
import re
import resource
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from elmwright.pipeline.config import CorpusConfig, as_settings
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.progress import Advance, Progress, Stage, stage
from elmwright.pipeline.report.statistics import StageTime
from elmwright.pipeline.storage import files
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.object_store import with_patience

Report = dict[str, Any]
"""What a task returns: counts and names, small, JSON."""

RECIPE = 3
"""Raised whenever a change of the code changes what the same settings give."""
PATIENCE = 10.0
"""Seconds that tasks at work get to finish when the build stops."""


@dataclass(frozen=True)
class Task:
    """One call of a stage."""

    stage: str
    """The stage's name: its folder below the work folder."""
    digest: str
    """Over all that determines the result."""
    call: Callable[..., Report]
    """The stage, called as `call(work, out, *args, **named)`."""
    args: tuple[Any, ...]
    """What it takes."""
    named: dict[str, Any]
    """What it takes by name."""

    @property
    def out(self) -> str:
        """The beginning of the names of its output files, relative to the work folder."""
        return f"{self.stage}/{self.digest}"


def task(stage: str, call: Callable[..., Report], *args: Any, **named: Any) -> Task:
    """A task that calls `call(work, out, *args, **named)`."""
    content = [RECIPE, _tools(), stage, call.__name__, _plain(args), _plain(named)]
    return Task(stage, sha256_bytes(canonical(content))[:20], call, args, named)


@lru_cache(maxsize=1)
def _tools() -> list[str]:
    """Versions of what decides about text: a build begun with others is not mixed with this one."""
    names = "ftfy fastwarc pycld2 resiliparse sentencepiece sentencex".split()
    return [unicodedata.unidata_version, *(f"{name} {version(name)}" for name in names)]


def _plain(value: Any) -> Any:
    """Arguments as data that can be hashed."""
    if isinstance(value, CorpusConfig):
        return as_settings(value)
    if hasattr(value, "identity"):
        return value.identity()
    if is_dataclass(value) and not isinstance(value, type):
        # Not `asdict`, which would not ask what is inside for its identity.
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


class Runner:
    """Runs tasks on Ray, a bounded number at a time, passing over those already marked."""

    def __init__(
        self, work: str, progress: Progress, in_flight: int | None, stop: Callable[[], bool]
    ) -> None:
        """Keep outputs and marks below `work`; run at most `in_flight` tasks at a time, by
        default two a core."""
        self.work, self.progress, self.stop = work, progress, stop
        self.in_flight = in_flight
        self.recall = files.join(work, f"recall-{os.getpid()}-{time.time_ns()}")
        self.used: set[str] = set()
        self.times: list[StageTime] = []
        self._stage: Stage | None = None

    @contextmanager
    def stage(self, name: str, pieces: int) -> Iterator[Stage]:
        """Show everything that is run inside as one piece of work under a user's name for it."""
        with stage(self.progress, name, pieces) as one:
            self._stage = one
            try:
                yield one
            finally:
                self._stage = None

    def run(self, name: str, tasks: Sequence[Task]) -> list[Report]:
        """The reports of all tasks, in the order of the tasks."""
        if not tasks:
            return []
        self.used.update(one.out for one in tasks)
        listed = files.list_folder(files.join(self.work, tasks[0].stage))
        there = {file.path[len(self.work) + 1 :]: file.bytes for file in listed}
        done: dict[int, Report] = {}
        waiting = []
        for number, one in enumerate(tasks):
            found = self._done(one, there)
            if found is None:
                waiting.append(number)
            else:
                done[number] = found
        started = time.monotonic()
        ran = len(waiting)
        reports = self._run(name, tasks, done, waiting[::-1])
        fresh = [reports[number] for number in range(len(tasks)) if number not in done]
        self.times.append(
            StageTime(
                name,
                len(tasks),
                ran,
                round(time.monotonic() - started, 2) if ran else 0.0,
                round(sum(one["cpu_seconds"] for one in fresh), 2),
                max((one["peak_mb"] for one in fresh), default=0.0),
            )
        )
        return [reports[number]["report"] for number in range(len(tasks))]

    def _run(
        self,
        name: str,
        tasks: Sequence[Task],
        done: dict[int, Report],
        waiting: list[int],
    ) -> dict[int, Report]:
        import ray

        limit = self.in_flight or max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        reports = dict(done)
        running: dict[Any, int] = {}
        words = 0
        started = time.monotonic()
        with self._shown(name, len(tasks)) as advance:
            advance(len(done))
            try:
                while waiting or running:
                    if self.stop():
                        advance(0, "stopping")
                        raise Interrupted("while building the corpus; the same command resumes it")
                    while waiting and len(running) < limit:
                        number = waiting.pop()
                        one = tasks[number]
                        call = (one.call, self.work, one.out, one.args, one.named)
                        running[_remote().remote(self._mark(one), self.recall, *call)] = number
                    ready, _ = ray.wait(list(running), timeout=0.5) if running else ([], [])
                    for reference in ready:
                        number = running.pop(reference)
                        reports[number] = _result(reference, name)
                        words += reports[number]["report"].get("words", 0)
                        rate = words / max(0.001, time.monotonic() - started)
                        advance(1, f"{rate:,.0f} words/s" if words else "")
            except KeyboardInterrupt:  # pressed again: whoever did that does not want to wait
                self._recall(running, wait=False)
                raise
            except BaseException:
                self._recall(running)
                raise
        return reports

    def _shown(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Part of the stage that is open, or a bar of its own."""
        return self._stage.piece(total) if self._stage else self.progress(name, total, "tasks")

    def _done(self, one: Task, there: Mapping[str, int]) -> Report | None:
        """What a task that is done left; None if its mark or one of its outputs is not whole."""
        if f"{one.out}{_MARK}" not in there:
            return None
        try:
            done: Report = json.loads(files.read_bytes(self._mark(one)))
            whole = all(there.get(name) == size for name, size in done["outputs"].items())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return done if whole else None

    def forget(self, one: Task) -> None:
        """Let a task be run again: its output is not what it was."""
        files.remove(self._mark(one))

    def _mark(self, one: Task) -> str:
        return files.join(self.work, f"{one.out}{_MARK}")

    def _recall(self, running: Collection[Any], *, wait: bool = True) -> None:
        """Let queued tasks end before they begin, and give those at work a moment to finish.

        Not by `ray.cancel`: in Ray 2.60 a task that ends while it is cancelled brings down the
        driver ("Tried to complete task that was not pending").
        """
        import ray

        with suppress(OSError, UserError):
            files.write_bytes(self.recall, b"")
        if not wait:
            return  # the note stays for tasks in the queue; `prune` removes it
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
        with suppress(OSError, UserError):
            files.remove(self.recall)

    def prune(self) -> None:
        """Remove every output of a task that was not asked for, and what killed tasks left."""
        listed = files.list_folder(self.work)
        # Marks first: killed in between, no mark may stand for an output that is gone.
        for file in sorted(listed, key=lambda file: not file.path.endswith(_MARK)):
            match = _OURS.match(file.path[len(self.work) + 1 :])
            if match is None or match[1] not in self.used:
                files.remove(file.path)


_MARK = ".done.json"
_OURS = re.compile(r"([a-z]+/[0-9a-f]{20})")


@lru_cache(maxsize=1)
def _remote() -> Any:
    """The one remote function: Ray keeps what it knows of a function for ever."""
    import ray

    return ray.remote(max_retries=5)(run_once)


def run_once(
    mark: str,
    recall: str,
    call: Callable[..., Report],
    work: str,
    out: str,
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> Report:
    """Call a stage and leave its mark: only now does its output count as there."""
    if files.exists(recall):
        return {"report": {}, "cpu_seconds": 0.0, "peak_mb": 0.0}
    before = time.process_time()
    report = with_patience(lambda: call(work, out, *args, **named))
    done = {
        "report": report,
        "outputs": _outputs(work, out),
        "cpu_seconds": round(time.process_time() - before, 3),
        "peak_mb": peak_mb(),
    }
    files.write_bytes(mark, json.dumps(done).encode())
    return done


def _outputs(work: str, out: str) -> dict[str, int]:
    """Names and sizes of what a task wrote; in a store an object is whole or not there."""
    if files.is_url(work):
        return {}
    found = [*glob.glob(f"{work}/{glob.escape(out)}*"), *glob.glob(f"{work}/{glob.escape(out)}/*")]
    return {path[len(work) + 1 :]: os.path.getsize(path) for path in found if os.path.isfile(path)}


def peak_mb() -> float:
    """The largest memory this process has had; not by getrusage, which counts its parent's too."""
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return round(int(line.split()[1]) / 1024, 1)


def _result(reference: Any, name: str) -> Report:
    """A task's report; what went wrong for the user comes out as it went in."""
    import ray
    from ray.exceptions import RayTaskError, WorkerCrashedError

    try:
        report: Report = ray.get(reference)
    except WorkerCrashedError:
        raise UserError(
            "memory",
            f"a worker process died again and again in the stage {name!r}, most likely for lack of "
            "memory; lower corpus.chunk_mb, give the machine more memory or fewer CPUs "
            "(cluster.cpus), and run the same command again: nothing is lost",
        ) from None
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise cause.saying(str(cause)) from None
        raise
    return report
