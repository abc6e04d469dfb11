"""Which settings of a run must not change after its training has begun, and what the saved settings
of earlier versions mean."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elmwright.jobs.config.sections import RESUMABLE, TRAINING_SECTIONS, RunConfig

MEANT_WITHOUT = {
    "train.reset_states": "never",
    "train.reset_share": 0.5,
    "train.softmax_init": "zero",
    "train.average_steps": 0,
    "train.precision": "fp32",
    "optim.softmax_lr": 1.0,
    "optim.softmax_betas": [],
}
"""What a checkpoint means that was written before a setting existed."""
IN_FIRST_VERSION = ("train.reset_states",)
"""Those of them that all released versions know."""
ADDED_TO_EVALUATION = {"eval.final_tokens": 0}
"""What a checkpoint means without a setting that changes nothing in training."""
FORMER_DEFAULTS = {
    "train.reset_states": ("never", "block"),
    "train.softmax_init": ("zero",),
}
"""What runs of numerics 1 (checkpoints/contents.py) had by default or from their recipe. Such a run
keeps it, unless its config now names another value than today's default."""


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """One sentence with every setting that changed and must not; empty if there is none."""
    saved, differing = _in_todays_words(saved), []
    for section in ("run", *TRAINING_SECTIONS):
        for key, value in now[section].items():
            name = f"{section}.{key}"
            before = saved[section].get(key, MEANT_WITHOUT.get(name, value))
            is_fixed = key == "seed" if section == "run" else name not in RESUMABLE
            if is_fixed and value != before:
                differing.append(
                    f"{name} is {json.dumps(value)}, but the run was started with "
                    f"{json.dumps(before)}"
                )
    unknown = _unknown_settings(saved, now)
    if unknown:
        differing.append(
            f"the run was started with {' and '.join(unknown)}, which this version of elmwright "
            "does not have"
        )
    if not differing:
        return ""
    back = "it" if len(differing) == 1 else "them"
    way = "use the version that started it" if unknown else f"set {back} back"
    return f"{'; '.join(differing)}; give the run another run.name, or {way}"


def _unknown_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The saved settings that were removed since, or that a later version added."""
    return [
        f"{section}.{key} = {json.dumps(value)}"
        for section in TRAINING_SECTIONS
        for key, value in saved[section].items()
        if key not in now[section]
    ]


def _in_todays_words(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings, with those that have been replaced since under their names of today."""
    settings = dict(saved)
    train = settings.get("train")
    if isinstance(train, Mapping) and "bf16" in train:
        settings["train"] = {key: value for key, value in train.items() if key != "bf16"}
        if train["bf16"] is True:
            settings["train"].setdefault("precision", "bf16-encoder")
    return settings


def as_meant(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings, with the meaning of those that did not exist when they were saved."""
    meant = _in_todays_words(saved)
    for name, value in MEANT_WITHOUT.items():
        section, key = name.split(".")
        if isinstance(meant.get(section), Mapping):
            meant[section] = {key: value} | meant[section]
    return meant


def for_checkpoint(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that an earlier version would refuse, where they have the value that
    it means: then it can read the checkpoint, too."""
    saved = dict(settings)
    for name, value in {**MEANT_WITHOUT, **ADDED_TO_EVALUATION}.items():
        section, key = name.split(".")
        if name not in IN_FIRST_VERSION and saved[section][key] == value:
            saved[section] = {k: v for k, v in saved[section].items() if k != key}
    return saved


def keep_former_defaults(config: RunConfig, saved: Mapping[str, Any]) -> RunConfig:
    """The config with the former default wherever the saved run has it and the config today's."""
    defaults = RunConfig()
    for name, former in FORMER_DEFAULTS.items():
        section, key = name.split(".")
        began_with = saved[section].get(key, MEANT_WITHOUT.get(name))
        mine = getattr(config, section)
        if began_with in former and getattr(mine, key) == getattr(getattr(defaults, section), key):
            config = replace(config, **{section: replace(mine, **{key: began_with})})
    return config


def kept_settings(config: RunConfig, kept: RunConfig) -> str:
    """A sentence about former defaults that a run keeps; empty if there are none."""
    values = []
    for name in FORMER_DEFAULTS:
        section, key = name.split(".")
        value = getattr(getattr(kept, section), key)
        if value != getattr(getattr(config, section), key):
            values.append(f"{name} = {json.dumps(value)}")
    return f"This run keeps {' and '.join(values)}, with which it began." if values else ""
