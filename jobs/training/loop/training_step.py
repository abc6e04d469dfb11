"""One update of all parameters: windows of every lane → losses → exchange → clip → update.

What `make_step` does to the trainer depends only on the trainer and the batches: the dropout
comes from (seed, step, lane), the negatives from (seed, step), so a step that is repeated gives the
same bits. It uses no files. The loop around it (`train.py`) reads, logs, evaluates and saves, and
`elmwright check --measure` times it without the loop.

A step whose loss or gradient is not finite makes no update, and is recorded as skipped.
"""

import logging
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir import metrics
from elmwright.jobs.training.loop.exchange import Phase, Positions, Ranks, touched_rows
from elmwright.jobs.training.loop.measurements import Clock
from elmwright.jobs.training.loop.state import Trainer
from elmwright.jobs.training.loop.stream import Batch
from elmwright.model.bilm import States, dropout_masks
from elmwright.model.config import OptimConfig
from elmwright.model.flops import step_flops
from elmwright.model.optim import global_norm
from elmwright.model.softmax import Negatives, draw_negatives, full_table_loss, sampled_loss
from elmwright.pipeline.format.lanes import Stream, keyed_hash

log = logging.getLogger("elmwright")


@dataclass(frozen=True)
class StepResult:
    """The result of a step, for the loop and the journal."""

    loss: float
    """Mean sampled loss per token. It cannot be used to compare models."""
    norm: float
    lr: float
    finite: bool
    updated: bool
    stop: bool
    table_bytes: int
    dense_bytes: int
    flops: float

    def metrics(self, trainer: Trainer) -> dict[str, float]:
        return {
            metrics.LOSS.key: self.loss,
            metrics.GRADIENT_NORM.key: self.norm,
            metrics.LEARNING_RATE.key: self.lr,
            metrics.SOFTMAX_EXCHANGED.key: self.table_bytes / 1e6,
            metrics.DENSE_EXCHANGED.key: self.dense_bytes / 1e6,
            metrics.SKIPPED_UPDATES.key: sum(
                step < trainer.step for step in trainer.progress.skipped
            ),
        }


@dataclass
class Process:
    """What stays the same from step to step in this process."""

    config: RunConfig
    trainer: Trainer
    bilm: torch.nn.Module
    """The trainer's, inside DDP where there are several processes."""
    ranks: Ranks
    clock: Clock
    positions: Positions

    @property
    def lanes(self) -> range:
        """The lanes of this process."""
        return self.ranks.lanes(self.config.train.lanes)


