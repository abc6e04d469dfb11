"""Facts about a run's training from its journal: the curves and the time it took.

Everything is a pure function of the journal up to a step, so that a checkpoint's model card is the
same whenever it is written. The time is that of the steps themselves, from the recorded speed:
pauses between attempts, evaluation and checkpoints do not count.

The picture has two panels, because its two curves must not be compared: held-out perplexity is
that of the full softmax, and the training loss that of a sampled one, which is lower by nature. On
one axis they would look like overfitting. It is one SVG that loads nothing and has its own
background, so that it can be read in a light page, in a dark one and alone.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from elmwright.jobs.rundir.journal_records import Evaluation, Metrics, Record, ValuesRecord
from elmwright.jobs.rundir.metrics import (
    LOSS,
    SCORED_TOKENS,
    TOKENS_PER_S,
    Regime,
    perplexity_metric,
)
from elmwright.pipeline.report.charts import Axis, rounded, thin
from elmwright.pipeline.report.numbers import compact, decimal, number
from elmwright.pipeline.report.page import visible_text

WIDTH, MARGIN, LEFT, RIGHT = 640, 18, 66, 614
UPPER, LOWER, ROW, TICKS, GAP = 190, 110, 20, 26, 18
"""Heights: of the two frames, of a line of the legend, of an axis' labels, between the panels."""
STYLE = (
    "svg{--paper:#fff;--ink:#1f2328;--soft:#59636e;--grid:#e4e7eb;--model:#2b6e51;--base:#b4531d;"
    "--loss:#2a6f97}"
    "@media(prefers-color-scheme:dark){svg{--paper:#14171a;--ink:#e7e5df;--soft:#a5abb3;"
    "--grid:#2c3238;--model:#6cc199;--base:#ee8f58;--loss:#7cb7dd}}"
    "svg{background:var(--paper)}"
    'text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;'
    "fill:var(--soft)}.title{font-size:15px;font-weight:600;fill:var(--ink)}.key{fill:var(--ink)}"
    ".paper{fill:var(--paper)}.dot{fill:var(--model)}path{fill:none;stroke-linejoin:round}"
    ".grid{stroke:var(--grid)}.axis{stroke:var(--soft)}"
    ".curve{stroke:var(--model);stroke-width:2.2}.loss{stroke:var(--loss);stroke-width:2}"
    ".base{stroke:var(--base);stroke-width:2;stroke-dasharray:6 4}"
)

Place = tuple[float, float]


@dataclass(frozen=True)
class TrainingFacts:
    """How a checkpoint came to be."""

    losses: tuple[tuple[int, float], ...]
    """(step, training loss per token in nats, of the sampled softmax) as logged."""
    heldout: tuple[tuple[int, float], ...]
    """(step, perplexity of the first held-out set) as logged, all read in the same way."""
    heldout_tokens: tuple[int, ...]
    """How many tokens each of these was measured on."""
    heldout_states: Regime
    """How the text was read for them: fresh, unless only an earlier version measured."""
    seconds: float
    """Time spent in steps; 0 where no speed was logged."""
    tokens_per_s: float
    """Median speed; 0 where none was logged."""
    tokens_per_step: int
    """Tokens a step trains on."""


def training_facts(
    records: Iterable[Record], step: int, tokens_per_step: int, split: str
) -> TrainingFacts:
    """The facts of a journal's records up to `step`."""
    losses: dict[int, float] = {}
    heldout: dict[Regime, dict[int, tuple[float, int]]] = {"fresh": {}, "carried": {}}
    speeds: dict[int, float] = {}
    for record in records:
        if record.step > step or not isinstance(record, ValuesRecord):
            continue
        values = record.values
        if isinstance(record, Metrics) and math.isfinite(values.get(LOSS.key, math.nan)):
            losses[record.step] = values[LOSS.key]
            if values.get(TOKENS_PER_S.key):
                speeds[record.step] = values[TOKENS_PER_S.key]
        if isinstance(record, Evaluation):
            tokens = int(values.get(SCORED_TOKENS.of(split), 0))
            for states, points in heldout.items():
                perplexity = values.get(perplexity_metric(states).of(split), math.nan)
                if math.isfinite(perplexity):
                    points[record.step] = perplexity, tokens
    usual = median(speeds.values()) if speeds else 0.0
    seconds, before = 0.0, 0
    for at in sorted(losses) if usual else ():
        seconds += (at - before) * tokens_per_step / speeds.get(at, usual)
        before = at
    states = "fresh" if heldout["fresh"] else "carried"
    measured = sorted(heldout[states].items())
    return TrainingFacts(
        losses=tuple(sorted(losses.items())),
        heldout=tuple((at, perplexity) for at, (perplexity, _) in measured),
        heldout_tokens=tuple(tokens for _, (_, tokens) in measured),
        heldout_states=states,
        seconds=seconds,
        tokens_per_s=usual,
        tokens_per_step=tokens_per_step,
    )


