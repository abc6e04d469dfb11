"""What a progress bar knows, and how that is written at a given width.

No terminal here: `live_lines` gives the lines of a live display, `plain_line` the line for a file
or a pipe, `finished_line` what stays on the screen when the work is done. Lines of a live display
are never wider than the terminal: what does not fit is left out whole, the least important first.
"""

import time
from collections.abc import Callable, Sequence

from elmwright.jobs.terminal.pace import Pace
from elmwright.jobs.terminal.wording import counted, duration, of_total

NAME = 16
"""Columns for the name of a piece of work."""
MARGIN = 3
"""Columns that stay free at the right: a terminal echoes ^C there, which must not break a line."""
LONGEST_BAR, SHORTEST_BAR = 30, 5
WIDE = 70
"""Columns from which on names are aligned."""


class Bar:
    """The state of some work: how far it is, and what there is to say of it."""

    def __init__(
        self, name: str, total: int, unit: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing done yet; `unit` in the plural, empty where only the share means something."""
        self.name, self.total, self.unit, self._clock = name, total, unit, clock
        self.done = 0
        self.detail = ""
        self.facts: tuple[str, ...] = ()
        self.whole = False
        self.started = clock()
        self.on_change: Callable[[], None] = lambda: None
        self._pace = Pace()
        self._pace.at(self.started, 0)
        self._left: Callable[[], float | None] | None = None

    def advance(self, n: int, detail: str = "", /) -> None:
        """So many more are done; `detail` is shown behind the bar."""
        self.set(self.done + n, detail or self.detail)

    def set(self, done: int, detail: str = "") -> None:
        """So many are done in all; `detail` is shown behind the bar."""
        now = self._clock()
        if done and not self.done and now - self.started < 1.0:
            # What an earlier command did says nothing of how fast this one is.
            self._pace = Pace()
        self.done, self.detail = done, detail
        self._pace.at(now, done)
        self.on_change()

    def show(self, done: int, facts: Sequence[str], left: Callable[[], float | None]) -> None:
        """How far, what to say on a second line (most important first), and the time left."""
        self.done, self.facts, self._left = done, tuple(facts), left
        self.on_change()

    def complete(self) -> None:
        """There is nothing left to do, however much was done."""
        self.whole = True

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self.started

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes; None while that is not known."""
        if self._left is not None:
            return self._left()
        return self._pace.left(self.total, self._clock()) if self.done < self.total else None

    @property
    def share(self) -> float:
        """Of the work that is done, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 1.0


def live_lines(bar: Bar, width: int) -> list[str]:
    """One line, and a second one where there are facts."""
    room = width - MARGIN
    lines = [_first_line(bar, room)]
    if bar.facts:
        indent = 4 if room >= WIDE else 2
        lines.append(f"{' ' * indent}{fitting(bar.facts, room - indent)}")
    return lines


def fitting(facts: Sequence[str], room: int) -> str:
    """As many facts as fit, from the first on; the first in any case."""
    line = facts[0][:room]
    for fact in facts[1:]:
        if len(line) + 3 + len(fact) > room:
            break
        line += f" · {fact}"
    return line


def _first_line(bar: Bar, room: int) -> str:
    name = f"    {bar.name:<{NAME}} " if room >= WIDE else f"  {bar.name} "
    for tail in _tails(bar):
        length = min(LONGEST_BAR, room - len(name) - len(tail) - 2)
        if length >= SHORTEST_BAR:
            return f"{name}{drawn(bar.share, length)}  {tail}"
    return f"{name}{_percent(bar)}"[:room]


def _tails(bar: Bar) -> list[str]:
    """What stands behind the bar, from all there is to the least."""
    clock = _clock(bar)
    if bar.total <= 1:  # all or nothing: a share of it would tell nothing
        amounts, percent = [""], ""
    else:
        whole = of_total(bar.done, bar.total, bar.unit) if bar.unit else ""
        amounts, percent = [whole, whole.partition(" ")[0], ""], _percent(bar)
    rows = [[amounts[0], percent, clock, bar.detail]] if bar.detail else []
    rows += [[amount, percent, clock] for amount in amounts]
    return ["  ".join(filter(None, row)) for row in rows]


def _clock(bar: Bar) -> str:
    """The time left, or the time since it began while that is not known."""
    left = bar.left
    if left is None:
        return f"{duration(bar.seconds)} so far"
    return f"{duration(max(1.0, left))} left"


def _percent(bar: Bar) -> str:
    # Not 100 % before the end.
    return f"{int(100 * bar.share):>3} %"


def drawn(share: float, length: int) -> str:
    """The bar itself, readable without colours, too."""
    full = int(share * length)
    return "━" * full + "─" * (length - full)


def plain_line(bar: Bar) -> str:
    """How far it is, on one line of any length."""
    parts = []
    if bar.total > 1:
        parts = [of_total(bar.done, bar.total, bar.unit)] if bar.unit else []
        parts.append(_percent(bar).strip())
    parts.append(_clock(bar))
    parts += filter(None, [bar.detail, *bar.facts])
    return f"  {bar.name:<{NAME}} {', '.join(parts)}"


def finished_line(bar: Bar) -> str:
    """What stays of it: what was done and how long it took."""
    if bar.whole or bar.done >= bar.total:
        result = bar.detail or (counted(bar.done, bar.unit) if bar.unit else "")
        mark = "✓"
    else:
        mark, result = "–", "not finished"
        if bar.total > 1:
            percent = f"stopped at {_percent(bar).strip()}"
            result = of_total(bar.done, bar.total, bar.unit) if bar.unit else percent
    return f"  {mark} {bar.name:<{NAME}} {result:<26} {duration(bar.seconds)}"
