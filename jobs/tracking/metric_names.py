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

NAMES = 2
"""Number of this way to name metrics; MLflow runs of before have the journal's names."""
DETAILS = "under_the_hood"
"""The section of charts that few look at; MLflow sorts it behind `heldout` and `train`."""
FIRST = ("train/loss", "train/lr", "train/tokens_per_s")
"""What is shown of training beside held-out perplexity, under its own name."""
ONCE = {"train/dense_mb_exchanged": "dense_mb_exchanged_per_step"}
"""Constants that are logged at every step, and their tags."""
IF_ANY = ("train/softmax_mb_exchanged", "train/skipped_updates")
"""Metrics that nobody needs to see while they are 0."""
SCORES = ("bits_per_character", "forward_perplexity", "backward_perplexity")
"""What is charted of an evaluation beside its perplexity; the rest is constant, or the same again
as a logarithm."""
FACTS = ("perplexity", *SCORES, "tokens", "unk_share")
"""What tags say of the final evaluation."""


def heldout_metric(split: str) -> str:
    """The chart of a held-out set's perplexity."""
    return "heldout/perplexity" if split == "heldout" else f"heldout/{split}_perplexity"


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
    split, _, score = name.rpartition("/")
    if score == "perplexity":
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
        split, _, score = name.removeprefix("final/").rpartition("/")
        if score in FACTS:
            tags[f"{split}_{score}"] = f"{value:.2%}" if score == "unk_share" else said(value)
    return tags


def said(value: Any) -> str:
    """A number as a person reads it."""
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.3g}"
    return str(int(value)) if isinstance(value, float) and math.isfinite(value) else str(value)
