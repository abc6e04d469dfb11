"""The bundle of a run with averaged weights is the average, and says so."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmwright.jobs.bundles.bundle import verify_bundle
from elmwright.jobs.checkpoints.checkpoint import begin_attempt, folder_name
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.using.pretrained import Elmo, load_language_model
from elmwright.pipeline.storage.files import at
from tests.support.bundles import contents
from tests.support.tiny_runs.training import STEPS, prepare

pytestmark = pytest.mark.slow(5)


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose horizon passes between two of its checkpoints."""
    home = tmp_path_factory.mktemp("averaged")
    config, folder = prepare(home, corpus, train_average_steps=15, checkpoint_keep_last=9)
    train(config, folder, begin_attempt(folder.attempt), Ranks())
    at(folder.config).write_json(to_dict(config))
    return Path(folder.root)


def test_the_bundle_has_the_averaged_weights(run: Path, tmp_path: Path) -> None:
    bundle, checked = export_run(str(run), "result", str(tmp_path / "bundle"), overrides=[])
    assert "the trainer's" in checked
    verify_bundle(bundle)
    checkpoint = run / "train" / "checkpoints" / folder_name(STEPS)
    average = (checkpoint / "average.safetensors").read_bytes()
    assert (bundle / "model.safetensors").read_bytes() == average
    assert (bundle / "model.safetensors").read_bytes() != (
        checkpoint / "model.safetensors"
    ).read_bytes()
    expected = load_language_model(checkpoint).softmax
    found = load_file(bundle / "softmax.safetensors")
    assert torch.equal(found["weight"], expected.weight)
    assert torch.equal(found["bias"], expected.bias)
    assert not torch.equal(found["bias"], load_file(checkpoint / "softmax.safetensors")["bias"])
    words = [["The", "old", "cat"]]
    np.testing.assert_array_equal(
        Elmo.from_pretrained(bundle).embed(words)[0],
        Elmo.from_pretrained(checkpoint).embed(words)[0],
    )


def test_card_and_provenance_say_which_weights_they_are(run: Path, tmp_path: Path) -> None:
    said = {}
    for step in ("12", "18"):
        bundle, _ = export_run(str(run), step, str(tmp_path / step), overrides=[])
        origin = json.loads((bundle / "provenance.json").read_text())
        said[step] = origin["weights"], "| weights |" in (bundle / "README.md").read_text()
    assert said == {"12": ("last", False), "18": ("average over the last 15 steps", True)}
    assert "| weights | average over the last 15 steps |" in (bundle / "README.md").read_text()


def test_an_average_gives_the_same_bytes_twice(run: Path, tmp_path: Path) -> None:
    one, two = (
        contents(export_run(str(run), "20", str(tmp_path / name), overrides=[])[0])
        for name in ("one", "two")
    )
    assert {name for name in one if one[name] != two[name]} <= {"provenance.json", "SHA256SUMS"}
