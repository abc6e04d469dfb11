"""What Ctrl-C and SIGTERM do, in every command.

Most work is safe to kill: export, eval, verify, publish, embed, score lose nothing that the same
command does not make again. There the first signal raises `KeyboardInterrupt` in the main thread,
which nobody's `except Exception` takes for a failure. Building a corpus and training save first
(`Stop.saving`): there the first signal only asks, one sentence says so at once, and a second SIGINT
raises. A second SIGTERM does not: batch systems, and whoever cancels a run twice, send it while the
checkpoint that the first one asked for is being written. They kill in the end, if they must.

People press Ctrl-C twice, and the second one must not interrupt the closing of files. So after
`KeyboardInterrupt` was raised, or work that was asked to stop has saved, signals do nothing for
`PATIENCE` seconds; a later SIGINT ends the process on the spot. Exit code 75 in every case: the
same command resumes.

Nothing here sets a signal to SIG_IGN: processes that are started meanwhile would inherit that.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import NoReturn, ParamSpec

from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import Interrupted

PATIENCE = 3.0
"""Seconds that a command has for closing its files and its Ray, whatever is pressed."""
RESUMABLE = 75
AGAIN = "(Ctrl-C again ends at once)"
"""What is said with every request to stop that saves first."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"

P = ParamSpec("P")


class Stop:
    """Whether this process was asked to stop, and what the next signal does."""

    def __init__(self) -> None:
        self._asked = False
        self._raised = 0.0
        # A handler runs between any two steps of the main thread, which may hold any lock: of the
        # ways to wake another thread only this queue is safe to use there.
        self._listener: queue.SimpleQueue[bool] | None = None
        self._stderr = 2

    def is_set(self) -> bool:
        """Was it asked to stop?"""
        return self._asked

    @property
    def raised(self) -> bool:
        """Has a signal ended the work with `KeyboardInterrupt`?"""
        return self._raised > 0

    def take(self) -> None:
        """Let the signals come here. Call it again after Ray has started: it takes SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    @contextmanager
    def saving(
        self, sentence: str | Callable[[], str], say: Callable[[str], object]
    ) -> Iterator[None]:
        """For work that looks at `is_set` and saves: the first signal asks, and `sentence` is said.

        By a thread: a handler that prints may meet the main thread in the middle of printing.
        """
        before, news = self._listener, queue.SimpleQueue[bool]()

        def tell() -> None:
            if news.get():
                say(sentence if isinstance(sentence, str) else sentence())

        thread = threading.Thread(target=tell, name="stopping", daemon=True)
        thread.start()
        self._listener = news
        try:
            yield
        finally:
            self._listener = before
            news.put(False)
            thread.join(PATIENCE)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.raised:
            if number == signal.SIGINT and time.monotonic() - self._raised > PATIENCE:
                self._end()
            return
        again, self._asked = self._asked, True
        if self._listener is not None and (not again or number == signal.SIGTERM):
            if not again:
                self._listener.put(True)
            return
        self._raised = time.monotonic()
        if again and self._listener is None:
            return  # the work has been saved and the command is closing: no need to raise
        raise KeyboardInterrupt

    def _end(self) -> NoReturn:
        """End without closing anything: a clean end takes too long for whoever is waiting."""
        cursor = SHOW_CURSOR if os.isatty(self._stderr) else b""
        with suppress(OSError):
            os.write(self._stderr, cursor + b"\nstopped: at once; the same command resumes\n")
        os._exit(RESUMABLE)


_current: Stop | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Take SIGINT and SIGTERM; inside another of these, the same `Stop` is used.

    Elsewhere than in the main thread no signal arrives, and none is taken.
    """
    global _current  # noqa: PLW0603 - signals belong to the process, so this does
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield _current or Stop()
        return
    stop = _current = Stop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop._stderr = os.dup(2)  # 2 is the log while a run is going
    stop.take()
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
        os.close(stop._stderr)
        _current = None


@contextmanager
def resumable(sentence: str) -> Iterator[None]:
    """Around work that is safe to kill: what a signal ends is told in this sentence."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(sentence) from None


def _flush() -> None:
    """Write what was printed; the interpreter tries again and tells what is wrong."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def stoppable(main: Callable[P, int]) -> Callable[P, int]:
    """A program's main function, whose process ends without noise whenever it is interrupted.

    Called without arguments it is the program itself. Then an interrupted one leaves without the
    interpreter's long farewell, which half-imported libraries may not survive; and once a command
    has ended, a signal can only make the process end sooner.
    """

    @wraps(main)
    def wrapped(*arguments: P.args, **named: P.kwargs) -> int:
        is_program = not (arguments or named)
        with stop_signals() as stop:
            try:
                code = main(*arguments, **named)
            except KeyboardInterrupt:  # where `main` itself could not catch it
                code = RESUMABLE
                with suppress(OSError, ValueError):
                    tell("stopped: interrupted; nothing is lost", sys.stderr)
            if is_program and stop.is_set():
                _flush()
                os._exit(code)
        if is_program:
            _flush()  # before a signal may end the process on the spot
            for number in SIGNALS:
                signal.signal(number, lambda *_: os._exit(code))
        return code

    return wrapped
