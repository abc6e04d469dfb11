"""The one place that talks to the user: sentences, progress bars, the log file of the run.

On a terminal, progress is a live rich display; elsewhere it is a plain line now and then. While a
run is going, file descriptors 1 and 2 point at the run's log file, so that whatever Ray, MLflow or
a C++ library prints ends up there and never in the middle of a progress bar; our own sentences go
to copies of the original descriptors.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from elmwright.pipeline.progress import Advance

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

log = logging.getLogger("elmwright")

PLAIN_SECONDS = 15.0
"""Seconds between plain progress lines where there is no terminal."""


class Console:
    """Where sentences and progress go."""

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self.stream, self.quiet = stream, quiet
        self.live = not quiet and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._bars: RichProgress | None = None

    def say(self, text: str = "") -> None:
        """Tell the user something, unless only warnings are wanted; it is logged as well."""
        if text:
            log.info(text)
        if not self.quiet or text.startswith("warning: "):
            self._print(text)

    def _print(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            try:
                print(text, file=self.stream, flush=True)
            except BrokenPipeError:
                # Whoever was listening (`| head`) has gone; the run goes on, and the log has it.
                self.stream = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @contextmanager
    def progress(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """A bar for work of known size; `pipeline.progress.Progress` is this method's type."""
        with self.bar(name, total, unit) as bar:
            yield bar.advance

    @contextmanager
    def bar(
        self, name: str, total: int, unit: str, plain_seconds: float = PLAIN_SECONDS
    ) -> Iterator["Bar"]:
        """A bar that can be set; `plain_seconds` between lines where there is no terminal."""
        if self.live:
            with self._rich() as bars:
                task = bars.add_task(name, total=total, detail="", unit=unit)
                yield _RichBar(bars, task)
                bars.update(task, detail="")
        else:
            bar = _PlainBar(self, name, total, unit, plain_seconds)
            yield bar
            bar.finish()

    @contextmanager
    def _rich(self) -> Iterator["RichProgress"]:
        from rich import progress as rp
        from rich.console import Console as RichConsole

        bars = rp.Progress(
            rp.TextColumn("  {task.description:<14}"),
            rp.BarColumn(bar_width=28),
            rp.TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            rp.TimeElapsedColumn(),
            rp.TextColumn("left"),
            rp.TimeRemainingColumn(),
            rp.TextColumn("{task.fields[detail]}"),
            console=RichConsole(file=self.stream),
            refresh_per_second=5,
            redirect_stdout=False,  # what others print belongs in the log, not between the bars
            redirect_stderr=False,
        )
        self._bars = bars
        try:
            with bars:
                yield bars
        finally:
            self._bars = None


class Bar(Protocol):
    """A progress bar."""

    def advance(self, n: int, detail: str = "", /) -> None:
        """So many more are done; `detail` is shown behind the bar."""

    def set(self, done: int, detail: str = "") -> None:
        """So many are done in all; `detail` is shown behind the bar."""


class _RichBar:
    def __init__(self, bars: "RichProgress", task: int) -> None:
        self._bars, self._task, self._begun = bars, task, False

    def advance(self, n: int, detail: str = "", /) -> None:
        self._bars.update(self._task, advance=n, detail=detail)  # type: ignore[arg-type]

    def set(self, done: int, detail: str = "") -> None:
        if done and not self._begun:
            # What an earlier command did says nothing of how fast this one is.
            self._bars.reset(self._task, completed=done, detail=detail)  # type: ignore[arg-type]
            self._begun = True
        self._bars.update(self._task, completed=done, detail=detail)  # type: ignore[arg-type]


class _PlainBar:
    def __init__(self, console: Console, name: str, total: int, unit: str, seconds: float) -> None:
        self._console, self._name, self._total, self._unit = console, name, total, unit
        self._seconds = seconds
        self._done = self._first = 0
        self._began = time.monotonic()
        self._detail = ""
        self._start = self._last = time.monotonic()

    def advance(self, n: int, detail: str = "", /) -> None:
        self._move(self._done + n, detail)

    def set(self, done: int, detail: str = "") -> None:
        if done and not self._done:
            self._first, self._began = done, time.monotonic()
        self._move(done, detail)

    def _move(self, done: int, detail: str) -> None:
        self._done, self._detail = done, detail
        if time.monotonic() - self._last >= self._seconds and done < self._total:
            self._line()

    def finish(self) -> None:
        self._line()

    def _line(self) -> None:
        self._last = time.monotonic()
        seconds = self._last - self._start
        detail = f"  {self._detail}" if self._detail else ""
        left = ""
        if self._first < self._done < self._total:
            # By the speed since the first sign of it: a run that goes on began far from 0.
            pace = (self._last - self._began) / (self._done - self._first)
            left = f", about {pace * (self._total - self._done):.0f} s left"
        self._console.say(
            f"  {self._name:<14} {self._done:,}/{self._total:,} {self._unit}, "
            f"{seconds:.0f} s{left}{detail}"
        )


@contextmanager
def console_for_run(
    log_file: Path, *, to_stderr: bool = False, quiet: bool = False
) -> Iterator[Console]:
    """A console whose surroundings are quiet: everything else printed goes to `log_file`."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = os.dup(1), os.dup(2)
    stream = os.fdopen(os.dup(originals[1 if to_stderr else 0]), "w", encoding="utf-8")
    sink = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        log_to(log_file)
        yield Console(stream, quiet)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(originals[0], 1)
        os.dup2(originals[1], 2)
        for descriptor in (*originals, sink):
            os.close(descriptor)
        with suppress(BrokenPipeError):
            stream.close()


def log_to(log_file: Path) -> None:
    """Send Python logging of this process to the run's log file (appended, line by line)."""
    handler = logging.FileHandler(log_file, encoding="utf-8")
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
