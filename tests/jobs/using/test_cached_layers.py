"""Vectors in half precision, and a task that trains its mixes from a file of them."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, StackDataset

from elmwright import CachedLayers, Elmo, LayerMixes
from elmwright.jobs.cli.command import main
from elmwright.jobs.using.embed_output import as_type
from tests.support.embedded import LINES, read_vectors
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(5)


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_half_precision_takes_half_the_space(
    model: Path, text: Path, expected: list[np.ndarray], suffix: str
) -> None:
    out = text.with_name(f"out{suffix}")
    assert main(["embed", str(model), str(text), "-o", str(out), "--dtype", "float16"]) == 0
    for got, wanted in zip(read_vectors(out), expected, strict=True):
        assert suffix == ".parquet" or got.dtype == np.float16
        np.testing.assert_allclose(got, wanted, atol=2e-3)
    if suffix == ".parquet":
        from pyarrow import parquet

        assert "halffloat" in str(parquet.read_schema(out).field("vectors").type)


def test_rounded_operands_give_near_vectors(
    model: Path, text: Path, expected: list[np.ndarray]
) -> None:
    out = text.with_name("out.npz")
    assert main(["embed", str(model), str(text), "-o", str(out), "--precision", "bf16"]) == 0
    together, wanted = (np.concatenate(each, axis=1) for each in (read_vectors(out), expected))
    assert 0 < np.linalg.norm(together - wanted) < 0.02 * np.linalg.norm(wanted)


def test_a_number_that_float16_cannot_hold_is_refused() -> None:
    with mistake("argument", "float16"):
        as_type(np.array([[[1e5]]], np.float32), "float16")


def test_a_task_trains_its_mixes_from_a_file_as_from_the_model(model: Path, text: Path) -> None:
    out = text.with_name("out.hdf5")
    assert main(["embed", str(model), str(text), "-o", str(out), "--dtype", "float16"]) == 0
    layers = CachedLayers(out)
    assert len(layers) == len(LINES)
    assert layers[-1].shape == layers[4].shape == (3, 3, 16)
    assert layers[0].dtype == torch.float16
    labels = torch.arange(len(LINES)).float()
    elmo = Elmo.from_pretrained(model)
    mixes = LayerMixes(3, dropout=0.0)
    batches = DataLoader(StackDataset(layers, labels), batch_size=2, collate_fn=list, num_workers=2)
    for module in (mixes, elmo):
        optimizer = torch.optim.SGD(module.mixes.parameters(), lr=0.1)
        for number, batch in enumerate(batches):
            sentences, wanted = zip(*batch, strict=True)
            given = (
                sentences
                if module is mixes
                else [line.split() for line in LINES[2 * number : 2 * number + 2]]
            )
            loss = (module(given).mixes[0].sum((1, 2)) - torch.stack(wanted)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.testing.assert_close(mixes.mixes[0].w, elmo.mixes[0].w, atol=1e-2, rtol=1e-2)
    assert mixes.mixes[0].w.any()
    elmo.load_state_dict(mixes.state_dict())
    assert torch.equal(elmo.mixes[0].w, mixes.mixes[0].w)


def test_files_that_hold_no_layers_are_named(tmp_path: Path) -> None:
    with mistake("file-missing", "none.hdf5"):
        CachedLayers(tmp_path / "none.hdf5")
    (tmp_path / "text.hdf5").write_text("text")
    with mistake("file-unreadable", "text.hdf5"):
        CachedLayers(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "bad.hdf5", "w") as file:
        file["0"] = np.zeros((3, 2, 4), np.float32)
        file["1"] = np.zeros((3, 2, 4), np.int64)
        file["2"] = h5py.ExternalLink("other.hdf5", "0")
        file["sentence_to_index"] = "{}"  # as AllenNLP writes it
    layers = CachedLayers(tmp_path / "bad.hdf5")
    assert len(layers) == 3
    assert layers[0].shape == (3, 2, 4)
    for number, reason in ((1, "floating-point"), (2, "link")):
        with mistake("file-damaged", "bad.hdf5", reason):
            layers[number]
    with pytest.raises(IndexError, match="no number 3"):
        layers[3]
    with h5py.File(tmp_path / "gap.hdf5", "w") as file:
        file["1"] = np.zeros((3, 2, 4), np.float32)
    with mistake("file-damaged", "gap.hdf5"):
        CachedLayers(tmp_path / "gap.hdf5")