def training_svg(
    facts: TrainingFacts,
    split: str,
    unigram: float | None = None,
    *,
    total: int = 0,
    full: bool = False,
) -> str | None:
    """The training curves as a picture that needs nothing else; None with nothing to draw.

    `unigram` is the held-out perplexity of a model that knows only the word frequencies, `total`
    the tokens of the whole set, `full` whether training had the full softmax.
    """
    if len(facts.losses) < 2:
        return None
    steps = max(at for at, _ in facts.losses + facts.heldout)
    x = Axis(0, steps * facts.tokens_per_step, "training tokens")
    panels, y = [], MARGIN
    has_heldout = len(facts.heldout) + bool(unigram) > 1 if facts.heldout else False
    if has_heldout:
        drawn, y = _perplexities(facts, split, unigram, x, y, total)
        panels.append(drawn)
    drawn, y = _losses(facts, x, y, below=has_heldout, full=full)
    panels.append(drawn)
    aside = f"{number(steps)} steps of {number(facts.tokens_per_step)} tokens"
    panels.append(_text(LEFT, y + 22, aside) + _text(RIGHT, y + 22, x.title, "end"))
    height = y + 36
    title = perplexity_metric(facts.heldout_states).title
    titles = [title] * has_heldout + [f"training {LOSS.title}"]
    label = " and ".join(titles).capitalize()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label} by training tokens">'
        f"<title>{label} by training tokens</title><style>{STYLE}</style>"
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>{"".join(panels)}</svg>\n'
    )


def _perplexities(
    facts: TrainingFacts, split: str, unigram: float | None, x: Axis, y: int, total: int
) -> tuple[str, int]:
    """The upper panel, and where it ends."""
    points = [(at * facts.tokens_per_step, value) for at, value in facts.heldout]
    values = [value for _, value in points] + ([unigram] if unigram else [])
    pad = max((max(values) / min(values)) ** 0.08, 1.1)
    axis = Axis(min(values) / pad, max(values) * pad, "", log=True)
    few, all_of = min(facts.heldout_tokens), facts.heldout_tokens[-1]
    name = html.escape(visible_text(split, 24))
    keys = []
    if len(points) > 1:
        keys.append(("curve", f"the model{_on(few, total)} of the set {name}, full softmax"))
    last = f"after {number(facts.heldout[-1][0])} steps{_on(all_of, total)}"
    keys.append(("dot", f"{last}: {decimal(points[-1][1])}"))
    if unigram:
        keys.append(("base", f"word frequencies alone (unigram model): {decimal(unigram)}"))
    title = perplexity_metric(facts.heldout_states).title.capitalize()
    drawn, top = _heading(f"{title} (lower is better)", keys, y)
    place = _placer(x, axis, top, UPPER)
    drawn += _frame(x, axis, top, UPPER, place)
    if unigram:
        at = place(0, unigram)[1]
        drawn += f'<path class="base" d="M{LEFT} {at:.1f}H{RIGHT}"/>'
    drawn += _line("curve", [place(*point) for point in thin(points)])
    drawn += "".join(_dot(*place(*point), 2.5) for point in thin(points)[:-1])
    return drawn + _dot(*place(*points[-1]), 5), top + UPPER + TICKS + GAP


def _on(tokens: int, total: int) -> str:
    first = "the first " if tokens < total else ""
    return f" on {first}{number(tokens)} tokens" if tokens else ""


def _losses(facts: TrainingFacts, x: Axis, y: int, *, below: bool, full: bool) -> tuple[str, int]:
    """The lower panel, and where it ends."""
    points = [(at * facts.tokens_per_step, value) for at, value in facts.losses]
    values = [value for _, value in points]
    axis = rounded(min(values), max(values), "")
    aside = ": not comparable with the perplexity above" if below and not full else ""
    keys = [("loss", f"{LOSS.unit}, {'full' if full else 'sampled'} softmax{aside}")]
    drawn, top = _heading(f"Training {LOSS.title}", keys, y)
    place = _placer(x, axis, top, LOWER)
    drawn += _frame(x, axis, top, LOWER, place)
    return drawn + _line("loss", [place(*point) for point in thin(points)]), top + LOWER + TICKS


def _heading(title: str, keys: Sequence[tuple[str, str]], y: int) -> tuple[str, int]:
    """A panel's title and legend, and where its frame begins."""
    drawn = _text(MARGIN, y + 14, title, kind="title")
    for kind, text in keys:
        y += ROW
        stroke = f'<path class="{kind}" d="M{MARGIN} {y + 14}h24"/>'
        sign = _dot(MARGIN + 12, y + 14, 5) if kind == "dot" else stroke
        drawn += sign + _text(MARGIN + 32, y + 18, text, kind="key")
    return drawn, y + ROW + 14


def _placer(x: Axis, y: Axis, top: int, height: int) -> Callable[[float, float], Place]:
    return lambda a, b: (
        LEFT + x.place(a) * (RIGHT - LEFT),
        top + (1 - y.place(b)) * height,
    )


def _frame(x: Axis, y: Axis, top: int, height: int, place: Callable[[float, float], Place]) -> str:
    drawn = ""
    for tick in y.ticks():
        at = place(0, tick)[1]
        drawn += f'<path class="grid" d="M{LEFT} {at:.1f}H{RIGHT}"/>'
        drawn += _text(LEFT - 8, at + 4, f"{tick:,g}", "end")
    for tick in x.ticks():
        at = place(tick, y.low)[0]
        drawn += f'<path class="grid" d="M{at:.1f} {top}v{height}"/>'
        drawn += _text(at, top + height + 17, compact(tick), "middle")
    return drawn + f'<path class="axis" d="M{LEFT} {top}v{height}H{RIGHT}"/>'


def _line(kind: str, places: Sequence[Place]) -> str:
    if len(places) < 2:
        return ""
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>'


def _dot(x: float, y: float, size: float) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
