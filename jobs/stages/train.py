"""The stage `train`, which trains on the corpus and writes checkpoints.

The training processes are started and watched by `training/driver`, and run `training/loop`.
"""

import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from elmwright.jobs.checkpoints.checkpoint import CheckpointInfo, list_checkpoints
from elmwright.jobs.checkpoints.contents import TrainingResult, read_result
from elmwright.jobs.cluster.connection import is_remote, local_cpus, machines_for
from elmwright.jobs.config.resume_settings import changed_settings
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.places import check_tracking
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run, newest_config
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.signals import AGAIN, Stop
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.tracker import Tracker, tracking_uri
from elmwright.jobs.training.driver.devices import bound_device, settle_device
from elmwright.jobs.training.driver.launch import check_resumable, check_size, launch
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.format.manifest import Manifest

CLOSING = 5.0
"""Seconds for the last messages to MLflow when training is interrupted."""

Launch = Callable[[RunConfig, RunFolder, Console, Callable[[], bool], threading.Event], None]
"""Config, folder, console, whether to stop, and an event that is set while processes train."""
Say = Callable[[str], None]
Settle = Callable[[RunConfig, RunFolder, Say, Say], RunConfig]
"""Config, folder, and functions that print a message and a warning."""


class Train:
    """Trains the model of a run."""

    name = "train"
    uses_ray = True

    def __init__(self, launch: Launch = launch, settle: Settle = settle_device) -> None:
        """`launch` runs the training processes; `settle` chooses CPUs or GPUs."""
        self._launch = launch
        self._settle = settle

    def is_done(self, run: Run) -> bool:
        result = read_result(run.folder.result)
        if result is None or final_checkpoint(run.folder, result) is None:
            return False
        # Training that was ended by another eval.patience than today's has to continue.
        has_stopped_early = 0 < result.stopped_early == run.config.eval.patience
        return result.step >= run.config.train.max_steps or has_stopped_early

    def input_damage(self, _run: Run) -> str:
        return ""  # if the corpus is damaged, the stage `corpus` is not done and comes first

    def check(self, run: Run, pending: Collection[str], problems: Problems) -> None:
        if "corpus" not in pending:
            # Also for a finished run, whose settings may have changed.
            problems.catch(check_corpus, run)
        if self.name in pending:
            problems.note(_resume_problem(run))
            _check_machine(problems, run.config)
            problems.catch(run.base.check, run.config.model)
            problems.catch(check_tracking, run.config, run.folder)

    def run(self, run: Run, console: Console, stop: Stop) -> None:
        begun = threading.Event()
        with stop.saving(partial(stopping_sentence, begun), console.say):
            self._train(run, console, stop, begun)

    def _train(self, run: Run, console: Console, stop: Stop, begun: threading.Event) -> None:
        config, folder = run.config, run.folder
        check_corpus(run)
        if warning := check_server(tracking_uri(config, folder)):
            console.warn(warning)
        gpu = bound_device(config, folder) == "cuda"
        with machines_for(config, folder, gpu=gpu, stopped=stop.is_set, say=console.say):
            settled = self._settle(config, folder, console.say, console.warn)
            tracker = Tracker(config, folder, Manifest.load(folder.corpus))
            tracker.start()
            status = "FAILED"
            try:
                self._launch(settled, folder, console, stop.is_set, begun)
                status = "FINISHED"
            except Interrupted:
                status = "KILLED"
                raise
            finally:
                if stop.is_set() and status != "FINISHED":
                    status = "KILLED"
                # After a second Ctrl-C the user must not wait; the next command sends the rest.
                if not stop.raised:
                    problem = tracker.finish(status, CLOSING if stop.is_set() else 60.0)
                    if problem and status != "KILLED":
                        console.warn(problem)


def stopping_sentence(begun: threading.Event) -> str:
    """The answer to Ctrl-C; before training has begun there is nothing to save."""
    return f"stopping: saving a checkpoint first {AGAIN}" if begun.is_set() else f"stopping {AGAIN}"


def final_checkpoint(folder: RunFolder, result: TrainingResult) -> CheckpointInfo | None:
    """The checkpoint that training ended with, if it still exists."""
    infos = list_checkpoints(folder.checkpoints)
    return next((info for info in infos if info.sha256 == result.checkpoint_sha256), None)


def check_corpus(run: Run) -> None:
    """Refuse a corpus that is too small or has changed since the newest checkpoint, and settings
    that have changed since."""
    manifest = Manifest.load(run.folder.corpus)
    check_resumable(run.config, run.folder, manifest)
    check_size(run.config, manifest)


def _resume_problem(run: Run) -> str:
    """A sentence about settings that differ from those of the newest checkpoint."""
    saved = newest_config(run.folder)
    return changed_settings(saved.settings, to_dict(run.config)) if saved else ""


def _check_machine(problems: Problems, config: RunConfig) -> None:
    """Note missing cores or GPUs, if this machine does the training."""
    if is_remote(config):
        return
    needed = config.train.processes * config.train.threads
    available = local_cpus(config)
    if needed > available:
        problems.note(
            f"train.processes × train.threads needs {needed} CPUs, but there are {available} here; "
            "lower one of them, or raise cluster.cpus to run several threads on a core"
        )
    if config.train.device == "cuda" and not has_gpu():
        problems.note(
            'train.device = "cuda", but this machine has no NVIDIA GPU (or no driver for it); '
            'set it to "cpu" or "auto"'
        )


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU, or in WSL one of the Windows host."""
    devices = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    return bool(devices) or Path("/dev/dxg").exists()
