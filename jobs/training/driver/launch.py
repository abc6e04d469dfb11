"""Starts the training processes, watches them, stops them, and restarts them after a failure.

Ray Train places the processes and sets up their process group. Only our own checkpoints say how far
a run is. Ray Train runs the training function outside the main thread of its workers, where no
signal handler can be installed. So the driver handles SIGINT and SIGTERM: it writes a file that
rank 0 checks before the next step. All ranks then save a checkpoint and return, and the command
exits with 75. After a failure the loop in `launch` starts the processes again from the newest
checkpoint, after longer and longer pauses (Ray Train itself would retry at once).
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elmwright.jobs.checkpoints.checkpoint import (
    begin_attempt,
    list_checkpoints,
    read_checked,
    read_checked_state,
)
from elmwright.jobs.cluster.capacity import (
    CapacityLost,
    CapacityWatch,
    NoCapacity,
    check_capacity,
    resources,
)
from elmwright.jobs.cluster.connection import FIT_THREAD, is_remote
from elmwright.jobs.config.resume_settings import changed_settings
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import ask_to_stop, withdraw_stop
from elmwright.jobs.secrets.hiding import for_others
from elmwright.jobs.terminal.console import Console, log_to
from elmwright.jobs.training.driver.display import Watcher
from elmwright.jobs.training.driver.ray_storage import WithoutFolders
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.disk import explain
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.object_store import file_system, with_patience

log = logging.getLogger("elmwright")

POLL_SECONDS = 0.5
STOP_SECONDS = 1.0
"""Seconds after a request to stop in which the processes must have begun. Otherwise there is
nothing to save, and no process that reads the request."""
PLAIN_SECONDS = 60.0
"""Seconds between progress lines if the output is not a terminal."""
BACK_OFF = (2.0, 10.0, 30.0, 60.0)
"""Seconds before the first, second, … restart."""


Fit = Callable[[RunConfig, RunFolder, int, bool], None]
"""Runs the processes of an attempt: config, folder, attempt, and whether an earlier one ran."""


@dataclass(frozen=True)
class Job:
    """The arguments of a training process."""

    config: RunConfig
    folder: RunFolder
    attempt: int
    cwd: str
    """The folder in which the command was run, which relative paths refer to."""
    until: int | None = None
    """The step after which to stop with a checkpoint; None trains to the end."""


def check_resumable(config: RunConfig, folder: RunFolder, manifest: Manifest) -> None:
    """Raise UserError if the newest checkpoint belongs to another corpus or to other settings."""
    for info in reversed(list_checkpoints(folder.checkpoints)):
        saved = read_checked(info.path, "config.json")
        state = read_checked_state(info.path)
        if saved and state:  # otherwise it is damaged, and will be skipped
            break
    else:
        return
    if state.corpus_fingerprint != manifest.fingerprint:
        raise UserError(
            "run-changed",
            f"the corpus in {folder.corpus} is not the one that {info.path} was trained on; "
            "give the run another run.name",
        )
    if problem := changed_settings(saved["run_config"], to_dict(config)):
        raise UserError("run-changed", problem)


def check_size(config: RunConfig, manifest: Manifest) -> None:
    """Raise UserError if the training text does not suit the settings: less than a batch, windows
    that do not fill blocks, or no sentences to reset states at."""
    split, train = manifest.splits["train"], config.train
    if manifest.block_steps % train.window:
        raise UserError(
            "setting",
            f"the corpus has blocks of {manifest.block_steps} steps, not a multiple of "
            f"train.window = {train.window}",
        )
    if split.steps < train.lanes * train.window:
        raise UserError(
            "setting",
            f"the corpus has {split.steps:,} training tokens, less than one batch of "
            f"train.lanes × train.window = {train.lanes * train.window:,}; "
            "add text or make train.lanes smaller",
        )
    if train.reset_states == "sentence" and split.sentences <= split.blocks:
        raise UserError(
            "setting",
            f"the training text is {plural(split.sentences, 'sentence')} in "
            f"{plural(split.blocks, 'block')}, so it has hardly a start to reset states at; split "
            'it into sentences (corpus.sentences), or set train.reset_states = "block"',
        )


def launch(
    config: RunConfig,
    folder: RunFolder,
    console: Console,
    stopped: Callable[[], bool],
    begun: threading.Event | None = None,
    fit: Fit | None = None,
    until: int | None = None,
) -> None:
    """Train to the end. Raises Interrupted when asked to stop, UserError or Failed on errors.

    `config.train.device` is "cpu" or "cuda", as `devices.settle_device` decided. `begun` is set
    while processes are training: only then is there something to save. `fit` runs the processes of
    one attempt, by default with Ray Train. `until` is for a replay: training stops at the
    checkpoint of that step, without a last evaluation and a result.
    """
    fit = fit or partial(fit_with_ray, until=until)
    withdraw_stop(folder.stop_request)
    at(folder.result).clear()  # from a shorter training, or a checkpoint that is damaged now
    restarts, ever_ran, reached, attempt = 0, False, _newest_step(folder), 0
    repeated = None if until is None else range(reached, until)
    name, steps = (
        ("repeating", repeated) if repeated else ("training", range(config.train.max_steps))
    )
    done = reached - steps.start
    with console.bar(name, len(steps), "steps", PLAIN_SECONDS, done=done) as bar:
        watcher = Watcher(config, folder, console, bar, begun=begun, repeated=repeated)
        while True:
            attempt = begin_attempt(folder.attempt, above=attempt)
            watcher.begin_attempt()
            error = _attempt(config, folder, attempt, watcher, stopped, fit, again=ever_ran)
            if error is None:
                if _is_finished(folder, until):
                    bar.is_complete = True  # perhaps before the last step: eval.patience
                break
            if isinstance(error, CapacityLost) or (isinstance(error, NoCapacity) and ever_ran):
                raise Interrupted(
                    f"the cluster has lost machines ({error}); training is at {_position(folder)}, "
                    "and the same command resumes when there is capacity again"
                )
            _raise_final(error, folder, attempt)
            log.error("attempt %d failed", attempt, exc_info=error)
            ever_ran = True
            if stopped():
                break
            if _newest_step(folder) > reached:  # progress: count restarts from here
                restarts, reached = 0, _newest_step(folder)
            if restarts >= config.train.max_restarts:
                raise Failed(
                    f"training stopped unexpectedly {restarts + 1} times without getting further, "
                    f"the last time because of {_reason(error)}; details are in {folder.log}, "
                    "checkpoints are safe, and the same command resumes from the newest"
                )
            pause = BACK_OFF[min(restarts, len(BACK_OFF) - 1)]
            restarts += 1
            console.warn(
                f"training stopped unexpectedly ({_reason(error)}); starting again from the newest "
                f"checkpoint in {pause:.0f} s (restart {restarts} of {config.train.max_restarts})"
            )
            pause_end = time.monotonic() + pause
            while time.monotonic() < pause_end and not stopped():
                time.sleep(POLL_SECONDS)
            if stopped():
                break
    if not _is_finished(folder, until):
        raise Interrupted(
            f"training is at {_position(folder)}; the same command resumes from there"
        )


def _attempt(
    config: RunConfig,
    folder: RunFolder,
    attempt: int,
    watcher: Watcher,
    stopped: Callable[[], bool],
    fit: Fit,
    *,
    again: bool,
) -> Exception | None:
    """Run the workers once; returns the error, or None."""
    errors: list[Exception] = []
    asked_at: float | None = None
    capacity = CapacityWatch(config, _begun_file(folder, attempt))

    def work() -> None:
        try:
            fit(config, folder, attempt, again)
        except Exception as error:
            errors.append(error)

    # fit() blocks, and on the main thread would handle SIGINT itself.
    thread = threading.Thread(target=work, name=FIT_THREAD, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        try:
            watcher.look()
            if stopped() and asked_at is None:
                watcher.stopping()
                ask_to_stop(folder.stop_request)
                asked_at = time.monotonic()
            is_overdue = asked_at is not None and time.monotonic() - asked_at > STOP_SECONDS
            if is_overdue and not at(_begun_file(folder, attempt)).exists():
                return None
            if lost := capacity.lost():
                return lost  # Ray would wait forever
        except (OSError, UserError) as error:
            log.warning("cannot reach %s at present: %s", folder.train, error)
    with_patience(watcher.look)
    return errors[0] if errors else None


def _begun_file(folder: RunFolder, attempt: int) -> str:
    """The file that rank 0 writes when the attempt has begun."""
    return join(folder.train, f"begun-{attempt}")


def _newest_step(folder: RunFolder) -> int:
    """The step of the newest checkpoint, or -1 if there is none."""
    return max((info.step for info in list_checkpoints(folder.checkpoints)), default=-1)


def _is_finished(folder: RunFolder, until: int | None) -> bool:
    """Whether training has come to its end, or to the checkpoint at which it was to stop."""
    if until is not None:
        return _newest_step(folder) >= until
    return at(folder.result).read_json() is not None


def fit_with_ray(
    config: RunConfig, folder: RunFolder, attempt: int, again: bool, until: int | None = None
) -> None:
    """Run the processes of an attempt with Ray Train, until all have ended or one has failed."""
    from ray.train import FailureConfig, ScalingConfig
    from ray.train import RunConfig as RayRunConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    use_gpu = config.train.device == "cuda"
    # Lost machines may come back if there is time to wait: Ray requests them, and `CapacityWatch`
    # limits the time.
    if not (again and config.cluster.wait_minutes):
        advice = "lower train.processes or train.threads, or "
        advice += "set cluster.wait_minutes" if is_remote(config) else "raise cluster.cpus"
        check_capacity(config.train, resources(), gpu=use_gpu, advice=advice)
    trainer = TorchTrainer(
        worker,
        train_loop_config={"job": Job(config, folder, attempt, os.getcwd(), until)},
        scaling_config=ScalingConfig(
            num_workers=config.train.processes,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": config.train.threads, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=RayRunConfig(
            name=f"{config.run.name}-{attempt}",
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0),
            **_storage(folder),
        ),
        torch_config=TorchConfig(
            backend="nccl" if use_gpu else "gloo", timeout_s=config.train.timeout_s
        ),
    )
    trainer.fit()


def _storage(folder: RunFolder) -> dict[str, Any]:
    """The settings for Ray Train's own few files, which all its processes must see."""
    if not folder.is_in_store:
        return {"storage_path": join(folder.train, "ray")}
    from pyarrow.fs import PyFileSystem

    system, inner = file_system(join(folder.train, "ray"))
    return {"storage_path": inner, "storage_filesystem": PyFileSystem(WithoutFolders(system))}


