"""The state of a progress bar, and its text at a given width.

`live_lines` are the lines of a live display, `plain_line` is the line for a file or a pipe, and
`finished_line` remains on the screen when the work is done. Lines of a live display are never wider
than the terminal: parts that do not fit are left out, the least important first.
"""

import time
from collections.abc import Callable, Sequence

from elmwright.jobs.terminal.pace import Pace
from elmwright.jobs.terminal.wording import counted, duration, of_total

NAME = 16
"""Columns for the name of a piece of work."""
MARGIN = 3
"""Free columns at the right: a terminal echoes ^C there, which must not break the line."""
LONGEST_BAR, SHORTEST_BAR = 30, 5
WIDE = 70
"""Columns from which names are aligned."""


class Bar:
    """How far some work is."""

    def __init__(
        self, name: str, total: int, unit: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is done yet. `unit` is a plural, or empty if only the share is meaningful."""
        self.name = name
        self.total = total
        self.unit = unit
        self.done = 0
        self.detail = ""
        self.facts: tuple[str, ...] = ()
        self.is_complete = False
        """Whether nothing is left to do, although less than `total` may be done."""
        self.started = clock()
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self._pace = Pace()
        self._pace.at(self.started, 0)
        self._left: Callable[[], float | None] | None = None

    def advance(self, n: int, detail: str = "", /) -> None:
        """Report `n` more units as done; `detail` is shown after the bar."""
        self.set(self.done + n, detail or self.detail)

    def set(self, done: int, detail: str = "") -> None:
        """Report `done` units in all as done; `detail` is shown after the bar."""
        now = self._clock()
        if done and not self.done and now - self.started < 1.0:
            # The work of an earlier command says nothing about the speed of this one.
            self._pace = Pace()
        self.done, self.detail = done, detail
        self._pace.at(now, done)
        self.on_change()

    def show(self, done: int, facts: Sequence[str], left: Callable[[], float | None]) -> None:
        """Report the units done, facts for a second line (most important first), time left."""
        self.done, self.facts, self._left = done, tuple(facts), left
        self.on_change()

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return self._clock() - self.started

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes; None if unknown."""
        if self._left is not None:
            return self._left()
        return self._pace.left(self.total, self._clock()) if self.done < self.total else None

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 1.0


def live_lines(bar: Bar, width: int) -> list[str]:
    """One line, and a second one for facts."""
    columns = width - MARGIN
    lines = [_first_line(bar, columns)]
    if bar.facts:
        indent = 4 if columns >= WIDE else 2
        lines.append(f"{' ' * indent}{_fitting(bar.facts, columns - indent)}")
    return lines


def _fitting(facts: Sequence[str], columns: int) -> str:
    """As many facts as fit, at least the first."""
    line = facts[0][:columns]
    for fact in facts[1:]:
        if len(line) + 3 + len(fact) > columns:
            break
        line += f" · {fact}"
    return line


def _first_line(bar: Bar, columns: int) -> str:
    name = f"    {bar.name:<{NAME}} " if columns >= WIDE else f"  {bar.name} "
    for tail in _tails(bar):
        length = min(LONGEST_BAR, columns - len(name) - len(tail) - 2)
        if length >= SHORTEST_BAR:
            full = int(bar.share * length)
            return f"{name}{'━' * full}{'─' * (length - full)}  {tail}"
    return f"{name}{_percent(bar)}"[:columns]


def _tails(bar: Bar) -> list[str]:
    """Texts to show after the bar, from the longest to the shortest."""
    clock = _clock(bar)
    if bar.total <= 1:  # all or nothing: its share means nothing
        amounts, percent = [""], ""
    else:
        whole = of_total(bar.done, bar.total, bar.unit) if bar.unit else ""
        amounts, percent = [whole, whole.partition(" ")[0], ""], _percent(bar)
    rows = [[amounts[0], percent, clock, bar.detail]] if bar.detail else []
    rows += [[amount, percent, clock] for amount in amounts]
    return ["  ".join(filter(None, row)) for row in rows]


def _clock(bar: Bar) -> str:
    """The time left, or the time since the start if that is unknown."""
    left = bar.left
    if left is None:
        return f"{duration(bar.seconds)} so far"
    return f"{duration(max(1.0, left))} left"


def _percent(bar: Bar) -> str:
    # Not 100 % before the end.
    return f"{int(100 * bar.share):>3} %"


def plain_line(bar: Bar) -> str:
    """The state on one line of any length."""
    parts = []
    if bar.total > 1:
        parts = [of_total(bar.done, bar.total, bar.unit)] if bar.unit else []
        parts.append(_percent(bar).strip())
    parts.append(_clock(bar))
    parts += filter(None, [bar.detail, *bar.facts])
    return f"  {bar.name:<{NAME}} {', '.join(parts)}"


def finished_line(bar: Bar) -> str:
    """The result and how long it took."""
    if bar.is_complete or bar.done >= bar.total:
        result = bar.detail or (counted(bar.done, bar.unit) if bar.unit else "")
        mark = "✓"
    else:
        mark, result = "–", "not finished"
        if bar.total > 1:
            percent = f"stopped at {_percent(bar).strip()}"
            result = of_total(bar.done, bar.total, bar.unit) if bar.unit else percent
    return f"  {mark} {bar.name:<{NAME}} {result:<26} {duration(bar.seconds)}"
