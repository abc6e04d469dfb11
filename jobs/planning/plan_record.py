"""The plan of a run as data: the result of `elmwright check`, which `--json` prints."""

import json
from dataclasses import dataclass

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.secrets.hiding import hide_all
from elmwright.pipeline.records import to_data


@dataclass(frozen=True)
class Parameters:
    """How many numbers the model learns."""

    encoder: int
    lstm: int
    softmax: int


@dataclass(frozen=True)
class SourceSize:
    """The files of one entry of corpus.sources."""

    path: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Sample:
    """Properties of a sample of the text."""

    documents: int
    broken: dict[str, int]
    """Records that cannot be read, by reason."""
    whole: bool
    """Whether the sample is all of the text."""
    kept_words: float
    """Share of the words that the rules keep."""
    languages: dict[str, float]
    """Code → share of the characters, the largest first."""
    longest_characters: int
    """Characters of the longest document."""


@dataclass(frozen=True)
class Vocabulary:
    """Size of the vocabulary: an upper limit unless it is `known`."""

    words: int
    known: bool


@dataclass(frozen=True)
class TextSize:
    """How much text there is: an estimate unless it is `known`."""

    tokens: int
    """Tokens to train on."""
    heldout_tokens: int
    heldout_sets: dict[str, int]
    bytes: int
    known: bool


@dataclass(frozen=True)
class Cores:
    """CPU cores that training needs, and those of this machine."""

    processes: int
    threads: int
    here: int


@dataclass(frozen=True)
class Disk:
    """Bytes that the run still needs, and those that are free."""

    needed: int
    free: int
    where: str


@dataclass(frozen=True)
class Processor:
    """What this machine's processor computes a step with."""

    kernels: str
    """The kernels in use (model/kernels): c-1 or torch."""
    why_torch: str
    """Why they are torch's; empty if they are not."""
    has_bf16: bool
    """Whether it multiplies matrices of bfloat16 itself."""
    bf16_gain: float
    """How many times as fast such a product is as one of float32; 0 if it was not measured."""


@dataclass(frozen=True)
class Speed:
    """How fast all training processes together are."""

    tokens_per_s: float
    measured: bool = False
    """Whether the speed was measured; else it is a rule of thumb."""
    text: str = ""
    """The text that was measured on."""
    steps: int = 0
    """Steps that were measured."""
    seconds: float = 0.0
    """How long those took."""


@dataclass(frozen=True, kw_only=True)
class Time(Speed):
    """Seconds that the rest of the run takes on this machine, stage by stage."""

    corpus: float
    """Building the corpus; 0 if it is finished."""
    train: float
    """The steps that are left."""
    evaluate: float
    """Evaluations during and after training, and export's comparison."""
    start: float
    """Starting programs."""
    total: float
    steps_left: int
    gflops_per_core: float


@dataclass(frozen=True)
class MlflowServer:
    """Whether the MLflow of the run answers; `note` says why not."""

    uri: str
    answers: bool
    note: str


@dataclass(frozen=True)
class Store:
    """Whether an object store answers."""

    answers: bool


@dataclass(frozen=True)
class Reachable:
    """The servers that a run needs."""

    mlflow: MlflowServer
    stores: dict[str, Store]


@dataclass(frozen=True)
class BaseModel:
    """train.init_from, and the folder of that model if it was found."""

    model: str
    folder: str


@dataclass(frozen=True)
class Plan:
    """What a run consists of, what it costs, and what is wrong with its config."""

    config: RunConfig
    hash: str
    parameters: Parameters
    sizes: dict[str, str]
    """Sizes in words, by name."""
    sources: tuple[SourceSize, ...]
    sample: Sample | None
    """None where there is no text to sample."""
    vocabulary: Vocabulary
    text: TextSize
    cores: Cores
    processor: Processor | None
    """None for a run that trains elsewhere or on GPUs."""
    cluster: str
    pending: tuple[str, ...]
    """The first stage that is not done, and all after it."""
    disk: Disk
    time: Time | None
    """None for a run on a cluster."""
    reachable: Reachable
    init_from: BaseModel
    problems: tuple[str, ...]
    """Mistakes for which the run would be refused."""
    warnings: tuple[str, ...] = ()
    """Settings that work, but perhaps not as intended."""


def plan_json(plan: Plan) -> str:
    """The plan as JSON, without secrets: the config as saved, each store beside MLflow."""
    data = to_data(plan)
    data["config"] = shown_config(plan)
    data["reachable"] |= data["reachable"].pop("stores")
    if plan.time and not plan.time.measured:
        for key in ("text", "steps", "seconds"):
            del data["time"][key]
    return json.dumps(data, indent=1)


def shown_config(plan: Plan) -> dict[str, object]:
    """The resolved config without secrets."""
    return dict(hide_all(to_dict(plan.config)))
