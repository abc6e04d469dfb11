"""Which block a lane reads at a step: a pure function of the seed and the step.

The data is an endless sequence of blocks: a seeded permutation of the split for epoch 0, another
for epoch 1, and so on without a gap. Lane i of N takes items i, i+N, i+2N, …, and spends
`windows_per_block` steps on each. So nothing about the position is saved in a checkpoint, nothing
can drift, and the number of processes may change between runs.

Lanes are staggered (`phase`): lane i begins in its first block at window ⌊i · windows / lanes⌋, so
that the lanes do not all change blocks at the same step. The windows before that are skipped in the
first block of the lane, half a block on average. From then on every block is read once per epoch.

The permutation is an argsort of our own 64-bit hash (the finaliser of splitmix64), not a numpy
Generator, whose streams may change between versions. A permutation costs about 0.2 s and 8 MB for
a million blocks, once per epoch.
"""

from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MASK = 0xFFFFFFFFFFFFFFFF
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB


class Stream(IntEnum):
    """Separates random draws that share a seed. Another number would change every model."""

    DROPOUT = 1
    BILM = 2
    SOFTMAX = 3
    RESETS = 4


def keyed_hash(seed: int, *values: int) -> int:
    """A 64-bit hash of integers that will never change: h = mix(h XOR value) from h = mix(seed).

    Values are taken modulo 2**64; `mix` is splitmix64, a bijection. For seeds of other draws
    (dropout, negatives) as well as for orders: put a constant of your own first to keep two uses
    of the same numbers apart.
    """
    mixed = _mix(seed & _MASK)
    for value in values:
        mixed = _mix(mixed ^ (value & _MASK))
    return mixed


def hash64(values: "NDArray[np.integer]", seed: int = 0, *prefix: int) -> "NDArray[np.uint64]":
    """`keyed_hash(seed, *prefix, value)` for every value of an integer array, vectorised."""
    import numpy as np

    mixed = values.astype(np.uint64) ^ np.uint64(keyed_hash(seed, *prefix))
    mixed += np.uint64(_GAMMA)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_MULTIPLY_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MULTIPLY_2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _MULTIPLY_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLY_2) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=4)
def block_order(seed: int, epoch: int, blocks: int) -> "NDArray[np.int64]":
    """The order in which an epoch visits the blocks of a split: a permutation, read-only."""
    import numpy as np

    if blocks < 1:
        raise ValueError("a split without blocks has no order")
    # The hash is a bijection of the block number, so there are no ties to break.
    order = np.argsort(hash64(np.arange(blocks), seed, epoch), kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def phase(lane: int, lanes: int, windows_per_block: int) -> int:
    """The window of its first block at which a staggered lane begins."""
    return lane * windows_per_block // lanes


def skipped_windows(lanes: int, windows_per_block: int) -> int:
    """Windows that staggered lanes never read, all of them in their first blocks."""
    return sum(phase(lane, lanes, windows_per_block) for lane in range(lanes))


def position(
    step: int, lane: int, lanes: int, blocks: int, windows_per_block: int
) -> tuple[int, int, int]:
    """Where a lane is at a step: epoch, slot in the epoch's order, window in the block."""
    if not 0 <= lane < lanes:
        raise ValueError(f"lane {lane} is not one of {lanes}")
    turn, window = divmod(step, windows_per_block)
    epoch, slot = divmod(turn * lanes + lane, blocks)
    return epoch, slot, window


def block_at(
    seed: int, step: int, lane: int, lanes: int, blocks: int, windows_per_block: int
) -> tuple[int, int, int]:
    """What a lane reads at a step: epoch, number of the block in the split, window in the block."""
    epoch, slot, window = position(step, lane, lanes, blocks, windows_per_block)
    return epoch, int(block_order(seed, epoch, blocks)[slot]), window
