"""The model that a run starts from (`train.init_from`): found and verified before any work begins.

Only its shape fits, so the settings of [model] that a config leaves at their defaults become those
of the base. All others that differ from it are reported together. A relative path means the folder
in which the command is typed.

A run that has a checkpoint needs its base no more: it has the shape of that checkpoint.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from elmwright.jobs.cluster.connection import is_remote
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.registry.resolve import resolve
from elmwright.model.config import ModelConfig, shape_problem
from elmwright.pipeline.errors import UserError


@dataclass(frozen=True)
class Base:
    """What `train.init_from` names."""

    folder: Path | None = None
    """Its verified folder; None if the run needs none, or if only the machines of a cluster can
    find it."""
    shape: ModelConfig | None = None
    """Its [model]."""
    mistake: UserError | OSError | None = None
    """Why it cannot be used."""

    def check(self, model: ModelConfig) -> None:
        """Raise what is wrong with it, or that it has another shape than `model`."""
        if self.mistake is not None:
            raise self.mistake
        if self.shape is not None and (problem := shape_problem(model, self.shape)):
            raise UserError("model-invalid", problem)


NO_BASE = Base()


def find_base(config: RunConfig) -> Base:
    """The base of a run that begins."""
    from elmwright.model.formats.folder import read_shape

    try:
        folder = resolve(config.train.init_from)
        return Base(folder, read_shape(folder))
    except UserError as error:
        if is_remote(config):
            return NO_BASE
        return Base(mistake=error.saying(f"train.init_from: {error}"))
    except OSError as error:  # of an object store
        return Base(mistake=error)


def take_shape(config: RunConfig, shape: ModelConfig) -> RunConfig:
    """The config with this shape, but for the settings of [model] that differ from the defaults."""
    default = vars(ModelConfig())
    given = {key: value for key, value in vars(config.model).items() if value != default[key]}
    return replace(config, model=replace(shape, **given))


def taken_settings(config: RunConfig, taken: RunConfig) -> str:
    """A sentence about the settings that come from the base; empty if there are none."""
    values = [
        f"{key} = {json.dumps(value)}"
        for key, value in vars(taken.model).items()
        if value != getattr(config.model, key)
    ]
    if not values:
        return ""
    return f"[model] has from {config.train.init_from}: {', '.join(values)}."
