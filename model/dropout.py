"""Dropout masks that depend on keys alone: the same bits on every device and in every process.

A mask is computed where it is used. 64 bits of a hash of (key of the lane's window, number) decide
about four positions, 16 bits each, so a probability is a multiple of 1/65536. The hash is that of
`format/lanes.py`, in signed 64-bit integers, which wrap around on every device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from elmwright.model.config import ModelConfig

_GAMMA, _FIRST, _SECOND = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of splitmix64 as signed numbers."""
LEVELS = 1 << 16


def dropout_masks(
    config: ModelConfig,
    p: float,
    keys: Sequence[int],
    window: int,
    device: torch.device | str = "cpu",
) -> list[Tensor] | None:
    """Masks for one window: each LSTM layer's input and the top output, as `BiLM.forward` takes
    them ([2, T, N, projection_dim], scaled so that the mean is 1); None when p is 0. Row i depends
    on `keys[i]`, 64 bits, and on nothing else.
    """
    dropped = min(round(p * LEVELS), LEVELS - 1)
    if dropped == 0:
        return None
    sites = config.n_layers + 1
    numbers = sites * 2 * window * config.projection_dim
    counters = torch.arange(-(-numbers // 4), device=device)
    signed = [key - (1 << 64) if key >> 63 else key for key in keys]
    lanes = torch.tensor(signed, dtype=torch.int64).to(device, non_blocking=True)
    drawn = _hash(lanes.unsqueeze(1) ^ counters).view(torch.int16)[:, :numbers]
    kept = (drawn >= dropped - LEVELS // 2).float().mul_(LEVELS / (LEVELS - dropped))
    shape = (len(keys), sites, 2, window, config.projection_dim)
    return list(kept.view(shape).permute(1, 2, 3, 0, 4).contiguous().unbind(0))


def _hash(values: Tensor) -> Tensor:
    """splitmix64 of every value, in place."""
    mixed = values.add_(_GAMMA)
    mixed = (mixed ^ _shifted(mixed, 30)).mul_(_FIRST)
    mixed = (mixed ^ _shifted(mixed, 27)).mul_(_SECOND)
    return mixed ^ _shifted(mixed, 31)


def _shifted(values: Tensor, count: int) -> Tensor:
    """A shift to the right that fills up with zeros, which torch has for no signed integer."""
    return (values >> count).bitwise_and_((1 << (64 - count)) - 1)


def drawn_masks(
    config: ModelConfig,
    p: float,
    seeds: Sequence[int],
    window: int,
    device: torch.device | str = "cpu",
) -> list[Tensor] | None:
    """The masks of runs that began with `NUMERICS` 1 or 2, drawn from a generator of torch for each
    row on the CPU."""
    if p == 0:
        return None
    sites = config.n_layers + 1
    drawn = torch.empty(len(seeds), sites, 2, window, config.projection_dim)
    for row, seed in enumerate(seeds):
        drawn[row].bernoulli_(1 - p, generator=torch.Generator().manual_seed(seed))
    drawn = drawn.permute(1, 2, 3, 0, 4).to(device).contiguous().div_(1 - p)
    return list(drawn.unbind(0))
