"""Run tasks on Ray, a bounded number at a time, each exactly once in effect.

A task is a stage (a plain function) and its arguments. Its *digest* is taken over both, and its
output files are named by it, relative to the work folder; the outputs of other tasks among its
arguments are such names. So a name stands for its whole history: whatever changed, a setting, an
input file, a task further up, gives another name, and what did not change is found already done.
That is all there is to resuming after a kill, and to building again after a change.

A task that is done leaves a completion mark (`Done`), a small JSON file with its result, which is
the frozen dataclass that the stage's annotation says it returns; a task whose mark is there is not
run again. Ray runs a task again if its worker dies, we run it again if a store drops the
connection, and what the user must put right comes back as the `UserError` it was.
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
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Generic, TypeVar, get_type_hints

from elmwright.pipeline.config import CorpusConfig, as_settings
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.progress import Advance, Progress, Stage, stage
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.report.statistics import StageTime
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.object_store import with_patience

R = TypeVar("R")
"""The result of a task: a frozen dataclass of counts and names, small."""

RECIPE = 3
"""Raised whenever a change of the code changes what the same settings give."""
WORK_FORMAT = 1
"""Raised whenever the format of a file in the work folder changes, so that no task reads an older
one. The finished corpus is the same."""
PATIENCE = 10.0
"""Seconds that tasks at work get to finish when the build stops."""


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
    """Its arguments."""
    named: Mapping[str, object]
    """Its arguments by name."""

    @property
    def out(self) -> str:
        """The beginning of the names of its output files, relative to the work folder."""
        return f"{self.stage}/{self.digest}"


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
    """Versions of what decides about text: a build begun with others is not mixed with this one."""
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
    """Runs tasks on Ray, a bounded number at a time, passing over those already marked."""

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
        with stage(self.progress, name, pieces) as one:
            self._stage = one
            try:
                yield one
            finally:
                self._stage = None

    def run(self, name: str, tasks: Sequence[Task[R]]) -> list[R]:
        """The results of all tasks, in the order of the tasks."""
        if not tasks:
            return []
        self.used.update(one.out for one in tasks)
        listed = at(join(self.work, tasks[0].stage)).list_files()
        sizes = {file.path[len(self.work) + 1 :]: file.bytes for file in listed}
        earlier: dict[int, Done[R]] = {}
        waiting = []
        for number, one in enumerate(tasks):
            mark = self._done(one, sizes)
            if mark is None:
                waiting.append(number)
            else:
                earlier[number] = mark
        started = time.monotonic()
        ran = len(waiting)
        marks = self._run(name, tasks, earlier, waiting[::-1])
        fresh = [marks[number] for number in range(len(tasks)) if number not in earlier]
        self.times.append(
            StageTime(
                name,
                len(tasks),
                ran,
                round(time.monotonic() - started, 2) if ran else 0.0,
                round(sum(mark.cpu_seconds for mark in fresh), 2),
                max((mark.peak_mb for mark in fresh), default=0.0),
            )
        )
        return [marks[number].report for number in range(len(tasks))]

    def _run(
        self,
        name: str,
        tasks: Sequence[Task[R]],
        earlier: Mapping[int, Done[R]],
        waiting: list[int],
    ) -> dict[int, Done[R]]:
        import ray

        limit = self.in_flight or max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        marks = dict(earlier)
        running: dict[Any, int] = {}
        words = 0
        started = time.monotonic()
        with self._shown(name, len(tasks)) as advance:
            advance(len(earlier))
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
                        marks[number] = _result(reference, name)
                        words += getattr(marks[number].report, "words", 0)
                        rate = words / max(0.001, time.monotonic() - started)
                        advance(1, f"{rate:,.0f} words/s" if words else "")
            except KeyboardInterrupt:  # pressed again: whoever did that does not want to wait
                self._recall(running, wait=False)
                raise
            except BaseException:
                self._recall(running)
                raise
        return marks

    def _shown(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """A part of the open stage's bar, or a bar of its own."""
        return self._stage.piece(total) if self._stage else self.progress(name, total, "tasks")

    def _done(self, one: Task[R], sizes: Mapping[str, int]) -> Done[R] | None:
        """The mark of a finished task; None if the mark or one of the outputs is not whole."""
        if f"{one.out}{_MARK}" not in sizes:
            return None
        try:
            mark = read_mark(at(self._mark(one)).read_bytes(), one.call)
        except (ValueError, RecursionError):
            return None
        is_whole = all(sizes.get(name) == size for name, size in mark.outputs.items())
        return mark if is_whole else None

    def forget(self, one: Task[R]) -> None:
        """Remove the mark of a task whose output has changed, so that the task is run again."""
        at(self._mark(one)).remove()

    def _mark(self, one: Task[R]) -> str:
        return join(self.work, f"{one.out}{_MARK}")

    def _recall(self, running: Collection[Any], *, wait: bool = True) -> None:
        """Make queued tasks end before they begin, and give running tasks a moment to finish.

        Not by `ray.cancel`: in Ray 2.60 a task that ends while it is cancelled brings down the
        driver ("Tried to complete task that was not pending").
        """
        import ray

        with suppress(OSError, UserError):
            at(self.recall).write_bytes(b"")
        if not wait:
            return  # the note stays for tasks in the queue; `prune` removes it
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
        with suppress(OSError, UserError):
            at(self.recall).remove()

    def prune(self) -> None:
        """Remove the output of every task that this build did not run, and of killed tasks."""
        listed = at(self.work).list_files()
        # Marks first: killed in between, no mark may stand for an output that is gone.
        for file in sorted(listed, key=lambda file: not file.path.endswith(_MARK)):
            match = _OURS.match(file.path[len(self.work) + 1 :])
            if match is None or match[1] not in self.used:
                at(file.path).remove()


_MARK = ".done.json"
_OURS = re.compile(r"([a-z]+/[0-9a-f]{20})")


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


def run_once(
    mark: str,
    recall: str,
    call: Callable[..., R],
    work: str,
    out: str,
    args: tuple[object, ...],
    named: Mapping[str, object],
) -> Done[R] | None:
    """Call a stage, then write its mark, which makes its output valid; None if it was recalled."""
    if at(recall).exists():
        return None
    before = time.process_time()
    report = with_patience(lambda: call(work, out, *args, **named))
    cpu_seconds = round(time.process_time() - before, 3)
    done = Done(report, _outputs(work, out), cpu_seconds, peak_mb())
    at(mark).write_bytes(json.dumps(to_data(done)).encode())
    return done


def _outputs(work: str, out: str) -> dict[str, int]:
    """Names and sizes of a task's output; none in a store, where no object is half written."""
    if at(work).is_url:
        return {}
    start = f"{work}/{glob.escape(out)}"
    paths = [*glob.glob(f"{start}*"), *glob.glob(f"{start}/*")]
    return {path[len(work) + 1 :]: os.path.getsize(path) for path in paths if os.path.isfile(path)}


def peak_mb() -> float:
    """The largest memory this process has had; not by getrusage, which counts its parent's too."""
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
