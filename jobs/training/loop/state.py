"""The state of training, and how it is created, saved and restored.

A `Trainer` is created from the seed and then overwritten, by the newest valid checkpoint if there
is one, else by another model (`train.init_from`). That happens in place, because DDP refers to the
parameters.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmwright.jobs.checkpoints.checkpoint import fetch, folder_name, newest_valid, read_state
from elmwright.jobs.checkpoints.contents import (
    NUMERICS,
    CheckpointState,
    Probes,
    Scores,
    perplexities_of,
)
from elmwright.jobs.checkpoints.writer import Snapshot
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.environment.machine_facts import libraries, machine
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.secrets.hiding import store_all
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.model.average import Average
from elmwright.model.bilm import BiLM, States
from elmwright.model.config import shape_problem
from elmwright.model.formats.bilm_format import check_shapes
from elmwright.model.formats.folder import (
    FORMAT,
    OF_AVERAGE,
    load_folder,
    load_tensors,
    model_tensors,
    read_tensors,
    shapes_of,
)
from elmwright.model.optim import Optimizer
from elmwright.model.softmax import Softmax
from elmwright.model.text.text_input import config_entries
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.lanes import Stream, keyed_hash
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.vocab import Counts, load_counts
from elmwright.pipeline.storage.files import at, join

log = logging.getLogger("elmwright")

FindModel = Callable[[str], Path]
"""From the name in `train.init_from` to a verified folder on this machine."""


BEGINNING = CheckpointState(
    step=0, skipped=(), best=None, best_step=0, best_of=0, stale=0, evaluation={}, numerics=NUMERICS
)


@dataclass
class Trainer:
    """What changes from step to step."""

    bilm: BiLM
    softmax: Softmax
    optimizer: Optimizer
    states: States
    """Of this process's lanes."""
    progress: CheckpointState = BEGINNING
    """The counts that checkpoints record; what else is in it is written by `snapshot`. `skipped`
    includes steps that are still to come, after a rollback."""
    average: Average | None = None
    """The average of the weights, if `train.average_steps` is set."""

    @property
    def step(self) -> int:
        """Steps made."""
        return self.progress.step

    @property
    def ready_average(self) -> Average | None:
        """The average, once its horizon has passed."""
        return self.average if self.average is not None and self.average.is_ready else None

    def judged(self) -> tuple[BiLM, Softmax]:
        """The model that is evaluated and exported: the average once it is ready, else the last
        weights."""
        if self.ready_average is not None:
            return self.ready_average.bilm, self.ready_average.current_softmax()
        return self.bilm, self.softmax

    def skip(self, steps: Iterable[int]) -> None:
        """Leave out the updates of these steps."""
        skipped = tuple(sorted({*self.progress.skipped, *steps}))
        self.progress = replace(self.progress, skipped=skipped)

    def update_best(self, scores: dict[str, Score]) -> bool:
        """Compare an evaluation in the loop with the best so far; is it better?

        Evaluations of different numbers of tokens, or with different states, are not compared.
        """
        if not scores:
            return False
        first, old = next(iter(scores.values())).saved, self.progress
        is_comparable = (old.best_of, old.best_states) == (first.tokens, first.states)
        if old.best is None or not is_comparable or first.perplexity < old.best:
            self.progress = replace(
                old,
                best=first.perplexity,
                best_step=old.step,
                best_of=first.tokens,
                best_states=first.states,
                stale=0,
            )
            return True
        self.progress = replace(old, stale=old.stale + 1)
        return False


def begin(
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    find_model: FindModel = Path,
) -> Trainer:
    """A trainer at the newest valid checkpoint, or at the beginning of training."""
    trainer = _create(config, folder, manifest, ranks)
    if not resume(trainer, config, folder, ranks):
        adopt(trainer, config, folder, find_model)
    return trainer


def _create(config: RunConfig, folder: RunFolder, manifest: Manifest, ranks: Ranks) -> Trainer:
    seed, device = config.run.seed, ranks.device
    bilm = BiLM(config.model, keyed_hash(seed, Stream.BILM) >> 1).to(device)
    softmax_seed = keyed_hash(seed, Stream.SOFTMAX) >> 1
    width = config.model.projection_dim
    counts = _train_counts(folder, manifest) if config.train.softmax_init == "unigram" else None
    softmax = Softmax.create(manifest.vocab.size, width, softmax_seed, device, counts)
    optimizer = Optimizer(dict(bilm.named_parameters()), softmax, config.optim)
    states = States.zeros(config.model, len(ranks.lanes(config.train.lanes)), device)
    average = average_of(bilm, softmax, config)
    return Trainer(bilm, softmax, optimizer, states, average=average)