def worker(arguments: dict[str, Job]) -> None:
    """The function that Ray Train calls in each training process."""
    import ray.train
    import torch

    from elmwright.jobs.training.loop.exchange import Ranks
    from elmwright.jobs.training.loop.train import train

    job = arguments["job"]
    config, folder, attempt = job.config, job.folder, job.attempt
    with suppress(OSError):  # a machine of a cluster may not have that folder
        os.chdir(job.cwd)
    folder.log.parent.mkdir(parents=True, exist_ok=True)
    log_to(folder.log)
    context = ray.train.get_context()
    device = torch.device("cpu")
    if config.train.device == "cuda":
        device = ray.train.torch.get_device()
        torch.cuda.set_device(device)
    ranks = Ranks(context.get_world_rank(), context.get_world_size(), device)

    def drained(step: int) -> bool:
        if job.until is not None:
            return step + 1 >= job.until
        # Not at every step: all processes exchange the answer, which takes some milliseconds.
        if not is_remote(config) or step % config.tracking.every_steps:
            return False
        return ray.train.get_preemption_info() is not None

    if ranks.rank == 0:
        at(_begun_file(folder, attempt)).write_bytes(b"")
        at(_begun_file(folder, attempt - 1)).clear()
    try:
        train(config, folder, attempt, ranks, drained, resolve)
    except (UserError, Failed, OSError) as error:
        # Ray may first report other processes, which failed only because this one did.
        with suppress(OSError, UserError):
            at(_final_error_file(folder, attempt)).write_json(_describe_final(error, folder))
        raise


