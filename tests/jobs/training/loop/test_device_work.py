"""What a step asks of a GPU, counted on a CPU that takes the same way."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.planning.measuring import Rehearsal, documentation
from elmwright.jobs.planning.operations import Operations
from elmwright.jobs.training.loop.training_step import make_step
from elmwright.model.launches import like_a_gpu

pytestmark = pytest.mark.slow(10)

TINY = ("model.dim=32", "model.projection_dim=16", "train.lanes=6", "train.negatives=64")
"""How many operations there are depends on layers, filters and steps, not on these."""
MOST = 1000


def steady_step(recipe: str, settings: Sequence[str]) -> Operations:
    """The third step of a run."""
    config = load_config(recipe, [*TINY, *settings])
    config = replace(config, train=replace(config.train, processes=1))
    rehearsal = Rehearsal(config, documentation(), 500)
    with like_a_gpu():
        for step in range(2):
            make_step(rehearsal.process, rehearsal.input(step), wants_stop=False)
        given, counted = rehearsal.input(2), Operations()
        with counted:
            make_step(rehearsal.process, given, wants_stop=False)
    return counted


@pytest.mark.parametrize("settings", [(), ("train.average_steps=2", "optim.name='adamw'")])
def test_a_step_waits_for_the_device_once(settings: Sequence[str]) -> None:
    counted = steady_step("original", settings)
    assert dict(counted.waits) == {"tolist": 1}, "loss, norm and the wish to stop together"


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ((), MOST),
        (("train.precision='bf16'",), 1150),
        (("optim.name='adamw'",), 1050),
        (("optim.name='adamw'", "train.precision='bf16'", "train.average_steps=2"), 1250),
    ],
    ids=["as the recipe", "bf16", "adamw", "adamw, bf16 and average"],
)
def test_a_step_at_original_dimensions_starts_few_operations(
    settings: Sequence[str], most: int
) -> None:
    """docs/gpu.md has these numbers."""
    started = steady_step("original", settings).started
    assert 500 < started.total() <= most, started.most_common(20)


def test_products_of_both_directions_are_one() -> None:
    """A layer has 3 batched products in each step of its window, and 6 for all steps."""
    started = steady_step("original", ()).started
    products = sum(count for name, count in started.items() if "bmm" in name)
    window, layers = 20, 2
    assert products <= layers * (5 * window + 10)


def test_what_waits_is_counted() -> None:
    values, counted = torch.arange(4.0), Operations()
    with counted:
        values.sum().item()
        (values > 1).nonzero()
        values[values > 2]
        bool(values[0] > 0)
        values.add(1)
    assert counted.waits["item"] == 1
    assert counted.waits["__bool__"] == 1
    assert counted.waits["aten::nonzero"] == 1
    assert counted.waits["aten::index"] == 1
    assert counted.started["aten.add.Tensor"] == 1
    assert "aten.view.default" not in counted.started


def test_copies_between_devices_are_counted() -> None:
    counted = Operations()
    with counted:
        torch.zeros(3).to("meta")
        torch.zeros(3).to(torch.float64)
    assert counted.copies.total() == 1
