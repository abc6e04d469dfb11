"""The position in the data is a pure function of the seed and the step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.format.lanes import block_at, block_order, hash64, keyed_hash, position

SEED = st.integers(0, 2**63)


@given(SEED, st.integers(0, 9), st.integers(1, 300))
def test_an_epoch_visits_every_block_once(seed, epoch, blocks):
    assert sorted(block_order(seed, epoch, blocks).tolist()) == list(range(blocks))


@given(SEED, st.integers(1, 7), st.integers(1, 20), st.integers(1, 4))
def test_all_lanes_together_read_the_endless_sequence_without_gap_or_repeat(
    seed, lanes, blocks, windows
):
    turns = 3 * blocks
    read = [
        block_at(seed, turn * windows, lane, lanes, blocks, windows)[:2]
        for turn in range(turns)
        for lane in range(lanes)
    ]
    expected = [
        (item // blocks, int(block_order(seed, item // blocks, blocks)[item % blocks]))
        for item in range(turns * lanes)
    ]
    assert read == expected


@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(1, 1000), st.integers(1, 200))
def test_a_lane_stays_in_its_block_for_all_its_windows(step, lanes, blocks, windows):
    for lane in (0, lanes - 1):
        epoch, slot, window = position(step, lane, lanes, blocks, windows)
        assert window == step % windows
        assert position(step - window, lane, lanes, blocks, windows) == (epoch, slot, 0)
        assert (epoch * blocks + slot) % lanes == lane


def test_hashes_never_change():
    """These numbers are part of the format: other values would move every lane of every run."""
    assert keyed_hash(0) == 0xE220A8397B1DCDAF
    assert keyed_hash(1, 2) == 13608149317741381227
    assert block_order(1, 0, 10).tolist() == [2, 5, 8, 9, 1, 4, 6, 0, 3, 7]


@given(SEED, st.lists(st.integers(0, 2**63), min_size=1, max_size=9))
def test_the_vectorised_hash_is_the_same_hash(seed, values):
    hashed = hash64(np.array(values, np.uint64), seed, 7)
    assert hashed.tolist() == [keyed_hash(seed, 7, value) for value in values]
