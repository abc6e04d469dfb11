"""The sentences of a corpus as a `webdataset` pipeline, for training something else on the shards.

The unit that nodes and workers share out is the block, not the shard. A small corpus has one shard,
and by shards most workers of a large job would get nothing. By blocks, the shares of two nodes
differ by at most one block. The stages are

    every block of the split → split_by_node → split_by_worker → shuffled blocks
                             → read and checked → sentences → shuffled sentences

Sharing out comes before shuffling, as in `webdataset.WebDataset`: whatever seed or epoch a process
has, all of them together see every sentence exactly once per epoch. A process shuffles the shards,
then the blocks within each, by the keyed hash of (seed, epoch). It reads one shard at a time, which
is enough, because documents were shuffled globally when the corpus was built. Last comes a buffer
of sentences.

Blocks are read by `ShardReader`: each is compared with its sha256, in an object store too, and
padding never appears. The stages are plain callables, so that a pipeline can be pickled.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import Block, sentences
from elmwright.pipeline.format.lanes import keyed_hash
from elmwright.pipeline.format.manifest import Manifest, Split
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import join
from elmwright.pipeline.storage.object_store import with_patience

if TYPE_CHECKING:
    from webdataset import FluidWrapper

BUFFER = 10_000
"""Sentences among which the next one is drawn: a few megabytes."""
FETCHES = 8
"""Blocks that are fetched at a time."""

Place = tuple[int, int]
"""(number of the shard in the split, number of the block in the shard)."""


def sentence_pipeline(
    corpus: str, split: str, *, shuffle: int, seed: int, epoch: int, documents: bool
) -> "FluidWrapper":
    """The sentences of one split of the corpus folder (or URL) `corpus`: see `elmwright.shards`."""
    import webdataset

    manifest = Manifest.load(corpus)
    if split not in manifest.splits:
        names = ", ".join(manifest.splits)
        raise UserError("split-missing", f"{corpus} has no split {split!r}; it has {names}")
    chosen = manifest.splits[split]
    if not chosen.blocks:
        raise UserError("split-missing", f"the split {split} of {corpus} is empty; choose another")
    stages = [
        webdataset.split_by_node,
        webdataset.split_by_worker,
        *([Order(seed, epoch)] if shuffle else []),
        Read(corpus, chosen),
        Sentences(documents, tuple(shard.first_document for shard in chosen.shards)),
        *([webdataset.detshuffle(shuffle, shuffle, seed, epoch - 1)] if shuffle else []),
    ]
    return webdataset.FluidWrapper(Places(corpus, chosen)).compose(*stages)


@dataclass(frozen=True)
class Places:
    """Stage: the places of all blocks of a split, in order."""

    corpus: str
    split: Split

    def __call__(self) -> Iterator[Place]:
        """Refuse more nodes than blocks, on all nodes: one without text would hang the others."""
        from webdataset.utils import pytorch_worker_info

        nodes, blocks = pytorch_worker_info()[1], self.split.blocks
        if nodes > blocks:
            raise UserError(
                "setting",
                f"the split {self.split.name} of {self.corpus} has {plural(blocks, 'block')} for "
                f"{nodes} nodes, and each needs at least one; use fewer nodes, or build the corpus "
                "with a smaller shards.block_steps",
            )
        for number, shard in enumerate(self.split.shards):
            for block in range(shard.blocks):
                yield number, block


@dataclass
class Order:
    """Stage: shards in the order of (seed, epoch), and within each its blocks."""

    seed: int
    epoch: int
    """Of the next pass: every pass takes the next one."""

    def __call__(self, places: Iterable[Place]) -> Iterator[Place]:
        epoch, self.epoch = self.epoch, self.epoch + 1

        def rank(place: Place) -> tuple[int, int]:
            return keyed_hash(self.seed, epoch, place[0]), keyed_hash(self.seed, epoch, *place)

        return iter(sorted(places, key=rank))


@dataclass(frozen=True)
class Read:
    """Stage: the blocks at these places, each with the number of its shard."""

    corpus: str
    split: Split

    def __call__(self, places: Iterable[Place]) -> Iterator[tuple[int, Block]]:
        for number, group in groupby(places, lambda place: place[0]):
            shard = self.split.shards[number]
            reader = ShardReader(join(self.corpus, shard.tar), shard)
            for block in _read_ahead(reader, [block for _, block in group]):
                yield number, block


def _read_ahead(reader: ShardReader, blocks: list[int]) -> Iterator[Block]:
    """These blocks in this order, several of them fetched at a time."""
    with ThreadPoolExecutor(FETCHES) as pool:
        coming: deque[Future[Block]] = deque()
        for block in blocks:
            coming.append(pool.submit(with_patience, lambda block=block: reader.read(block)))
            if len(coming) == FETCHES:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


@dataclass(frozen=True)
class Sentences:
    """Stage: the sentences of blocks, as lists of words or with their documents."""

    documents: bool
    first_documents: tuple[int, ...]
    """Documents of the split before each shard."""

    def __call__(self, blocks: Iterable[tuple[int, Block]]) -> Iterator[Any]:
        for shard, block in blocks:
            if not self.documents:
                yield from sentences(block)
                continue
            first = self.first_documents[shard]
            for document, words in zip(block.documents.tolist(), sentences(block), strict=True):
                yield {"document": first + document, "words": words}
