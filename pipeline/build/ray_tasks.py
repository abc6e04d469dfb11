"""Run tasks on Ray, a bounded number at a time, each exactly once in effect.

A task is a stage (a plain function) and its arguments. A digest of both names its output files in
the work folder, and the outputs of other tasks are among its arguments by such names. So a name
stands for its whole history: if a setting, an input file or an earlier task changes, the name
changes too, and everything else is found already done. This is how a build resumes after a kill,
and how it builds again after a change.

A finished task has a completion mark (`Done`), a small JSON file with its result: the frozen
dataclass that the stage is annotated to return. A task with a mark is not run again. Ray runs a
task again if its worker dies, we run it again if a store drops the connection, and a `UserError` of
a task is raised in the driver.
"""

import glob
import json
import os
import re
import resource
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Generic, TypeVar, get_type_hints

from elmwright.pipeline.config import CorpusConfig, as_settings
from elmwright.pipeline.dedup.tables import DamagedError
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.progress import Progress, Stage, stage
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.report.statistics import StageTime
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.object_store import with_patience

R = TypeVar("R")
"""The result of a task: a frozen dataclass of counts and names, small."""

RECIPE = 5
"""Incremented whenever a change of the code changes what the same settings give."""
WORK_FORMAT = 2
"""Incremented whenever the format of a file in the work folder changes, so that no task reads an
older one. The finished corpus is the same."""
_MARK = ".done.json"
_OURS = re.compile(r"([a-z]+/[0-9a-f]{20})")
"""The beginning of the name of an output."""
PATIENCE = 10.0
"""Seconds that running tasks get to finish when the build stops."""


@dataclass(frozen=True)
class Task(Generic[R]):
    """One call of a stage."""

    stage: str
    """The stage's name: its folder below the work folder."""
    digest: str
    """Over all that determines the result."""
    call: Callable[..., R]
    """The stage, called as `call(work, out, *args, **named)`."""
    args: tuple[object, ...]
    named: Mapping[str, object]

    @property
    def out(self) -> str:
        """The beginning of the names of its output files, relative to the work folder."""
        return f"{self.stage}/{self.digest}"

    @property
    def mark(self) -> str:
        """The name of its completion mark, relative to the work folder."""
        return f"{self.out}{_MARK}"


@dataclass(frozen=True)
class Done(Generic[R]):
    """The content of a completion mark.

    The fields of a result are its keys in the file. A task whose mark lacks a field, or has a value
    of another type in it, runs again.
    """

    report: R
    """The result of the stage."""
    outputs: Mapping[str, int]
    """Sizes of the output files, by name."""
    cpu_seconds: float
    """Processor time of the task."""
    peak_mb: float
    """The largest memory that the worker process had until the task ended."""


def task(stage: str, call: Callable[..., R], *args: object, **named: object) -> Task[R]:
    """A task that calls `call(work, out, *args, **named)`."""
    content = [RECIPE, WORK_FORMAT, _tools(), stage, call.__name__, _plain(args), _plain(named)]
    return Task(stage, sha256_bytes(canonical(content))[:20], call, args, named)


@lru_cache(maxsize=1)
def _tools() -> list[str]:
    """Versions of the tools that decide about text. Outputs of other versions are not reused."""
    names = "ftfy fastwarc pycld2 resiliparse sentencepiece sentencex".split()
    return [unicodedata.unidata_version, *(f"{name} {version(name)}" for name in names)]


def _plain(value: Any) -> Any:
    """Arguments as data that can be hashed."""
    if isinstance(value, CorpusConfig):
        return as_settings(value)
    if isinstance(value, SourceFile):
        return {name: getattr(value, name) for name in value.identity()}
    if is_dataclass(value):
        # Not `to_data`, which knows nothing of identities.
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


