"""The geometry of charts: values to places on an axis, and round values to label it with.

`page.html` draws the charts of the report as inline SVG: they open offline, print sharply, take
their colours from the page's style (light or dark), and screen readers read their labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elmwright.pipeline.report.numbers import compact, number, percent

LEFT, RIGHT, TOP, BOTTOM = 58, 466, 32, 226
"""The frame of a chart, as `page.html` draws it."""
MAX_POINTS = 250
"""Points of a curve. More could not be seen."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One side of a chart."""

    low: float
    """The value at its beginning."""
    high: float
    """The value at its end."""
    title: str
    """What it shows."""
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
            first, last = math.ceil(math.log10(self.low)), _power(self.high)
            if last - first < 2:  # a short range needs more than powers of ten
                return _round_values(self.low, self.high)
            return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 5))]
        step = _step(max(self.high - self.low, 1e-9))
        count = int((self.high - self.low) / step + 1e-9)
        return [self.low + step * n for n in range(count + 1)]

    def text(self, value: float) -> str:
        """A tick's label."""
        return f"{100 * value:.3g} %" if self.share else compact(value)


def rounded(low: float, high: float, title: str) -> Axis:
    """A linear axis that begins and ends at round values just outside `low` and `high`."""
    step = _step(max(high - low, abs(high) * 1e-3, 1e-9))
    return Axis(math.floor(low / step) * step, math.ceil(high / step) * step, title)


def _step(spread: float) -> float:
    """The smallest of 1, 2, 5, 10 … that divides a spread into at most five parts."""
    power = 10.0 ** _power(spread / 4)
    return power * next(m for m in (1, 2, 5, 10) if spread / (power * m) <= 5)


def _power(value: float) -> int:
    return math.floor(math.log10(value))


def _round_values(low: float, high: float) -> list[float]:
    """2 to 6 round values of a log axis of about a decade: 1, 2, 5 times ten, or more of them."""
    powers = [10.0**power for power in range(_power(low), 1 + _power(high))]
    values: list[float] = []
    for factors in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(n / 10 for n in range(10, 100))):
        values = [power * n for power in powers for n in factors if low <= power * n <= high]
        if len(values) >= 3:
            break
    return values[:: math.ceil(len(values) / 6)] if values else [low]


def thin(points: Points) -> Points:
    """At most MAX_POINTS of them, the last included."""
    every = math.ceil(len(points) / (MAX_POINTS - 1))
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def across(value: float, axis: Axis) -> float:
    """The x of a value in a chart with this x axis."""
    return LEFT + axis.place(value) * (RIGHT - LEFT)


def up(value: float, axis: Axis) -> float:
    """The y of a value in a chart with this y axis."""
    return BOTTOM - axis.place(value) * (BOTTOM - TOP)


@dataclass(frozen=True)
class Column:
    """One column of a histogram."""

    name: str
    """Written below it."""
    values: str
    """Which values it counts."""
    count: int


@dataclass(frozen=True)
class Histogram:
    """Counts as columns."""

    columns: Sequence[Column]
    unit: str
    """What is counted."""
    named: range
    """Columns that have their name below."""

    @property
    def y(self) -> Axis:
        """The axis of the counts."""
        return Axis(0, max(1, *(column.count for column in self.columns)), self.unit)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The numbers behind the chart."""
        return [(column.values, number(column.count)) for column in self.columns]


@dataclass(frozen=True)
class Curve:
    """A line through points with rising x."""

    points: Points
    """At most MAX_POINTS."""
    x: Axis
    y: Axis
    ideal: Points = ()
    """A dashed line to compare it with."""
    ideal_name: str = ""
    """Written at the end of that line."""
    mark: float = math.nan
    """A value of x to mark, if it is on the axis."""
    mark_name: str = ""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The numbers behind the chart."""
        show = percent if self.y.share else number
        return [(number(x), show(y)) for x, y in self.points]

    def path(self, points: Points) -> str:
        """The path of an SVG through points of this chart."""
        places = [f"{across(x, self.x):.1f} {up(y, self.y):.1f}" for x, y in points]
        return "M" + "L".join(places)
