"""A checkpoint is restored only if its tensors fit the model and the optimiser."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.state import begin, restore
from elmwright.jobs.training.loop.train import train
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from tests.support.tiny_runs.training import prepare

pytestmark = pytest.mark.slow(3)
Tensors = dict[str, Tensor]


def without_one(tensors: Tensors) -> Tensors:
    return dict(list(tensors.items())[1:])


def with_one_row(tensors: Tensors) -> Tensors:
    """Torch would copy the row to all rows."""
    return {name: tensor[:1].clone() for name, tensor in tensors.items()}


def as_integers(tensors: Tensors) -> Tensors:
    return {name: tensor.to(torch.int64) for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [without_one, with_one_row, as_integers])
@pytest.mark.parametrize("name", ["softmax", "lanes"])
def test_tensors_that_do_not_fit_are_refused(
    name: str, change: Callable[[Tensors], Tensors], corpus: Path, tmp_path: Path
) -> None:
    config, folder = prepare(tmp_path, corpus, train_max_steps=1)
    begin_attempt(folder.attempt)
    train(config, folder, 1, Ranks())
    trainer = begin(config, folder, Manifest.load(folder.corpus), Ranks())
    checkpoint = list_checkpoints(folder.checkpoints)[-1].path
    file = Path(checkpoint, f"{name}.safetensors")
    save_file(change(load_file(file)), file)
    with pytest.raises(UserError) as raised:
        restore(trainer, checkpoint, config, folder, Ranks())
    assert raised.value.code in ("file-damaged", "model-invalid")
    assert file.name in str(raised.value)


def test_optimiser_state_of_another_rule_is_refused(corpus: Path, tmp_path: Path) -> None:
    config, folder = prepare(tmp_path, corpus, train_max_steps=1)
    begin_attempt(folder.attempt)
    train(config, folder, 1, Ranks())
    checkpoint = list_checkpoints(folder.checkpoints)[-1].path
    (tmp_path / "other").mkdir()
    other, empty = prepare(tmp_path / "other", corpus, optim_name="adamw")
    trainer = begin(other, empty, Manifest.load(empty.corpus), Ranks())
    with pytest.raises(UserError) as raised:
        restore(trainer, checkpoint, other, empty, Ranks())
    assert "optimizer.safetensors" in str(raised.value)
