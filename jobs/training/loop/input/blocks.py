"""Reads the blocks of a split from a disk or an object store, ready to be cut into windows.

Several threads fetch blocks before they are needed, so that no step waits for a store, or for the
preparation of many blocks at once. Every block is checked against the manifest when it is read
(`format/shards.py`), and blocks of a store are kept on the local disk, up to a limit
(`block_cache.py`).
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from elmwright.jobs.training.loop.input.block_cache import BlockCache
from elmwright.model.chars import char_ids
from elmwright.pipeline.format import pieces
from elmwright.pipeline.format.block import Block, remap, streams
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.storage.files import join
from elmwright.pipeline.storage.object_store import with_patience

Array = NDArray[Any]
FETCHES = 8
"""Blocks that are fetched at the same time."""
ATTEMPTS = 8
"""Attempts to read a block when the store drops the connection: over two minutes in all."""
OPEN_INDEXES = 1024
"""Number of shards whose indexes a process keeps in memory."""


@dataclass(frozen=True)
class Row:
    """A block, ready to be cut into windows."""

    chars: Array
    """[types, max_chars] character ids."""
    keys: Array
    """[types] hashes of the spellings."""
    inputs: Array
    """[2, steps] rows of `chars`, forward and backward."""
    targets: Array
    """[2, steps] vocabulary ids."""
    weights: Array
    firsts: Array
    """[sentences] The first step of each sentence, in both directions."""
    ends: Array
    """[sentences] Number of steps up to the end of each sentence."""
    characters: int
    """Characters of the text, with one space after each word."""


class Blocks:
    """Random access to the blocks of one split; those used last are kept in memory."""

    def __init__(
        self,
        corpus: str | Path,
        manifest: Manifest,
        split: str,
        max_chars: int,
        word_ids: Mapping[str, int] | None = None,
        keep: int = 64,
        cache: BlockCache | None = None,
        widest: int | None = None,
    ) -> None:
        """Up to `keep` blocks are kept in memory. With `widest`, the width of the model's widest
        filter, character ids are trimmed to what the words of a block need (`char_ids`)."""
        self._widest = widest
        self._shards = manifest.splits[split].shards
        self._corpus, self._cache = corpus, cache
        self._starts = np.cumsum([0, *(shard.blocks for shard in self._shards)])
        self._readers: OrderedDict[int, Future[ShardReader]] = OrderedDict()
        self._readers_lock = threading.Lock()
        self._max_chars, self._word_ids, self._keep = max_chars, word_ids, keep
        self._rows: OrderedDict[int, Row] = OrderedDict()
        self._loading: dict[int, Future[Row]] = {}
        self._pool = ThreadPoolExecutor(FETCHES, "fetch")
        self.steps = manifest.block_steps
        corpus_settings = manifest.config.get("corpus", {})
        self._are_pieces = corpus_settings.get("tokenizer") == "sentencepiece"

    def __len__(self) -> int:
        return int(self._starts[-1])

    def fetch(self, numbers: Iterable[int]) -> None:
        """Start loading these blocks in the background, so that `row` need not wait for them."""
        for number in numbers:
            if number not in self._rows and number not in self._loading:
                self._loading[number] = self._pool.submit(self._load, number)

    def row(self, number: int) -> Row:
        """A block; waits if it is still being loaded."""
        row = self._rows.pop(number, None)
        if row is None:
            loading = self._loading.pop(number, None)
            row = loading.result() if loading else self._load(number)
        self._rows[number] = row
        while len(self._rows) > self._keep:
            self._rows.popitem(last=False)
        return row

    def cancel_loading(self) -> None:
        """Cancel the loading of blocks that were not read."""
        while self._loading:
            self._loading.popitem()[1].cancel()

    def _load(self, number: int) -> Row:
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        within_shard = number - int(self._starts[shard])
        block = with_patience(lambda: self._reader(shard).read(within_shard), ATTEMPTS)
        return self._prepare(block if self._word_ids is None else remap(block, self._word_ids))

    def _reader(self, shard: int) -> ShardReader:
        """The reader of a shard, whose index is kept in memory."""
        with self._readers_lock:
            known = self._readers.pop(shard, None)
            reader = known or Future()
            self._readers[shard] = reader
            while len(self._readers) > OPEN_INDEXES:
                self._readers.popitem(last=False)
        if known is None:
            self._open(shard, reader)
        return reader.result()

    def _open(self, shard: int, reader: Future[ShardReader]) -> None:
        entry = self._shards[shard]
        cache = self._cache.get_or_read if self._cache else None
        try:
            reader.set_result(ShardReader(join(self._corpus, entry.tar), entry, cache))
        except BaseException as error:
            with self._readers_lock:
                self._readers.pop(shard, None)
            reader.set_exception(error)

    def _prepare(self, block: Block) -> Row:
        s = streams(block)
        keys = [xxhash.xxh3_64_intdigest(word.encode("utf-8")) for word in block.types]
        ends = np.cumsum(block.lengths + 1)
        return Row(
            chars=char_ids(block.types, self._max_chars, self._widest).astype(np.int16),
            keys=np.array(keys, dtype=np.uint64),
            inputs=np.stack([s.forward_inputs, s.backward_inputs]),
            targets=block.ids[np.stack([s.forward_targets, s.backward_targets])],
            weights=s.weights,
            firsts=ends - block.lengths - 1,
            ends=ends,
            characters=self._characters(block),
        )

    def _characters(self, block: Block) -> int:
        """Characters of a block's text. Pieces have the spaces in them, words have one between."""
        if self._are_pieces:
            sizes = list(map(pieces.characters, block.types))
        else:
            sizes = [len(word) + 1 for word in block.types]
        return int(np.array(sizes)[block.tokens].sum())
