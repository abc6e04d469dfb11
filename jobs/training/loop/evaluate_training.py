"""Evaluations that a training run makes: in between, and the final one for the model card."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from elmwright.jobs.checkpoints.contents import SavedScore
from elmwright.jobs.rundir import metrics
from elmwright.jobs.rundir.journal_records import (
    Evaluation,
    FinalEvaluation,
    Scoring,
    WarningGiven,
)
from elmwright.jobs.rundir.stop_request import StopNote
from elmwright.jobs.training.loop.evaluate import (
    PROBE_SENTENCES,
    Score,
    evaluate_sets,
    final_limit,
    planned_tokens,
    states_warning,
)
from elmwright.jobs.training.loop.heldout_pass import EvaluationStopped, HeldOut
from elmwright.jobs.training.loop.recorder import Recorder

SCORING_SECONDS = 5.0
"""Seconds between records of the progress of the final evaluation."""


def evaluate_and_record(
    heldout: HeldOut, step: int, recorder: Recorder, max_tokens: int | None, probe: int = 0
) -> dict[str, Score]:
    """Score about `max_tokens` tokens of every held-out set, and write that to the journal."""
    scores = evaluate_sets(heldout, max_tokens, probe)
    if scores:
        recorder.write(Evaluation(step=step, values=_values(scores)))
    return scores


def evaluate_finally(
    heldout: HeldOut,
    step: int,
    recorder: Recorder,
    final_tokens: int,
    note: StopNote,
    drained: Callable[[int], bool],
) -> dict[str, Score] | None:
    """Score up to `final_tokens` of every held-out set, and the probe.

    None if training is asked to stop, or a machine is being taken away, before that is done.
    """
    limit = final_limit(final_tokens, heldout.manifest.vocab.size)
    calls = count()  # the same in every process, as `drained` requires

    def stopped() -> bool:
        is_leaving = drained(next(calls))
        return is_leaving or (heldout.ranks.rank == 0 and note.found())

    heldout = replace(heldout, stopped=stopped)
    if planned := planned_tokens(heldout.manifest, limit):
        progress = _ScoringProgress(recorder, step, planned, heldout.ranks.world)
        heldout = replace(heldout, advance=progress.advance)
    try:
        scores = evaluate_and_record(heldout, step, recorder, limit, PROBE_SENTENCES)
    except EvaluationStopped:
        return None
    if scores:
        final = {f"{metrics.FINAL}{name}": value for name, value in _values(scores).items()}
        recorder.write(FinalEvaluation(step=step, values=final))
        if text := states_warning({split: score.saved for split, score in scores.items()}):
            recorder.write(WarningGiven(step=step, text=text))
    return scores


class _ScoringProgress:
    """Writes the progress of the final evaluation to the journal, every few seconds."""

    def __init__(self, recorder: Recorder, step: int, tokens: int, world: int) -> None:
        self._recorder, self._step = recorder, step
        self._tokens, self._world = tokens, world
        self._done = 0
        self._record()

    def advance(self, n: int, _detail: str = "", /) -> None:
        """Count n tokens of this process, and as many of every other one."""
        self._done += n * self._world
        if time.monotonic() - self._recorded >= SCORING_SECONDS:
            self._record()

    def _record(self) -> None:
        self._recorded = time.monotonic()
        done = min(self._done, self._tokens)
        self._recorder.write(Scoring(step=self._step, tokens=self._tokens, done=done))


def _values(scores: dict[str, Score]) -> dict[str, float]:
    """The scores by the keys of the journal."""
    return {
        metric.of(split): value
        for split, score in scores.items()
        for metric, value in _metrics(score.saved).items()
    }


def _metrics(saved: SavedScore) -> dict[metrics.Metric, float]:
    return {
        metrics.PERPLEXITY: saved.perplexity,
        metrics.BITS_PER_CHARACTER: saved.bits_per_character,
        metrics.FORWARD_PERPLEXITY: saved.forward_perplexity,
        metrics.BACKWARD_PERPLEXITY: saved.backward_perplexity,
        metrics.CARRIED_PERPLEXITY: saved.carried_perplexity,
        metrics.SCORED_TOKENS: saved.tokens,
        metrics.UNKNOWN_SHARE: saved.unk_share,
    }
