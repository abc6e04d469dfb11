"""Dataclasses for result.json and for state.json and MANIFEST.json of a checkpoint.

Fields are in the order of the files. Scores of a model that diverged are infinite.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmwright.jobs.rundir.metrics import Regime
from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import is_digest

NUMERICS = 3
"""The data order and random draws of runs that begin now. A resumed run keeps its own:

1. Lanes change blocks together. Padding enters the states. Until `train.hold_steps` are over,
   AdamW counts updates of weights that are held, and the learning rate follows its schedule.
2. Lanes are staggered. Padding never enters a state. Counts and schedule begin after the hold.
3. Dropout masks come from a hash, on every device.

Their arithmetic is that of the kernels that the checkpoint names.
"""


@dataclass(frozen=True)
class SavedScore:
    """How well a model predicts a held-out set. Files of early versions have fewer fields."""

    perplexity: float
    """exp of the mean negative log-likelihood of both directions; the number to publish. This and
    all other scores are of the regime that `states` names."""
    bits_per_character: float = 0.0
    forward_perplexity: float = 0.0
    backward_perplexity: float = 0.0
    tokens: int = field(kw_only=True)
    """Predictions scored in each direction."""
    forward_nll: float = 0.0
    """Mean negative log-likelihood per token, forward, in nats."""
    backward_nll: float = 0.0
    unk_share: float = 0.0
    """Share of the targets that are `<UNK>`."""
    lanes: int = 0
    """Lanes that the set was divided into; only a carried perplexity depends on them."""
    characters: int = 0
    """Characters of the scored words, and one per word for the space or line end."""
    states: Regime = "carried"
    """How the set was read. Versions that did not write this carried states over."""
    carried_perplexity: float = 0.0
    """With fresh states: the perplexity with states carried over; 0 if not measured."""

    def perplexity_with(self, states: Regime) -> float | None:
        """The perplexity of one regime; None if it was not measured."""
        if states == self.states:
            return self.perplexity
        return (self.carried_perplexity or None) if states == "carried" else None


@dataclass(frozen=True)
class Probe:
    """How well a model predicts the first sentences of a held-out set."""

    sentences: int
    tokens: int
    """Predictions scored in each direction."""
    perplexity: float
    """exp of the mean negative log-likelihood of both directions."""
    states: Regime = "carried"
    """How the sentences were read, as in `SavedScore`."""


Scores = dict[str, SavedScore]
"""Held-out set → its score."""
Probes = dict[str, Probe]


def perplexities_of(scores: Scores) -> tuple[dict[str, float], Regime]:
    """The perplexity on each held-out set, and how the sets were read."""
    regimes = [score.states for score in scores.values()]
    perplexity = {split: score.perplexity for split, score in scores.items()}
    return perplexity, "carried" if "carried" in regimes or not regimes else "fresh"


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """state.json: the state of training besides tensors."""

    step: int
    """Updates made."""
    skipped: tuple[int, ...]
    """Steps whose update was skipped."""
    best: float | None
    """The best mean held-out perplexity of an evaluation during training."""
    best_step: int
    best_of: int
    """Tokens scored by the evaluation at `best_step`."""
    best_states: Regime = "carried"
    """How that evaluation read the text."""
    best_average: float | None = None
    """The best perplexity of the average of the weights; None if that was not evaluated."""
    stale: int
    """Evaluations during training since the last that was the best of its kind: of the last
    weights, or of their average."""
    attempt: int = 0
    processes: int = 1
    device: str = ""
    """cpu or cuda."""
    machine: str = ""
    """A description of the machine."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that compute a step; empty in files of early versions."""
    corpus_fingerprint: str = ""
    numerics: int = 1
    """The `NUMERICS` that the run began with. Checkpoints of early versions lack it."""
    kernels: str = ""
    """The kernels that computed the step (model/kernels); empty for the arithmetic of versions that
    had none, which this one does not repeat."""
    evaluation: Scores
    """The evaluation at this step, if there was one."""
    probe: Probes = field(default_factory=dict)

    @property
    def is_repeatable(self) -> bool:
        """Whether this version computes the steps after it with the same bits."""
        return self.has_known_draws and self.kernels in (NATIVE, TORCH)

    @property
    def has_known_draws(self) -> bool:
        """Whether this version reads the data in the same order, and draws the same numbers."""
        return 1 <= self.numerics <= NUMERICS

    def __post_init__(self) -> None:
        counts = (self.step, self.best_step, self.best_of, self.stale, *self.skipped)
        if min(counts) < 0:
            raise ValueError("a negative count")


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """result.json: the checkpoint that training ended with, and its scores."""

    step: int
    checkpoint: str
    """The name of its folder."""
    checkpoint_sha256: str
    """Digest of its model.safetensors."""
    stopped_early: int = 0
    """`eval.patience` if it ended training, else 0."""
    skipped: int = 0
    """Number of skipped updates."""
    evaluation: Scores
    probe: Probes = field(default_factory=dict)


def contents_data(record: CheckpointState | TrainingResult) -> dict[str, Any]:
    """The JSON object to write to a file, without what is missing or empty."""
    data: dict[str, Any] = to_data(record)
    for name in ("probe", "best_average", "kernels"):
        if not data.get(name, True):
            del data[name]
    return data


def read_result(path: str | Path) -> TrainingResult | None:
    """The result of training; None if it is missing or damaged."""
    try:
        return from_data(TrainingResult, at(path).read_json(), ignore_unknown=True, finite=False)
    except BadField:
        return None


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class CheckpointManifest:
    """MANIFEST.json, without its own digest."""

    format: int
    step: int
    perplexity: dict[str, float]
    """Mean held-out perplexity by split; empty where none was computed at this step."""
    tokens: int
    """Held-out tokens that `perplexity` was computed on."""
    files: dict[str, FileEntry]
    perplexity_states: Regime = "carried"
    """How the text was read for `perplexity`."""

    def __post_init__(self) -> None:
        if "model.safetensors" not in self.files:
            raise ValueError("it names no model.safetensors")
        for name, entry in self.files.items():
            if not re.fullmatch(r"[\w.-]{1,100}", name) or name in (".", ".."):
                raise ValueError(f"it names a file outside its folder: {name!r:.100}")
            if entry.bytes < 0 or not is_digest(entry.sha256):
                raise ValueError(f"it has no valid size and digest of {name}")
        if self.step < 0 or self.tokens < 0:
            raise ValueError("its step or tokens are negative")