def average_of(bilm: BiLM, softmax: Softmax, config: RunConfig) -> Average | None:
    """The average that `train.average_steps` asks for, before the first update."""
    horizon = config.train.average_steps
    return Average(bilm, softmax, horizon) if horizon else None


def _train_counts(folder: RunFolder, manifest: Manifest) -> Counts:
    """How often the training text has each word of the vocabulary. `<S>`, which the backward model
    predicts, has the count of `</S>`."""
    path = join(folder.corpus, manifest.vocab.counts)
    counts = load_counts(path)
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
    """Restore the newest valid checkpoint, if there is one (rank 0 decides); was there one?"""
    newest = newest_valid(folder.checkpoints, log.warning, at_most) if ranks.rank == 0 else None
    step = ranks.from_first(newest.step if newest else -1)
    if step >= 0:
        restore(trainer, join(folder.checkpoints, folder_name(step)), config, folder, ranks)
    return step >= 0


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
    fresh = _create(config, folder, manifest, ranks)
    adopt(fresh, config, folder, find_model)
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
    trainer.progress = _repeatable(read_state(path), checkpoint)
    if path != Path(checkpoint):  # a copy of one in a store
        shutil.rmtree(path)


def _repeatable(saved: CheckpointState, checkpoint: str) -> CheckpointState:
    """The saved state, with our numerics if this version cannot compute with those of the run."""
    if 1 <= saved.numerics <= NUMERICS:
        return saved
    log.warning(
        "%s was written with numerics %d, and this version has %d: training continues, but not "
        "bit for bit as it would have with the version that wrote it",
        checkpoint,
        saved.numerics,
        NUMERICS,
    )
    return replace(saved, numerics=NUMERICS)


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


def adopt(trainer: Trainer, config: RunConfig, folder: RunFolder, find_model: FindModel) -> None:
    """Start from the model that `train.init_from` names, if it names one: take its biLM, and the
    softmax rows of the words that both have."""
    name = config.train.init_from
    if not name:
        return
    other = load_folder(find_model(name), with_softmax=True)
    if problem := shape_problem(config.model, other.config):
        raise UserError("model-invalid", problem)
    load_tensors(trainer.bilm, model_tensors(other.bilm), source=name)
    if other.softmax is None or other.vocab is None:
        log.info("train.init_from %s has no softmax: that starts fresh", name)
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
    log.info(
        "train.init_from %s: %d of %d words take their softmax rows from it",
        name,
        len(shared),
        trainer.softmax.vocab_size,
    )


def saved_scores(scores: dict[str, Score]) -> Scores:
    """The scores as they are written to a checkpoint and to result.json."""
    return {split: score.saved for split, score in scores.items()}


def saved_probes(scores: dict[str, Score]) -> Probes:
    """The scores of the first sentences of each held-out set."""
    return {split: score.probe for split, score in scores.items() if score.probe}


def _saved_config(config: RunConfig) -> dict[str, Any]:
    """The config as it is written to checkpoints: without passwords, and without a setting that an
    earlier version would refuse, if that has its default."""
    saved: dict[str, Any] = store_all(to_dict(config))
    if not config.eval.final_tokens:
        del saved["eval"]["final_tokens"]
    if not config.train.average_steps:
        del saved["train"]["average_steps"]
    return saved


def snapshot(
    config: RunConfig,
    trainer: Trainer,
    manifest: Manifest,
    attempt: int,
    ranks: Ranks,
    scores: dict[str, Score],
) -> Snapshot:
    """A copy of everything in main memory. Every process must call this: each has some lanes."""
    c = ranks.gather(trainer.states.c, dim=2)
    m = ranks.gather(trainer.states.m, dim=2)
    perplexity, perplexity_states = perplexities_of(saved_scores(scores))

    average = {} if trainer.average is None else trainer.average.state()

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
            **{part: host(own) for part, own in average.items()},
        },
        state=replace(
            trainer.progress,
            attempt=attempt,
            processes=ranks.world,
            device=ranks.device.type,
            machine=machine(),
            libraries=libraries(),
            corpus_fingerprint=manifest.fingerprint,
            evaluation=saved_scores(scores),
            probe=saved_probes(scores),
        ),
        config={
            "format": FORMAT,
            "model": to_dict(config)["model"],
            **(OF_AVERAGE if trainer.ready_average else {}),
            **config_entries(Tokenisation.of_corpus(config.corpus, manifest.rules)),
            "run_config": _saved_config(config),
        },
        perplexity=perplexity,
        tokens=sum(score.saved.tokens for score in scores.values()),
        perplexity_states=perplexity_states,
    )
