"""The training loop, read from top to bottom.

lanes → batches → biLM → loss → exchange → clip → update → log → evaluate → checkpoint

`train` knows its rank, the number of processes and a device, and nothing of Ray: a notebook or
torchrun can call it as well as `launch.py`. A step is a pure function of the checkpoint before it:
the data position, the negatives and the dropout all come from (seed, step, lane), so a run that was
killed and resumed gives bit for bit the weights of one that was not.

Two things keep it so. DDP rearranges its buckets after the first backward, which changes the order
of sums from 3 processes up, unless `find_unused_parameters` is set; and every lookup whose backward
adds is a deterministic one (`index_select`, `F.embedding`).
"""

import json
import logging
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from elmwright.jobs.checkpoint import (
    CheckpointInfo,
    CheckpointWriter,
    Snapshot,
    check_attempt,
    folder_name,
    newest_valid,
    read_info,
)
from elmwright.jobs.clock import Clock
from elmwright.jobs.config import OptimSection, RunConfig
from elmwright.jobs.config_file import to_dict
from elmwright.jobs.evaluate import Score, evaluate
from elmwright.jobs.exchange import Ranks, touched_rows
from elmwright.jobs.journal import Journal
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.provenance import machine
from elmwright.jobs.stream import Batch, Blocks, Prefetch
from elmwright.model.bilm import BiLM, States, dropout_masks
from elmwright.model.folder import load_tensors, model_tensors
from elmwright.model.optim import Optimizer, OptimSettings, global_norm
from elmwright.model.softmax import Softmax, draw_negatives, full_table_loss, sampled_loss
from elmwright.pipeline.files import join
from elmwright.pipeline.lanes import keyed_hash
from elmwright.pipeline.manifest import Manifest
from elmwright.pipeline.storage import write_atomic

log = logging.getLogger("elmwright")

BAD_STEPS = 20
"""Steps in a row whose loss or gradient is not finite before training gives up."""
_DROPOUT, _BILM, _SOFTMAX = 1, 2, 3  # keep apart draws that share a seed


@dataclass
class Trainer:
    """What changes from step to step."""

    bilm: BiLM
    softmax: Softmax
    optimizer: Optimizer
    states: States
    """Of this process's lanes."""
    step: int = 0
    """Updates made."""
    skipped: list[int] = field(default_factory=list)
    """Steps whose update was left out because it was not finite."""


