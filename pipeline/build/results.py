"""The results of a build, stage by stage, and what it hands to the end of the build."""

from dataclasses import dataclass, field

from elmwright.pipeline.build.ray_tasks import Runner, Task
from elmwright.pipeline.build.stages.clean import CleanChunk
from elmwright.pipeline.build.stages.keep import KeptPart
from elmwright.pipeline.build.stages.pack import PackedShard, VocabFiles
from elmwright.pipeline.build.stages.select import Part
from elmwright.pipeline.cleaning.funnel import Funnel
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, VocabConfig
from elmwright.pipeline.dedup.clusters import NO_CLUSTERS, Clusters
from elmwright.pipeline.format.manifest import Shard
from elmwright.pipeline.reading.sources import Chunk, SourceFile

WORK = "work"


@dataclass
class Results:
    """The results of the stages that have run so far."""

    files: list[SourceFile] = field(default_factory=list)
    """Every input."""
    digests: list[str] = field(default_factory=list)
    """sha256 of each input, empty for objects in a store."""
    model: str | None = None
    """The file of the sentencepiece model, if there is one."""
    funnel: Funnel = field(default_factory=Funnel)
    cleaned: list[tuple[Chunk, str, CleanChunk]] = field(default_factory=list)
    """Each chunk, the beginning of the names of its output files, and its result."""
    parts: list[tuple[Part, tuple[str, ...]]] = field(default_factory=list)
    """Each part, and the names of the input files it was made from."""
    near: Clusters = NO_CLUSTERS
    kept: list[tuple[Part, KeptPart]] = field(default_factory=list)
    vocab: VocabFiles = field(init=False)
    """There is none before words are counted."""
    shards: list[tuple[str, Task[PackedShard], Shard]] = field(default_factory=list)
    """The split, the task and the result of each shard that has text."""
    perplexity: dict[str, float] = field(default_factory=dict)
    """Unigram perplexity of each held-out set."""


@dataclass(frozen=True)
class Built:
    """A build whose shards are packed: its settings, its work folder, and its results."""

    corpus: CorpusConfig
    vocab: VocabConfig
    shards: ShardsConfig
    seed: int
    folder: str
    """The corpus folder, absolute or a URL."""
    runner: Runner
    results: Results
