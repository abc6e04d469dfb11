"""Scores the blocks of a held-out set in one pass, for `evaluate.py`.

The LSTM states after a block are those before the next block of its lane. The probe, which is the
first sentences of the set, has its own sums in the same pass. How many of its sentences are in a
block depends on the blocks before, which other processes may read. So for each round of blocks the
processes exchange the numbers of their sentences, until the probe is complete.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from elmwright.jobs.checkpoints.contents import Probe
from elmwright.jobs.training.loop.block_cache import BlockCache
from elmwright.jobs.training.loop.blocks import Blocks, Row
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.stream import Batch, evaluation_rounds, round_batches
from elmwright.model.bilm import BiLM, States
from elmwright.model.softmax import Softmax, nll
from elmwright.pipeline.format.block import UNK_ID
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance


class EvaluationStopped(Exception):  # noqa: N818 - a state, not a mistake
    """Training was asked to stop during an evaluation."""


def exp(value: float) -> float:
    """e^value; infinite where that overflows, as it does for a model that has diverged."""
    return math.inf if value >= 700 else math.exp(value)


_FORWARD, _BACKWARD, _TOKENS, _UNKNOWN, _CHARACTERS = range(5)
"""Columns of the sums: losses of both directions, then counts."""
_PROBE = 5
"""The first of the probe's three columns: forward, backward, tokens."""


@dataclass(frozen=True)
class HeldOut:
    """A model, and the corpus whose held-out sets it is scored on."""

    bilm: BiLM
    softmax: Softmax
    corpus: str | Path
    manifest: Manifest
    lanes: int
    window: int
    ranks: Ranks = field(default_factory=Ranks)
    word_ids: dict[str, int] | None = None
    """The model's vocabulary, if it is not that of the corpus."""
    cache: BlockCache | None = None
    """Keeps the blocks of a store for the next evaluation."""
    stopped: Callable[[], bool] | None = None
    """If it returns true in any process, all processes raise `EvaluationStopped`."""
    advance: Advance = lambda _n, _detail="": None


class Pass:
    """One pass over the blocks of a held-out set, with sums for every lane."""

    def __init__(self, heldout: HeldOut, split: str, probe: int) -> None:
        """The first `probe` sentences have their own sums."""
        self._heldout, self._ranks = heldout, heldout.ranks
        self._own_lanes = heldout.ranks.lanes(heldout.lanes)
        self._probe, self._probe_left = probe, probe
        self._blocks = Blocks(
            heldout.corpus,
            heldout.manifest,
            split,
            heldout.bilm.config.max_chars,
            heldout.word_ids,
            keep=len(self._own_lanes) + 1,
            cache=heldout.cache,
            widest=heldout.bilm.encoder.widest,
        )
        self._sums = torch.zeros(heldout.lanes, 8, dtype=torch.float64, device=self._ranks.device)

    @torch.no_grad()
    def run(self, count: int, *, only_probe: bool = False) -> None:
        """Score the first `count` blocks; with `only_probe`, only those that the probe needs."""
        window, lanes = self._heldout.window, self._own_lanes
        states = States.zeros(self._heldout.bilm.config, len(lanes), self._ranks.device)
        for rows in evaluation_rounds(self._blocks, count, lanes, self._heldout.lanes):
            probe_steps = self._probe_steps(rows)
            if only_probe:
                pairs = zip(rows, probe_steps, strict=True)
                rows = [row if steps else None for row, steps in pairs]  # noqa: PLW2901
            for lane, row in zip(lanes, rows, strict=True):
                self._sums[lane, _CHARACTERS] += row.characters if row is not None else 0
            ends = torch.tensor(probe_steps).unsqueeze(1)
            steps = torch.arange(window)
            for batch in round_batches(self._blocks, rows, window):
                self._check_stopped()
                in_probe = batch.weights * (steps < ends)
                states = self._score(batch, in_probe, states)
                self._heldout.advance(int((in_probe if only_probe else batch.weights).sum()))
                steps = steps + window
            if only_probe and not self._probe_left:
                break

    def totals(self) -> list[float]:
        """The total of each column over all lanes, added in lane order on every process."""
        totals = [0.0] * self._sums.size(1)
        for row in self._ranks.sum(self._sums.clone()).tolist():
            totals = [total + value for total, value in zip(totals, row, strict=True)]
        return totals

    def probe(self) -> Probe:
        """The sentences, tokens and perplexity of the probe."""
        forward, backward, tokens = self.totals()[_PROBE:]
        mean = (forward + backward) / tokens / 2
        return Probe(self._probe - self._probe_left, int(tokens), exp(mean))

    def _probe_steps(self, rows: Sequence[Row | None]) -> list[int]:
        """The number of steps of each block that belong to the probe.

        Its sentences are counted over the blocks of all lanes, also those of other processes.
        """
        if not self._probe_left:
            return [0] * len(rows)
        counts = torch.zeros(self._heldout.lanes, dtype=torch.int64, device=self._ranks.device)
        for lane, row in zip(self._own_lanes, rows, strict=True):
            counts[lane] = len(row.ends) if row is not None else 0
        in_probe: list[int] = []
        for sentences in self._ranks.sum(counts).tolist():
            in_probe.append(min(sentences, self._probe_left))
            self._probe_left -= in_probe[-1]
        return [
            int(row.ends[in_probe[lane] - 1]) if row is not None and in_probe[lane] else 0
            for lane, row in zip(self._own_lanes, rows, strict=True)
        ]

    def _check_stopped(self) -> None:
        if self._heldout.stopped is None:
            return
        stopped = torch.tensor([float(self._heldout.stopped())], device=self._ranks.device)
        if self._ranks.sum(stopped).item():
            raise EvaluationStopped

    def _score(self, batch: Batch, in_probe: Tensor, states: States) -> States:
        """Add a batch to the sums; returns the states after it."""
        device, softmax = self._ranks.device, self._heldout.softmax
        batch = batch.to_device(device)
        output = self._heldout.bilm(batch.chars, batch.forward_index, batch.backward_index, states)
        weights, in_probe = batch.weights.double(), in_probe.to(device).double()
        sums = self._sums[self._own_lanes.start : self._own_lanes.stop]
        directions = (
            (output.top_forward, batch.forward_targets),
            (output.top_backward, batch.backward_targets),
        )
        for column, (hidden, targets) in enumerate(directions):
            flat = hidden.reshape(-1, hidden.size(-1)), targets.reshape(-1)
            loss = nll(*flat, softmax.weight, softmax.bias).view_as(weights)
            sums[:, column] += (loss * weights).sum(1)
            sums[:, _PROBE + column] += (loss * in_probe).sum(1)
        sums[:, _UNKNOWN] += ((batch.forward_targets == UNK_ID).double() * weights).sum(1)
        sums[:, _TOKENS] += weights.sum(1)
        sums[:, _PROBE + 2] += in_probe.sum(1)
        next_states: States = output.states
        return next_states