def train(config: RunConfig, folder: RunFolder, attempt: int, ranks: Ranks) -> None:
    """Train to `train.max_steps` from the newest valid checkpoint, or until asked to stop."""
    torch.set_num_threads(config.train.threads)
    manifest = Manifest.load(folder.corpus)
    lanes = ranks.lanes(config.train.lanes)

    trainer = _start(config, folder, manifest, ranks)
    bilm: torch.nn.Module = trainer.bilm
    if ranks.world > 1:
        bilm = DistributedDataParallel(
            trainer.bilm,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
    journal: Journal | None = None
    if ranks.rank == 0:
        journal = Journal(folder.journal, lambda: check_attempt(folder.attempt, attempt))
    writer = _writer(config, folder, attempt, journal) if journal else None
    blocks = Blocks(folder.corpus, manifest, "train", config.model.max_chars, keep=2 * len(lanes))
    prefetch = Prefetch(
        blocks, config.run.seed, trainer.step, lanes, config.train.lanes, config.train.window
    )
    clock = Clock()
    stopping = last = False
    scores: dict[str, Score] = {}
    bad = 0
    try:
        while trainer.step < config.train.max_steps and not stopping:
            batch = prefetch.next()
            clock.lap("load")
            stop_wish = ranks.rank == 0 and folder.stop_request.exists()
            result = _step(config, trainer, bilm, batch, ranks, lanes, stop_wish)
            stopping = result.stop
            bad = 0 if result.updated else bad + 1
            if bad >= BAD_STEPS:
                raise RuntimeError(
                    f"{bad} steps in a row (to {trainer.step}) had a loss or gradient that is not "
                    f"finite (loss {result.loss}, norm {result.norm}); lower optim.lr"
                )
            clock.lap("compute")

            last = trainer.step == config.train.max_steps
            scores = {}
            every = config.eval.every_steps
            if last or (every and trainer.step % every == 0):
                limit = None if last else config.eval.max_tokens
                scores = _evaluate(config, folder, manifest, trainer, ranks, limit, journal)
                clock.lap("evaluate")

            if journal and (trainer.step % config.tracking.every_steps == 0 or last):
                tokens = config.train.lanes * config.train.window
                journal.write(
                    "metrics",
                    trainer.step,
                    values={
                        "train/loss": result.loss,
                        "train/gradient_norm": result.norm,
                        "train/lr": result.lr,
                        "train/softmax_mb_exchanged": result.table_bytes / 1e6,
                        "train/skipped_updates": len(trainer.skipped),
                        **clock.metrics(trainer.step, tokens),
                    },
                )
            if last or stopping or trainer.step % config.checkpoint.every_steps == 0:
                snapshot = _snapshot(config, trainer, manifest, attempt, ranks, scores)
                if writer:
                    writer.save(snapshot)
                clock.lap("checkpoint")
        if writer:
            writer.wait()
        if trainer.step >= config.train.max_steps:
            if not last:  # the checkpoint was final already: an earlier attempt ended right there
                scores = _evaluate(config, folder, manifest, trainer, ranks, None, journal)
            if journal:
                _write_result(folder, trainer, scores)
    finally:
        prefetch.close()
        if journal:
            journal.close()


@dataclass(frozen=True)
class _StepResult:
    loss: float
    """Mean sampled loss a token: for watching, never for comparing models."""
    norm: float
    lr: float
    updated: bool
    stop: bool
    table_bytes: int


def _step(
    config: RunConfig,
    trainer: Trainer,
    bilm: torch.nn.Module,
    batch: Batch,
    ranks: Ranks,
    lanes: range,
    stop_wish: bool,
) -> _StepResult:
    """One update of all parameters from one window of every lane."""
    seed, step, section = config.run.seed, trainer.step, config.train
    device = ranks.device
    targets = torch.from_numpy(batch.forward_targets), torch.from_numpy(batch.backward_targets)
    both = torch.stack(targets).to(device)
    weights = torch.from_numpy(batch.weights).to(device)

    size = trainer.softmax.vocab_size
    negatives = draw_negatives(seed, step, section.negatives, size)
    full = len(negatives.ids) == size
    rows = negatives.ids.to(device)
    if not full:
        rows = touched_rows(ranks, both, rows)
    table = trainer.softmax.table(rows).requires_grad_()

    seeds = [keyed_hash(seed, _DROPOUT, step, lane) >> 1 for lane in lanes]
    masks = dropout_masks(config.model, section.dropout, seeds, section.window, device)
    with _autocast(config, device):
        output = bilm(
            torch.from_numpy(batch.chars).to(device),
            torch.from_numpy(batch.forward_index).to(device),
            torch.from_numpy(batch.backward_index).to(device),
            trainer.states,
            masks,
        )
    total = torch.zeros((), device=device)
    for hidden, wanted in ((output.top_forward, both[0]), (output.top_backward, both[1])):
        flat = hidden.reshape(-1, hidden.size(-1)), wanted.reshape(-1), weights.reshape(-1)
        if full:
            total = total + full_table_loss(*flat, table)
        else:
            total = total + sampled_loss(*flat, rows, table, negatives, size)
    # Mean over the global batch; DDP averages over processes, so each scales its share up.
    scale = ranks.world / (2 * section.lanes * section.window)
    scale *= section.window if config.optim.scale_by_window else 1
    for parameter in trainer.bilm.parameters():
        parameter.grad = None
    (total * scale).backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None  # noqa: S101 - every loss above depends on it
    table_grad = ranks.sum(table.grad).div_(ranks.world)
    wish = torch.tensor(float(stop_wish), dtype=torch.float64, device=device)
    shared = torch.stack([total.detach().double(), weights.sum().double() * 2, wish])
    sums: list[float] = ranks.sum(shared).tolist()

    dense = [p.grad for p in trainer.bilm.parameters() if p.grad is not None]
    norm = float(global_norm(dense, table_grad))
    lr = learning_rate(config.optim, step, section.max_steps)
    updated = math.isfinite(norm) and math.isfinite(sums[0])
    if updated:
        clip = config.optim.clip_norm
        factor = clip / norm if clip and norm > clip else 1.0
        trainer.optimizer.step(lr, factor, rows, table_grad)
        trainer.states = output.states.detach()
    else:
        trainer.skipped.append(step)
        log.warning("step %d skipped: loss %s, gradient norm %s", step, sums[0], norm)
    trainer.step += 1
    return _StepResult(
        loss=sums[0] / max(sums[1], 1.0),
        norm=norm,
        lr=lr,
        updated=updated,
        stop=sums[2] > 0,
        table_bytes=table_grad.numel() * table_grad.element_size() if ranks.world > 1 else 0,
    )


def learning_rate(optim: OptimSection, step: int, max_steps: int) -> float:
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


def _start(config: RunConfig, folder: RunFolder, manifest: Manifest, ranks: Ranks) -> Trainer:
    """A fresh model, or the newest valid checkpoint; rank 0 decides which."""
    seed, device = config.run.seed, ranks.device
    bilm = BiLM(config.model, keyed_hash(seed, _BILM) >> 1).to(device)
    width = config.model.projection_dim
    softmax = Softmax.create(manifest.vocab.size, width, keyed_hash(seed, _SOFTMAX) >> 1, device)
    optim = config.optim
    settings = OptimSettings(
        name=optim.name,
        initial_accumulator=optim.initial_accumulator,
        betas=optim.betas,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
    )
    optimizer = Optimizer(dict(bilm.named_parameters()), softmax, settings)
    states = States.zeros(config.model, len(ranks.lanes(config.train.lanes)), device)
    trainer = Trainer(bilm, softmax, optimizer, states)

    newest = newest_valid(folder.checkpoints, log.warning) if ranks.rank == 0 else None
    step = ranks.from_first(newest.step if newest else -1)
    if step >= 0:
        _load(trainer, folder.checkpoints / folder_name(step), config, ranks)
    return trainer


def _load(trainer: Trainer, path: Path, config: RunConfig, ranks: Ranks) -> None:
    load_tensors(trainer.bilm, load_file(path / "model.safetensors"))
    trainer.softmax.load(load_file(path / "softmax.safetensors"))
    trainer.optimizer.load_state_dict(load_file(path / "optimizer.safetensors"))
    everybody = load_file(path / "lanes.safetensors")
    lanes = ranks.lanes(config.train.lanes)
    mine = slice(lanes.start, lanes.stop)
    states = States(everybody["c"], everybody["m"]).rows(mine)
    trainer.states = States(
        states.c.contiguous().to(ranks.device), states.m.contiguous().to(ranks.device)
    )
    state = json.loads((path / "state.json").read_text())
    trainer.step, trainer.skipped = int(state["step"]), list(state["skipped"])


def _snapshot(
    config: RunConfig,
    trainer: Trainer,
    manifest: Manifest,
    attempt: int,
    ranks: Ranks,
    scores: dict[str, Score],
) -> Snapshot:
    """A host copy of everything (every process takes part: lanes live on all of them)."""
    c = ranks.gather(trainer.states.c, dim=2)
    m = ranks.gather(trainer.states.m, dim=2)

    def host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if ranks.rank != 0:
            return {}
        return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}

    return Snapshot(
        step=trainer.step,
        tensors={
            "model": host(model_tensors(trainer.bilm)),
            "softmax": host(trainer.softmax.state()),
            "optimizer": host(trainer.optimizer.state_dict()),
            "lanes": host({"c": c, "m": m}),
        },
        state={
            "step": trainer.step,
            "skipped": trainer.skipped,
            "attempt": attempt,
            "processes": ranks.world,
            "device": ranks.device.type,
            "machine": machine(),
            "corpus_fingerprint": manifest.fingerprint,
            "evaluation": {split: score.as_dict() for split, score in scores.items()},
        },
        config={"format": 1, "model": to_dict(config)["model"], "run_config": to_dict(config)},
        perplexity={split: score.perplexity for split, score in scores.items()},
        tokens=sum(score.tokens for score in scores.values()),
    )


