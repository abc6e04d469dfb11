"""Dropout masks: the same bits as the hash in numpy, on any device and in any process."""

import numpy as np
import pytest
import torch

from elmwright.model.config import ModelConfig
from elmwright.model.dropout import LEVELS, dropout_masks

CONFIG = ModelConfig(dim=8, projection_dim=6, n_layers=2, filters=((1, 4),))
WINDOW = 5


def masks(p: float, keys: list[int]) -> torch.Tensor:
    drawn = dropout_masks(CONFIG, p, keys, WINDOW)
    assert drawn is not None
    return torch.stack(drawn)


def mix(value: np.ndarray) -> np.ndarray:
    """splitmix64, in unsigned integers."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_are_those_of_the_hash_in_numpy(p: float) -> None:
    keys = [3, (1 << 64) - 5, 1 << 63]
    numbers = 3 * 2 * WINDOW * 6
    counters = np.arange(-(-numbers // 4), dtype=np.uint64)
    for lane, key in enumerate(keys):
        drawn = mix(np.uint64(key) ^ counters).view(np.int16)[:numbers]
        dropped = round(p * LEVELS)
        kept = (drawn >= dropped - LEVELS // 2) * np.float32(LEVELS / (LEVELS - dropped))
        expected = kept.reshape(3, 2, WINDOW, 6)
        np.testing.assert_array_equal(masks(p, keys)[:, :, :, lane].numpy(), expected)


def test_a_lane_has_the_same_mask_beside_any_others() -> None:
    alone, together = masks(0.3, [7]), masks(0.3, [1, 7, 2])
    assert torch.equal(alone[:, :, :, 0], together[:, :, :, 1])
    assert not torch.equal(together[:, :, :, 0], together[:, :, :, 2])


def test_as_much_is_dropped_as_was_asked_for_and_the_mean_stays() -> None:
    wide = ModelConfig(dim=8, projection_dim=512, n_layers=2, filters=((1, 4),))
    drawn = dropout_masks(wide, 0.1, list(range(64)), 20)
    assert drawn is not None
    values = torch.stack(drawn)
    assert abs(float((values == 0).double().mean()) - 0.1) < 2e-3
    assert abs(float(values.double().mean()) - 1) < 3e-3


def test_without_dropout_there_are_no_masks() -> None:
    assert dropout_masks(CONFIG, 0.0, [1], WINDOW) is None


def test_dropout_of_nearly_everything_keeps_something() -> None:
    assert bool(masks(0.99999999, [1]).isfinite().all())
