"""The run config: one TOML file → one frozen `RunConfig`.

A section belongs to the package that uses it (`[corpus] [vocab] [shards]` to pipeline, `[model]`
and `[optim]` to model); the others are here. `toml_file.py` reads and checks a file. The string
under each field is its documentation.

`RESUMABLE` lists what may change when a run is resumed.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from elmwright.model.config import ModelConfig, OptimConfig, Precision
from elmwright.pipeline.bounds import Bound, Count, Natural
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, VocabConfig

CONFIG_VERSION = 1
"""Number of the file's layout; a file with another one is refused."""


@dataclass(frozen=True)
class RunSection:
    """The name of the run and its folders."""

    name: str = "run"
    """Name of the run: letters, digits, '.', '-' and '_'."""
    dir: str = "runs/{name}"
    """Folder of all files of the run, or a URL (s3://bucket/runs/x); {name} is replaced by
    run.name."""
    scratch: str = ""
    """Local folder for caches and temporary files; {dir} and {name} are replaced. Empty: inside
    run.dir, or in ~/.cache/elmwright if that is a URL."""
    seed: Natural = 1
    """Seed of all random numbers of the run (shuffle, initial weights, dropout, negatives)."""


@dataclass(frozen=True)
class TrainSection:
    """The size and length of the training job."""

    processes: Count = 1
    """Data-parallel processes; must divide train.lanes."""
    threads: Count = 1
    """CPU threads per process."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train. "auto" decides when a run first trains and keeps the choice: one GPU per
    process if the cluster has them, else CPUs. "cuda" waits cluster.wait_minutes for GPUs. A run
    that is sent to a target with gpus uses "cuda" instead of "auto"."""
    precision: Precision = "fp32"
    """What products of matrices read. "fp32": float32, in which a run is exact. "bf16": operands
    rounded to bfloat16; weights, cells, losses and the optimiser stay in float32. Faster on GPUs
    and on CPUs with the instructions (elmwright check measures it), and slow on others. "tf32":
    operands rounded to 11 bits, on GPUs only. "bf16-encoder" is bf16 in the token encoder alone,
    which is what bf16 = true of earlier versions means."""
    lanes: Count = 128
    """Rows of the global batch, all processes together."""
    window: Count = 20
    """Steps of truncated back-propagation."""
    max_steps: Count = 10_000
    """Optimiser steps of the whole run."""
    negatives: Count = 8192
    """Sampled negatives per step; from the vocabulary's size up, the full softmax is trained."""
    dropout: Annotated[
        float, Bound("from 0 up to, but not including, 1", lambda value: 0 <= value < 1)
    ] = 0.1
    """Dropout on each layer's input and on the top output."""
    reset_states: Literal["sentence", "block", "never"] = "sentence"
    """When a lane's LSTM states are reset to zero. Embedding reads every sentence from zero states,
    so a model should know them: "sentence" resets at the start of a share of all sentences
    (train.reset_share), so that it reads well from zero and from what came before. "block" resets
    at the start of every block. "never" is the original's way, after which a model may need many
    words to recover from zero states."""
    reset_share: Annotated[float, Bound("from 0 to 1", lambda value: 0 <= value <= 1)] = 0.5
    """The share of sentences that start from zero, if train.reset_states is "sentence"."""
    accumulate: Count = 1
    """Windows of every lane whose gradients are added up in one step; multiplies the tokens per
    step."""
    init_from: str = ""
    """MODEL to start from (a run, bundle, checkpoint, bilm folder, registry or store URI) instead
    of random weights. A relative path means the folder in which the command is typed. Settings of
    [model] that are left at their defaults become those of this model. If it has a softmax, the
    rows of words that both know are copied."""
    softmax_init: Literal["unigram", "zero"] = "unigram"
    """How the softmax starts. "unigram": biases are the log of each word's share of the training
    text, with small random rows. "zero": biases of 0 and larger rows, as in the original. Rows
    copied by train.init_from replace both."""
    hold_steps: Natural = 0
    """Steps at the beginning that train only the softmax and freeze the biLM. optim.schedule
    starts after them."""
    average_steps: Natural = 0
    """Average the weights of about this many of the last updates (an exponential moving average).
    After as many updates, evaluation and export use the average instead of the last weights. 0 does
    not average."""
    max_bad_steps: Count = 5
    """Steps in a row whose loss or gradient is not finite before training returns to the newest
    checkpoint and skips those updates."""
    max_restarts: Natural = 3
    """How often failed workers are restarted before the run fails."""
    timeout_s: Count = 900
    """Seconds that processes wait for each other before a missing one counts as lost."""
    cache_mb: Natural = 2048
    """Megabytes of run.scratch for cached blocks of a corpus in an object store, for all processes
    of a machine together; 0 caches none. A corpus on a disk needs no cache."""

    @property
    def tokens(self) -> int:
        """Tokens per step, all processes together."""
        return self.lanes * self.window * self.accumulate


