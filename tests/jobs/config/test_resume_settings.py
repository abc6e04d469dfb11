"""A run keeps the settings it began with, also where a setting is newer than the run."""

from typing import Any

from elmwright.jobs.config.resume_settings import (
    FORMER_DEFAULTS,
    MEANT_WITHOUT,
    changed_settings,
    keep_former_defaults,
    kept_settings,
)
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config, to_dict


def early_run(*overrides: str) -> dict[str, Any]:
    """The config that a checkpoint of the first version has, without later settings."""
    before = [f"{name}={values[0]}" for name, values in FORMER_DEFAULTS.items()]
    saved = to_dict(load_config("demo", [*before, *overrides]))
    for name in MEANT_WITHOUT.keys() - {"train.reset_states"}:
        section, key = name.split(".")
        del saved[section][key]
    return saved


def test_settings_newer_than_a_run_are_compared_with_what_it_meant() -> None:
    config = load_config("demo", ["train.reset_states=never", "train.softmax_init=unigram"])
    problem = changed_settings(early_run(), to_dict(config))
    assert "train.softmax_init" in problem
    assert "train.reset_share" not in problem
    config = load_config("demo", ["train.reset_states=never", "train.softmax_init=zero"])
    assert changed_settings(early_run(), to_dict(config)) == ""


def test_a_run_keeps_defaults_that_have_changed_since() -> None:
    saved = early_run()
    kept = keep_former_defaults(load_config("demo"), saved)
    assert (kept.train.reset_states, kept.train.softmax_init) == ("never", "zero")
    assert changed_settings(saved, to_dict(kept)) == ""


def test_a_run_of_a_recipe_keeps_what_the_recipe_had() -> None:
    saved = early_run("train.reset_states=block")
    kept = keep_former_defaults(load_config("demo"), saved)
    assert kept.train.reset_states == "block"
    assert changed_settings(saved, to_dict(kept)) == ""
    sentence = kept_settings(load_config("demo"), kept)
    assert 'train.reset_states = "block"' in sentence
    assert kept_settings(kept, kept) == ""


def test_another_value_is_refused() -> None:
    saved = early_run()
    kept = keep_former_defaults(load_config("demo", ["train.reset_states=block"]), saved)
    assert kept.train.reset_states == "block"
    assert "train.reset_states" in changed_settings(saved, to_dict(kept))


def test_a_checkpoint_without_resets_never_reset() -> None:
    saved = early_run()
    del saved["train"]["reset_states"]
    assert keep_former_defaults(load_config("demo"), saved).train.reset_states == "never"


def test_what_old_runs_mean_names_settings_that_exist() -> None:
    settings = to_dict(RunConfig())
    for name in (*MEANT_WITHOUT, *FORMER_DEFAULTS):
        section, key = name.split(".")
        assert key in settings[section]
