"""The training loop, read from top to bottom.

lanes → batches → biLM → loss → exchange → clip → update → log → evaluate → checkpoint

`train` knows its rank, the number of processes and a device, and nothing of Ray: a notebook or
torchrun can call it as well as `launch.py`. A step is a pure function of the checkpoint before it:
the data position, the negatives and the dropout all come from (seed, step, lane), so a run that was
killed and resumed gives bit for bit the weights of one that was not.

Two things keep it so. DDP rearranges its buckets after the first backward, which changes the order
of sums from 3 processes up, unless `find_unused_parameters` is set; and every lookup whose backward
adds is a deterministic one (`index_select`, `F.embedding`).

A step whose loss or gradient is not finite makes no update; what happens after several of them in a
row is in `rewind.py`.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from elmwright.jobs.checkpoints.checkpoint import (
    check_attempt,
    folder_name,
    list_checkpoints,
    read_info,
)
from elmwright.jobs.checkpoints.writer import journalled_writer
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import StopNote
from elmwright.jobs.training.loop.block_cache import block_cache
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.evaluate_training import evaluate_finally, evaluate_in_passing
from elmwright.jobs.training.loop.exchange import Beats, Ranks, touched_rows
from elmwright.jobs.training.loop.machine_metrics import Machine
from elmwright.jobs.training.loop.rewind import Trouble
from elmwright.jobs.training.loop.state import (
    FindModel,
    Trainer,
    begin,
    probes,
    restore,
    snapshot,
    start_over,
)
from elmwright.jobs.training.loop.step_clock import Clock
from elmwright.jobs.training.loop.stream import Batch, Blocks, Prefetch
from elmwright.model.bilm import States, dropout_masks
from elmwright.model.config import OptimConfig
from elmwright.model.flops import step_flops
from elmwright.model.optim import global_norm
from elmwright.model.softmax import Negatives, draw_negatives, full_table_loss, sampled_loss
from elmwright.pipeline.format.lanes import keyed_hash
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import join, write_json

log = logging.getLogger("elmwright")

EARLY_STEPS = (1, 5, 10)
"""Steps of an attempt that the journal notes besides, for those who wait for the time left."""
_DROPOUT = 1  # keeps apart draws that share a seed (state.py has 2 and 3)


def train(
    config: RunConfig,
    folder: RunFolder,
    attempt: int,
    ranks: Ranks,
    drained: Callable[[int], bool] = lambda _step: False,
    find_model: FindModel = Path,
) -> None:
    """Train to the end from the newest valid checkpoint, or until asked to stop.

    `drained` is asked by every process at every step whether its machine is being taken away;
    `find_model` finds the model that `train.init_from` names.
    """
    torch.set_num_threads(config.train.threads)
    manifest = Manifest.load(folder.corpus)
    lanes, section = ranks.lanes(config.train.lanes), config.train

    trainer = begin(config, folder, manifest, ranks, find_model)
    bilm: torch.nn.Module = trainer.bilm
    if ranks.world > 1:
        bilm = DistributedDataParallel(
            trainer.bilm,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
    journal = writer = None
    if ranks.rank == 0:
        journal = Journal(folder.journal, lambda: check_attempt(folder.attempt, attempt))
        writer = journalled_writer(config, folder, attempt, journal)
        journal.write("begin", trainer.step, attempt=attempt)
    first_step = trainer.step
    cache = block_cache(folder.corpus, folder.scratch / "blocks", section.cache_mb)
    blocks = Blocks(
        folder.corpus, manifest, "train", config.model.max_chars, keep=2 * len(lanes), cache=cache
    )

    def reading(step: int) -> Prefetch:
        first = step * section.accumulate
        return Prefetch(
            blocks, config.run.seed, first, lanes, section.lanes, section.window, ranks.device
        )

    clock, note, beats = Clock(), StopNote(folder.stop_request), Beats(ranks)
    per_block = blocks.steps // section.window
    this = _Process(config, trainer, bilm, ranks, lanes, per_block, clock, beats)
    prefetch = reading(trainer.step)
    machine = Machine(ranks) if journal else None
    trouble = Trouble(section.max_bad_steps)
    stopping = False
    try:
        while not (stopping or _finished(config, trainer)):
            beats.at(trainer.step)
            batches = [prefetch.next() for _ in range(section.accumulate)]
            clock.lap("load")
            wish = drained(trainer.step) or (ranks.rank == 0 and note.found())
            result = _step(this, batches, wish)
            clock.lap("compute")  # also giving back the memory of the step
            stopping = result.stop
            if trouble.after(result.finite, trainer):
                if writer:
                    writer.settle()
                first = trouble.begin()
                start_over(trainer, config, folder, ranks, first - 1, find_model)
                trouble.gone_back(trainer)
                prefetch.close()
                prefetch = reading(trainer.step)
                continue

            scores: dict[str, Score] = {}
            best = False
            # The last step is evaluated at the end, when its checkpoint is on disk.
            last = trainer.step == section.max_steps
            every = config.eval.every_steps
            if not last and every and trainer.step % every == 0:
                scores = evaluate_in_passing(config, trainer, folder, manifest, ranks, journal)
                best = result.finite and trainer.judge(scores)
                clock.lap("evaluate")

            # Not in the middle of bad steps: there may be nothing worth keeping.
            due = trainer.step % config.checkpoint.every_steps == 0 and result.finite
            saved = due or best or stopping or _finished(config, trainer)
            copy = None
            if saved:
                copy = snapshot(config, trainer, manifest, attempt, ranks, scores)
                clock.lap("checkpoint")
            if journal and machine and (trainer.step % config.tracking.every_steps == 0 or saved):
                values = result.metrics(trainer)
                values |= clock.metrics(trainer.step, section.tokens, result.flops, machine.peak)
                journal.write("metrics", trainer.step, values={**values, **machine.metrics()})
                clock.lap("track")
            elif journal and trainer.step - first_step in EARLY_STEPS:
                journal.write("step", trainer.step, attempt=attempt)
            # After the journal: what lies behind a checkpoint is never computed again.
            if writer and copy:
                writer.save(copy)
                clock.lap("checkpoint")
        if writer:
            writer.wait()
        if not stopping:
            _finish(this, folder, manifest, journal, note, drained)
    except RuntimeError as error:
        lost = beats.blame(error)
        if lost is None:
            raise
        raise lost from error
    finally:
        note.close()
        prefetch.close()
        if journal:
            journal.close()


def _finished(config: RunConfig, trainer: Trainer) -> bool:
    """Are all steps made, or have the last evaluations brought nothing?"""
    patience = config.eval.patience
    return trainer.step >= config.train.max_steps or 0 < patience <= trainer.stale


@dataclass(frozen=True)
class _StepResult:
    loss: float
    """Mean sampled loss a token: for watching, never for comparing models."""
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
            "train/loss": self.loss,
            "train/gradient_norm": self.norm,
            "train/lr": self.lr,
            "train/softmax_mb_exchanged": self.table_bytes / 1e6,
            "train/dense_mb_exchanged": self.dense_bytes / 1e6,
            "train/skipped_updates": sum(step < trainer.step for step in trainer.skipped),
        }


@dataclass(frozen=True)
class _Process:
    """What stays the same from step to step in this process."""

    config: RunConfig
    trainer: Trainer
    """Its content changes."""
    bilm: torch.nn.Module
    """The trainer's, inside DDP where there are several processes."""
    ranks: Ranks
    lanes: range
    per_block: int
    """Windows in a block."""
    clock: Clock
    beats: Beats


