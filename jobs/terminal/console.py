"""What a run tells the user: sentences, progress bars, the log file.

On a terminal, progress is a live display that becomes one short line when the work is done;
elsewhere (a pipe, a file, TERM=dumb) it is a plain line now and then. During a run, file
descriptors 1 and 2 point to the run's log file, so that output of Ray, MLflow or a C++ library
goes there and never into a progress bar; our own sentences go to copies of the original
descriptors.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from elmwright.jobs.secrets.hiding import for_others
from elmwright.jobs.terminal.bars import Bar, finished_line, live_lines, plain_line
from elmwright.jobs.terminal.unexpected import logging_errors
from elmwright.jobs.terminal.wording import WIDTH, from_here, terminal_width, wrap
from elmwright.pipeline.progress import Advance

log = logging.getLogger("elmwright")

PLAIN_SECONDS = 15.0
"""Seconds between plain progress lines where there is no terminal."""
REFRESHES = 5
"""How often a live display is drawn, per second."""


class Console:
    """Prints sentences and progress to one stream."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write to `stream`; `quiet` (-q) prints only warnings, errors and the result."""
        self.stream, self.quiet = stream, quiet
        self.live = not quiet and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._clock = clock
        self._open: list[Bar] = []
        self._display: Live | None = None

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None in a pipe or a file, where no line is broken."""
        return terminal_width(self.stream)

    def say(self, text: str = "") -> None:
        """Print and log a sentence; in quiet mode only log it."""
        if not self.quiet:
            self.result(text)
        elif text:
            log.info(text)

    def warn(self, text: str) -> None:
        """Print and log a warning, also in quiet mode."""
        self.result(f"warning: {text}")  # logged as info: without a log, Python prints warnings

    def result(self, text: str = "") -> None:
        """Print and log a result, also in quiet mode."""
        if text:
            log.info(text)
        self._print(text)

    def _print(self, text: str) -> None:
        text = wrap(from_here(for_others(text)), self.width)
        if self._display is not None:
            self._display.console.print(
                text, markup=False, highlight=False, emoji=False, soft_wrap=True
            )
            return
        try:
            print(text, file=self.stream, flush=True)
        except BrokenPipeError:
            # The reader (`| head`) is gone; the run continues, and the log has the text.
            self.stream = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process

    @contextmanager
    def progress(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """A bar for work of known size: a `pipeline.progress.Progress`."""
        with self.bar(name, total, unit) as bar:
            yield bar.advance
            bar.done = bar.total

    @contextmanager
    def bar(
        self, name: str, total: int, unit: str, plain_seconds: float = PLAIN_SECONDS, done: int = 0
    ) -> Iterator[Bar]:
        """A bar that can be set; `plain_seconds` between lines where there is no terminal.

        `done` is the amount that an earlier command has done.
        """
        bar = Bar(name, total, unit, self._clock)
        bar.done = done
        if self.quiet:
            yield bar
            return
        try:
            with self._live_bar(bar) if self.live else self._plain_bar(bar, plain_seconds):
                yield bar
        finally:
            self.say(finished_line(bar))

    @contextmanager
    def _plain_bar(self, bar: Bar, every: float) -> Iterator[None]:
        """Print a plain line now and then."""
        last = self._clock()

        def changed() -> None:
            nonlocal last
            if self._clock() - last >= every and bar.done < bar.total:
                last = self._clock()
                self.say(plain_line(bar))

        bar.on_change = changed
        yield

    @contextmanager
    def _live_bar(self, bar: Bar) -> Iterator[None]:
        """Show a bar in the live display, which all open bars share."""
        self._open.append(bar)
        try:
            if self._display is not None:
                yield
                return
            with self._live_display() as self._display:
                yield
        finally:
            self._open.remove(bar)
            if not self._open:
                self._display = None

    def _live_display(self) -> Live:
        console = RichConsole(file=self.stream, force_terminal=True, width=WIDTH, height=25)
        return Live(
            console=console,
            get_renderable=lambda: self._render(console),
            refresh_per_second=REFRESHES,
            transient=True,
            redirect_stdout=False,  # output of libraries belongs in the log
            redirect_stderr=False,
        )

    def _render(self, console: RichConsole) -> Text:
        # The width of our own stream: rich would use descriptors 1 and 2, which are the log.
        console.width = width = self.width or WIDTH
        lines = [line for bar in list(self._open) for line in live_lines(bar, width)]
        text = Text("\n".join(lines), no_wrap=True, overflow="crop")
        text.highlight_regex(r"━+", "cyan")
        text.highlight_regex(r"─+", "dim")
        return text


@contextmanager
def console_for_run(
    log_file: Path, *, to_stderr: bool = False, quiet: bool = False
) -> Iterator[Console]:
    """A console; all other output of the process goes to `log_file`, and so does the traceback of
    an unexpected error."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = os.dup(1), os.dup(2)
    stream = os.fdopen(os.dup(originals[1 if to_stderr else 0]), "w", encoding="utf-8")
    sink = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        log_to(log_file)
        with logging_errors(log_file):
            yield Console(stream, quiet=quiet)
    finally:
        for ours in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk must not hide an exception
                ours.flush()
        os.dup2(originals[0], 1)
        os.dup2(originals[1], 2)
        for descriptor in (*originals, sink):
            os.close(descriptor)
        with suppress(BrokenPipeError):
            stream.close()


class _WithoutSecrets(logging.Formatter):
    """Removes secrets that libraries put into messages and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return for_others(super().format(record))


def log_to(log_file: Path) -> None:
    """Append the Python logging of this process to a file."""
    handler = logging.FileHandler(log_file, encoding="utf-8")
    handler.setFormatter(
        _WithoutSecrets("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
