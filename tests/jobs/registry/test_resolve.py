"""A RUN is a MODEL: its bundle, or its newest valid checkpoint."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from elmwright.jobs.checkpoints.checkpoint import newest_valid
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.pretrained import Elmo
from elmwright.pipeline.errors import UserError
from tests.support.mistakes import mistake
from tests.support.tiny import damage, write_config
from tests.support.tiny_runs.started_run import start


@pytest.fixture
def run(trained: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a trained run, in runs/ of the current folder."""
    monkeypatch.chdir(own_home)
    return Path(shutil.copytree(trained, own_home / "runs" / "tiny", symlinks=True))


def test_a_run_is_its_newest_checkpoint_until_it_has_a_bundle(
    run: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("tiny", "runs/tiny", str(run)):
        assert resolve(text) == run / "train" / "checkpoints" / "step-00000020"
        assert "runs/tiny has no bundle yet; this is its checkpoint of step 20" in (
            capsys.readouterr().err
        )
    shutil.copytree(bundle, run / "bundle")
    for text in ("tiny", "runs/tiny", str(run)):
        assert resolve(text) == run / "bundle"
    assert capsys.readouterr().err == ""
    words = [["The", "old", "cat"]]
    assert np.array_equal(
        Elmo.from_pretrained("tiny").embed(words)[0], Elmo.from_pretrained(bundle).embed(words)[0]
    )


def test_a_damaged_checkpoint_is_passed_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run / "train" / "checkpoints" / "step-00000020" / "model.safetensors", "flip")
    assert resolve("tiny").name == "step-00000018"
    assert "warning: checkpoint skipped" in capsys.readouterr().err


def test_a_bundle_that_lacks_files_is_not_used_and_a_damaged_one_is_refused(
    run: Path, bundle: Path
) -> None:
    shutil.copytree(bundle, run / "bundle")
    damage(run / "bundle" / "model.safetensors", "flip")
    with mistake("file-damaged"):
        resolve("tiny")
    damage(run / "bundle" / "model.safetensors", "delete")
    assert resolve("tiny").name == "step-00000020"


def test_a_run_without_either_and_a_name_of_none(own_home: Path, run: Path) -> None:
    shutil.rmtree(run / "train" / "checkpoints")
    with mistake("model-missing", "tiny"):
        resolve("tiny")
    with pytest.raises(UserError, match=r"no model folder 'tinny' .*did you mean 'tiny'\?"):
        resolve("tinny")
    with mistake("model-missing", "elmwright run demo"):
        resolve("demo")  # a recipe is not a model
    (own_home / "model.safetensors").write_bytes(bytes(100))
    with mistake("model-missing", "model.safetensors"):
        resolve("model.safetensors")


def test_a_config_file_is_its_run(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_home)
    start(write_config(own_home, own_home / "text.txt", run_dir="runs/{name}"))
    with mistake("model-missing", "runs/tiny"):
        resolve("tiny.toml")


def test_a_run_in_a_store(
    s3: Path, run: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(run.parent / "cache"))
    # All of it before the first question: the server remembers what a folder held.
    shutil.copytree(run, s3 / "bucket" / "runs" / "tiny")
    shutil.copytree(bundle, run / "bundle")
    shutil.copytree(run, s3 / "bucket" / "runs" / "exported")
    found = resolve("s3://bucket/runs/tiny")
    newest = newest_valid(run / "train" / "checkpoints", pytest.fail)
    assert newest is not None
    assert (found / "model.safetensors").read_bytes() == (
        Path(newest.path) / "model.safetensors"
    ).read_bytes()
    assert (resolve("s3://bucket/runs/exported") / "README.md").is_file()
