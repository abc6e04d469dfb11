"""Makes docs/terminal.svg: what a terminal of 80 columns shows during a real run, as a picture.

    python docs/make_terminal_svg.py [-o FILE] [--folder FOLDER] [COMMAND …]

Runs the command (`elmwright run demo`, in a temporary folder) in a pseudo-terminal, draws what it
writes with pyte, and puts two moments into one window: training when it is a good half through, and
below it what stood on the screen in the end. Nothing is typed or touched up by hand. rich writes
the SVG, from which its fonts are removed: a browser would fetch them from the network.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

TARGET = Path(__file__).with_name("terminal.svg")
COLUMNS, LINES = 80, 200
"""Enough lines that the terminal never scrolls."""
PAUSE = 0.03
"""Seconds without output after which the screen counts as drawn."""
MOMENT = 0.6
"""How far training is in the first part of the picture."""
STEPS = re.compile(r"([\d,]+)/([\d,]+) steps")
THEME = TerminalTheme(
    (27, 31, 36),
    (214, 219, 225),
    [
        (27, 31, 36),
        (240, 113, 120),
        (126, 199, 142),
        (229, 192, 123),
        (110, 170, 240),
        (199, 146, 234),
        (99, 199, 204),
        (214, 219, 225),
    ],
    [
        (139, 148, 158),
        (255, 139, 146),
        (153, 221, 168),
        (255, 213, 145),
        (140, 190, 255),
        (219, 170, 250),
        (130, 222, 227),
        (255, 255, 255),
    ],
)
FONTS = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'


class Screen(pyte.Screen):
    """A screen that shows dim text, which pyte does not know, as grey."""

    def select_graphic_rendition(self, *codes: int) -> None:
        """Set the style of what follows; 38 and 48 begin a colour, whose 2 and 5 mean no style."""
        plain = 38 not in codes and 48 not in codes
        codes = tuple(90 if code == 2 and plain else code for code in codes)
        super().select_graphic_rendition(*codes)


@dataclass
class Moment:
    """What the screen showed."""

    at: float
    """Seconds since the start."""
    lines: list[Text]
    """From the top to the last that is not empty."""

    @property
    def plain(self) -> list[str]:
        return [line.plain.rstrip() for line in self.lines]


def snapshot(screen: Screen, at: float) -> Moment:
    """The screen as styled text."""
    lines = []
    for row in range(screen.lines):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        line = Text()
        for style, same in groupby(cells, _style):
            line.append("".join(cell.data for cell in same), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Moment(at, lines)


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        reverse=cell.reverse,
    )


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    plain = name.removeprefix("bright").replace("brown", "yellow")
    return f"bright_{plain}" if name.startswith("bright") else plain


def record(command: list[str], folder: Path) -> tuple[Moment, Moment]:
    """Run a command; the moment of training nearest to MOMENT, and the last one."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    # The programs of this environment are found by their bare names, as in one that is activated.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=end,
        stdout=end,
        stderr=end,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    os.close(end)
    screen = Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    best: tuple[float, Moment] | None = None
    while True:
        ready, _, _ = select.select([main], [], [], PAUSE)
        if ready:
            try:
                data = os.read(main, 1 << 16)
            except OSError:  # nobody has the other end open
                break
            if not data:
                break
            stream.feed(data)
            continue
        far = progress(screen.display)
        if far is not None and (best is None or abs(far - MOMENT) < best[0]):
            best = abs(far - MOMENT), snapshot(screen, time.monotonic() - began)
    os.close(main)
    code = process.wait()
    last = snapshot(screen, time.monotonic() - began)
    if code or best is None:
        sys.exit("\n".join([*last.plain, f"error: no picture: exit code {code}"]))
    return best[1], last


def progress(display: list[str]) -> float | None:
    """How far training is, if the screen says so while it runs."""
    for line in display:
        found = STEPS.search(line)
        if found:
            done, total = (int(number.replace(",", "")) for number in found.groups())
            return done / total
    return None


def picture(shown_command: str, middle: Moment, last: Moment) -> str:
    """Both moments in one window: all of the first, and of the last what the first has not."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "bright_green"), (shown_command, "bold")))
    for line in middle.lines:
        console.print(line, no_wrap=True, crop=True)
    seconds = last.at - middle.at
    later = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    console.print()
    console.print(f"⋯ {later} later ⋯", style="bright_black", justify="center")
    console.print()
    before = set(middle.plain)
    rest = next((n for n, line in enumerate(last.plain) if line not in before), 0)
    for line in last.lines[rest:]:
        console.print(line, no_wrap=True, crop=True)
    title = f"{COLUMNS} columns"
    return offline(console.export_svg(title=title, theme=THEME, unique_id="terminal"))


def offline(svg: str) -> str:
    """The picture without what it would load, in a font that is there."""
    svg = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", FONTS).replace("arial", "system-ui, sans-serif")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main(arguments: list[str]) -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    parser.add_argument("--folder", type=Path, help="where it runs (default: a temporary folder)")
    parser.add_argument("command", nargs=argparse.REMAINDER, default=[])
    given = parser.parse_args(arguments)
    command = [word for word in given.command if word != "--"] or ["elmwright", "run", "demo"]
    with tempfile.TemporaryDirectory(prefix="elmwright-picture-") as temporary:
        middle, last = record(command, given.folder or Path(temporary))
    svg = picture(shlex.join(command), middle, last)
    given.output.write_text(svg, encoding="utf-8")
    print(f"wrote {given.output}: {len(svg):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