def _describe_final(error: BaseException, folder: RunFolder) -> dict[str, str]:
    """An error as data if it would happen again in another attempt, else an empty dict."""
    if isinstance(error, OSError):
        error = explain(error, Path(error.filename or folder.root)) or error
    if isinstance(error, Failed):
        return {"failed": for_others(str(error))}
    if isinstance(error, UserError):
        return {"user": for_others(str(error)), "code": error.code}
    return {}


def _final_error_file(folder: RunFolder, attempt: int) -> str:
    """The file to which a process writes an error that would happen again in another attempt."""
    return join(folder.train, f"mistake-{attempt}.json")


def _raise_final(error: Exception, folder: RunFolder, attempt: int) -> None:
    """Raise the error of an attempt if it would happen again in another one."""
    path = at(_final_error_file(folder, attempt))
    descriptions = [path.read_json() or {}]
    path.clear()
    failures = getattr(error, "worker_failures", None) or {}
    descriptions += [_describe_final(failure, folder) for failure in (error, *failures.values())]
    for description in descriptions:
        if description.get("user"):
            raise UserError(description.get("code", "setting"), description["user"])
        if description.get("failed"):
            raise Failed(description["failed"])


def _reason(error: Exception) -> str:
    """The cause of a failed attempt in one line, from Ray's error."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, failure = sorted(failures.items())[0]
        last = (str(failure).strip() or repr(failure)).splitlines()[-1]
        return f"rank {rank}: {last[:200]}"
    lines = str(error).strip().splitlines()
    if not lines:
        return repr(error)
    # The last line of a traceback is the error.
    return lines[-1 if any("Traceback" in line or "  File " in line for line in lines) else 0][:200]


def _position(folder: RunFolder) -> str:
    """The step and path of the newest checkpoint, for messages."""
    infos = list_checkpoints(folder.checkpoints)
    return f"step {infos[-1].step:,} ({infos[-1].path})" if infos else "its beginning"
