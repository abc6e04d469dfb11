"""A run keeps the settings it began with, also where a setting is newer than the run."""

from typing import Any

from elmwright.jobs.config.resume_settings import (
    FORMER_DEFAULTS,
    MEANT_WITHOUT,
    changed_settings,
    keep_former_defaults,
)
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config, to_dict


def early_run(*overrides: str) -> dict[str, Any]:
    """The config that a checkpoint of the first version has, without later settings."""
    before = [f"{name}={value}" for name, value in FORMER_DEFAULTS.items()]
    saved = to_dict(load_config("demo", [*before, *overrides]))
    for name in MEANT_WITHOUT:
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


def test_a_third_value_is_refused() -> None:
    saved = early_run()
    kept = keep_former_defaults(load_config("demo", ["train.reset_states=block"]), saved)
    assert kept.train.reset_states == "block"
    assert "train.reset_states" in changed_settings(saved, to_dict(kept))


def test_a_run_that_chose_for_itself_is_not_moved_to_a_default() -> None:
    saved = early_run("train.reset_states=block")
    kept = keep_former_defaults(load_config("demo"), saved)
    assert kept.train.reset_states == "sentence"
    assert "train.reset_states" in changed_settings(saved, to_dict(kept))


def test_what_old_runs_mean_names_settings_that_exist() -> None:
    settings = to_dict(RunConfig())
    for name in (*MEANT_WITHOUT, *FORMER_DEFAULTS):
        section, key = name.split(".")
        assert key in settings[section]
