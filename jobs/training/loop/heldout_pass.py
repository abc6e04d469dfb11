"""Scores the blocks of a held-out set in one pass, for `evaluate.py`.

Each batch is encoded once and read twice: fresh, where every sentence starts from zero states, and
carried, where states pass from sentence to sentence and from a block to the next one of its lane.
The softmax, most of the work where the vocabulary is large, is computed for real positions only,
never for padding.

The probe, which is the first sentences of the set, is read fresh and has its own sums in the same
pass. How many of its sentences are in a block depends on the blocks before, which other processes
may read. So for each round of blocks the processes exchange the numbers of their sentences, until
the probe is complete.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from elmwright.jobs.checkpoints.contents import Probe
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.input.block_cache import BlockCache
from elmwright.jobs.training.loop.input.blocks import Blocks, Row
from elmwright.jobs.training.loop.input.stream import Batch, evaluation_rounds, round_batches
from elmwright.model.bilm import BiLM, Output, States
from elmwright.model.softmax import Softmax, nll
from elmwright.pipeline.format.block import UNK_ID
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance


class EvaluationStopped(Exception):  # noqa: N818 - a state, not a mistake
    """Training was asked to stop during an evaluation."""


def exp(value: float) -> float:
    """e^value; infinite where that overflows, as it does for a model that has diverged."""
    return math.inf if value >= 700 else math.exp(value)


_FRESH, _CARRIED, _PROBE = 0, 2, 4
"""Columns of the sums: the forward losses. Those of the backward losses are next to them."""
_TOKENS, _UNKNOWN, _CHARACTERS, _PROBE_TOKENS = range(6, 10)
"""Columns of the sums: counts."""


@dataclass(frozen=True)
class Totals:
    """The sums of a pass over all lanes. Losses are negative log-likelihoods in nats."""

    fresh: tuple[float, float]
    """Forward and backward loss with fresh states for every sentence."""
    carried: tuple[float, float]
    """Forward and backward loss with states carried over."""
    tokens: int
    unknown: int
    """Targets that are `<UNK>`."""
    characters: int


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
        device = self._ranks.device
        self._fresh = self._carried = States.zeros(
            heldout.bilm.config, len(self._own_lanes), device
        )
        self._sums = torch.zeros(heldout.lanes, 10, dtype=torch.float64, device=device)

    @torch.no_grad()
    def run(self, count: int, *, only_probe: bool = False) -> None:
        """Score the first `count` blocks; with `only_probe`, only what the probe needs."""
        window, lanes = self._heldout.window, self._own_lanes
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
                scored = in_probe if only_probe else batch.weights
                if scored.any():
                    self._score(batch, scored, in_probe, only_fresh=only_probe)
                self._heldout.advance(int(scored.sum()))
                steps = steps + window
            if only_probe and not self._probe_left:
                break

    def totals(self) -> Totals:
        """The sums over all lanes, added in lane order on every process."""
        sums = self._total_columns()
        return Totals(
            fresh=(sums[_FRESH], sums[_FRESH + 1]),
            carried=(sums[_CARRIED], sums[_CARRIED + 1]),
            tokens=int(sums[_TOKENS]),
            unknown=int(sums[_UNKNOWN]),
            characters=int(sums[_CHARACTERS]),
        )

    def _total_columns(self) -> list[float]:
        totals = [0.0] * self._sums.size(1)
        for row in self._ranks.sum(self._sums.clone()).tolist():
            totals = [total + value for total, value in zip(totals, row, strict=True)]
        return totals

    def probe(self) -> Probe:
        """The sentences, tokens and perplexity of the probe."""
        sums = self._total_columns()
        tokens = sums[_PROBE_TOKENS]
        mean = (sums[_PROBE] + sums[_PROBE + 1]) / tokens / 2
        return Probe(self._probe - self._probe_left, int(tokens), exp(mean), "fresh")

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

    def _score(self, batch: Batch, scored: Tensor, in_probe: Tensor, *, only_fresh: bool) -> None:
        """Add the `scored` positions of a batch to the sums, and keep the states after it."""
        device, bilm = self._ranks.device, self._heldout.bilm
        positions = scored.reshape(-1).nonzero().squeeze(1).to(device)
        batch, scored, in_probe = batch.to_device(device), scored.to(device), in_probe.to(device)
        sums = self._sums[self._own_lanes.start : self._own_lanes.stop]
        sums[:, _TOKENS] += scored.sum(1)
        sums[:, _UNKNOWN] += ((batch.forward_targets == UNK_ID) * scored).sum(1)
        sums[:, _PROBE_TOKENS] += in_probe.sum(1)

        types = bilm.encoder(batch.chars)
        index = batch.forward_index, batch.backward_index
        output: Output = bilm.run(types, *index, self._fresh, resets=batch.starts)
        self._fresh = output.states
        for column, loss in enumerate(self._losses(output, batch, positions)):
            sums[:, _FRESH + column] += loss.sum(1)
            sums[:, _PROBE + column] += (loss * in_probe).sum(1)
        if only_fresh:
            return
        # A lane's padding comes after its real steps, and must not enter its states.
        real_steps = batch.weights.long().sum(1)
        output = bilm.run(types, *index, self._carried, lengths=real_steps)
        self._carried = output.states
        for column, loss in enumerate(self._losses(output, batch, positions)):
            sums[:, _CARRIED + column] += loss.sum(1)

    def _losses(self, output: Output, batch: Batch, positions: Tensor) -> list[Tensor]:
        """[lanes, window] Losses of both directions; 0 except at these positions."""
        softmax, losses = self._heldout.softmax, []
        directions = (
            (output.top_forward, batch.forward_targets),
            (output.top_backward, batch.backward_targets),
        )
        for hidden, targets in directions:
            at_positions = nll(
                hidden.reshape(-1, hidden.size(-1)).index_select(0, positions),
                targets.reshape(-1).index_select(0, positions),
                softmax.weight,
                softmax.bias,
            )
            loss = torch.zeros(targets.numel(), dtype=torch.float64, device=positions.device)
            losses.append(loss.index_copy_(0, positions, at_positions.double()).view_as(targets))
        return losses
