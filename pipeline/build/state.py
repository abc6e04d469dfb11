"""A build: its settings, and the results of the stages that have run so far."""

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
class Build:
    """Settings first, then results in the order of the stages."""

    corpus: CorpusConfig
    vocab: VocabConfig
    shards: ShardsConfig
    seed: int
    folder: str
    """The corpus folder, absolute or a URL."""
    runner: Runner
    files: list[SourceFile] = field(default_factory=list)
    """Every input, with the sha256 of those that are not in a store."""
    model: str | None = None
    """The file of the sentencepiece model, if there is one."""
    funnel: Funnel = field(default_factory=Funnel)
    cleaned: list[tuple[Chunk, str, CleanChunk]] = field(default_factory=list)
    """Each chunk, the beginning of the names of its output files, and its result."""
    parts: list[tuple[Part, tuple[str, ...]]] = field(default_factory=list)
    """Each part, and the names of the input files it was made from."""
    near: Clusters = NO_CLUSTERS
    kept: list[tuple[Part, KeptPart]] = field(default_factory=list)
    vocab_files: VocabFiles = field(init=False)
    """Set when words have been counted."""
    packed: list[tuple[str, Task[PackedShard], Shard]] = field(default_factory=list)
    """The split, the task and the result of each shard that has text."""
    perplexity: dict[str, float] = field(default_factory=dict)
    """Unigram perplexity of each held-out set."""

    @property
    def shares(self) -> dict[str, float]:
        """The held-out sets that are shares of the text, by name."""
        heldout = sorted(self.corpus.heldout.items())
        return {name: share for name, share in heldout if isinstance(share, float)}

    @property
    def has_heldout(self) -> bool:
        """Whether any text is held out, as a share or as files."""
        return len(self.shares) < len(self.corpus.heldout) or any(self.shares.values())

    @property
    def train_chunks(self) -> list[tuple[Chunk, CleanChunk]]:
        """The cleaned chunks of train."""
        return [
            (chunk, cleaned) for chunk, _, cleaned in self.cleaned if chunk[0].file.split == "train"
        ]