def make_step(process: Process, batches: Sequence[Batch], wants_stop: bool) -> StepResult:
    """One update of all parameters from `train.accumulate` windows of every lane.

    `wants_stop` says that this process is to stop: then all of them stop after the step.
    """
    config, trainer = process.config, process.trainer
    ranks, clock = process.ranks, process.clock
    settings, step, device = config.train, trainer.step, ranks.device
    size = trainer.softmax.vocab_size
    negatives = draw_negatives(config.run.seed, step, settings.negatives, size)
    batches = [batch.to_device(device) for batch in batches]
    rows = negatives.ids.to(device)
    process.positions.publish(step, Phase.TARGETS)
    if len(rows) < size:
        targets = [
            part for batch in batches for part in (batch.forward_targets, batch.backward_targets)
        ]
        rows = touched_rows(ranks, torch.stack(targets), rows)
    table = trainer.softmax.table(rows).requires_grad_()
    clock.lap("exchange")

    for parameter in trainer.bilm.parameters():
        parameter.grad = None
    # Mean over the global batch; DDP averages over processes, so each scales its share up.
    scale = ranks.world / (2 * settings.lanes * settings.window * settings.accumulate)
    scale *= settings.window if config.optim.scale_by_window else 1
    total, weight, states = torch.zeros((), device=device), 0.0, trainer.states
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        with nullcontext() if is_last or ranks.world == 1 else process.bilm.no_sync():  # type: ignore[operator]
            window = step * settings.accumulate + number
            loss, states = _window_loss(process, batch, states, rows, table, negatives, window)
            process.positions.publish(step, Phase.BACKWARD)
            (loss * scale).backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
        weight += 2 * float(batch.weights.sum())
    clock.lap("compute")

    process.positions.publish(step, Phase.GRADIENTS)
    assert table.grad is not None  # noqa: S101 - every loss above depends on it
    table_grad = ranks.sum(table.grad).div_(ranks.world)
    shared = torch.tensor(
        [float(total), weight, float(wants_stop)], dtype=torch.float64, device=device
    )
    sums: list[float] = ranks.sum(shared).tolist()
    clock.lap("exchange")

    if step < settings.hold_steps:
        for parameter in trainer.bilm.parameters():
            parameter.grad = None
    dense = [p.grad for p in trainer.bilm.parameters() if p.grad is not None]
    norm = float(global_norm(dense, table_grad))
    numerics = trainer.progress.numerics
    lr = learning_rate(config.optim, step, settings.max_steps, settings.hold_steps, numerics)
    finite = math.isfinite(norm) and math.isfinite(sums[0])
    is_skipped = step in trainer.progress.skipped
    updated = finite and not is_skipped
    if updated:
        clip = config.optim.clip_norm
        factor = clip / norm if clip and norm > clip else 1.0
        trainer.optimizer.step(lr, factor, rows, table_grad, numerics)
        if trainer.average is not None:
            trainer.average.update(rows, table.detach())
    if finite:
        trainer.states = states
    elif not is_skipped:
        trainer.skip([step])
        log.warning("step %d skipped: loss %s, gradient norm %s", step, sums[0], norm)
    trainer.progress = replace(trainer.progress, step=step + 1)
    clock.lap("compute")
    flops = sum(
        step_flops(config.model, batch.weights.numel(), len(negatives.ids), batch.chars)
        for batch in batches
    )
    many = ranks.world > 1
    return StepResult(
        loss=sums[0] / max(sums[1], 1.0),
        norm=norm,
        lr=lr,
        finite=finite,
        updated=updated,
        stop=sums[2] > 0,
        table_bytes=table_grad.numel() * table_grad.element_size() if many else 0,
        dense_bytes=sum(p.numel() for p in trainer.bilm.parameters()) * 4 if many else 0,
        flops=ranks.world * flops,
    )


def _window_loss(
    process: Process,
    batch: Batch,
    states: States,
    rows: Tensor,
    table: Tensor,
    negatives: Negatives,
    window: int,
) -> tuple[Tensor, States]:
    """The summed loss of one window of this process's lanes, and the states after it."""
    config, settings, device = process.config, process.config.train, process.ranks.device
    seeds = [
        keyed_hash(config.run.seed, Stream.DROPOUT, window, lane) >> 1 for lane in process.lanes
    ]
    masks = dropout_masks(config.model, settings.dropout, seeds, settings.window, device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.bf16):
        output = process.bilm(
            batch.chars,
            batch.forward_index,
            batch.backward_index,
            states,
            masks,
            batch.lengths,
            batch.resets,
        )
    weights = batch.weights.reshape(-1)
    size = process.trainer.softmax.vocab_size
    loss = torch.zeros((), device=device)
    directions = (
        (output.top_forward, batch.forward_targets),
        (output.top_backward, batch.backward_targets),
    )
    for hidden, targets in directions:
        flat = hidden.reshape(-1, hidden.size(-1)), targets.reshape(-1), weights
        if len(negatives.ids) == size:
            loss = loss + full_table_loss(*flat, table)
        else:
            loss = loss + sampled_loss(*flat, rows, table, negatives, size)
    return loss, output.states.detach()


def learning_rate(
    optim: OptimConfig, step: int, max_steps: int, hold: int = 0, numerics: int = 2
) -> float:
    """Linear warm-up, then the schedule, both of which start after the `hold` steps.

    In those, which train the softmax alone, its rows have a warm-up of their own and then the full
    rate. `numerics` 1 ignores the hold, for runs that began that way.
    """
    if numerics > 1 and step < hold:
        return optim.lr * min(1.0, (step + 1) / max(1, optim.warmup_steps))
    if numerics > 1:
        step, max_steps = step - hold, max_steps - hold
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / optim.warmup_steps
    done = min(1.0, (step - optim.warmup_steps) / max(1, max_steps - optim.warmup_steps))
    if optim.schedule == "cosine":
        return optim.lr * 0.5 * (1 + math.cos(math.pi * done))
    if optim.schedule == "linear":
        return optim.lr * (1 - done)
    if optim.schedule == "inverse-sqrt":
        return optim.lr * math.sqrt(max(1, optim.warmup_steps) / max(1, step + 1))
    return optim.lr
