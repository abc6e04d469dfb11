"""Small things that messages have in common: the nearest name, one or several.

Imports nothing at the top, because every command uses it.
"""

from collections.abc import Iterable


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """The end of an error: "; did you mean 'x'?", or nothing if no name is near."""
    import difflib

    close = difflib.get_close_matches(text, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 word", "2 words", "1,000 words"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
