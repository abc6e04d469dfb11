"""Tables that fit the terminal, and are complete in a pipe or a file.

rich lays them out. Cells are broken between words if the terminal is too narrow; a table whose
words do not fit is wider than the terminal rather than cut.
"""

from collections.abc import Iterable, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural

GAP = 2
"""Spaces between columns."""
INDENT = 2
"""Spaces before the tables of a corpus."""
UNLIMITED = 10_000
"""Characters per line in a pipe or a file."""

Counts = Iterable[tuple[str, int, int, int]]
"""Rule, documents, sentences, words."""


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None,
    *,
    text: Sequence[int] = (0,),
    indent: int = 0,
) -> list[str]:
    """The lines of a table; the columns in `text` are words, the others numbers.

    `width` is that of the terminal in characters, None in a pipe or a file.
    """
    cells = [list(row) for row in rows]
    layout = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=any(header))
    least_width = indent
    for number, name in enumerate(header):
        column = [name, *(row[number] for row in cells)]
        longest = max(len(word) for cell in column for word in cell.split() or [""])
        wraps = number in text
        least_width += GAP + (longest if wraps else max(map(len, column)))
        layout.add_column(
            name, justify="left" if wraps else "right", no_wrap=not wraps, min_width=longest
        )
    for row in cells:
        layout.add_row(*row)
    table_width = max(width, least_width) - indent if width else UNLIMITED
    console = Console(
        file=StringIO(), width=table_width, color_system=None, legacy_windows=False, emoji=False
    )
    with console.capture() as capture:
        console.print(layout, markup=False, highlight=False, emoji=False)
    return [(" " * indent + line).rstrip() for line in capture.get().splitlines()]


def funnel_table(counts: Counts, width: int | None) -> list[str]:
    """What each rule removed, from read to kept; rules that removed nothing are left out."""
    rows = []
    for rule, documents, sentences, words in counts:
        is_total = rule in ("read", "kept")
        if is_total or documents or sentences or words:
            name = rule if is_total else f"- {rule}"
            rows.append((name, f"{documents:,}", f"{sentences:,}", f"{words:,}"))
    header = ("", "documents", "sentences", "words")
    if width:
        columns = list(zip(header, *rows, strict=True))
        name_width = width - INDENT - GAP - sum(max(map(len, cells)) + GAP for cells in columns[1:])
        rows = [(_at_dot(row[0], name_width), *row[1:]) for row in rows]
    return table(header, rows, width, indent=INDENT)


def _at_dot(name: str, width: int) -> str:
    """The name of a rule, broken after the dot if it is longer than `width`."""
    section, dot, setting = name.partition(".")
    return f"{section}.\n  {setting}" if dot and len(name) > width else name


def corpus_lines(manifest: Manifest, width: int | None) -> list[str]:
    """What was read, dropped and kept, and the sizes of the splits."""
    steps = ((s.rule, s.documents, s.sentences, s.words) for s in manifest.funnel)
    rows = [
        (
            name,
            f"{split.words:,}",
            f"{split.sentences:,}",
            f"{split.blocks:,}",
            f"{split.padding / max(1, split.steps + split.padding):.1%}",
            f"{split.unk_share:.2%}",
        )
        for name, split in manifest.splits.items()
    ]
    header = ("", "words", "sentences", "blocks", "padding", "unknown")
    return [
        *funnel_table(steps, width),
        "",
        *table(header, rows, width, indent=INDENT),
        f"  vocabulary of {plural(manifest.vocab.size, 'word')}, "
        f"fingerprint {manifest.fingerprint[:12]}",
    ]
