"""The interface of a stage.

Whether a stage is done is read from its output, never from a state file: the corpus manifest,
`train/result.json`, the bundle's digests and provenance, `published.json` and `tracking.json`. So
the same command resumes a run that was killed at any point, and a finished run is recognised
without importing Ray, torch or MLflow.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from elmwright.jobs.checkpoints.checkpoint import (
    list_checkpoints,
    read_checked,
    read_checked_state,
)
from elmwright.jobs.config.resume_settings import keep_former_defaults
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.base_model import NO_BASE, Base, find_base, take_shape
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.signals import Stop
from elmwright.model.config import ModelConfig
from elmwright.pipeline.records import from_data


@dataclass(frozen=True)
class Run:
    """A run: its config and its folder."""

    config: RunConfig
    folder: RunFolder
    base: Base = NO_BASE
    """The model to start from, until there is a checkpoint."""


def find_run(config: RunConfig, folder: RunFolder) -> Run:
    """The run of a config. One that an early version began keeps the defaults of that version, and
    one that starts from a model (train.init_from) takes its shape."""
    saved, base = newest_config(folder), NO_BASE
    if saved and saved.numerics == 1:
        config = keep_former_defaults(config, saved.settings)
    if config.train.init_from:
        if not saved:
            base = find_base(config)
        shape = _saved_shape(saved) if saved else base.shape
        config = take_shape(config, shape) if shape else config
    return Run(config, folder, base)


def _saved_shape(saved: "SavedConfig") -> ModelConfig:
    return from_data(ModelConfig, saved.settings["model"], ignore_unknown=True)


@dataclass(frozen=True)
class SavedConfig:
    """The config in a checkpoint."""

    settings: dict[str, Any]
    """As it was saved, without settings that did not exist then."""
    numerics: int


def newest_config(folder: RunFolder) -> SavedConfig | None:
    """The run config in the newest undamaged checkpoint; None if there is none."""
    for info in reversed(list_checkpoints(folder.checkpoints)):
        saved = read_checked(info.path, "config.json")
        state = read_checked_state(info.path)
        if saved and state:
            return SavedConfig(saved["run_config"], state.numerics)
    return None


class Stage(Protocol):
    """One of corpus, train, export and publish."""

    name: str
    """One of `STAGES` in `rundir/stage_names.py`."""
    uses_ray: bool
    """Whether its work needs a connection to Ray."""

    def is_done(self, run: Run) -> bool:
        """Has it been completed for exactly this config and the output of the stages before it?"""

    def input_damage(self, run: Run) -> str:
        """A warning if the output of the stage before is damaged and must be made again, else "".

        Called only for the first stage that is not done, because reading everything takes time.
        """

    def check(self, run: Run, pending: Collection[str], problems: Problems) -> None:
        """Note problems that would stop the stage later, as far as they can be known now.

        `pending` has the names of the stages that are not done. Nothing is written.
        """

    def run(self, run: Run, console: Console, stop: Stop) -> None:
        """Do the work, and write the output that `is_done` recognises."""
