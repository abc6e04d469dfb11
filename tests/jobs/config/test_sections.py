"""One TOML file, frozen dataclasses, and one helpful error."""

import re
from pathlib import Path

import pytest

from elmwright.jobs.config.explain_settings import explain
from elmwright.jobs.config.sections import RESUMABLE
from elmwright.jobs.config.toml_file import (
    RECIPES,
    config_from,
    config_hash,
    load_config,
    to_dict,
)
from elmwright.jobs.planning.plan import describe
from elmwright.pipeline.errors import UserError

RECIPE_NAMES = sorted(path.stem for path in RECIPES.glob("*.toml"))


def test_the_shipped_recipes_are_there() -> None:
    assert {"demo", "original", "small"} <= set(RECIPE_NAMES)


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_every_recipe_loads_and_can_be_planned(name: str) -> None:
    config = load_config(name)
    assert config.run.name == name
    plan = describe(config)
    assert plan.hash == config_hash(config)
    assert plan.parameters.encoder > 0


def test_the_published_models_have_the_published_number_of_parameters() -> None:
    # 13.6 M and 93.6 M are the sizes the models were published with, softmax apart.
    small = load_config("small").model.parameter_counts()
    original = load_config("original").model.parameter_counts()
    assert round(sum(small.values()) / 1e6, 1) == 13.6
    assert round(sum(original.values()) / 1e6, 1) == 93.6


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lanez=3", r"train\.lanez: unknown key; did you mean train\.lanes\?"),
        ("trian.lanes=3", r"trian: unknown key; did you mean train\?"),
        ("train.n_highway=3", r"did you mean model\.n_highway\?"),
        ("train.lanes=many", r"train\.lanes: expected a whole number, got 'many'"),
        ("train.lanes=true", r"train\.lanes: expected a whole number"),
        ("train.dropout=1.0", r"train\.dropout: must be from 0"),
        ("corpus.tokenizer=ptbb", r"corpus\.tokenizer: .*did you mean 'ptb'\?"),
        ("optim.betas=[0.9]", r"optim\.betas: expected a pair of numbers"),
        ("optim.lr=0", r"optim\.lr: must be above 0"),
        ("model.filters=[[1]]", r"model\.filters: expected a pair of whole numbers"),
        ("model.filters=[[90, 4]]", r"model\.filters: \[90, 4\]: a width is from 1"),
        (
            "shards.block_steps=1281",
            r"shards\.block_steps: 1281 is not a multiple of train\.window",
        ),
        ("model.max_chars=1001", r"model\.max_chars: must be at most 1000"),
        ("train.lanes=33", r"train\.lanes: 33 lanes cannot be shared evenly by 2 processes"),
        ("train.processes=65", r"train\.processes: is 65, more than train\.lanes = 64"),
        ("corpus.sources=[]", r"corpus\.sources: is empty"),
        ("corpus.sources=a.txt", r"corpus\.sources: expected a list of paths or tables"),
        ("corpus.sources=[{paht='a'}]", r"corpus\.sources\.paht: unknown key; did you mean"),
        ("corpus.sources=[{path='a', weight=-1}]", r"a: a weight is from 0 to 100"),
        (
            "corpus.rules=['gopher']",
            r"corpus\.rules: expected one of .*did you mean 'gopher-quality",
        ),
        ("corpus.gopher_quality.min_word=3", r"did you mean corpus\.gopher_quality\.min_words\?"),
        ("corpus.heldout={a=0.5, b=0.6}", r"corpus\.heldout\.b: shares are from 0"),
        ("corpus.heldout={train=0.1}", r"corpus\.heldout\.train: a held-out name"),
        ("corpus.heldout={a=[]}", r"corpus\.heldout\.a: is empty"),
        (
            "corpus.heldout={a='x'}",
            r"corpus\.heldout\.a: expected a list of strings or a number, got 'x'",
        ),
        ("cluster.address=ray://head:10001", r"tracking\.uri: a SQLite file cannot serve a remote"),
        ("tracking.uri=mlruns", r"tracking\.uri: 'mlruns' is not an MLflow server"),
        ("run.name='a/b'", r"run\.name: 'a/b': use letters"),
        ("run.dir='ftp://host/run'", r"run\.dir: 'ftp://host/run' is neither a folder nor"),
        ("run.scratch='s3://bucket/run'", r"run\.scratch: is a URL"),
        ("corpus.sources=['ftp://b/x.txt']", r"corpus\.sources: ftp://b/x\.txt: only s3:// and"),
        ("optim.clip_norm=nan", r"optim\.clip_norm: expected a number, got nan"),
        ("export.alias=v9", r"export\.alias: names like v9"),
        ("lanes=3", r"--set 'lanes=3': write it as section\.key=value"),
    ],
)
def test_a_mistake_is_named_with_file_key_reason_and_nearest_name(
    override: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_config("demo", [override])


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nlanez = 3\n")
    with pytest.raises(UserError, match=re.escape(f"{path}: train.lanez: unknown key")):
        load_config(str(path))


def test_a_config_from_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "future.toml"
    path.write_text("version = 2\n")
    with pytest.raises(UserError, match="version = 2, but this elmwright reads config version 1"):
        load_config(str(path))


def test_broken_toml_and_missing_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[run\n")
    with pytest.raises(UserError, match="not valid TOML"):
        load_config(str(path))
    with pytest.raises(UserError, match="no recipe of that name"):
        load_config("nonesuch")


def test_overrides_win_and_a_saved_config_reads_back_equal() -> None:
    config = load_config("demo", ["train.lanes=64", "run.name=other", "optim.lr=1"])
    assert (config.train.lanes, config.run.dir, config.optim.lr) == (64, "runs/other", 1.0)
    assert config_from(to_dict(config), "saved") == config


def test_the_hash_follows_the_settings() -> None:
    assert config_hash(load_config("demo")) == config_hash(load_config("demo"))
    assert config_hash(load_config("demo")) != config_hash(load_config("demo", ["run.seed=2"]))


def test_every_setting_is_explained_and_every_resumable_one_exists() -> None:
    settings = list(explain())
    keys = [setting.key for setting in settings]
    assert all(setting.meaning for setting in settings)
    assert set(keys) >= RESUMABLE
    outside_scripts_rely_on = (
        "run.name run.dir run.scratch run.seed corpus.sources corpus.tokenizer vocab.max_size "
        "vocab.min_count model.dim model.projection_dim model.filters model.n_highway "
        "train.processes train.lanes train.window train.max_steps train.negatives eval.max_tokens "
        "checkpoint.every_steps cluster.address cluster.cpus tracking.uri"
    )
    assert set(outside_scripts_rely_on.split()) <= set(keys)