class Runner:
    """Runs tasks on Ray, a bounded number at a time, except those that have their mark."""

    def __init__(
        self, work: str, progress: Progress, in_flight: int | None, stop: Callable[[], bool]
    ) -> None:
        """Keep outputs and marks below `work`; run at most `in_flight` tasks at a time, by
        default two per core."""
        self.work, self.progress, self.stop = work, progress, stop
        self.in_flight = in_flight
        self.recall = join(work, f"recall-{os.getpid()}-{time.time_ns()}")
        self.used: set[str] = set()
        self.times: list[StageTime] = []
        self._stage: Stage | None = None

    @contextmanager
    def stage(self, name: str, pieces: int) -> Iterator[Stage]:
        """Show everything that is run inside as one piece of work under a user's name for it."""
        with stage(self.progress, name, pieces) as open_stage:
            self._stage = open_stage
            try:
                yield open_stage
            finally:
                self._stage = None

    def run(self, name: str, tasks: Sequence[Task[R]]) -> list[R]:
        """The results of all tasks, in the order of the tasks."""
        if not tasks:
            return []
        self.used.update(one.out for one in tasks)
        listed = at(join(self.work, tasks[0].stage)).list_files()
        sizes = {file.path[len(self.work) + 1 :]: file.bytes for file in listed}
        marks = [self._done(one, sizes) for one in tasks]
        waiting = [number for number, mark in enumerate(marks) if mark is None]
        started = time.monotonic()
        fresh = self._run(name, tasks, waiting)
        self.times.append(
            StageTime(
                name,
                len(tasks),
                len(fresh),
                round(time.monotonic() - started, 2) if fresh else 0.0,
                round(sum(mark.cpu_seconds for mark in fresh.values()), 2),
                max((mark.peak_mb for mark in fresh.values()), default=0.0),
            )
        )
        return [(mark or fresh[number]).report for number, mark in enumerate(marks)]

    def _run(self, name: str, tasks: Sequence[Task[R]], waiting: list[int]) -> dict[int, Done[R]]:
        """The marks of the tasks with these numbers, which are run."""
        import ray

        limit = self.in_flight or max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        marks: dict[int, Done[R]] = {}
        running: dict[Any, int] = {}
        queue = waiting[::-1]
        words = 0
        started = time.monotonic()
        total = len(tasks)
        bar = self._stage.piece(total) if self._stage else self.progress(name, total, "tasks")
        with bar as advance:
            advance(total - len(queue))
            try:
                while queue or running:
                    if self.stop():
                        advance(0, "stopping")
                        raise Interrupted("while building the corpus; the same command resumes it")
                    while queue and len(running) < limit:
                        number = queue.pop()
                        reference = _remote().remote(self.work, self.recall, tasks[number])
                        running[reference] = number
                    ready, _ = ray.wait(list(running), timeout=0.5)
                    for reference in ready:
                        number = running.pop(reference)
                        marks[number] = _result(reference, name)
                        words += getattr(marks[number].report, "words", 0)
                        rate = words / max(0.001, time.monotonic() - started)
                        advance(1, f"{rate:,.0f} words/s" if words else "")
            except KeyboardInterrupt:  # pressed again: the user does not want to wait
                self._recall(running, wait=False)
                raise
            except BaseException:
                self._recall(running)
                raise
        return marks

    def _done(self, one: Task[R], sizes: Mapping[str, int]) -> Done[R] | None:
        """The mark of a finished task, or None if the mark or an output is missing or damaged."""
        if one.mark not in sizes:
            return None
        try:
            mark = read_mark(at(join(self.work, one.mark)).read_bytes(), one.call)
        except (ValueError, RecursionError):
            return None
        is_whole = all(sizes.get(name) == size for name, size in mark.outputs.items())
        return mark if is_whole else None

    def forget(self, one: Task[R]) -> None:
        """Remove the mark of a task whose output has changed, so that the task is run again."""
        at(join(self.work, one.mark)).remove()

    def _recall(self, running: Collection[Any], *, wait: bool = True) -> None:
        """Make queued tasks end before they begin, and give running tasks a moment to finish.

        Not by `ray.cancel`: in Ray 2.60 a task that ends while it is cancelled crashes the driver
        ("Tried to complete task that was not pending").
        """
        import ray

        with suppress(OSError, UserError):
            at(self.recall).write_bytes(b"")
        if not wait:
            return  # the file stays for queued tasks, and `prune` removes it
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
        with suppress(OSError, UserError):
            at(self.recall).remove()

    def prune(self) -> None:
        """Remove the output of every task that this build did not run, and of killed tasks."""
        listed = at(self.work).list_files()
        # Marks first: after a kill in between, no mark may name an output that is gone.
        for file in sorted(listed, key=lambda file: not file.path.endswith(_MARK)):
            match = _OURS.match(file.path[len(self.work) + 1 :])
            if match is None or match[1] not in self.used:
                at(file.path).remove()


def read_mark(data: bytes, call: Callable[..., R]) -> Done[R]:
    """The completion mark of a task that called `call`; ValueError if it is damaged."""
    kind: type[R] = get_type_hints(call)["return"]
    mark = from_data(Done, json.loads(data), ignore_unknown=True)
    # Hashes have 64 bits, and the perplexity of an empty set is not finite.
    report = from_data(kind, mark.report, ignore_unknown=True, finite=False, largest=1 << 64)
    return replace(mark, report=report)


@lru_cache(maxsize=1)
def _remote() -> Any:
    """The only remote function: Ray never frees the definition of one."""
    import ray

    return ray.remote(max_retries=5)(run_once)


def run_once(work: str, recall: str, one: Task[R]) -> Done[R] | None:
    """Call a stage, then write its mark, which makes its output valid; None if it was recalled."""
    if at(recall).exists():
        return None
    before = time.process_time()
    try:
        report = with_patience(lambda: one.call(work, one.out, *one.args, **one.named))
    except DamagedError as error:
        # Only the size of an output is compared before it is used.
        if match := _OURS.match(error.path[len(work) + 1 :]):
            at(join(work, f"{match[1]}{_MARK}")).remove()
        raise UserError(
            "file-damaged",
            f"{error.path} was damaged after it was written; run the same command again to write "
            "it again",
        ) from error
    cpu_seconds = round(time.process_time() - before, 3)
    done = Done(report, _outputs(work, one.out), cpu_seconds, peak_mb())
    at(join(work, one.mark)).write_bytes(json.dumps(to_data(done)).encode())
    return done


def _outputs(work: str, out: str) -> dict[str, int]:
    """Sizes of a task's output files; none in a store, where no object is half written."""
    if at(work).is_url:
        return {}
    start = f"{work}/{glob.escape(out)}"
    paths = [*glob.glob(f"{start}*"), *glob.glob(f"{start}/*")]
    return {path[len(work) + 1 :]: os.path.getsize(path) for path in paths if os.path.isfile(path)}


def peak_mb() -> float:
    """The largest memory this process has had. getrusage would count its parent's too."""
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return round(int(line.split()[1]) / 1024, 1)


def _result(reference: Any, name: str) -> Done[Any]:
    """The mark of a task that Ray has run; a `UserError` of the task is raised here again."""
    import ray
    from ray.exceptions import RayTaskError, WorkerCrashedError

    try:
        done: Done[Any] = ray.get(reference)
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
    return done
