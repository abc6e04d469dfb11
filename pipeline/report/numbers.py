"""Numbers as people read them."""

import math

MISSING = "–"
"""What stands for a number that is infinite or not a number."""


def number(value: float) -> str:
    """A count in full: 1,234,567."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def compact(value: float) -> str:
    """A count in short: 1.23 M."""
    if math.isfinite(value):
        for unit, name in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
            if max(unit, 1e4) <= abs(value) < 999.5 * unit:
                return f"{value / unit:.3g}{name}"
    return number(value)


def short(value: int) -> str:
    """A count in full up to a million, then in short."""
    return number(value) if value < 1e6 else compact(value)


def percent(share: float) -> str:
    """A share, never rounded down to nothing or up to all."""
    if not math.isfinite(share):
        return MISSING
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.9999 < share < 1:
        return "> 99.99 %"
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{100 * share:.{2 if share < 0.01 or share > 0.99 else 1}f} %"


def ratio(part: float, whole: float) -> float:
    """part / whole, and 0 where there is no whole."""
    return part / whole if whole > 0 else 0.0


def decimal(value: float) -> str:
    """A measured number, such as a perplexity, to four digits."""
    return f"{value:.4g}" if abs(value) < 1000 else number(value)


def size(count: int) -> str:
    """Bytes, in the unit that fits."""
    power = min(4, max(0, count.bit_length() - 1) // 10)
    unit = ("B", "KB", "MB", "GB", "TB")[power]
    return f"{count / 1024**power:,.{min(power, 1)}f} {unit}"


def duration(seconds: float) -> str:
    """A time, in the units that fit."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