@dataclass(frozen=True)
class EvalSection:
    """Held-out evaluation, always with the full softmax."""

    every_steps: Natural = 1000
    """Steps between evaluations during training; 0 evaluates only at the end."""
    max_tokens: Count = 50_000
    """Tokens of each held-out set that an evaluation during training scores."""
    final_tokens: int = 0
    """Tokens of each held-out set that are scored when training ends, for the model card. 0 scores
    all of them if the vocabulary has fewer than 100,000 words, else the first 1,000,000."""
    lanes: Count = 16
    """Rows of an evaluation batch, all processes together; must be divisible by the processes. Only
    the perplexity with states carried over depends on it, a little."""
    patience: Natural = 0
    """Stop after this many evaluations in a row without a new best, which is then the result; 0
    never stops early. The first held-out set counts."""


@dataclass(frozen=True)
class CheckpointSection:
    """When checkpoints are written and which are kept."""

    every_steps: Count = 500
    """Steps between checkpoints."""
    keep_last: Count = 2
    """How many of the newest checkpoints are kept, besides the best by held-out perplexity."""
    keep_every_steps: Natural = 0
    """Checkpoints whose step is a multiple of this are never removed; 0 for none."""


@dataclass(frozen=True)
class TrackingSection:
    """Where MLflow records the run."""

    uri: str = ""
    """MLflow tracking URI. A password or token is refused here; set MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, or, for a database, put the whole address
    into MLFLOW_TRACKING_URI. Empty: the server or database that MLFLOW_TRACKING_URI names, else a
    SQLite file inside run.dir."""
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
    """CPUs of the local Ray; 0 uses all of the machine."""
    wait_minutes: Natural = 0
    """Minutes to wait for the CPUs and GPUs that training needs, at the start and after machines
    were lost; then the run ends with exit code 75 and can be resumed. 0 does not wait."""


@dataclass(frozen=True)
class ExportSection:
    """Name, alias and licence of the finished model in the registry."""

    name: str = "{name}"
    """Name of the registered model; {name} is replaced by run.name."""
    alias: str = "candidate"
    """Alias that moves to the new version."""
    licence: str = ""
    """Licence of the published model, for the model card, such as "cc-by-4.0"."""
    example: bool = True
    """Whether the bundle, its card and the registry show a short sentence of the held-out text as
    an example. Set it to false where the text is private."""


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run."""

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
    "train.processes train.threads train.device train.max_steps train.max_restarts "
    "train.max_bad_steps train.timeout_s train.cache_mb eval.every_steps eval.max_tokens "
    "eval.final_tokens eval.lanes eval.patience".split()
)
"""Settings of `TRAINING_SECTIONS` that may change when a run is resumed. Sections that are not
listed there (checkpoint, tracking, cluster, export) may always change."""

TRAINING_SECTIONS = ("model", "optim", "train", "eval")
