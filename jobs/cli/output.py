"""How commands print their results."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from elmwright.jobs.terminal.wording import terminal_width
from elmwright.pipeline.records import to_data


def print_json(result: Any) -> None:
    """Print dataclasses and plain data as indented JSON."""
    print(json.dumps(to_data(result), indent=1))


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = (0,)
) -> None:
    """Print a table that fits the terminal; the columns in `text` are words, the others numbers."""
    from elmwright.jobs.terminal.listing import table

    print(*table(header, rows, terminal_width(sys.stdout), text=text), sep="\n")
