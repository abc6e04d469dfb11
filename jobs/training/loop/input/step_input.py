"""What a step computes with, prepared on the CPU while the steps before it are computed.

The windows of this process's lanes, the negatives, and the numbers that the loop would otherwise
ask the device for: asking waits until the device has done everything before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.training.loop.input.blocks import Blocks
from elmwright.jobs.training.loop.input.stream import Batch, Reading, training_batch
from elmwright.model.flops import step_flops
from elmwright.model.softmax import Negatives, draw_negatives


@dataclass(frozen=True)
class StepInput:
    """One step of this process, in main memory."""

    batches: tuple[Batch, ...]
    """`train.accumulate` windows, page-locked if they go to a GPU."""
    negatives: Negatives
    targets: Tensor
    """The vocabulary ids of all targets, flat."""
    tokens: float
    """Predictions that count, in both directions."""
    flops: float
    """Useful arithmetic of this process."""


def step_input(
    config: RunConfig, step: int, batches: Sequence[Batch], vocab_size: int, device: torch.device
) -> StepInput:
    """Prepare a step from its windows."""
    negatives = draw_negatives(config.run.seed, step, config.train.negatives, vocab_size)
    targets = [t for batch in batches for t in (batch.forward_targets, batch.backward_targets)]
    return StepInput(
        batches=tuple(batch.pinned() if device.type == "cuda" else batch for batch in batches),
        negatives=negatives,
        targets=torch.stack(targets).reshape(-1),
        tokens=sum(2 * float(batch.weights.sum()) for batch in batches),
        flops=sum(
            step_flops(config.model, batch.weights.numel(), len(negatives.ids), batch.chars)
            for batch in batches
        ),
    )


@dataclass(frozen=True)
class StepInputs:
    """Prepares the steps of a run for this process's lanes."""

    config: RunConfig
    blocks: Blocks
    reading: Reading
    lanes: range
    vocab_size: int
    device: torch.device

    def __call__(self, step: int) -> StepInput:
        windows = range(
            step * self.config.train.accumulate, (step + 1) * self.config.train.accumulate
        )
        batches = [
            training_batch(self.blocks, self.reading, window, self.lanes) for window in windows
        ]
        return step_input(self.config, step, batches, self.vocab_size, self.device)