def _step(this: _Process, batches: Sequence[Batch], wish: bool) -> _StepResult:
    """One update of all parameters from `train.accumulate` windows of every lane."""
    config, trainer, ranks, clock = this.config, this.trainer, this.ranks, this.clock
    section, step, device = config.train, trainer.step, ranks.device
    size = trainer.softmax.vocab_size
    negatives = draw_negatives(config.run.seed, step, section.negatives, size)
    batches = [batch.to_device(device) for batch in batches]
    wanted = [torch.stack([batch.forward_targets, batch.backward_targets]) for batch in batches]
    rows = negatives.ids.to(device)
    this.beats.at(step, 1)
    if len(rows) < size:
        rows = touched_rows(ranks, torch.stack(wanted), rows)
    table = trainer.softmax.table(rows).requires_grad_()
    clock.lap("exchange")

    for parameter in trainer.bilm.parameters():
        parameter.grad = None
    # Mean over the global batch; DDP averages over processes, so each scales its share up.
    scale = ranks.world / (2 * section.lanes * section.window * section.accumulate)
    scale *= section.window if config.optim.scale_by_window else 1
    total, weight, states = torch.zeros((), device=device), 0.0, trainer.states
    for number, (batch, targets) in enumerate(zip(batches, wanted, strict=True)):
        whole = number == len(batches) - 1
        with nullcontext() if whole or ranks.world == 1 else this.bilm.no_sync():  # type: ignore[operator]
            window = step * section.accumulate + number
            if section.reset_states == "block" and window % this.per_block == 0:
                states = States.zeros(config.model, len(this.lanes), device)
            loss, states = _window(this, batch, targets, states, rows, table, negatives, window)
            this.beats.at(step, 2)
            (loss * scale).backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
        weight += 2 * float(batch.weights.sum())
    clock.lap("compute")

    this.beats.at(step, 3)
    assert table.grad is not None  # noqa: S101 - every loss above depends on it
    table_grad = ranks.sum(table.grad).div_(ranks.world)
    shared = torch.tensor([float(total), weight, float(wish)], dtype=torch.float64, device=device)
    sums: list[float] = ranks.sum(shared).tolist()
    clock.lap("exchange")

    if step < section.hold_steps:
        for parameter in trainer.bilm.parameters():
            parameter.grad = None
    dense = [p.grad for p in trainer.bilm.parameters() if p.grad is not None]
    norm = float(global_norm(dense, table_grad))
    lr = learning_rate(config.optim, step, section.max_steps)
    finite = math.isfinite(norm) and math.isfinite(sums[0])
    updated = finite and step not in trainer.skipped
    if updated:
        clip = config.optim.clip_norm
        factor = clip / norm if clip and norm > clip else 1.0
        trainer.optimizer.step(lr, factor, rows, table_grad)
    if finite:
        trainer.states = states
    elif step not in trainer.skipped:
        trainer.skipped.add(step)
        log.warning("step %d skipped: loss %s, gradient norm %s", step, sums[0], norm)
    trainer.step += 1
    clock.lap("compute")
    many = ranks.world > 1
    return _StepResult(
        loss=sums[0] / max(sums[1], 1.0),
        norm=norm,
        lr=lr,
        finite=finite,
        updated=updated,
        stop=sums[2] > 0,
        table_bytes=table_grad.numel() * table_grad.element_size() if many else 0,
        dense_bytes=sum(p.numel() for p in trainer.bilm.parameters()) * 4 if many else 0,
        flops=ranks.world * sum(_flops(config, batch, negatives) for batch in batches),
    )


