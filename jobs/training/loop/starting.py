"""How a `Trainer` is created: from the seed, at a checkpoint or from another model.

It is created from the seed and then overwritten, by the newest valid checkpoint if there is one,
else by another model (`train.init_from`). That happens in place, because DDP refers to the
parameters.
"""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from elmwright.jobs.bundles.base_model import base_model
from elmwright.jobs.checkpoints.checkpoint import fetch, folder_name, newest_valid, read_state
from elmwright.jobs.checkpoints.contents import NUMERICS
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.state import Trainer, average_of
from elmwright.model.bilm import BiLM, States
from elmwright.model.config import shape_problem
from elmwright.model.formats.bilm_format import check_shapes
from elmwright.model.formats.folder import (
    load_folder,
    load_tensors,
    model_tensors,
    read_tensors,
    shapes_of,
)
from elmwright.model.optim import Optimizer
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.lanes import Stream, keyed_hash
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.vocab import Counts, load_counts
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at, join

log = logging.getLogger("elmwright")

FindModel = Callable[[str], Path]
"""From the name in `train.init_from` to a verified folder on this machine."""


def begin(
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    find_model: FindModel = Path,
) -> Trainer:
    """A trainer at the newest valid checkpoint, or at the beginning of training."""
    warnings: list[str] = []
    step = _newest_step(folder, ranks, warnings)
    if step is None:
        trainer = _beginning(config, folder, manifest, ranks, find_model)
        trainer.warnings = warnings
        return trainer
    trainer = _create(config, manifest, ranks)
    trainer.warnings = warnings
    restore(trainer, join(folder.checkpoints, folder_name(step)), config, folder, ranks)
    return trainer


def _beginning(
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    find_model: FindModel,
) -> Trainer:
    """A trainer at the beginning of training."""
    is_unigram = config.train.softmax_init == "unigram"
    counts = _train_counts(folder, manifest) if is_unigram else None
    trainer = _create(config, manifest, ranks, counts)
    adopt(trainer, config, folder, find_model, ranks)
    return trainer


def _create(
    config: RunConfig, manifest: Manifest, ranks: Ranks, counts: Counts | None = None
) -> Trainer:
    """A trainer with fresh weights; `counts` are for the biases of the softmax."""
    seed, device = config.run.seed, ranks.device
    bilm = BiLM(config.model, keyed_hash(seed, Stream.BILM) >> 1).to(device)
    softmax_seed = keyed_hash(seed, Stream.SOFTMAX) >> 1
    width = config.model.projection_dim
    softmax = Softmax.create(manifest.vocab.size, width, softmax_seed, device, counts)
    optimizer = Optimizer(dict(bilm.named_parameters()), softmax, config.optim)
    states = States.zeros(config.model, len(ranks.lanes(config.train.lanes)), device)
    average = average_of(bilm, softmax, config)
    return Trainer(bilm, softmax, optimizer, states, average=average)


def _train_counts(folder: RunFolder, manifest: Manifest) -> Counts:
    """How often the training text has each word of the vocabulary. `<S>`, which the backward model
    predicts, has the count of `</S>`."""
    path = join(folder.corpus, manifest.vocab.counts)
    counts = load_counts(path, manifest.vocab.counts_sha256)
    if counts.size != manifest.vocab.size or (counts < 0).any():
        raise UserError(
            "file-damaged",
            f"{path} does not have one count for each of the {manifest.vocab.size:,} words; "
            "build the corpus again",
        )
    return counts


def resume(
    trainer: Trainer,
    config: RunConfig,
    folder: RunFolder,
    ranks: Ranks,
    at_most: int | None = None,
) -> bool:
    """Restore the newest valid checkpoint, if there is one; was there one?"""
    step = _newest_step(folder, ranks, trainer.warnings, at_most)
    if step is not None:
        restore(trainer, join(folder.checkpoints, folder_name(step)), config, folder, ranks)
    return step is not None


def _newest_step(
    folder: RunFolder, ranks: Ranks, warnings: list[str], at_most: int | None = None
) -> int | None:
    """The step of the newest valid checkpoint (rank 0 decides); None if there is none. Damaged ones
    are added to the warnings."""
    newest = newest_valid(folder.checkpoints, warnings.append, at_most) if ranks.rank == 0 else None
    step = ranks.from_first(newest.step if newest else -1)
    return step if step >= 0 else None


