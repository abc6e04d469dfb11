"""`Elmo.save_pretrained`: a bundle of a biLM that a task has fine-tuned."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from elmwright import Elmo
from elmwright.jobs.bundles.base_model import base_model
from elmwright.jobs.bundles.bundle import digest
from elmwright.jobs.bundles.bundle_json import read_bundle_config, read_origin
from elmwright.jobs.using.embed import embed_file
from elmwright.model.bilm import BiLM
from elmwright.model.formats.folder import read_vocab
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from tests.support.bundles import copy
from tests.support.mistakes import mistake
from tests.support.places import ROOT
from tests.support.random_model import VOCAB, write_random_model
from tests.support.shapes import TINY, write_model

BASE = ROOT / "tests/fixtures/compat/0.1/finished/bundle"
SENTENCE = ["The", "old", "house"]


@pytest.fixture
def tuned() -> Elmo:
    """An Elmo whose top layer has been trained for a step."""
    elmo = Elmo.from_pretrained(BASE)
    elmo.bilm.lstm[1].requires_grad_(True)
    optimizer = torch.optim.SGD([p for p in elmo.bilm.parameters() if p.requires_grad], lr=1.0)
    elmo([SENTENCE]).mixes[0].square().sum().backward()
    optimizer.step()
    return elmo


def test_a_tuned_model_is_opened_by_every_way(tuned: Elmo, tmp_path: Path) -> None:
    tuned.save_pretrained(tmp_path / "tuned", licence="CC0-1.0")
    (wanted,) = tuned.embed([SENTENCE])
    (before,) = Elmo.from_pretrained(BASE).embed([SENTENCE])
    assert not np.allclose(wanted, before, atol=1e-4)
    (again,) = Elmo.from_pretrained(tmp_path / "tuned").embed([SENTENCE])
    np.testing.assert_array_equal(again, wanted)
    reference = ReferenceBiLM(tmp_path / "tuned/options.json", tmp_path / "tuned/weights.hdf5")
    np.testing.assert_allclose(reference.embed(SENTENCE)[0], wanted, atol=1e-5)
    (tmp_path / "text.txt").write_text("The old house\n", encoding="utf-8")
    embed_file(str(tmp_path / "tuned"), str(tmp_path / "text.txt"), tmp_path / "out.npz")
    assert np.load(tmp_path / "out.npz")["0"].shape == wanted.shape


def test_card_and_provenance_name_the_base_and_its_sources(tuned: Elmo, tmp_path: Path) -> None:
    tuned.save_pretrained(tmp_path / "tuned", licence="CC0-1.0")
    card = (tmp_path / "tuned/README.md").read_text(encoding="utf-8")
    config = json.loads((BASE / "provenance.json").read_text())["config"]
    name, sources = config["export"]["name"], config["corpus"]["sources"]
    assert sources
    assert f"**{name}**" in card
    assert digest(BASE) in card
    assert 'license: "CC0-1.0"' in card
    assert str(BASE) not in card
    base = json.loads((tmp_path / "tuned/provenance.json").read_text())["base"]
    assert base["sha256"] == digest(BASE)
    for source in sources:
        called = source["name"] or Path(source["path"]).name
        assert f"| {called} | {source['licence'] or 'not stated'} |" in card
        assert {"name": called, "licence": source["licence"]} in base["sources"]
    read_origin(tmp_path / "tuned")
    # A model that is tuned again has the sources of both.
    again = Elmo.from_pretrained(tmp_path / "tuned")
    again.save_pretrained(tmp_path / "again")
    assert base_model("again", tmp_path / "again").sources == base_model("base", BASE).sources


def test_a_tuned_model_reads_text_as_its_base_does(tmp_path: Path) -> None:
    how = Tokenisation("ptb", 2, "de")
    folder = write_random_model(tmp_path / "base", tokenisation=how)
    elmo = Elmo.from_pretrained(folder)
    elmo.half().save_pretrained(tmp_path / "tuned")
    again = Elmo.from_pretrained(tmp_path / "tuned")
    assert again.text.tokenisation == how
    assert read_bundle_config(tmp_path / "tuned").evaluation == {}
    assert read_vocab(tmp_path / "tuned/vocab.txt") == tuple(VOCAB)
    assert again.tokenize("Das Haus.") == elmo.tokenize("Das Haus.")


def test_what_cannot_be_saved_is_refused(tuned: Elmo, tmp_path: Path) -> None:
    tuned.save_pretrained(tmp_path / "tuned")
    with mistake("output", "exists", "force"):
        tuned.save_pretrained(tmp_path / "tuned")
    tuned.save_pretrained(tmp_path / "tuned", force=True)
    other = copy(tmp_path / "tuned", tmp_path / "other")
    (other / "notes.txt").write_text("mine")
    with mistake("output", "not just a bundle"):
        tuned.save_pretrained(other, force=True)
    assert (other / "notes.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "tuned"]
    with mistake("input", "from_pretrained"):
        Elmo(BiLM(TINY, 7)).save_pretrained(tmp_path / "new")
    (tmp_path / "bilm").mkdir()
    write_model(tmp_path / "bilm", BiLM(TINY, 7))
    with mistake("model-incomplete", "vocab.txt"):
        Elmo.from_pretrained(tmp_path / "bilm").save_pretrained(tmp_path / "new")
