"""What training carries from step to step, and how it is begun, saved and restored.

A `Trainer` is created fresh from the seed, or started from another model (`train.init_from`), and
then overwritten by the newest valid checkpoint if there is one. Restoring happens in place, because
DDP holds on to the parameters.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmwright.jobs.checkpoints.checkpoint import fetch, folder_name, newest_valid, read_state
from elmwright.jobs.checkpoints.contents import CheckpointState, Probes, Scores
from elmwright.jobs.checkpoints.writer import Snapshot
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.environment.machine_facts import machine
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.secrets.hiding import store_all
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.model.bilm import BiLM, States
from elmwright.model.config import shape_problem
from elmwright.model.formats.folder import (
    FORMAT,
    LoadedModel,
    check_shapes,
    load_folder,
    load_tensors,
    model_tensors,
    read_tensors,
)
from elmwright.model.optim import Optimizer
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.lanes import keyed_hash
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import at, join

log = logging.getLogger("elmwright")

FindModel = Callable[[str], Path]
"""From the name in `train.init_from` to a verified folder on this machine."""


class Stream(IntEnum):
    """Keeps apart random draws that share a seed; a change of a number changes every model."""

    DROPOUT = 1
    BILM = 2
    SOFTMAX = 3


@dataclass
class Trainer:
    """What changes from step to step."""

    bilm: BiLM
    softmax: Softmax
    optimizer: Optimizer
    states: States
    """Of this process's lanes."""
    step: int = 0
    """Steps made."""
    skipped: set[int] = field(default_factory=set)
    """Steps whose update was, or after a rollback will be, left out."""
    best: float | None = None
    """The best mean held-out perplexity of an evaluation in the loop."""
    best_step: int = 0
    """The step of that evaluation."""
    best_of: int = 0
    """The tokens it scored: evaluations of others are not compared with it."""
    stale: int = 0
    """Evaluations in the loop since then."""

    def judge(self, scores: dict[str, Score]) -> bool:
        """Take note of an evaluation in the loop; was it the best so far?"""
        first = next(iter(scores.values()), None)
        if first is None:
            return False
        if self.best is None or self.best_of != first.tokens or first.perplexity < self.best:
            self.best, self.best_step, self.stale = first.perplexity, self.step, 0
            self.best_of = first.tokens
            return True
        self.stale += 1
        return False


def begin(
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    find_model: FindModel = Path,
) -> Trainer:
    """A model from the seed or from `train.init_from`, or the newest valid checkpoint."""
    seed, device = config.run.seed, ranks.device
    bilm = BiLM(config.model, keyed_hash(seed, Stream.BILM) >> 1).to(device)
    width = config.model.projection_dim
    drawn = keyed_hash(seed, Stream.SOFTMAX) >> 1
    softmax = Softmax.create(manifest.vocab.size, width, drawn, device)
    optimizer = Optimizer(dict(bilm.named_parameters()), softmax, config.optim)
    states = States.zeros(config.model, len(ranks.lanes(config.train.lanes)), device)
    trainer = Trainer(bilm, softmax, optimizer, states)
    if not resume(trainer, config, folder, ranks) and config.train.init_from:
        adopt(trainer, config, folder, find_model)
    return trainer


def resume(
    trainer: Trainer,
    config: RunConfig,
    folder: RunFolder,
    ranks: Ranks,
    at_most: int | None = None,
) -> bool:
    """Take over the newest valid checkpoint, if there is one; rank 0 decides which."""
    newest = newest_valid(folder.checkpoints, log.warning, at_most) if ranks.rank == 0 else None
    step = ranks.from_first(newest.step if newest else -1)
    if step >= 0:
        restore(trainer, join(folder.checkpoints, folder_name(step)), config, folder, ranks)
    return step >= 0


def start_over(
    trainer: Trainer,
    config: RunConfig,
    folder: RunFolder,
    ranks: Ranks,
    before: int,
    find_model: FindModel = Path,
) -> None:
    """Back, in place: to the newest valid checkpoint up to step `before` if there is one, else to
    the newest there is, else to the very beginning."""
    if resume(trainer, config, folder, ranks, before) or resume(trainer, config, folder, ranks):
        return
    manifest = Manifest.load(folder.corpus)
    fresh = begin(config, folder, manifest, ranks, find_model)
    load_tensors(trainer.bilm, model_tensors(fresh.bilm))
    trainer.softmax.load(fresh.softmax.state())
    trainer.optimizer.load_state_dict(fresh.optimizer.state_dict())
    trainer.states, trainer.step, trainer.skipped = fresh.states, 0, set()
    trainer.best, trainer.best_step, trainer.best_of, trainer.stale = None, 0, 0, 0


