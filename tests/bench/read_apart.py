"""Batches whose two directions read different text, as bilm-tf's do.

bilm-tf shuffles the sentences of a file twice: once for the forward model, and again for the
backward model. So the two windows of a step have different words, where ours have the same ones. Of
as many tokens, the encoder and the softmax, which both directions share, then learn more per step.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.training.loop.input import step_input
from elmwright.jobs.training.loop.input.blocks import Blocks
from elmwright.jobs.training.loop.input.stream import Batch, Reading
from elmwright.model.chars import PAD

OTHER_ORDER = 1000
"""Added to the seed, for the order of the backward model's blocks."""


def read_apart(_config: RunConfig) -> None:
    """From now on, the backward model of this process reads the blocks in another order. Only for
    runs whose states are never reset: resets would be those of the forward model's sentences."""
    together = step_input.training_batch

    def training_batch(blocks: Blocks, reading: Reading, step: int, lanes: range) -> Batch:
        assert reading.reset_states == "never"
        one = together(blocks, reading, step, lanes)
        other = together(blocks, replace(reading, seed=reading.seed + OTHER_ORDER), step, lanes)
        width = max(one.chars.size(1), other.chars.size(1))
        types = [
            F.pad(batch.chars, (0, width - batch.chars.size(1)), value=PAD)
            for batch in (one, other)
        ]
        return replace(  # the weights, and so the padding at the ends of blocks, are those of `one`
            one,
            chars=torch.cat(types),
            backward_index=other.backward_index + len(one.chars),
            backward_targets=other.backward_targets,
            lengths=None,
        )

    step_input.training_batch = training_batch
