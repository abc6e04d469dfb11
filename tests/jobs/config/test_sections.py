"""One TOML file, frozen dataclasses, and one helpful error."""

import re
from pathlib import Path

import pytest

from elmwright.jobs.config.explain_settings import explain
from elmwright.jobs.config.sections import RESUMABLE
from elmwright.jobs.config.toml_file import (
    config_from,
    config_hash,
    load_config,
    recipe_names,
    to_dict,
)
from elmwright.jobs.planning.plan import describe
from elmwright.pipeline.errors import UserError
from tests.support.mistakes import mistake


def test_the_shipped_recipes_are_there() -> None:
    assert {"demo", "original", "small"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
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
    ("override", "names"),
    [
        ("train.lanez=3", ("train.lanez", "train.lanes?")),
        ("trian.lanes=3", ("trian", "train?")),
        ("train.n_highway=3", ("train.n_highway", "model.n_highway?")),
        ("train.lanes=many", ("train.lanes", "'many'")),
        ("train.lanes=true", ("train.lanes", "True")),
        ("train.lanes=0", ("train.lanes", "at least 1", "got 0")),
        ("run.seed=-1", ("run.seed", "0 or more", "got -1")),
        ("train.dropout=1.0", ("train.dropout", "1.0")),
        ("corpus.tokenizer=ptbb", ("corpus.tokenizer", "'ptb'?")),
        ("corpus.minhash.bands=256", ("corpus.minhash.bands", "255", "256")),
        ("corpus.cut_documents=499", ("corpus.cut_documents", "500", "499")),
        ("optim.betas=[0.9]", ("optim.betas", "[0.9]")),
        ("optim.lr=0", ("optim.lr", "above 0", "0.0")),
        ("optim.softmax_lr=0", ("optim.softmax_lr", "above 0", "0.0")),
        ("optim.softmax_betas=[0.9]", ("optim.softmax_betas", "[0.9]", "two")),
        ("optim.softmax_betas=[0.9, 1]", ("optim.softmax_betas", "[0.9, 1.0]", "not including, 1")),
        ("train.softmax_init=unigrams", ("train.softmax_init", "'unigram'?")),
        ("model.filters=[[1]]", ("model.filters", "[1]")),
        ("model.filters=[[90, 4]]", ("model.filters", "[90, 4]")),
        ("shards.block_steps=1281", ("shards.block_steps", "1281", "train.window")),
        ("model.max_chars=1001", ("model.max_chars", "1000", "1001")),
        ("train.lanes=33", ("train.lanes", "33", "2 processes")),
        ("train.processes=65", ("train.processes", "65", "train.lanes = 64")),
        ("train.average_steps=100000", ("train.average_steps", "100,000", "train.max_steps")),
        ("corpus.sources=[]", ("corpus.sources",)),
        ("corpus.sources=a.txt", ("corpus.sources", "'a.txt'")),
        ("corpus.sources=[{paht='a'}]", ("corpus.sources.paht", "path?")),
        ("corpus.sources=[{path='a', weight=-1}]", ("corpus.sources", "a: a weight")),
        ("corpus.rules=['gopher']", ("corpus.rules", "'gopher-quality'?")),
        ("corpus.gopher_quality.min_word=3", ("corpus.gopher_quality.min_words?",)),
        ("corpus.heldout={a=0.5, b=0.6}", ("corpus.heldout.b",)),
        ("corpus.heldout={train=0.1}", ("corpus.heldout.train",)),
        ("corpus.heldout={a=[]}", ("corpus.heldout.a",)),
        ("corpus.heldout={a='x'}", ("corpus.heldout.a", "'x'")),
        ("cluster.address=ray://head:10001", ("tracking.uri", "ray://head:10001")),
        ("tracking.uri=mlruns", ("tracking.uri", "'mlruns'")),
        ("run.name='a/b'", ("run.name", "'a/b'")),
        ("run.dir='ftp://host/run'", ("run.dir", "'ftp://host/run'")),
        ("run.scratch='s3://bucket/run'", ("run.scratch",)),
        ("corpus.sources=['ftp://b/x.txt']", ("corpus.sources", "ftp://b/x.txt")),
        ("optim.clip_norm=nan", ("optim.clip_norm", "nan")),
        ("export.alias=v9", ("export.alias", "v9")),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key_its_value_and_the_nearest_name(
    override: str, names: tuple[str, ...]
) -> None:
    with mistake("setting", override, *names):
        load_config("demo", [override])


def test_an_override_without_a_section_is_refused() -> None:
    with mistake("argument", "'lanes=3'", "section.key=value"):
        load_config("demo", ["lanes=3"])


def test_the_message_about_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nlanez = 3\n")
    message = f"{path}: train.lanez: unknown key; did you mean train.lanes?"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        load_config(str(path))


def test_a_config_from_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "future.toml"
    path.write_text("version = 2\n")
    with mistake("format", str(path), "version = 2", "version 1", "elmwright init"):
        load_config(str(path))


def test_broken_toml_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[run\n")
    with mistake("file-unreadable", str(path), "TOML"):
        load_config(str(path))
    with mistake("file-missing", "'nonesuch'", "demo, original, small"):
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
