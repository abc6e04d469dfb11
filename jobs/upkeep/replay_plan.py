"""Which steps a replay repeats, with which config, and whether this machine can do it.

Everything here is decided from small files, before torch or Ray is loaded.
"""

from dataclasses import dataclass, replace

from elmwright.jobs.checkpoints.checkpoint import (
    CheckpointInfo,
    list_checkpoints,
    read_checked,
    read_checked_state,
)
from elmwright.jobs.checkpoints.contents import CheckpointState
from elmwright.jobs.cluster.connection import local_cpus
from elmwright.jobs.config.sections import CheckpointSection, RunConfig
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.driver.devices import with_device
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import join


@dataclass(frozen=True)
class Saved:
    """A checkpoint with what it says about its training."""

    info: CheckpointInfo
    state: CheckpointState
    config: RunConfig
    """The config that it was trained with, with the number of processes and the kind of device
    that were used."""


@dataclass(frozen=True)
class Plan:
    """The steps of a run that are repeated."""

    folder: RunFolder
    begin: Saved
    end: Saved
    config: RunConfig
    """The config that repeats them."""

    @property
    def steps(self) -> range:
        """The numbers of the steps."""
        return range(self.begin.info.step + 1, self.end.info.step + 1)


def plan_replay(folder: RunFolder, step: str = "") -> Plan:
    """What to repeat: from the checkpoint of `step` to the next, or from the last but one.

    Raises UserError if that is not possible on this machine. Loads neither torch nor Ray, unless
    the run was trained on GPUs.
    """
    first, second = _choose(folder, step)
    begin, end = _read(first), _read(second)
    manifest = Manifest.load(folder.corpus)
    for saved in (begin, end):
        if saved.state.corpus_fingerprint != manifest.fingerprint:
            raise UserError(
                "run-changed",
                f"the corpus in {folder.corpus} is not the one that {saved.info.path} was trained "
                "on; put the old corpus back to replay it",
            )
    if not end.state.is_repeatable:
        raise UserError(
            "format",
            f"{end.info.path} was written with numerics {end.state.numerics}, which this version "
            "cannot repeat bit for bit; replay it with the version of elmwright that wrote it",
        )
    if _skipped_before(first.step, begin.state) != _skipped_before(first.step, end.state):
        raise UserError(
            "run-state",
            f"training went back to before step {first.step:,} after it wrote {first.path}, so "
            f"step {second.step:,} does not follow from it; name another checkpoint",
        )
    config = _config(folder, end)
    _check_machine(config, end)
    return Plan(folder, begin, end, config)


def _choose(folder: RunFolder, step: str) -> tuple[CheckpointInfo, CheckpointInfo]:
    """The checkpoint to start from and the one after it."""
    infos = list_checkpoints(folder.checkpoints)
    if not infos:
        raise UserError("checkpoint-missing", f"{folder.root} has no checkpoints; train first")
    numbers = [info.step for info in infos]
    known = ", ".join(map(str, numbers))
    if step and not (step.isdecimal() and int(step) in numbers):
        raise UserError(
            "checkpoint-missing",
            f"{folder.root} has no checkpoint of step {step}; it has: {known}",
        )
    if len(infos) == 1:
        raise UserError(
            "checkpoint-missing",
            f"{folder.root} has only the checkpoint of step {known}, and a replay needs the one "
            "after it; train on, with checkpoint.keep_last at least 2",
        )
    number = numbers.index(int(step)) if step else len(infos) - 2
    if number == len(infos) - 1:
        raise UserError(
            "checkpoint-missing",
            f"{folder.root} has no checkpoint after step {step} to compare with; name an earlier "
            f"one: {', '.join(map(str, numbers[:-1]))}",
        )
    return infos[number], infos[number + 1]


def _read(info: CheckpointInfo) -> Saved:
    """A checkpoint's own words; UserError if they are damaged."""
    saved, state = read_checked(info.path, "config.json"), read_checked_state(info.path)
    if saved is None or state is None:
        raise UserError(
            "file-damaged", f"state.json or config.json of {info.path} is missing or damaged"
        )
    where = join(info.path, "config.json")
    config = config_from(saved["run_config"], where, saved=True)
    config = replace(config, train=replace(config.train, processes=state.processes))
    return Saved(info, state, with_device(config, "cuda" if state.device == "cuda" else "cpu"))


def _skipped_before(step: int, state: CheckpointState) -> list[int]:
    """The skipped updates among the first `step` steps."""
    return [number for number in state.skipped if number < step]


def _config(folder: RunFolder, end: Saved) -> RunConfig:
    """The config of the later checkpoint, for a replay on this machine.

    The learning rate depends on train.max_steps, so that stays.
    """
    config = end.config
    return replace(
        config,
        corpus=replace(config.corpus, dir=folder.corpus),
        eval=replace(config.eval, every_steps=0, patience=0),
        checkpoint=CheckpointSection(every_steps=end.info.step),
        cluster=replace(config.cluster, address="", wait_minutes=0),
    )


def _check_machine(config: RunConfig, end: Saved) -> None:
    """Refuse a replay that needs GPUs or CPUs that this machine does not have."""
    train = config.train
    needed, available = train.processes * train.threads, local_cpus(config)
    if needed > available:
        raise UserError(
            "capacity",
            f"{end.info.path} was trained by {plural(train.processes, 'process')} of "
            f"{plural(train.threads, 'thread')}, which needs {needed} CPUs, but there are "
            f"{available} here; replay it on a larger machine",
        )
    if train.device == "cuda":
        import torch

        gpus = torch.cuda.device_count()
        if gpus < train.processes:
            raise UserError(
                "capacity" if gpus else "device",
                f"{end.info.path} was trained on {plural(train.processes, 'GPU')}, but torch finds "
                f"{gpus or 'none'} here; replay it on a machine like {end.state.machine}",
            )
