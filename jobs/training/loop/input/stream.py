"""Makes batches for the model from the blocks of a corpus.

The position in the data is a pure function of (seed, step): see `format/lanes.py`. Each lane reads
its own block. A batch has the same window of every lane: the characters of its distinct words
(found by a 64-bit key of the spelling, computed once per block), the positions that refer to them,
and the targets of both directions. A background thread stays a few batches ahead.

Lanes move to their next blocks at different steps (in runs begun by early versions, all at the
same), and `blocks.py` fetches these blocks during the steps before.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.training.loop.input.blocks import Array, Blocks, Row
from elmwright.model.chars import PAD
from elmwright.pipeline.format.lanes import Stream, block_at, hash64, phase

T = TypeVar("T")
AHEAD = 4
"""Steps prepared ahead of the model."""


@dataclass(frozen=True)
class Batch:
    """The same window of several lanes."""

    chars: Tensor
    """[types, max_chars] character ids of the distinct input words, trimmed to the longest."""
    forward_index: Tensor
    """[lanes, window] rows of `chars`: inputs of the forward language model."""
    backward_index: Tensor
    """[lanes, window] rows of `chars`: inputs of the backward language model."""
    forward_targets: Tensor
    """[lanes, window] vocabulary ids."""
    backward_targets: Tensor
    """[lanes, window] vocabulary ids."""
    weights: Tensor
    """[lanes, window] 1 for a real step, 0 for padding, which only follows real steps."""
    starts: Tensor
    """[lanes, window] whether a sentence starts here, in both directions."""
    resets: Tensor | None = None
    """[lanes, window] whether a lane forgets its states before this step; None if none does."""
    lengths: Tensor | None = None
    """[lanes] real steps of each lane; None if there is no padding, or it may enter the states."""

    def pinned(self) -> "Batch":
        """A copy in page-locked memory, from which a GPU copies while it computes."""
        return self._map(Tensor.pin_memory)

    def to_device(self, device: torch.device) -> "Batch":
        """The batch on a device; returns before a `pinned` batch has been copied."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: move(tensor) for name, tensor in tensors.items() if tensor is not None}
        return replace(self, **moved)


@dataclass(frozen=True)
class Reading:
    """How training reads the blocks of a corpus: with the step, all that decides a batch."""

    seed: int
    lanes: int
    """Of all processes together."""
    window: int
    reset_states: Literal["sentence", "block", "never"] = "never"
    reset_share: float = 0.5
    """Share of the sentences before which a lane forgets, if `reset_states` is "sentence"."""
    is_staggered: bool = True
    keeps_padding_out: bool = True
    """Whether states after a block are those before its padding."""

    @classmethod
    def of_run(cls, config: RunConfig, numerics: int) -> "Reading":
        """How a run reads that began with these `numerics` (checkpoints/contents.py)."""
        train, is_new = config.train, numerics > 1
        return cls(
            seed=config.run.seed,
            lanes=train.lanes,
            window=train.window,
            reset_states=train.reset_states,
            reset_share=train.reset_share,
            is_staggered=is_new,
            keeps_padding_out=is_new,
        )


def make_batch(rows: Sequence[tuple[Row, int] | None], window: int) -> Batch:
    """A batch of one window per lane: `rows` lists (row, first step of the window).

    A lane without data (None) is padding of weight 0.
    """
    present = [item for item in rows if item is not None]
    n, first = len(rows), present[0][0]
    keys = np.full((n, 2, window), first.keys[0], dtype=np.uint64)
    inputs = np.zeros((n, 2 * window), dtype=np.int64)
    targets = np.zeros((n, 2, window), dtype=np.int64)
    weights = np.zeros((n, window), dtype=np.float32)
    starts = np.zeros((n, window), dtype=bool)
    for lane, item in enumerate(rows):
        if item is None:
            continue
        row, start = item
        part = slice(start, start + window)
        inputs[lane] = row.inputs[:, part].reshape(-1)
        keys[lane] = row.keys[row.inputs[:, part]]
        targets[lane] = row.targets[:, part]
        weights[lane] = row.weights[part]
        sentences = _sentences_in(row, start, window)
        starts[lane, row.firsts[sentences] - start] = True
    _, first_places, inverse = np.unique(keys.reshape(-1), return_index=True, return_inverse=True)
    # Characters only for distinct words, each from the lane where it occurs first.
    types = np.full(
        (len(first_places), max(row.chars.shape[1] for row, _ in present)), PAD, np.int64
    )
    source, position = np.divmod(first_places, 2 * window)
    for lane, item in enumerate(rows):
        from_lane = source == lane
        chars = (first if item is None else item[0]).chars
        types[from_lane, : chars.shape[1]] = chars[inputs[lane, position[from_lane]]]
    index = inverse.reshape(n, 2, window)
    forward, backward = np.ascontiguousarray(index.swapaxes(0, 1))
    forward_targets, backward_targets = np.ascontiguousarray(targets.swapaxes(0, 1))
    arrays = (types, forward, backward, forward_targets, backward_targets, weights, starts)
    return Batch(*map(torch.from_numpy, arrays))


