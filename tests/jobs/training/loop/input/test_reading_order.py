"""The order in which training reads the data: staggered lanes, resets of states, and padding."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmwright.jobs.training.loop.input.blocks import Blocks
from elmwright.jobs.training.loop.input.stream import Batch, Reading, training_batch
from elmwright.model.chars import BOS
from elmwright.pipeline.format.lanes import phase, skipped_windows
from elmwright.pipeline.format.manifest import Manifest

pytestmark = pytest.mark.slow(4)

LANES, WINDOW, PER_BLOCK = 4, 10, 20
READING = Reading(5, LANES, WINDOW)


def open_blocks(corpus: Path) -> Blocks:
    return Blocks(corpus, Manifest.load(corpus), "train", 12, keep=2 * LANES)


def test_staggered_lanes_change_blocks_at_different_steps_and_skip_only_windows_of_their_first(
    corpus: Path,
) -> None:
    blocks = open_blocks(corpus)
    steps = len(blocks) * PER_BLOCK // LANES  # an epoch, without stagger
    together = replace(READING, is_staggered=False)

    def windows(reading: Reading, count: int) -> list[list[bytes]]:
        batches = [training_batch(blocks, reading, step, range(LANES)) for step in range(count)]
        return [
            [batch.forward_targets[lane].numpy().tobytes() for batch in batches]
            for lane in range(LANES)
        ]

    phases = [lane * PER_BLOCK // LANES for lane in range(LANES)]
    assert skipped_windows(LANES, PER_BLOCK) == sum(phases) > 0
    pairs = zip(windows(READING, steps), windows(together, steps + PER_BLOCK), strict=True)
    for (own, other), skipped in zip(pairs, phases, strict=True):
        assert own == other[skipped : skipped + steps]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_sentences_begins_from_zero_in_any_number_of_processes(
    corpus: Path, share: float
) -> None:
    blocks, reading = open_blocks(corpus), replace(READING, reset_states="sentence")
    reading = replace(reading, reset_share=share)
    starts = resets = 0
    for step in range(2 * PER_BLOCK):
        batch = training_batch(blocks, reading, step, range(LANES))
        halves = [
            training_batch(blocks, reading, step, lanes) for lanes in (range(2), range(2, LANES))
        ]
        parts = [_resets(half) for half in halves]
        assert torch.equal(torch.cat(parts), _resets(batch))
        assert not (_resets(batch) & ~batch.starts).any(), "only where a sentence starts"
        starts += int(batch.starts.sum())
        resets += int(_resets(batch).sum())
    assert starts > 100
    assert abs(resets / starts - share) < (0.2 if share == 0.5 else 1e-9)


def _resets(batch: Batch) -> torch.Tensor:
    return torch.zeros_like(batch.starts) if batch.resets is None else batch.resets


def test_sentences_start_where_the_begin_mark_is_read(corpus: Path) -> None:
    blocks = open_blocks(corpus)
    for step in range(PER_BLOCK):
        batch = training_batch(blocks, READING, step, range(LANES))
        is_begin = batch.chars[batch.forward_index][:, :, 1] == BOS
        real = batch.weights.bool()
        assert torch.equal(batch.starts, is_begin & real)


def test_states_reset_at_blocks_are_reset_where_each_lane_begins_one(corpus: Path) -> None:
    blocks, reading = open_blocks(corpus), replace(READING, reset_states="block")
    phases = torch.tensor([phase(lane, LANES, PER_BLOCK) for lane in range(LANES)])
    for step in range(2 * PER_BLOCK):
        resets = _resets(training_batch(blocks, reading, step, range(LANES)))
        assert torch.equal(resets[:, 0], (step + phases) % PER_BLOCK == 0)
        assert not resets[:, 1:].any()


def test_padding_of_a_block_enters_no_state(corpus: Path) -> None:
    blocks = open_blocks(corpus)
    shortest = []
    for step in range(len(blocks) * PER_BLOCK // LANES):
        batch = training_batch(blocks, READING, step, range(LANES))
        lengths = batch.weights.sum(1).long()
        assert (batch.lengths is None) == bool((lengths == WINDOW).all())
        if batch.lengths is not None:
            assert torch.equal(batch.lengths, lengths)
            shortest.append(int(lengths.min()))
        early = replace(READING, is_staggered=False, keeps_padding_out=False)
        assert training_batch(blocks, early, step, range(LANES)).lengths is None
    assert shortest, "this corpus has padding"
