"""`elmwright embed` gives the published vectors, in the published order."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmwright.jobs.using.embed import Recipe, embed_file
from tests.support.places import GOLDEN

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden vectors are not here")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copyfile(GOLDEN / "options.json", folder / "options.json")
    shutil.copyfile(GOLDEN / "lm_weights.hdf5", folder / "weights.hdf5")
    return folder


@pytest.mark.parametrize("carry", [True, False])
def test_line_n_belongs_to_row_n_mod_batch_size(tmp_path: Path, model: Path, carry: bool) -> None:
    """Three rows, each carrying its own states: equal to the published vectors, and only so."""
    rows = json.loads((GOLDEN / "sentences.json").read_text())
    lines = [rows[row][batch] for batch in range(10) for row in range(3)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "out.hdf5"
    embed_file(str(model), str(text), out, Recipe(batch_size=3, carry_state=carry))
    worst = 0.0
    with h5py.File(out) as found:
        assert len(found) == len(lines)
        for row in range(3):
            with h5py.File(GOLDEN / f"lm_embeddings_{row}.hdf5") as golden:
                for batch in range(10):
                    expected = golden[str(batch)][()]
                    top = found[str(3 * batch + row)][-1]
                    forward, backward = np.split(top, 2, axis=-1)
                    got = np.stack([forward, backward])
                    worst = max(worst, float(np.abs(got - expected).max()))
                    if carry:
                        np.testing.assert_allclose(got, expected, atol=1e-6, rtol=1e-5)
    assert carry or worst > 0.5
