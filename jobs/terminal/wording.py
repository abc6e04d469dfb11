"""How numbers, durations, paths and sentences are written for a reader.

Everything that is printed uses these functions, so that there is one way to write "3 min 40 s",
"310 MB" or "1 shard", and one rule for lines. On a terminal a sentence is broken between words; a
word that is wider than the terminal (a long path) gets its own line and stays whole, so that it can
still be copied. In a pipe or a file no line is broken or cut.
"""

import difflib
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from elmwright.jobs.secrets.hiding import for_others

WIDTH = 80
"""Columns of a terminal whose width is unknown."""
SCALED = ("tokens", "words", "characters")
"""Units whose large amounts are written with k, M or G."""


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal behind a stream; None if it is not a terminal.

    COLUMNS takes precedence, as in other programs.
    """
    try:
        if not stream.isatty():
            return None
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns):
            return int(columns)
        return os.get_terminal_size(stream.fileno()).columns or WIDTH
    except (OSError, ValueError):  # closed, or without a descriptor
        return None


def wrap(text: str, width: int | None) -> str:
    """The text with its lines broken between words; a continued line keeps its indent."""
    if width is None:
        return text
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    words = line.lstrip()
    indent = line.removesuffix(words)
    return textwrap.fill(
        words,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a sentence with relative paths and without secrets, broken to fit the terminal."""
    stream = stream or sys.stdout
    print(wrap(from_here(for_others(text)), terminal_width(stream)), file=stream, flush=True)


def printable(text: str) -> str:
    """The text with � for characters that could control a terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def nearby(path: str | Path) -> str:
    """A path relative to the current folder, if it is inside it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def from_here(text: str) -> str:
    """A sentence with absolute paths inside the current folder made relative to it."""
    try:
        here = os.getcwd()
    except OSError:  # the folder was removed
        return text
    if here == "/" or here not in text:
        return text
    # Only at the start of a path, not inside a URL or a longer path.
    return re.sub(rf"(?<![\w./:~-]){re.escape(here)}/(?=[\w.~])", "", text)


def typed(*arguments: str, width: int | None = None) -> str:
    """A command as the user would type it, with backslashes if it is wider than `width`."""
    words = [command_name(), *(_quoted(argument) for argument in arguments)]
    whole = " ".join(words)
    if width is None or len(whole) <= width:
        return whole
    lines, current = [], words[0]
    for group in _options(words[1:]):
        if len(current) + 1 + len(group) + 2 <= width:
            current += f" {group}"
        else:
            lines.append(f"{current} \\")
            current = f"    {group}"
    return "\n".join([*lines, current])


def _quoted(argument: str) -> str:
    if re.fullmatch(r"[\w ,.'-]* [\w ,.'-]*", argument):
        return f'"{argument}"'
    return shlex.quote(argument)


def _options(words: Sequence[str]) -> list[str]:
    """The words of a command, each option joined with its value."""
    groups: list[str] = []
    for word in words:
        if groups and groups[-1].startswith("-") and " " not in groups[-1]:
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    return groups


def command_name(name: str = "elmwright") -> str:
    """How to call a program of this environment from the current folder."""
    beside = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if on_path and Path(on_path).resolve() == beside.resolve():
        return name
    return nearby(beside)


def counted(count: int, units: str) -> str:
    """An amount with its unit, given in the plural: 1 document, 8,412 documents, 310 MB."""
    if units == "bytes":
        return size(count)
    if units in SCALED and count >= 10_000:
        number, prefix = _scaled(count)
        return f"{number} {prefix} {units}"
    return f"{count:,} {_singular(units) if count == 1 else units}"


def of_total(done: int, total: int, units: str) -> str:
    """An amount of a total: 213/1,000 steps, 0.4/1.2 M tokens, 140/310 MB."""
    if units == "bytes" or (units in SCALED and total >= 10_000):
        factor, prefix = _prefix(total)
        digits = 0 if total / factor >= 100 else 1
        name = f"{prefix}B" if units == "bytes" else f"{prefix} {units}"
        return f"{done / factor:,.{digits}f}/{total / factor:,.{digits}f} {name}"
    return f"{done:,}/{total:,} {_singular(units) if total == 1 else units}"


def size(count: float) -> str:
    """Bytes: 310 MB, 1.2 GB, 17 bytes."""
    if count < 1000:
        return f"{count:.0f} {'byte' if count == 1 else 'bytes'}"
    number, prefix = _scaled(count)
    return f"{number} {prefix}B"


def _scaled(count: float) -> tuple[str, str]:
    factor, prefix = _prefix(count)
    value = count / factor
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}", prefix


def _prefix(count: float) -> tuple[float, str]:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= 0.9995 * factor:
            return factor, prefix
    return 1e3, "k"


def _singular(units: str) -> str:
    if units.endswith("ies"):
        return f"{units[:-3]}y"
    if units.endswith(("sses", "xes", "ches", "shes")):
        return units[:-2]
    return units.removesuffix("s")


def duration(seconds: float) -> str:
    """2 d 3 h, 1 h 20 min, 3 min 40 s, 12 s: at most two units."""
    whole = max(0, round(seconds))
    for large, small, length, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60)):
        if whole >= length:
            first, rest = divmod(whole, length)
            return f"{first} {large} {rest // part} {small}" if rest >= part else f"{first} {large}"
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def scores_text(perplexity: Mapping[str, float], states: str) -> str:
    """Perplexities by held-out set: "heldout 146.70, news 212.30"; "-" if there is none."""
    scores = ", ".join(f"{split} {value:.2f}" for split, value in perplexity.items())
    return scores + states_note(states) if scores else "-"


def states_note(states: str) -> str:
    """What follows a perplexity of an earlier version, which carried states from sentence to
    sentence; nothing for one with fresh states."""
    return " (states carried over)" if states == "carried" else ""


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """The end of an error: "; did you mean 'x'?", or nothing if no name is near."""
    close = difflib.get_close_matches(text, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
