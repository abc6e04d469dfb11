"""The evaluations of a training: one now and then, in passing, and the last one, for the card."""

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir import metrics
from elmwright.jobs.rundir.journal_records import Evaluation, FinalEvaluation, Scoring
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import StopNote
from elmwright.jobs.training.loop.block_cache import BlockCache
from elmwright.jobs.training.loop.evaluate import (
    PROBE_SENTENCES,
    Score,
    evaluate_sets,
    final_limit,
    planned_tokens,
)
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.heldout_pass import EvaluationStopped
from elmwright.jobs.training.loop.recorder import Recorder
from elmwright.jobs.training.loop.state import Trainer
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance
from elmwright.pipeline.records import to_data

SCORING_SECONDS = 5.0
"""Seconds between notes of how far the last evaluation is."""


def evaluate_in_passing(
    config: RunConfig,
    trainer: Trainer,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    recorder: Recorder,
    cache: BlockCache | None,
) -> dict[str, Score]:
    """Score about `eval.max_tokens` tokens of every held-out set."""
    limit = config.eval.max_tokens
    return _evaluate(
        config, trainer, folder, manifest, ranks, recorder, max_tokens=limit, cache=cache
    )


def evaluate_finally(
    config: RunConfig,
    trainer: Trainer,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    recorder: Recorder,
    cache: BlockCache | None,
    note: StopNote,
    drained: Callable[[int], bool] = lambda _step: False,
) -> dict[str, Score] | None:
    """Score up to `eval.final_tokens` of every held-out set, and the probe; None if asked to stop,
    or if a machine is being taken away, before that is done."""
    limit = final_limit(config.eval.final_tokens, manifest.vocab.size)
    looks = count()  # every process asks at the same ones, as `drained` requires

    def stopped() -> bool:
        leaving = drained(next(looks))
        return leaving or (ranks.rank == 0 and note.found())

    advance: Advance = _nothing
    if planned := planned_tokens(manifest, limit):
        advance = _Scoring(recorder, trainer.step, planned, ranks.world).advance
    try:
        scores = _evaluate(
            config,
            trainer,
            folder,
            manifest,
            ranks,
            recorder,
            max_tokens=limit,
            probe=PROBE_SENTENCES,
            cache=cache,
            stopped=stopped,
            advance=advance,
        )
    except EvaluationStopped:
        return None
    if scores:
        final = {f"{metrics.FINAL}{name}": value for name, value in _values(scores).items()}
        recorder.write(FinalEvaluation(step=trainer.step, values=final))
    return scores


class _Scoring:
    """Notes in the journal now and then how far the last evaluation is."""

    def __init__(
        self,
        recorder: Recorder,
        step: int,
        tokens: int,
        world: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder, self._step = recorder, step
        self._tokens, self._world = tokens, world
        self._clock, self._done = clock, 0
        self._note()

    def advance(self, n: int, _detail: str = "", /) -> None:
        """This process has scored so many more tokens; the others are about as far."""
        self._done += n * self._world
        if self._clock() - self._noted >= SCORING_SECONDS:
            self._note()

    def _note(self) -> None:
        self._noted = self._clock()
        done = min(self._done, self._tokens)
        self._recorder.write(Scoring(step=self._step, tokens=self._tokens, done=done))


def _nothing(_n: int, _detail: str = "", /) -> None:
    """Nobody is told how far it is."""


def _evaluate(
    config: RunConfig,
    trainer: Trainer,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    recorder: Recorder,
    **named: Any,
) -> dict[str, Score]:
    scores = evaluate_sets(
        trainer.bilm,
        trainer.softmax,
        folder.corpus,
        manifest,
        ranks,
        lanes=config.eval.lanes,
        window=config.train.window,
        **named,
    )
    if scores:
        recorder.write(Evaluation(step=trainer.step, values=_values(scores)))
    return scores


def _values(scores: dict[str, Score]) -> dict[str, float]:
    return {
        f"{split}/{name}": value
        for split, score in scores.items()
        for name, value in to_data(score.saved()).items()
    }
