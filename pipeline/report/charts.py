"""The drawings of the report, as inline SVG.

Plain strings without any script: they open offline, print sharply, take their colours from the
page's style (light or dark) and are read out by their labels. They are drawn small (480 units
wide), so that their text stays readable on a phone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elmwright.pipeline.report.page import compact, number

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 32, 44
MAX_POINTS = 250
"""Points of a curve, at most: more would not be seen."""


def bar(share: float, label: str, kind: str = "keep") -> str:
    """A horizontal bar on a track of full width; `label` must be escaped."""
    return stack([(label, share, kind)], label)


def barred(share: float, text: str, kind: str = "keep") -> str:
    """A bar with its escaped text at the right, for a table's cell."""
    return f'<div class="barred">{bar(share, text, kind)}<span>{text}</span></div>'


def stack(parts: Sequence[tuple[str, float, str]], label: str) -> str:
    """Bars (escaped label, share, kind) one after the other, on a track of full width."""
    left = 0.0
    drawn = []
    for name, share, kind in parts:
        width = 100 * min(max(share if math.isfinite(share) else 0.0, 0.0), 1.0)
        if width > 0:
            # At least a hair, so that "little" does not look like "nothing".
            drawn.append(
                f'<rect class="{kind}" x="{left:.2f}" width="{max(width, 0.3):.2f}" height="1">'
                f"<title>{name}</title></rect>"
            )
        left += width
    return (
        f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(drawn)}</svg>'
    )


@dataclass(frozen=True)
class Axis:
    """One side of a chart: values to places."""

    low: float
    """The value at its beginning."""
    high: float
    """The value at its end."""
    title: str
    """What it shows, in our own words."""
    log: bool = False
    """Whether each step multiplies."""
    share: bool = False
    """Whether its labels are percentages."""

    def place(self, value: float) -> float:
        """The position of a value along the axis, from 0 to 1."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low) if high > low else 0.0

    def ticks(self) -> list[float]:
        """Round values to label, about five."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last - first < 2:  # a short range needs more than powers of ten
                return _round_values(self.low, self.high)
            return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 5))]
        step = 10 ** math.floor(math.log10(max(self.high - self.low, 1e-9) / 4))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (step * m) <= 5)
        count = int((self.high - self.low) / step + 1e-9)
        return [self.low + step * n for n in range(count + 1)]

    def text(self, value: float) -> str:
        """A tick's label."""
        return f"{100 * value:.3g} %" if self.share else compact(value)


def _round_values(low: float, high: float) -> list[float]:
    """2 to 6 round values of a log axis of about a decade: 1, 2, 5 times ten, or more of them."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), 1 + _power(high))]
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(n / 10 for n in range(10, 100))):
        found = [power * n for power in powers for n in factors if low <= power * n <= high]
        if len(found) >= 3:
            break
    return found[:: math.ceil(len(found) / 6)] if found else [low]


def _power(value: float) -> int:
    return math.floor(math.log10(value))


def rounded(low: float, high: float, title: str) -> Axis:
    """A linear axis that begins and ends at round values just outside `low` and `high`."""
    spread = max(high - low, abs(high) * 1e-3, 1e-9)
    step = 10.0 ** _power(spread / 4)
    step *= next(m for m in (1, 2, 5, 10) if spread / (step * m) <= 5)
    return Axis(math.floor(low / step) * step, math.ceil(high / step) * step, title)


def columns(values: Sequence[tuple[str, int]], *, named: range, label: str, x: str, y: str) -> str:
    """A histogram of (escaped name, count): one column each, those of `named` with a
    name below."""
    axis = Axis(0, max(1, *(count for _, count in values)), y)
    step = (WIDTH - LEFT - RIGHT) / len(values)
    drawn = [_grid_y(axis)]
    for n, (name, count) in enumerate(values):
        left, top = LEFT + n * step, _y(axis, count)
        drawn.append(
            f'<rect class="keep" x="{left + step * 0.08:.1f}" y="{top:.1f}" '
            f'width="{step * 0.84:.1f}" height="{HEIGHT - BOTTOM - top:.1f}">'
            f"<title>{name}: {number(count)}</title></rect>"
        )
        if n in named:
            drawn.append(_text(left + step / 2, HEIGHT - BOTTOM + 17, name))
    return _chart(label, x, y, drawn)


def curve(
    points: Sequence[tuple[float, float]],
    x: Axis,
    y: Axis,
    *,
    label: str,
    ideal: Sequence[tuple[float, float]] = (),
    ideal_name: str = "",
    mark: tuple[float, str] | None = None,
) -> str:
    """A line through rising points; `ideal` is a dashed one beside it with its name at the end,
    `mark` a named x."""
    drawn = [_grid_y(y)]
    for tick in x.ticks():
        at = LEFT + x.place(tick) * (WIDTH - LEFT - RIGHT)
        drawn.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        drawn.append(_text(at, HEIGHT - BOTTOM + 17, x.text(tick)))
    if ideal:
        drawn.append(f'<path class="ideal" d="{_path(ideal, x, y)}"/>')
        at = LEFT + x.place(ideal[-1][0]) * (WIDTH - LEFT - RIGHT)
        drawn.append(_text(at, _y(y, ideal[-1][1]) - 24, ideal_name, "end"))
    drawn.append(f'<path class="curve" d="{_path(thin(points), x, y)}"/>')
    if mark is not None and x.low <= mark[0] <= x.high:
        at = LEFT + x.place(mark[0]) * (WIDTH - LEFT - RIGHT)
        anchor, aside = ("end", -6) if at > WIDTH / 2 else ("start", 6)
        drawn.append(f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        drawn.append(_text(at + aside, HEIGHT - BOTTOM - 10, mark[1], anchor, "named"))
    return _chart(label, x.title, y.title, drawn)


def thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most MAX_POINTS of them, the last included."""
    every = math.ceil(len(points) / (MAX_POINTS - 1))
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def _path(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    places = [f"{LEFT + x.place(a) * (WIDTH - LEFT - RIGHT):.1f} {_y(y, b):.1f}" for a, b in points]
    return "M" + "L".join(places)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _grid_y(axis: Axis) -> str:
    return "".join(
        f'<path class="grid" d="M{LEFT} {_y(axis, tick):.1f}H{WIDTH - RIGHT}"/>'
        + _text(LEFT - 7, _y(axis, tick) + 4, axis.text(tick), "end")
        for tick in axis.ticks()
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _chart(label: str, x: str, y: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{label}</title>{''.join(drawn)}"
        f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
        + _text(WIDTH - RIGHT, HEIGHT - 5, x, "end", "name")
        + _text(2, 14, y, "start", "name")
        + "</svg>"
    )
