"""What a build has found, stage by stage, and what it hands to the end of the build."""

from dataclasses import dataclass, field

from elmwright.pipeline.build.ray_tasks import Report, Runner, Task
from elmwright.pipeline.build.stages.select import Part
from elmwright.pipeline.cleaning.funnel import Funnel
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, VocabConfig
from elmwright.pipeline.reading.sources import Chunk, SourceFile

WORK = "work"


@dataclass
class Found:
    """What the stages of a build have found so far."""

    files: list[SourceFile] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    model: str | None = None
    funnel: Funnel = field(default_factory=Funnel)
    cleaned: list[tuple[Chunk, str, Report]] = field(default_factory=list)
    parts: list[tuple[Part, tuple[str, ...]]] = field(default_factory=list)
    near: Report = field(default_factory=dict)
    kept: list[tuple[Part, Report]] = field(default_factory=list)
    vocab: Report = field(default_factory=dict)
    shards: list[tuple[str, Task, Report]] = field(default_factory=list)
    perplexity: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A build whose shards are packed: its settings, its work folder, and what it found."""

    corpus: CorpusConfig
    vocab: VocabConfig
    shards: ShardsConfig
    seed: int
    folder: str
    """The corpus folder, absolute or a URL."""
    runner: Runner
    found: Found
