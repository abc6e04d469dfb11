"""Comparing the tensors of two checkpoints."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from elmwright.jobs.upkeep import compare_checkpoints as comparing
from elmwright.jobs.upkeep.compare_checkpoints import TensorDifference, compare_checkpoints
from tests.support.tiny_runs.resealed import reseal


@pytest.fixture
def pair(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint and a copy of it, which a test may change."""
    one = trained / "train" / "checkpoints" / "step-00000020"
    return one, Path(shutil.copytree(one, tmp_path / one.name))


def change(checkpoint: Path, file: str, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, checkpoint / file)
    reseal(checkpoint)


def test_a_copy_has_no_differences(pair: tuple[Path, Path]) -> None:
    comparison = compare_checkpoints(*pair)
    count = sum(len(load_file(file)) for file in pair[0].glob("*.safetensors"))
    assert (comparison.tensors, comparison.differing) == (count, ())


def test_the_same_tensors_in_another_arrangement_are_the_same(pair: tuple[Path, Path]) -> None:
    other = pair[1]
    before = (other / "model.safetensors").read_bytes()
    save_file(load_file(other / "model.safetensors"), other / "model.safetensors", {"made": "now"})
    reseal(other)
    assert (other / "model.safetensors").read_bytes() != before
    assert compare_checkpoints(*pair).differing == ()
    assert compare_checkpoints(*pair).tensors == compare_checkpoints(pair[0], pair[0]).tensors


@pytest.mark.parametrize("piece", [1, 3, 1 << 24])
def test_the_largest_difference_is_found_in_any_piece(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(comparing, "PIECE", piece)
    lanes = load_file(pair[1] / "lanes.safetensors")
    lanes["m"].reshape(-1)[1] += 0.125
    lanes["m"].reshape(-1)[-1] -= 0.5
    change(pair[1], "lanes.safetensors", lanes)
    (found,) = compare_checkpoints(*pair).differing
    assert (found.file, found.tensor) == ("lanes.safetensors", "m")
    assert found.largest == pytest.approx(0.5, abs=1e-6)


def test_a_sign_of_zero_counts_and_the_weights_come_first(pair: tuple[Path, Path]) -> None:
    one, other = pair
    for folder, zero in ((one, 0.0), (other, -0.0)):
        target = other.parent / f"{folder.parent.name}-{zero}"
        shutil.copytree(folder, target)
        for file in ("lanes.safetensors", "model.safetensors"):
            tensors = load_file(target / file)
            next(iter(tensors.values())).reshape(-1)[0] = zero
            change(target, file, tensors)
    first, second = sorted(other.parent.glob("*-*0.0"))
    found = compare_checkpoints(first, second).differing
    assert [(one.file, one.largest) for one in found] == [
        ("model.safetensors", 0.0),
        ("lanes.safetensors", 0.0),
    ]


def test_a_missing_tensor_another_shape_and_nan_have_no_largest_difference(
    pair: tuple[Path, Path],
) -> None:
    softmax = load_file(pair[1] / "softmax.safetensors")
    softmax["bias"] = softmax["bias"][1:].clone()
    change(pair[1], "softmax.safetensors", softmax)
    lanes = load_file(pair[1] / "lanes.safetensors")
    lanes["c"].reshape(-1)[0] = math.nan
    del lanes["m"]
    change(pair[1], "lanes.safetensors", lanes)
    assert compare_checkpoints(*pair).differing == (
        TensorDifference("softmax.safetensors", "bias", None),
        TensorDifference("lanes.safetensors", "c", None),
        TensorDifference("lanes.safetensors", "m", None),
    )
