"""One update of all parameters: windows of every lane → losses → exchange → clip → update.

What `make_step` does to the trainer depends only on the trainer and the batches: the dropout
comes from (seed, step, lane), the negatives from (seed, step), so a step that is repeated gives the
same bits. It uses no files. The loop around it (`train.py`) reads, logs, evaluates and saves, and
`elmwright check --measure` times it without the loop.

A step whose loss or gradient is not finite makes no update, and is recorded as skipped.
"""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir import metrics
from elmwright.jobs.training.loop.exchange import (
    Phase,
    Positions,
    Ranks,
    TableExchange,
    touched_rows,
)
from elmwright.jobs.training.loop.input.step_input import StepInput
from elmwright.jobs.training.loop.input.stream import Batch
from elmwright.jobs.training.loop.measurements import Clock
from elmwright.jobs.training.loop.state import Trainer
from elmwright.model.bilm import States
from elmwright.model.config import OptimConfig
from elmwright.model.dropout import drawn_masks, dropout_masks
from elmwright.model.optim import global_norm
from elmwright.model.precision import Operands
from elmwright.model.softmax import Negatives, full_table_loss, sampled_loss
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


def make_step(process: Process, given: StepInput, wants_stop: bool) -> StepResult:
    """One update of all parameters from `train.accumulate` windows of every lane.

    `wants_stop` says that this process is to stop: then all of them stop after the step. The device
    is waited for once, when its loss and norm are read.
    """
    config, trainer = process.config, process.trainer
    ranks, clock, step = process.ranks, process.clock, trainer.step
    process.positions.publish(step, Phase.TARGETS)
    sample = _sample(process, given)
    table = trainer.softmax.table(sample.rows).requires_grad_()
    exchange = TableExchange(ranks, table)
    clock.lap("exchange")

    for parameter in trainer.bilm.parameters():
        parameter.grad = None
    total, states = _backward(process, given, sample, table, exchange)
    clock.lap("compute")

    process.positions.publish(step, Phase.GRADIENTS)
    table_grad = exchange.result()
    sums = torch.tensor([0.0, given.tokens, float(wants_stop)], dtype=torch.float64)
    sums = sums.to(ranks.device, non_blocking=True)
    sums[0] = total
    sums = ranks.sum(sums)
    clock.lap("exchange")

    if step < config.train.hold_steps:
        for parameter in trainer.bilm.parameters():
            parameter.grad = None
    dense = [p.grad for p in trainer.bilm.parameters() if p.grad is not None]
    norm_on_device = global_norm(dense, table_grad).to(sums.device)
    loss, tokens, stop, norm = torch.cat([sums, norm_on_device.view(1)]).tolist()
    numerics = trainer.progress.numerics
    settings = config.train
    lr = learning_rate(config.optim, step, settings.max_steps, settings.hold_steps, numerics)
    finite = math.isfinite(norm) and math.isfinite(loss)
    is_skipped = step in trainer.progress.skipped
    updated = finite and not is_skipped
    if updated:
        clip = config.optim.clip_norm
        factor = clip / norm if clip and norm > clip else 1.0
        trainer.optimizer.step(lr, factor, sample.rows, table_grad, numerics)
        if trainer.average is not None:
            trainer.average.update(sample.rows, table.detach())
    if finite:
        trainer.states = states
    elif not is_skipped:
        trainer.skip([step])
        log.warning("step %d skipped: loss %s, gradient norm %s", step, loss, norm)
    trainer.progress = replace(trainer.progress, step=step + 1)
    clock.lap("compute")
    many = ranks.world > 1
    return StepResult(
        loss=loss / max(tokens, 1.0),
        norm=norm,
        lr=lr,
        finite=finite,
        updated=updated,
        stop=stop > 0,
        table_bytes=table_grad.numel() * table_grad.element_size() if many else 0,
        dense_bytes=sum(p.numel() for p in trainer.bilm.parameters()) * 4 if many else 0,
        flops=ranks.world * given.flops,
    )


@dataclass(frozen=True)
class _Sample:
    """The part of the vocabulary that a step touches, on the device."""

    rows: Tensor
    negatives: Negatives
    is_full: bool
    """Whether it is the whole vocabulary."""


def _sample(process: Process, given: StepInput) -> _Sample:
    negatives, device = given.negatives, process.ranks.device
    is_full = len(negatives.ids) == process.trainer.softmax.vocab_size
    rows = negatives.ids
    if not is_full:
        rows = touched_rows(process.ranks, given.targets, negatives.ids)
    on_device = replace(negatives, ids=negatives.ids.to(device, non_blocking=True))
    return _Sample(rows.to(device, non_blocking=True), on_device, is_full)


def _backward(
    process: Process,
    given: StepInput,
    sample: _Sample,
    table: Tensor,
    exchange: TableExchange,
) -> tuple[Tensor, States]:
    """The summed loss of this process's windows, whose gradients are left in the parameters and in
    the table, and the states after them."""
    config, trainer, ranks = process.config, process.trainer, process.ranks
    settings, step = config.train, trainer.step
    # Mean over the global batch; DDP averages over processes, so each scales its share up.
    scale = ranks.world / (2 * settings.lanes * settings.window * settings.accumulate)
    scale *= settings.window if config.optim.scale_by_window else 1
    total, states = torch.zeros((), device=ranks.device), trainer.states
    for number, batch in enumerate(given.batches):
        exchange.is_last = number == len(given.batches) - 1
        is_apart = ranks.world > 1 and not exchange.is_last
        with process.bilm.no_sync() if is_apart else nullcontext():  # type: ignore[operator]
            window = step * settings.accumulate + number
            on_device = batch.to_device(ranks.device)
            loss, states = _window_loss(process, on_device, states, sample, table, window)
            process.positions.publish(step, Phase.BACKWARD)
            (loss * scale).backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
    return total, states


def _window_loss(
    process: Process, batch: Batch, states: States, sample: _Sample, table: Tensor, window: int
) -> tuple[Tensor, States]:
    """The summed loss of one window of this process's lanes, and the states after it."""
    config, settings, device = process.config, process.config.train, process.ranks.device
    operands = Operands.of(settings.precision)
    keys = [keyed_hash(config.run.seed, Stream.DROPOUT, window, lane) for lane in process.lanes]
    if process.trainer.progress.numerics < 3:
        keys = [key >> 1 for key in keys]
        masks = drawn_masks(config.model, settings.dropout, keys, settings.window, device)
    else:
        masks = dropout_masks(config.model, settings.dropout, keys, settings.window, device)
    output = process.bilm(
        batch.chars,
        batch.forward_index,
        batch.backward_index,
        states,
        masks,
        batch.lengths,
        batch.resets,
        operands,
    )
    hidden = torch.cat([output.top_forward, output.top_backward]).flatten(0, 1)
    targets = torch.cat([batch.forward_targets, batch.backward_targets]).view(-1)
    weights = batch.weights.view(-1).repeat(2)
    if sample.is_full:
        loss = full_table_loss(hidden, targets, weights, table, operands.softmax)
    else:
        compared = sample.rows, table, sample.negatives, process.trainer.softmax.vocab_size
        loss = sampled_loss(hidden, targets, weights, *compared, operands.softmax)
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
