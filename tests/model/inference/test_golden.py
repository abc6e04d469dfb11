"""The published vectors come out, and only in the published order."""

import json

import h5py
import numpy as np
import pytest
import torch

from elmwright.model.chars import char_ids
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.elmo import Elmo
from elmwright.model.reference import ReferenceBiLM
from tests.support.places import GOLDEN

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden vectors at {GOLDEN}")
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The golden folder has several .hdf5 files; a model folder has its weights only."""
    path = tmp_path_factory.mktemp("golden")
    (path / "options.json").symlink_to(GOLDEN / "options.json")
    (path / "lm_weights.hdf5").symlink_to(GOLDEN / "lm_weights.hdf5")
    return path


@pytest.fixture(scope="module")
def sentences():
    """sentences[i][k]: batch i, row k."""
    rows = json.loads((GOLDEN / "sentences.json").read_text())
    return [[rows[k][i].split() for k in range(3)] for i in range(10)]


@pytest.fixture(scope="module")
def expected():
    """expected[i][k]: (2, T, 16)."""
    files = [h5py.File(GOLDEN / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    return [[file[str(i)][()] for file in files] for i in range(10)]


def top(vectors):
    """(layers, T, 32) → the top layer as (2, T, 16)."""
    return np.stack(np.split(vectors[-1], 2, axis=-1))


def test_token_embeddings_equal_the_published_ones(folder):
    words = (GOLDEN / "vocab_test.txt").read_text().split()
    wanted = h5py.File(GOLDEN / "elmo_token_embeddings.hdf5")["embedding"][()]
    bilm = load_folder(folder).bilm
    with torch.no_grad():
        got = bilm.encoder(torch.from_numpy(char_ids(words, bilm.config.max_chars))).numpy()
    np.testing.assert_allclose(got, wanted, **CLOSE)


def test_embed_with_carried_states_equals_the_published_vectors(folder, sentences, expected):
    elmo = Elmo.from_pretrained(folder, carry_state=True)
    lines = [row for batch in sentences for row in batch]
    wanted = [row for batch in expected for row in batch]
    for got, want in zip(elmo.embed(lines, batch_size=3), wanted, strict=True):
        np.testing.assert_allclose(top(got), want, **CLOSE)


def test_forward_with_carried_states_equals_the_published_vectors(folder, sentences, expected):
    elmo = Elmo.from_pretrained(folder, carry_state=True).eval()
    with torch.no_grad():
        elmo.mixes[0].w[:] = torch.tensor([-1e4, -1e4, 0.0])  # the top layer alone
        for batch, wanted in zip(sentences, expected, strict=True):
            mixed = elmo(batch).mixes[0].numpy()
            for row, want in zip(mixed, wanted, strict=True):
                got = np.stack(np.split(row[: want.shape[1]], 2, axis=-1))
                np.testing.assert_allclose(got, want, **CLOSE)


def test_reset_states_give_other_vectors(folder, sentences, expected):
    elmo = Elmo.from_pretrained(folder)
    got = elmo.embed(sentences[9])
    gaps = [np.abs(top(g) - want).max() for g, want in zip(got, expected[9], strict=True)]
    assert max(gaps) > 0.5


def test_the_numpy_reference_gives_the_published_vectors(sentences, expected):
    reference = ReferenceBiLM(GOLDEN / "options.json", GOLDEN / "lm_weights.hdf5")
    state = None
    for i in range(3):
        got, state = reference.embed(sentences[i][0], state)
        np.testing.assert_allclose(top(got), expected[i][0], **CLOSE)