def _writer(
    config: RunConfig, folder: RunFolder, attempt: int, journal: Journal
) -> CheckpointWriter:
    def written(info: CheckpointInfo) -> None:
        journal.write(
            "checkpoint",
            info.step,
            path=str(info.path),
            sha256=info.sha256,
            perplexity=info.perplexity,
        )

    return CheckpointWriter(
        folder.checkpoints,
        join(folder.corpus, "vocab.txt"),
        folder.attempt,
        attempt,
        config.checkpoint.keep_last,
        written,
        pruned=lambda step: journal.write("pruned", step),
    )


def _write_result(folder: RunFolder, trainer: Trainer, scores: dict[str, Score]) -> None:
    """Say what the final checkpoint is and what it was measured at: training is done."""
    result = {
        "step": trainer.step,
        "checkpoint_sha256": read_info(folder.checkpoints / folder_name(trainer.step)).sha256,
        "skipped": len(trainer.skipped),
        "evaluation": {split: score.as_dict() for split, score in scores.items()},
    }
    write_atomic(folder.result, json.dumps(result, indent=1).encode())


def _evaluate(
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest,
    trainer: Trainer,
    ranks: Ranks,
    max_tokens: int | None,
    journal: Journal | None,
) -> dict[str, Score]:
    """Score every held-out set, on about `max_tokens` tokens of it or on all of them."""
    scores = {
        split: evaluate(
            trainer.bilm,
            trainer.softmax,
            folder.corpus,
            manifest,
            split,
            ranks,
            lanes=config.eval.lanes,
            window=config.train.window,
            max_tokens=max_tokens,
        )
        for split in manifest.splits
        if split != "train"
    }
    if journal and scores:
        journal.write("eval", trainer.step, values=_score_metrics(scores))
    return scores


def _score_metrics(scores: dict[str, Score]) -> dict[str, float]:
    return {
        f"{split}/{name}": value
        for split, score in scores.items()
        for name, value in score.as_dict().items()
    }