def restore(
    trainer: Trainer, checkpoint: str, config: RunConfig, folder: RunFolder, ranks: Ranks
) -> None:
    """Overwrite everything with a checkpoint, whatever the number of processes that wrote it."""
    path = fetch(checkpoint, folder.scratch / f"rank-{ranks.rank}")
    model = path / "model.safetensors"
    load_tensors(trainer.bilm, read_tensors(model), source=str(model))
    trainer.softmax.load(_fitting(path / "softmax.safetensors", trainer.softmax.state()))
    own = trainer.optimizer.state_dict()
    trainer.optimizer.load_state_dict(_fitting(path / "optimizer.safetensors", own))
    whole = States.zeros(config.model, config.train.lanes, "meta")
    everybody = _fitting(path / "lanes.safetensors", {"c": whole.c, "m": whole.m})
    lanes = ranks.lanes(config.train.lanes)
    states = States(everybody["c"], everybody["m"]).rows(slice(lanes.start, lanes.stop))
    trainer.states = States(
        states.c.contiguous().to(ranks.device), states.m.contiguous().to(ranks.device)
    )
    state = read_state(path)
    trainer.step, trainer.skipped = state.step, set(state.skipped)
    trainer.best, trainer.best_step = state.best, state.best_step
    trainer.best_of, trainer.stale = state.best_of, state.stale
    if path != Path(checkpoint):  # a copy of one in a store
        shutil.rmtree(path)


def _fitting(path: Path, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, if they have the names and shapes of `own`, and its kind."""
    tensors = read_tensors(path)
    shapes = ((name, tuple(tensor.shape)) for name, tensor in own.items())
    check_shapes(shapes, tensors, str(path))
    for name, tensor in own.items():
        if tensors[name].is_floating_point() != tensor.is_floating_point():
            found = tensors[name].dtype
            raise UserError(
                "file-damaged", f"{path}: tensor {name} holds {found}, not {tensor.dtype}"
            )
    return tensors


def adopt(trainer: Trainer, config: RunConfig, folder: RunFolder, find_model: FindModel) -> None:
    """Start from another model: its biLM, and the softmax rows of the words both know."""
    name = config.train.init_from
    other = load_folder(find_model(name), with_softmax=True)
    check_shape(other, config)
    load_tensors(trainer.bilm, model_tensors(other.bilm), source=name)
    if other.softmax is None or other.vocab is None:
        log.info("train.init_from %s has no softmax: that starts fresh", name)
        return
    words = at(join(folder.corpus, "vocab.txt")).read_bytes().decode("utf-8")
    theirs = {word: number for number, word in enumerate(other.vocab)}
    shared = [
        (number, theirs[word])
        for number, word in enumerate(words.removesuffix("\n").split("\n"))
        if word in theirs
    ]
    mine = torch.tensor([a for a, _ in shared], device=trainer.softmax.weight.device)
    rows = torch.tensor([b for _, b in shared])
    for key, tensor in trainer.softmax.state().items():
        tensor.index_copy_(
            0, mine, other.softmax.state()[key].index_select(0, rows).to(mine.device)
        )
    log.info(
        "train.init_from %s: %d of %d words take their softmax rows from it",
        name,
        len(shared),
        trainer.softmax.vocab_size,
    )


def check_shape(other: LoadedModel, config: RunConfig) -> None:
    """A model can only be trained further in its own shape."""
    if problem := shape_problem(config.model, other.config):
        raise UserError("model-invalid", problem)


def saved_scores(scores: dict[str, Score]) -> Scores:
    """The scores as a checkpoint and result.json hold them."""
    return {split: score.saved() for split, score in scores.items()}


def saved_probes(scores: dict[str, Score]) -> Probes:
    """The scores of the first sentences of each held-out set."""
    return {split: score.probe for split, score in scores.items() if score.probe}


def _saved(config: RunConfig) -> dict[str, Any]:
    """The config as checkpoints hold it: without a setting that an earlier version would refuse,
    where that has its default, and without a password."""
    saved: dict[str, Any] = store_all(to_dict(config))
    if not config.eval.final_tokens:
        del saved["eval"]["final_tokens"]
    return saved


def snapshot(
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
        state=CheckpointState(
            step=trainer.step,
            skipped=tuple(sorted(trainer.skipped)),
            best=trainer.best,
            best_step=trainer.best_step,
            best_of=trainer.best_of,
            stale=trainer.stale,
            attempt=attempt,
            processes=ranks.world,
            device=ranks.device.type,
            machine=machine(),
            corpus_fingerprint=manifest.fingerprint,
            evaluation=saved_scores(scores),
            probe=saved_probes(scores),
        ),
        config={"format": FORMAT, "model": to_dict(config)["model"], "run_config": _saved(config)},
        perplexity={split: score.perplexity for split, score in scores.items()},
        tokens=sum(score.tokens for score in scores.values()),
    )