def start_over(
    trainer: Trainer,
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    before: int,
    find_model: FindModel = Path,
) -> None:
    """Go back, in place: to the newest valid checkpoint up to step `before` if there is one, else
    to the newest of all, else to the beginning of training."""
    if resume(trainer, config, folder, ranks, before) or resume(trainer, config, folder, ranks):
        return
    fresh = _beginning(config, folder, manifest, ranks, find_model)
    load_tensors(trainer.bilm, model_tensors(fresh.bilm))
    trainer.softmax.load(fresh.softmax.state())
    trainer.optimizer.load_state_dict(fresh.optimizer.state_dict())
    trainer.states, trainer.progress = fresh.states, fresh.progress
    if trainer.average is not None and fresh.average is not None:
        trainer.average.load(fresh.average.state())


def restore(
    trainer: Trainer, checkpoint: str, config: RunConfig, folder: RunFolder, ranks: Ranks
) -> None:
    """Overwrite everything with a checkpoint, whatever the number of processes that wrote it."""
    path = fetch(checkpoint, folder.scratch / f"rank-{ranks.rank}")
    model = path / "model.safetensors"
    load_tensors(trainer.bilm, read_tensors(model), source=str(model))
    trainer.softmax.load(_read_fitting(path / "softmax.safetensors", trainer.softmax.state()))
    optimizer = _read_fitting(path / "optimizer.safetensors", trainer.optimizer.state_dict())
    trainer.optimizer.load_state_dict(optimizer)
    if trainer.average is not None:
        own = trainer.average.state()
        trainer.average.load(
            {part: _read_fitting(path / f"{part}.safetensors", own[part]) for part in own}
        )
    shape = States.zeros(config.model, config.train.lanes, "meta")
    every_lane = _read_fitting(path / "lanes.safetensors", {"c": shape.c, "m": shape.m})
    lanes = ranks.lanes(config.train.lanes)
    states = States(every_lane["c"], every_lane["m"]).rows(slice(lanes.start, lanes.stop))
    trainer.states = States(
        states.c.contiguous().to(ranks.device), states.m.contiguous().to(ranks.device)
    )
    saved = read_state(path)
    trainer.progress = saved if saved.has_known_draws else replace(saved, numerics=NUMERICS)
    if not saved.has_known_draws:
        trainer.warnings.append(
            f"{checkpoint} was written with numerics {saved.numerics}, and this version has "
            f"{NUMERICS}: training continues, but not bit for bit as it would have with the "
            "version that wrote it"
        )
    elif not saved.kernels:
        trainer.warnings.append(
            f"{checkpoint} was written by an earlier version, which added numbers up in another "
            "order: training continues with the same data and draws, but not bit for bit as it "
            "would have with that version"
        )
    if path != Path(checkpoint):  # a copy of one in a store
        shutil.rmtree(path)


def _read_fitting(path: Path, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, if their names, shapes and kinds of numbers are those of `own`."""
    tensors = read_tensors(path)
    check_shapes(shapes_of(own).items(), shapes_of(tensors), str(path))
    for name, tensor in own.items():
        if tensors[name].is_floating_point() != tensor.is_floating_point():
            raise UserError(
                "file-damaged",
                f"{path}: tensor {name} has type {tensors[name].dtype}, not {tensor.dtype}",
            )
    return tensors


def adopt(
    trainer: Trainer,
    config: RunConfig,
    folder: RunFolder,
    find_model: FindModel,
    ranks: Ranks = Ranks(),  # noqa: B008 - it is frozen
) -> None:
    """Start from the model that `train.init_from` names, if it names one: take its biLM, and the
    softmax rows of the words that both have. Note in base.json what it is."""
    name = config.train.init_from
    if not name:
        return
    found = find_model(name)
    other = load_folder(found, with_softmax=True)
    if problem := shape_problem(config.model, other.config):
        raise UserError("model-invalid", problem)
    load_tensors(trainer.bilm, model_tensors(other.bilm), source=name)
    if ranks.rank == 0:
        note = json.dumps(to_data(base_model(name, found)), indent=1)
        at(join(folder.train, "base.json")).write_bytes(note.encode())
    if other.softmax is None or other.vocab is None:
        trainer.adopted = f"train.init_from {name} has no softmax, so all of its rows start fresh"
        return
    words = at(join(folder.corpus, "vocab.txt")).read_bytes().decode("utf-8")
    other_ids = {word: number for number, word in enumerate(other.vocab)}
    shared = [
        (number, other_ids[word])
        for number, word in enumerate(words.removesuffix("\n").split("\n"))
        if word in other_ids
    ]
    device = trainer.softmax.weight.device
    rows = torch.tensor([number for number, _ in shared], device=device)
    other_rows = torch.tensor([number for _, number in shared])
    for key, tensor in trainer.softmax.state().items():
        values = other.softmax.state()[key].index_select(0, other_rows)
        tensor.index_copy_(0, rows, values.to(device))
    trainer.adopted = (
        f"{len(shared):,} of {trainer.softmax.vocab_size:,} softmax rows are those of the same "
        f"words in {name}"
    )
