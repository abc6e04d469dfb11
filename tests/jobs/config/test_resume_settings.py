"""A run keeps the settings it began with, also where a setting is newer than the run."""

from typing import Any

from elmwright.jobs.config.resume_settings import (
    FORMER_DEFAULTS,
    MEANT_WITHOUT,
    as_meant,
    changed_settings,
    for_checkpoint,
    keep_former_defaults,
    kept_settings,
)
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_from, load_config, to_dict


def early_run(*overrides: str) -> dict[str, Any]:
    """The config that a checkpoint of the first version has, without later settings."""
    before = [f"{name}={values[0]}" for name, values in FORMER_DEFAULTS.items()]
    saved = to_dict(load_config("small", [*before, *overrides]))
    for name in MEANT_WITHOUT.keys() - {"train.reset_states"}:
        section, key = name.split(".")
        del saved[section][key]
    return saved


def test_settings_newer_than_a_run_are_compared_with_what_it_meant() -> None:
    config = load_config("small", ["train.reset_states=never", "train.softmax_init=unigram"])
    problem = changed_settings(early_run(), to_dict(config))
    assert "train.softmax_init" in problem
    assert "train.reset_share" not in problem
    config = load_config("small", ["train.reset_states=never", "train.softmax_init=zero"])
    assert changed_settings(early_run(), to_dict(config)) == ""


def test_a_run_keeps_defaults_that_have_changed_since() -> None:
    saved = early_run()
    kept = keep_former_defaults(load_config("small"), saved)
    assert (kept.train.reset_states, kept.train.softmax_init) == ("never", "zero")
    assert changed_settings(saved, to_dict(kept)) == ""


def test_a_run_of_a_recipe_keeps_what_the_recipe_had() -> None:
    saved = early_run("train.reset_states=block")
    kept = keep_former_defaults(load_config("small"), saved)
    assert kept.train.reset_states == "block"
    assert changed_settings(saved, to_dict(kept)) == ""
    sentence = kept_settings(load_config("small"), kept)
    assert 'train.reset_states = "block"' in sentence
    assert kept_settings(kept, kept) == ""


def test_another_value_is_refused() -> None:
    saved = early_run()
    kept = keep_former_defaults(load_config("small", ["train.reset_states=block"]), saved)
    assert kept.train.reset_states == "block"
    assert "train.reset_states" in changed_settings(saved, to_dict(kept))


def test_a_checkpoint_without_resets_never_reset() -> None:
    saved = early_run()
    del saved["train"]["reset_states"]
    assert keep_former_defaults(load_config("small"), saved).train.reset_states == "never"


def test_settings_that_this_version_does_not_have_are_refused() -> None:
    """A later version may have added them, or an earlier one had them."""
    now = to_dict(load_config("small"))
    saved = {**now, "train": {**now["train"], "twist": 3}, "optim": {**now["optim"], "turn": "x"}}
    problem = changed_settings(saved, now)
    assert 'optim.turn = "x" and train.twist = 3' in problem
    assert "this version of elmwright does not have" in problem
    assert problem.endswith("or use the version that started it")
    assert changed_settings({**now, "export": {**now["export"], "twist": 3}}, now) == ""


def test_a_saved_config_is_read_as_it_was_meant() -> None:
    early = early_run()
    assert as_meant(early)["train"]["softmax_init"] == "zero"
    assert config_from(early, "config.json", saved=True).train.softmax_init == "zero"
    now = to_dict(load_config("small"))
    assert as_meant(now) == now
    assert as_meant({"train": 3}) == {"train": 3}


def test_a_checkpoint_of_an_early_run_has_no_setting_that_its_version_would_refuse() -> None:
    """Whoever continues it with this version can still return to the other one."""
    early = early_run()
    kept = to_dict(keep_former_defaults(load_config("small"), early))
    del early["eval"]["final_tokens"]
    saved = for_checkpoint(kept)
    assert saved == early
    assert to_dict(config_from(saved, "config.json", saved=True)) == kept
    now = to_dict(load_config("small"))
    assert for_checkpoint(now)["train"]["softmax_init"] == "unigram"


def test_what_old_runs_mean_names_settings_that_exist() -> None:
    settings = to_dict(RunConfig())
    for name in (*MEANT_WITHOUT, *FORMER_DEFAULTS):
        section, key = name.split(".")
        assert key in settings[section]


def test_the_former_setting_bf16_means_what_it_did() -> None:
    for before, now in ((False, "fp32"), (True, "bf16-encoder")):
        saved = to_dict(load_config("small"))
        del saved["train"]["precision"]
        saved["train"]["bf16"] = before
        assert as_meant(saved)["train"]["precision"] == now
        same = load_config("small", [f"train.precision={now}"])
        assert changed_settings(saved, to_dict(same)) == ""
        other = load_config("small", ["train.precision=bf16"])
        assert "train.precision" in changed_settings(saved, to_dict(other))
