"""The nearest of some names to one that was mistyped. Imports nothing: every command uses it."""

from collections.abc import Iterable


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """The end of an error: "; did you mean 'x'?", or nothing if no name is near."""
    import difflib

    close = difflib.get_close_matches(text, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