def training_batch(blocks: Blocks, reading: Reading, step: int, lanes: range) -> Batch:
    """The batch of these lanes at this step."""
    window, per_block = reading.window, blocks.steps // reading.window

    def number(lane: int, at_step: int) -> int:
        return block_at(reading.seed, at_step, lane, reading.lanes, len(blocks), per_block)[1]

    steps = [
        step + (phase(lane, reading.lanes, per_block) if reading.is_staggered else 0)
        for lane in lanes
    ]
    numbers = [number(lane, at_step) for lane, at_step in zip(lanes, steps, strict=True)]
    blocks.fetch(numbers)
    blocks.fetch(
        number(lane, at_step + per_block)
        for place, (lane, at_step) in enumerate(zip(lanes, steps, strict=True))
        # If all lanes change blocks at once, their fetches are spread over the steps before.
        if reading.is_staggered or place < (at_step % per_block + 1) * len(lanes) // per_block
    )
    turns = [divmod(at_step, per_block) for at_step in steps]
    rows = [blocks.row(number) for number in numbers]
    pairs = [(row, part * window) for row, (_, part) in zip(rows, turns, strict=True)]
    batch = make_batch(pairs, window)
    resets = np.zeros((len(lanes), window), bool)
    for place, (lane, (turn, part)) in enumerate(zip(lanes, turns, strict=True)):
        resets[place, _reset_steps(reading, rows[place], turn, part, lane)] = True
    lengths = batch.weights.sum(1).long()
    has_padding = reading.keeps_padding_out and bool((lengths < window).any())
    return replace(
        batch,
        resets=torch.from_numpy(resets) if resets.any() else None,
        lengths=lengths if has_padding else None,
    )


def _reset_steps(reading: Reading, row: Row, turn: int, part: int, lane: int) -> Array | list[int]:
    """The steps of a lane's window before which it forgets its states."""
    if reading.reset_states == "never":
        return []
    if reading.reset_states == "block":
        return [0] if part == 0 else []
    start = part * reading.window
    sentences = _sentences_in(row, start, reading.window)
    # A coin for each sentence, which depends on nothing but the seed and its place in the data.
    coins = hash64(sentences, reading.seed, Stream.RESETS, turn, lane)
    is_reset = (coins >> np.uint64(11)) * 2.0**-53 < reading.reset_share
    steps: Array = row.firsts[sentences[is_reset]] - start
    return steps


def _sentences_in(row: Row, start: int, window: int) -> Array:
    """The numbers of a block's sentences that begin in a window."""
    return np.arange(*np.searchsorted(row.firsts, [start, start + window]))


def evaluation_rounds(
    blocks: Blocks, count: int, lanes: range, total_lanes: int
) -> Iterator[list[Row | None]]:
    """The first `count` blocks, each exactly once, in rounds of one block per lane: lane i reads
    blocks i, i+N, i+2N, … It has None in a round without a block for it.

    Every process yields the same number of rounds, whichever lanes it has.
    """
    for turn in range(-(-count // total_lanes)):
        numbers = [turn * total_lanes + lane for lane in lanes]
        blocks.fetch(n for n in numbers if n < count)
        yield [blocks.row(n) if n < count else None for n in numbers]


def round_batches(blocks: Blocks, rows: Sequence[Row | None], window: int) -> Iterator[Batch]:
    """A batch for each window of a round's blocks; its weights are 0 if no lane has a block."""
    for start in range(0, blocks.steps, window):
        if any(row is not None for row in rows):
            yield make_batch([None if row is None else (row, start) for row in rows], window)
        else:
            batch = make_batch([(blocks.row(0), start), *[None] * (len(rows) - 1)], window)
            batch.weights[:] = 0
            yield batch


class Prefetch(Generic[T]):
    """What `prepare` makes for each step from `start` on, by a background thread."""

    def __init__(self, prepare: Callable[[int], T], start: int, blocks: Blocks) -> None:
        self._blocks = blocks
        self._queue: queue.Queue[T | BaseException] = queue.Queue(maxsize=AHEAD)
        self._stop = threading.Event()

        def work() -> None:
            step = start
            try:
                while not self._stop.is_set():
                    self._put(prepare(step))
                    step += 1
            except BaseException as error:
                self._put(error)

        self._thread = threading.Thread(target=work, name="prefetch", daemon=True)
        self._thread.start()

    def _put(self, item: T | BaseException) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def next(self) -> T:
        """What was made for the next step."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop the background thread, and cancel the loading of further blocks."""
        self._stop.set()
        self._thread.join()
        self._blocks.cancel_loading()
