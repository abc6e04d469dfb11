"""What MLflow shows of a run: the names of its charts, and what is a tag instead.

MLflow sorts charts by the part of a metric's name before the slash, and draws a chart for whatever
is a metric, be it a single dot or a constant. So the journal's names are translated on the way:
held-out perplexity and training loss come first, all else is `under_the_hood`, and what is said
once becomes a tag. The journal keeps its own names and every number.

A run that was begun under the names of before keeps them: half a curve under each would be worse.
"""

import math
from collections.abc import Mapping
from typing import Any

from elmwright.jobs.rundir.metrics import (
    BACKWARD_PERPLEXITY,
    BITS_PER_CHARACTER,
    DENSE_EXCHANGED,
    FINAL,
    FORWARD_PERPLEXITY,
    LEARNING_RATE,
    LOSS,
    PERPLEXITY,
    SCORED_TOKENS,
    SKIPPED_UPDATES,
    SOFTMAX_EXCHANGED,
    TOKENS_PER_S,
    UNKNOWN_SHARE,
    split_key,
)

NAMES = 2
"""Number of this way to name metrics; MLflow runs of before have the journal's names."""
DETAILS = "under_the_hood"
"""The section of charts that few look at; MLflow sorts it behind `heldout` and `train`."""
FIRST = (LOSS.key, LEARNING_RATE.key, TOKENS_PER_S.key)
"""What is shown of training beside held-out perplexity, under its own name."""
ONCE = {DENSE_EXCHANGED.key: "dense_mb_exchanged_per_step"}
"""Constants that are logged at every step, and their tags."""
IF_ANY = (SOFTMAX_EXCHANGED.key, SKIPPED_UPDATES.key)
"""Metrics that nobody needs to see while they are 0."""
SCORES = (BITS_PER_CHARACTER.key, FORWARD_PERPLEXITY.key, BACKWARD_PERPLEXITY.key)
"""What is charted of an evaluation beside its perplexity; the rest is constant, or the same again
as a logarithm."""
FACTS = (PERPLEXITY.key, *SCORES, SCORED_TOKENS.key, UNKNOWN_SHARE.key)
"""What tags say of the final evaluation."""


def heldout_metric(split: str) -> str:
    """The chart of a held-out set's perplexity."""
    return PERPLEXITY.of("heldout") if split == "heldout" else f"heldout/{split}_{PERPLEXITY.key}"


def charted(kind: str, values: Mapping[str, float], names: int) -> dict[str, float]:
    """The metrics that MLflow is sent of a journal's record."""
    if kind == "final":
        return {}
    if names < NAMES:
        return dict(values)
    rename = _score if kind == "eval" else _metric
    named = {rename(name, value): value for name, value in values.items()}
    named.pop("", None)
    return named


def _metric(name: str, value: float) -> str:
    section, _, rest = name.partition("/")
    if name in ONCE or (name in IF_ANY and not value):
        return ""
    if section == "time":
        return f"{DETAILS}/time_{rest}"
    if section == "train" and name not in FIRST:
        return f"{DETAILS}/{rest}"
    return name


def _score(name: str, _value: float) -> str:
    split, score = split_key(name)
    if score == PERPLEXITY.key:
        return heldout_metric(split)
    return f"{DETAILS}/{split}_{score}" if score in SCORES else ""


def tagged(kind: str, step: int, values: Mapping[str, float]) -> dict[str, str]:
    """The tags of an MLflow run that a journal's record gives."""
    if kind == "metrics":
        return {tag: said(values[name]) for name, tag in ONCE.items() if values.get(name)}
    if kind != "final":
        return {}
    tags = {"step": str(step)}
    for name, value in values.items():
        split, score = split_key(name.removeprefix(FINAL))
        if score in FACTS:
            tags[f"{split}_{score}"] = f"{value:.2%}" if score == UNKNOWN_SHARE.key else said(value)
    return tags


def said(value: Any) -> str:
    """A number as a person reads it."""
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.3g}"
    return str(int(value)) if isinstance(value, float) and math.isfinite(value) else str(value)
