"""The state of training, and what a checkpoint of it contains."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import Tensor

from elmwright.jobs.checkpoints.contents import (
    NUMERICS,
    CheckpointState,
    Probes,
    Scores,
    perplexities_of,
)
from elmwright.jobs.checkpoints.writer import Snapshot
from elmwright.jobs.config.resume_settings import for_checkpoint
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.environment.machine_facts import libraries, machine
from elmwright.jobs.secrets.hiding import store_all
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.model.average import Average
from elmwright.model.bilm import BiLM, States
from elmwright.model.formats.folder import (
    FORMAT,
    OF_AVERAGE,
    model_tensors,
)
from elmwright.model.kernels.compile import TORCH
from elmwright.model.kernels.native import kernel_name
from elmwright.model.optim import Optimizer
from elmwright.model.softmax import Softmax
from elmwright.model.text.text_input import config_entries
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.format.manifest import Manifest

log = logging.getLogger("elmwright")

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
    warnings: list[str] = field(default_factory=list)
    """What the user should know about the checkpoints it was restored from."""
    adopted: str = ""
    """A sentence about what was taken from `train.init_from`, if training begins with that."""

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

        Evaluations of different numbers of tokens, or with different states, are not compared. An
        average that takes over may be worse than the last weights for a while, because it still
        holds early ones. So while it gets better, no evaluation counts as one without improvement.
        """
        if not scores:
            return False
        first, old = next(iter(scores.values())).saved, self.progress
        is_comparable = (old.best_of, old.best_states) == (first.tokens, first.states)
        best, average = (old.best, old.best_average) if is_comparable else (None, None)
        is_best = best is None or first.perplexity < best
        is_better = is_best
        if self.ready_average is not None and (average is None or first.perplexity < average):
            average, is_better = first.perplexity, True
        stale = 0 if is_better else old.stale + 1
        self.progress = replace(old, best_average=average, stale=stale)
        if is_best:
            self.progress = replace(
                self.progress,
                best=first.perplexity,
                best_step=old.step,
                best_of=first.tokens,
                best_states=first.states,
            )
        return is_best


def average_of(bilm: BiLM, softmax: Softmax, config: RunConfig) -> Average | None:
    """The average that `train.average_steps` asks for, before the first update."""
    horizon = config.train.average_steps
    return Average(bilm, softmax, horizon) if horizon else None


def saved_scores(scores: dict[str, Score]) -> Scores:
    """The scores as they are written to a checkpoint and to result.json."""
    return {split: score.saved for split, score in scores.items()}


def saved_probes(scores: dict[str, Score]) -> Probes:
    """The scores of the first sentences of each held-out set."""
    return {split: score.probe for split, score in scores.items() if score.probe}


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
            kernels=kernel_name() if ranks.device.type == "cpu" else TORCH,
            corpus_fingerprint=manifest.fingerprint,
            evaluation=saved_scores(scores),
            probe=saved_probes(scores),
        ),
        config={
            "format": FORMAT,
            "model": to_dict(config)["model"],
            **(OF_AVERAGE if trainer.ready_average else {}),
            **config_entries(Tokenisation.of_corpus(config.corpus, manifest.rules)),
            "run_config": store_all(for_checkpoint(to_dict(config))),
        },
        perplexity=perplexity,
        tokens=sum(score.saved.tokens for score in scores.values()),
        perplexity_states=perplexity_states,
    )
