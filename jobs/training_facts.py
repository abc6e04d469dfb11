"""What the journal of a run tells about its training: the curve and the time it took.

Everything is a pure function of the journal up to a step, so that a checkpoint's model card is the
same whenever it is written. The time is that of the steps themselves, from the recorded speed:
pauses between attempts, evaluation and checkpoints do not count.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from elmwright.pipeline.charts import Axis, curve

STYLE = (
    "text{font:12px sans-serif;fill:#555}.name{font-size:13px}"
    ".grid{stroke:#ddd;fill:none}.axis{stroke:#777;fill:none}"
    ".curve{stroke:#2a6f97;stroke-width:2;fill:none}"
    ".ideal{stroke:#c05621;stroke-width:2;stroke-dasharray:5 4;fill:none}"
)


@dataclass(frozen=True)
class TrainingFacts:
    """How a checkpoint came to be."""

    losses: tuple[tuple[int, float], ...]
    """(step, training loss a token in nats) as logged."""
    heldout: tuple[tuple[int, float], ...]
    """(step, perplexity of the first held-out set) as logged."""
    seconds: float
    """Time spent in steps; 0 where no speed was logged."""
    tokens_per_s: float
    """Median speed; 0 where none was logged."""


def training_facts(
    records: Iterable[Mapping[str, Any]], step: int, tokens_per_step: int, split: str
) -> TrainingFacts:
    """The facts of a journal's records up to `step`."""
    losses: dict[int, float] = {}
    heldout: dict[int, float] = {}
    speeds: dict[int, float] = {}
    for record in records:
        if record["step"] > step:
            continue
        values = record.get("values", {})
        if record["kind"] == "metrics" and math.isfinite(values.get("train/loss", math.nan)):
            losses[record["step"]] = values["train/loss"]
            if values.get("train/tokens_per_s"):
                speeds[record["step"]] = values["train/tokens_per_s"]
        if record["kind"] == "eval" and f"{split}/perplexity" in values:
            heldout[record["step"]] = values[f"{split}/perplexity"]
    usual = median(speeds.values()) if speeds else 0.0
    seconds, before = 0.0, 0
    for at in sorted(losses) if usual else ():
        seconds += (at - before) * tokens_per_step / speeds.get(at, usual)
        before = at
    return TrainingFacts(
        tuple(sorted(losses.items())), tuple(sorted(heldout.items())), seconds, usual
    )


def training_svg(facts: TrainingFacts, split: str) -> str | None:
    """The training curve as a picture that needs nothing else; None with nothing to draw."""
    if len(facts.losses) < 2:
        return None
    points = [(float(at), loss) for at, loss in facts.losses]
    held = [(float(at), math.log(value)) for at, value in facts.heldout]
    drawn = curve(
        points,
        Axis(0, points[-1][0], "step"),
        Axis(0, max(value for _, value in points + held), "nats a token"),
        label=f"Loss a token by step: training, as sampled (line), and {split} (dashed)",
        ideal=held if len(held) > 1 else (),
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return drawn.replace("<svg ", head, 1).replace(">", f"><style>{STYLE}</style>", 1) + "\n"
