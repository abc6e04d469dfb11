"""What MLflow shows of a run: the names of its charts, and what becomes a tag instead.

MLflow sorts charts by the part of a metric's name before the slash, and draws a chart for every
metric, even for a single value or a constant. So the journal's names are translated: held-out
perplexity and training loss come first, everything else is `under_the_hood`, and single values
become tags. The journal keeps its own names and every number.

A run that began with the first version of these names keeps it, so that no curve is split in two.
"""

import math
from collections.abc import Mapping

from elmwright.jobs.rundir.metrics import (
    BACKWARD_PERPLEXITY,
    BITS_PER_CHARACTER,
    CARRIED_PERPLEXITY,
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
    Regime,
    perplexity_metric,
    split_key,
)

NAMES = 2
"""Version of the names of metrics; those of version 1 are the journal's."""
DETAILS = "under_the_hood"
"""The section of charts that few people need; MLflow sorts it after `heldout` and `train`."""
FIRST = (LOSS.key, LEARNING_RATE.key, TOKENS_PER_S.key)
"""Training metrics that keep their names, and so come first."""
ONCE = {DENSE_EXCHANGED.key: "dense_mb_exchanged_per_step"}
"""Constants that are logged at every step, and their tags."""
IF_ANY = (SOFTMAX_EXCHANGED.key, SKIPPED_UPDATES.key)
"""Metrics that are left out while they are 0."""
PERPLEXITIES = (PERPLEXITY.key, CARRIED_PERPLEXITY.key)
SCORES = (BITS_PER_CHARACTER.key, FORWARD_PERPLEXITY.key, BACKWARD_PERPLEXITY.key)
"""Scores of an evaluation that have charts besides the perplexities."""
EARLIER_SCORES = ("bits_per_character", "forward_perplexity", "backward_perplexity")
"""The same in journals of earlier versions, which carried states from sentence to sentence. What
else they hold is constant, or the logarithm of these."""
FACTS = (*PERPLEXITIES, *SCORES, *EARLIER_SCORES, SCORED_TOKENS.key, UNKNOWN_SHARE.key)
"""Scores of the final evaluation that become tags."""


def heldout_metric(split: str, states: Regime) -> str:
    """The chart of a held-out set's perplexity; each regime has its own curve."""
    key = perplexity_metric(states).key
    return f"heldout/{key}" if split == "heldout" else f"heldout/{split}_{key}"


def charted(kind: str, values: Mapping[str, float], names: int) -> dict[str, float]:
    """The metrics of a journal record that are sent to MLflow."""
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
    if score in PERPLEXITIES:
        return heldout_metric(split, "fresh" if score == PERPLEXITY.key else "carried")
    return f"{DETAILS}/{split}_{score}" if score in (*SCORES, *EARLIER_SCORES) else ""


def tagged(kind: str, step: int, values: Mapping[str, float]) -> dict[str, str]:
    """The tags that a journal record gives the MLflow run."""
    if kind == "metrics":
        return {tag: readable(values[name]) for name, tag in ONCE.items() if values.get(name)}
    if kind != "final":
        return {}
    tags = {"step": str(step)}
    for name, value in values.items():
        split, score = split_key(name.removeprefix(FINAL))
        if score in FACTS:
            tags[f"{split}_{score}"] = (
                f"{value:.2%}" if score == UNKNOWN_SHARE.key else readable(value)
            )
    return tags


def readable(value: float) -> str:
    """A number for a reader: a whole number, or about four digits."""
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.3g}"
