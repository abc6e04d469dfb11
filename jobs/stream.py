"""From blocks on disk to batches for the model.

The position in the data is a pure function of (seed, step): see `pipeline.lanes`. This file only
fetches. Each lane reads its own block; a batch gathers the same window of every lane, finds the
distinct words among all of them (by a 64-bit key of the surface form, computed once a block) and
carries those words' characters, the positions that refer to them, and the targets of both
directions. A background thread stays a few batches ahead.
"""

import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from elmwright.model.chars import char_ids
from elmwright.pipeline.block import Block, remap, streams
from elmwright.pipeline.files import join
from elmwright.pipeline.lanes import block_at
from elmwright.pipeline.manifest import Manifest
from elmwright.pipeline.shards import ShardReader

Array = NDArray[Any]
AHEAD = 4
"""Batches prepared ahead of the model."""
OPEN_SHARDS = 128
"""Shards a process keeps open."""


@dataclass(frozen=True)
class Batch:
    """One window of several lanes."""

    chars: Array
    """[types, max_chars] character ids of the distinct input words, trimmed to the longest."""
    forward_index: Array
    """[lanes, window] rows of `chars`: inputs of the forward language model."""
    backward_index: Array
    """[lanes, window] rows of `chars`: inputs of the backward language model."""
    forward_targets: Array
    """[lanes, window] vocabulary ids."""
    backward_targets: Array
    """[lanes, window] vocabulary ids."""
    weights: Array
    """[lanes, window] 1 for a real step, 0 for padding."""


@dataclass(frozen=True)
class _Row:
    """A block, ready to be cut into windows."""

    chars: Array
    keys: Array
    inputs: Array
    """[2, steps] type indices, forward and backward."""
    targets: Array
    """[2, steps] vocabulary ids."""
    weights: Array


class Blocks:
    """Random access to the blocks of one split, with the rows in use kept ready."""

    def __init__(
        self,
        corpus: str | Path,
        manifest: Manifest,
        split: str,
        max_chars: int,
        word_ids: Mapping[str, int] | None = None,
        keep: int = 64,
    ) -> None:
        shards = manifest.splits[split].shards
        self._tars = [join(corpus, shard.tar) for shard in shards]
        self._starts = np.cumsum([0, *(shard.blocks for shard in shards)])
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()
        self._max_chars, self._word_ids, self._keep = max_chars, word_ids, keep
        self._rows: OrderedDict[int, _Row] = OrderedDict()
        self.steps = manifest.block_steps

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row(self, number: int) -> _Row:
        row = self._rows.pop(number, None)
        if row is None:
            shard = int(np.searchsorted(self._starts, number, side="right")) - 1
            block = self._reader(shard).read(number - int(self._starts[shard]))
            row = self._prepare(block if self._word_ids is None else remap(block, self._word_ids))
        self._rows[number] = row
        while len(self._rows) > self._keep:
            self._rows.popitem(last=False)
        return row

    def _reader(self, shard: int) -> ShardReader:
        """An open shard; a corpus has more shards than a process may have open files."""
        reader = self._readers.pop(shard, None)
        if reader is None:
            reader = ShardReader(self._tars[shard])
        self._readers[shard] = reader
        while len(self._readers) > OPEN_SHARDS:
            self._readers.popitem(last=False)[1].close()
        return reader

    def _prepare(self, block: Block) -> _Row:
        s = streams(block)
        keys = [xxhash.xxh3_64_intdigest(word.encode("utf-8")) for word in block.types]
        return _Row(
            chars=char_ids(block.types, self._max_chars).astype(np.int16),
            keys=np.array(keys, dtype=np.uint64),
            inputs=np.stack([s.forward_inputs, s.backward_inputs]),
            targets=block.ids[np.stack([s.forward_targets, s.backward_targets])],
            weights=s.weights,
        )


def make_batch(rows: Sequence[tuple[_Row, int] | None], window: int) -> Batch:
    """Put one window of each lane together; a lane without data is padding of weight 0."""
    present = [item for item in rows if item is not None]
    n, first = len(rows), present[0][0]
    keys = np.full((n, 2, window), first.keys[0], dtype=np.uint64)
    chars = np.empty((n, 2, window, first.chars.shape[1]), dtype=np.int16)
    chars[:] = first.chars[0]
    targets = np.zeros((n, 2, window), dtype=np.int64)
    weights = np.zeros((n, window), dtype=np.float32)
    for lane, item in enumerate(rows):
        if item is None:
            continue
        row, start = item
        part = slice(start, start + window)
        inputs = row.inputs[:, part]
        keys[lane] = row.keys[inputs]
        chars[lane] = row.chars[inputs]
        targets[lane] = row.targets[:, part]
        weights[lane] = row.weights[part]
    _, where, inverse = np.unique(keys.reshape(-1), return_index=True, return_inverse=True)
    types = chars.reshape(-1, chars.shape[-1])[where]
    index = inverse.reshape(n, 2, window)
    return Batch(
        chars=types.astype(np.int64),
        forward_index=np.ascontiguousarray(index[:, 0]),
        backward_index=np.ascontiguousarray(index[:, 1]),
        forward_targets=np.ascontiguousarray(targets[:, 0]),
        backward_targets=np.ascontiguousarray(targets[:, 1]),
        weights=weights,
    )


def training_batch(
    blocks: Blocks, seed: int, step: int, lanes: range, total_lanes: int, window: int
) -> Batch:
    """The batch of these lanes at this step."""
    per_block = blocks.steps // window
    rows: list[tuple[_Row, int] | None] = []
    for lane in lanes:
        _, number, part = block_at(seed, step, lane, total_lanes, len(blocks), per_block)
        rows.append((blocks.row(number), part * window))
    return make_batch(rows, window)


def evaluation_batches(
    blocks: Blocks, count: int, lanes: range, total_lanes: int, window: int
) -> Iterator[Batch]:
    """The first `count` blocks, each exactly once: lane i reads blocks i, i+N, i+2N, …

    Every process yields the same number of batches, whichever lanes it has.
    """
    rounds = -(-count // total_lanes)
    for turn in range(rounds):
        numbers = [turn * total_lanes + lane for lane in lanes]
        for start in range(0, blocks.steps, window):
            rows = [(blocks.row(n), start) if n < count else None for n in numbers]
            if all(row is None for row in rows):
                rows[0] = (blocks.row(0), start)
                batch = make_batch(rows, window)
                batch.weights[:] = 0
                yield batch
            else:
                yield make_batch(rows, window)


class Prefetch:
    """Batches from step `start` on, prepared by a background thread."""

    def __init__(
        self, blocks: Blocks, seed: int, start: int, lanes: range, total_lanes: int, window: int
    ) -> None:
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=AHEAD)
        self._stop = threading.Event()

        def work() -> None:
            step = start
            try:
                while not self._stop.is_set():
                    batch = training_batch(blocks, seed, step, lanes, total_lanes, window)
                    self._put(batch)
                    step += 1
            except BaseException as error:
                self._put(error)

        self._thread = threading.Thread(target=work, name="prefetch", daemon=True)
        self._thread.start()

    def _put(self, item: Batch | BaseException) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def next(self) -> Batch:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
