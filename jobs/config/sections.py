"""The run config: one TOML file → one frozen `RunConfig`.

A section belongs to the room that uses it (`[corpus] [vocab] [shards]` to pipeline, `[model]` to
model); this file adds the rest and puts the tree together. How a file is read, checked and
explained is in `toml_file.py`. The string under each field is its documentation.

What may change when a run is resumed is said once, in `RESUMABLE`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from elmwright.model.config import ModelConfig, OptimConfig
from elmwright.pipeline.bounds import Bound, Count, Natural
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, VocabConfig

CONFIG_VERSION = 1
"""Number of the file's layout; a file that says another one is refused with a sentence."""


@dataclass(frozen=True)
class RunSection:
    """What the run is called and where it lives."""

    name: str = "run"
    """Name of the run: letters, digits, '.', '-' and '_'."""
    dir: str = "runs/{name}"
    """Folder that holds everything of the run, or a URL (s3://bucket/runs/x); {name} stands for
    run.name."""
    scratch: str = ""
    """Local folder for caches and temporary files; {dir} and {name} may stand in it. Empty: inside
    run.dir, or in ~/.cache/elmwright where that is a URL."""
    seed: Natural = 1
    """Every draw of the run (shuffle, initial weights, dropout, negatives) comes from this."""


@dataclass(frozen=True)
class TrainSection:
    """The size and length of the training job."""

    processes: Count = 1
    """Data-parallel processes; must divide train.lanes."""
    threads: Count = 1
    """Threads of each process on CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train. "auto" decides when a run first trains, and keeps to it: a GPU for each
    process if the cluster has them, else CPUs. "cuda" waits cluster.wait_minutes for GPUs. A run
    that is sent to a target with gpus has "cuda" in the place of "auto"."""
    bf16: bool = False
    """Autocast the matrix products to bfloat16."""
    lanes: Count = 128
    """Rows of the global batch, all processes together."""
    window: Count = 20
    """Steps of truncated back-propagation."""
    max_steps: Count = 10_000
    """Optimiser steps in all."""
    negatives: Count = 8192
    """Sampled negatives a step; from the vocabulary's size up, the full softmax is trained."""
    dropout: Annotated[
        float, Bound("from 0 up to, but not including, 1", lambda value: 0 <= value < 1)
    ] = 0.1
    """On each layer's input and on the top output."""
    reset_states: Literal["never", "block"] = "never"
    """When a lane's LSTM states go back to zero. The original never does it, and a model that has
    not seen zero states since its first step may need many words to find its feet from them, which
    is where embedding begins; "block" does it at the beginning of every block."""
    accumulate: Count = 1
    """Windows of every lane whose gradients go into one step; tokens a step grow with it."""
    init_from: str = ""
    """MODEL to start from (a bundle, checkpoint, bilm folder, registry or store URI) in place of
    fresh weights. Softmax rows are taken over for words that both know, where it has a softmax."""
    hold_steps: Natural = 0
    """First steps that train only the softmax and hold the biLM still."""
    max_bad_steps: Count = 5
    """Steps in a row whose loss or gradient is not finite before training goes back to the newest
    checkpoint and leaves those updates out."""
    max_restarts: Natural = 3
    """How often failed workers are started again before the run fails."""
    timeout_s: Count = 900
    """Seconds that processes wait for each other before the missing one is given up."""
    cache_mb: Natural = 2048
    """Megabytes of run.scratch that keep blocks of a corpus in an object store, for all processes
    of a machine together; 0 keeps none. A corpus on a disk is read where it is."""

    @property
    def tokens(self) -> int:
        """Tokens a step, all processes together."""
        return self.lanes * self.window * self.accumulate


@dataclass(frozen=True)
class EvalSection:
    """Held-out evaluation, always with the full softmax."""

    every_steps: Natural = 1000
    """Steps between evaluations inside training; 0 evaluates only at the end."""
    max_tokens: Count = 50_000
    """Tokens of each held-out set scored by an evaluation inside training."""
    final_tokens: int = 0
    """Tokens of each held-out set scored when training ends, for the model card. 0 scores all of
    them where the vocabulary has fewer than 100,000 words, else the first 1,000,000."""
    lanes: Count = 16
    """Rows of an evaluation batch, all processes together; must be divisible by the processes."""
    patience: Natural = 0
    """Stop after so many evaluations in a row that did not improve on the best, which is then the
    result; 0 never stops early. The first held-out set counts."""


@dataclass(frozen=True)
class CheckpointSection:
    """When a checkpoint is written and which are kept."""

    every_steps: Count = 500
    """Steps between checkpoints."""
    keep_last: Count = 2
    """Newest checkpoints kept; the best by held-out perplexity is kept besides."""
    keep_every_steps: Natural = 0
    """Checkpoints whose step is a multiple of this are kept for good; 0 for none."""


@dataclass(frozen=True)
class TrackingSection:
    """Where MLflow records the run."""

    uri: str = ""
    """MLflow tracking URI, without a password or token: those are refused here, and belong into
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN, or, for a
    database, the whole address into MLFLOW_TRACKING_URI. Empty: the server or database that
    MLFLOW_TRACKING_URI names, else a SQLite file inside run.dir."""
    experiment: str = "elmwright"
    """Name of the MLflow experiment."""
    every_steps: Count = 10
    """Steps between logged training metrics."""


@dataclass(frozen=True)
class ClusterSection:
    """Which Ray cluster does the work."""

    address: str = ""
    """Address of a running Ray cluster; empty starts one on this machine for the run."""
    cpus: Natural = 0
    """CPUs of the local Ray; 0 takes what the machine has."""
    wait_minutes: Natural = 0
    """Minutes to wait until the cluster has the CPUs and GPUs that training needs, at the start and
    after machines were lost; then the run ends with exit code 75 and can be resumed. 0 does not
    wait."""


@dataclass(frozen=True)
class ExportSection:
    """What the finished model is called in the registry."""

    name: str = "{name}"
    """Registered model name; {name} stands for run.name."""
    alias: str = "candidate"
    """Alias that moves to the new version."""
    licence: str = ""
    """Licence of the published model, for its card, such as "cc-by-4.0"."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    run: RunSection = field(default_factory=RunSection)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    vocab: VocabConfig = field(default_factory=VocabConfig)
    shards: ShardsConfig = field(default_factory=ShardsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainSection = field(default_factory=TrainSection)
    eval: EvalSection = field(default_factory=EvalSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    export: ExportSection = field(default_factory=ExportSection)


RESUMABLE = frozenset(
    {
        "train.processes",
        "train.threads",
        "train.device",
        "train.max_steps",
        "train.max_restarts",
        "train.max_bad_steps",
        "train.timeout_s",
        "train.cache_mb",
        "eval.every_steps",
        "eval.max_tokens",
        "eval.final_tokens",
        "eval.lanes",
        "eval.patience",
    }
)
"""Training settings that may change between attempts; all others of `TRAINING_SECTIONS` may not.
Sections not named there (checkpoint, tracking, cluster, export) may always change."""

TRAINING_SECTIONS = ("model", "optim", "train", "eval")
