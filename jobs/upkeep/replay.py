"""`elmwright verify RUN --replay [STEP]`: train again from one checkpoint to the next, and compare.

It shows on the user's own machine that a resumed run gives the same weights, bit for bit. The
launcher and the loop are those of training. They work in a temporary run folder in run.scratch:
with copies of both checkpoints (links, where possible), the corpus of the run by its path, the
config of the later checkpoint without evaluations, and no MLflow. Nothing else of the run is
touched, so a run may be replayed while it trains.

Ctrl-C lets the processes stop after their step, so that nothing is left of the folder. After a
second Ctrl-C, or a kill, the next replay removes the rest.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.checkpoints.checkpoint import (
    MANIFEST,
    CheckpointInfo,
    copy_checkpoint,
    folder_name,
)
from elmwright.jobs.cluster.connection import FIT_THREAD, ray_cluster
from elmwright.jobs.environment.machine_facts import libraries, machine
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.work_folder import alone_in
from elmwright.jobs.terminal.console import Console, console_for_run
from elmwright.jobs.terminal.signals import AGAIN, Stop, resumable, stop_signals
from elmwright.jobs.terminal.wording import duration
from elmwright.jobs.training.driver.launch import Fit, launch
from elmwright.jobs.upkeep.compare_checkpoints import TensorDifference, compare_checkpoints
from elmwright.jobs.upkeep.explain_mismatch import (
    Circumstances,
    LoggedDifference,
    changes,
    compare_journals,
    likely_reason,
    resumed_within,
)
from elmwright.jobs.upkeep.replay_plan import Plan
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.progress import counting_bytes, plural
from elmwright.pipeline.storage.files import at, join

STOPPED = "during the replay; the run is as it was, and the same command starts again"
STOP_SECONDS = 60.0
"""Seconds that processes have to begin, make one step and stop."""

Connect = Callable[..., AbstractContextManager[None]]


@dataclass(frozen=True)
class Mismatch:
    """How the repeated steps differ from the run, and why."""

    tensors: int
    """How many tensors differ."""
    first: TensorDifference
    logged: LoggedDifference | None
    """The first logged step that differs."""
    reason: str
    """The likely reason."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay; the fields are keys of `--json`."""

    run: str
    """The run's folder."""
    from_step: int
    """The checkpoint from which training was repeated."""
    to_step: int
    """The checkpoint that the result was compared with."""
    processes: int
    threads: int
    tensors: int
    """How many tensors were compared."""
    seconds: float
    mismatch: Mismatch | None
    """None if all tensors are the same."""


def replay(
    plan: Plan,
    *,
    connect: Connect = ray_cluster,
    fit: Fit | None = None,
) -> Replayed:
    """Repeat the steps and compare the result with the checkpoint of the run.

    `connect` starts Ray, and `fit` runs the processes of an attempt, by default with Ray Train.
    """
    started = time.monotonic()
    folder, end = plan.folder, plan.end
    with (
        resumable(STOPPED),
        _place(folder) as place,
        _log(folder.scratch / "replay.log") as log_file,
        console_for_run(log_file, to_stderr=True) as console,
        stop_signals() as stop,
    ):
        run = RunFolder(str(place / "run"), place / "scratch", folder.corpus)
        Path(run.train).mkdir(parents=True)
        run.log.symlink_to(log_file)  # the processes write to the same log
        expected = place / "expected"
        total = plan.begin.info.bytes + end.info.bytes
        with console.progress("verifying", total, "bytes") as advance, counting_bytes(advance):
            _copy(plan.begin.info, Path(run.checkpoints, folder_name(plan.begin.info.step)))
            _copy(end.info, expected)
        _train(plan, run, console, stop, connect, fit)
        result = Path(run.checkpoints, folder_name(end.info.step))
        comparison = compare_checkpoints(expected, result)
        mismatch = None
        if comparison.differing:
            mismatch = _explain(plan, run, comparison.differing)
    return Replayed(
        run=folder.root,
        from_step=plan.begin.info.step,
        to_step=end.info.step,
        processes=plan.config.train.processes,
        threads=plan.config.train.threads,
        tensors=comparison.tensors,
        seconds=round(time.monotonic() - started, 1),
        mismatch=mismatch,
    )


