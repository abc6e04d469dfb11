"""The evaluations of a training: one now and then, in passing, and the last one, for the card."""

from typing import Any

from elmwright.jobs.config import RunConfig
from elmwright.jobs.evaluate import (
    PROBE_SENTENCES,
    Score,
    evaluate_sets,
    final_limit,
    planned_tokens,
)
from elmwright.jobs.exchange import Ranks
from elmwright.jobs.heldout_pass import EvaluationStopped
from elmwright.jobs.journal import Journal
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.stopping import StopNote
from elmwright.jobs.training_state import Trainer
from elmwright.pipeline.manifest import Manifest


def evaluate_in_passing(
    config: RunConfig,
    trainer: Trainer,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    journal: Journal | None,
) -> dict[str, Score]:
    """Score about `eval.max_tokens` tokens of every held-out set."""
    limit = config.eval.max_tokens
    return _evaluate(config, trainer, folder, manifest, ranks, journal, max_tokens=limit)


def evaluate_finally(
    config: RunConfig,
    trainer: Trainer,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    journal: Journal | None,
    note: StopNote,
) -> dict[str, Score] | None:
    """Score up to `eval.final_tokens` of every held-out set, and the probe; None if asked to stop
    before that is done."""
    limit = final_limit(config.eval.final_tokens, manifest.vocab.size)

    def stopped() -> bool:
        return ranks.rank == 0 and note.found()

    if journal:
        journal.write("scoring", trainer.step, tokens=planned_tokens(manifest, limit))
    try:
        scores = _evaluate(
            config, trainer, folder, manifest, ranks, journal,
            max_tokens=limit, probe=PROBE_SENTENCES, stopped=stopped,
        )  # fmt: skip
    except EvaluationStopped:
        return None
    if journal and scores:
        final = {f"final/{name}": value for name, value in _values(scores).items()}
        journal.write("final", trainer.step, values=final)
    return scores


def _evaluate(
    config: RunConfig,
    trainer: Trainer,
    folder: RunFolder,
    manifest: Manifest,
    ranks: Ranks,
    journal: Journal | None,
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
    if journal and scores:
        journal.write("eval", trainer.step, values=_values(scores))
    return scores


def _values(scores: dict[str, Score]) -> dict[str, float]:
    return {
        f"{split}/{name}": value
        for split, score in scores.items()
        for name, value in score.as_dict().items()
    }
