"""What training saves, without training."""

from dataclasses import replace
from typing import Any

from elmwright.jobs.checkpoints.contents import CheckpointState, SavedScore

SCORE = SavedScore(
    perplexity=146.654,
    bits_per_character=1.6,
    forward_perplexity=150.1,
    backward_perplexity=143.3,
    tokens=24310,
    forward_nll=5.01,
    backward_nll=4.96,
    unk_share=0.0366,
    lanes=4,
    characters=120_000,
    states="fresh",
    carried_perplexity=144.2,
)


def score(**changes: Any) -> SavedScore:
    return replace(SCORE, **changes)


def state(step: int = 1, **changes: Any) -> CheckpointState:
    empty = CheckpointState(
        step=step,
        skipped=(),
        best=None,
        best_step=0,
        best_of=0,
        stale=0,
        device="cpu",
        evaluation={},
    )
    return replace(empty, **changes)