@contextmanager
def _place(folder: RunFolder) -> Iterator[Path]:
    """An empty folder in run.scratch, removed afterwards with what a killed replay has left."""
    work = folder.scratch / "replay"
    is_new = not folder.scratch.exists()
    with alone_in(work, work):
        try:
            for leftover in work.glob("run-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            # A new name each time: a process of a killed replay may still be writing.
            yield Path(tempfile.mkdtemp(prefix="run-", dir=work))
        finally:
            shutil.rmtree(work, ignore_errors=True)
            if is_new:
                with suppress(OSError):
                    folder.scratch.rmdir()


@contextmanager
def _log(path: Path) -> Iterator[Path]:
    """The log of a replay, which stays only after a failure that it explains."""
    is_kept = False
    try:
        path.unlink(missing_ok=True)
        yield path
    except (UserError, Interrupted):
        raise
    except Exception:
        is_kept = True
        raise
    finally:
        if not is_kept:
            path.unlink(missing_ok=True)


def _copy(info: CheckpointInfo, target: Path) -> None:
    """Copy a checkpoint of the run, which training may remove meanwhile."""
    try:
        copy_checkpoint(info.path, target)
    except (OSError, UserError) as error:
        if not at(join(info.path, MANIFEST)).exists():
            raise UserError(
                "checkpoint-missing", f"{info.path} has just been removed; run the command again"
            ) from error
        if isinstance(error, UserError):
            raise error.saying(str(error).replace(str(target), info.path)) from error
        raise


def _train(
    plan: Plan,
    run: RunFolder,
    console: Console,
    stop: Stop,
    connect: Connect,
    fit: Fit | None,
) -> None:
    """Train from the first checkpoint to the second, in the temporary folder."""
    with ExitStack() as stack:
        with (
            stop.saving(f"stopping when Ray is up {AGAIN}", console.say),
            console.progress("starting Ray", 1, ""),
        ):
            stack.enter_context(connect(plan.config, stop.take, stop.is_set, console.say))
        with stop.saving(f"stopping {AGAIN}", console.say):
            try:
                if not stop.is_set():
                    until = plan.end.info.step
                    launch(plan.config, run, console, stop.is_set, fit=fit, until=until)
            except Failed as error:
                # That folder will be gone. Its log is a link to the one that is kept.
                sentence = str(error).replace(str(run.log), str(run.log.resolve()))
                raise Failed(sentence) from error
            except Interrupted:
                if not stop.is_set():
                    raise
            if stop.is_set():
                _wait_for_processes()
                raise Interrupted(STOPPED)


def _wait_for_processes() -> None:
    """Wait until no process writes to the temporary folder any more."""
    for thread in threading.enumerate():
        if thread.name == FIT_THREAD:
            thread.join(STOP_SECONDS)


def _explain(plan: Plan, run: RunFolder, differing: tuple[TensorDifference, ...]) -> Mismatch:
    """Find out where the repeated steps began to differ, and why."""
    journal = plan.folder.journal
    logged = compare_journals(journal, run.journal, plan.steps)
    begin, end = plan.begin, plan.end
    trained = Circumstances.of(end.config, end.state)
    found = changes(trained, Circumstances(trained.train, machine(), libraries()))
    # Between the checkpoints, not at the first of them: from there on the later config is right.
    if resumed_within(journal, range(begin.info.step + 1, end.info.step)):
        found += changes(Circumstances.of(begin.config, begin.state), trained)
    reason = likely_reason(found, logged, knows_libraries=bool(end.state.libraries))
    return Mismatch(len(differing), differing[0], logged.first, reason)


def in_words(result: Replayed) -> str:
    """The result in one sentence."""
    first, last = result.from_step + 1, result.to_step
    steps = f"step {last:,}" if first == last else f"steps {first:,} to {last:,}"
    name = folder_name(last)
    on = f"on {plural(result.processes, 'process')}"
    if result.threads > 1:
        on += f" of {plural(result.threads, 'thread')}"
    mismatch = result.mismatch
    if mismatch is None:
        return (
            f"{steps} of {result.run} repeated {on} in {duration(result.seconds)}: all "
            f"{plural(result.tensors, 'tensor')} are bit for bit those of {name}"
        )
    tensor, logged = mismatch.first, mismatch.logged
    by = "in its shape, its type or numbers that are not finite"
    if tensor.largest is not None:
        by = f"by at most {tensor.largest:.3g}"
    verb = "differs" if mismatch.tensors == 1 else "differ"
    when = "no logged loss or gradient norm differs"
    if logged is not None:
        when = (
            f"the first logged step that differs is {logged.step:,} ({logged.metric} "
            f"{logged.before:.9g}, now {logged.now:.9g})"
        )
    return (
        f"{steps} of {result.run} repeated {on} gave other weights than {name}: "
        f"{mismatch.tensors:,} of {plural(result.tensors, 'tensor')} {verb}, the first is "
        f"{tensor.tensor} in {tensor.file}, {by}; {when}; {mismatch.reason}"
    )