def _flops(config: RunConfig, batch: Batch, negatives: Negatives) -> float:
    return step_flops(config.model, batch.weights.numel(), len(negatives.ids), batch.chars)


def _window(
    this: _Process,
    batch: Batch,
    targets: Tensor,
    states: States,
    rows: Tensor,
    table: Tensor,
    negatives: Negatives,
    window: int,
) -> tuple[Tensor, States]:
    """The summed loss of one window of this process's lanes, and the states after it."""
    config, section, device = this.config, this.config.train, this.ranks.device
    seeds = [keyed_hash(config.run.seed, _DROPOUT, window, lane) >> 1 for lane in this.lanes]
    masks = dropout_masks(config.model, section.dropout, seeds, section.window, device)
    with _autocast(config, device):
        output = this.bilm(
            batch.chars,
            batch.forward_index,
            batch.backward_index,
            states,
            masks,
        )
    weights = batch.weights.reshape(-1)
    size = this.trainer.softmax.vocab_size
    loss = torch.zeros((), device=device)
    for hidden, wanted in ((output.top_forward, targets[0]), (output.top_backward, targets[1])):
        flat = hidden.reshape(-1, hidden.size(-1)), wanted.reshape(-1), weights
        if len(negatives.ids) == size:
            loss = loss + full_table_loss(*flat, table)
        else:
            loss = loss + sampled_loss(*flat, rows, table, negatives, size)
    return loss, output.states.detach()


def learning_rate(optim: OptimConfig, step: int, max_steps: int) -> float:
    """Linear warm-up, then the schedule."""
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / optim.warmup_steps
    if optim.schedule == "cosine":
        done = (step - optim.warmup_steps) / max(1, max_steps - optim.warmup_steps)
        return optim.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if optim.schedule == "inverse-sqrt":
        return optim.lr * math.sqrt(max(1, optim.warmup_steps) / max(1, step + 1))
    return optim.lr


def _autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[Any]:
    if not config.train.bf16:
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _finish(
    this: _Process,
    folder: RunFolder,
    manifest: Manifest,
    journal: Journal | None,
    note: StopNote,
    drained: Callable[[int], bool],
) -> None:
    """Evaluate the checkpoint that is the result, on all processes, and write result.json.

    The checkpoint is on disk already, so a kill here costs no step. When asked to stop, it returns
    without a result, and the next attempt evaluates again.
    """
    config, trainer, ranks = this.config, this.trainer, this.ranks
    early = trainer.step < config.train.max_steps
    chosen = trainer.step
    if early and ranks.rank == 0:
        kept = {info.step for info in list_checkpoints(folder.checkpoints)}
        chosen = trainer.best_step if trainer.best_step in kept else trainer.step
    if early:  # the others look only after rank 0 has written everything
        chosen = ranks.from_first(chosen)
    checkpoint = join(folder.checkpoints, folder_name(chosen))
    if chosen != trainer.step:
        restore(trainer, checkpoint, config, folder, ranks)
    scores = evaluate_finally(config, trainer, folder, manifest, ranks, journal, note, drained)
    if scores is None:
        return
    if journal:
        result = {
            "step": chosen,
            "checkpoint": folder_name(chosen),
            "checkpoint_sha256": read_info(checkpoint).sha256,
            "stopped_early": config.eval.patience if early else 0,
            "skipped": len(trainer.skipped),
            "evaluation": {split: score.as_dict() for split, score in scores.items()},
            **probes(scores),
        }
        journal.flush()  # nothing is written after the result
        write_json(folder.result, result)
