"""What Ctrl-C and SIGTERM do, in every command.

Most work is safe to kill: export, eval, verify, publish, embed and score lose nothing that the same
command does not write again. The first signal raises `KeyboardInterrupt` in the main thread, which
no `except Exception` catches. Building a corpus and training save first (`Stop.saving`): the first
signal is only a request, which is confirmed at once by a sentence, and a second SIGINT raises. A
second SIGTERM does not, because batch systems and users who cancel a run twice send it while the
checkpoint is being written. They can still kill the process.

People press Ctrl-C twice, and the second one must not interrupt the closing of files. So after
`KeyboardInterrupt` was raised, or work that was asked to stop has saved, signals do nothing for
`PATIENCE` seconds; a later SIGINT ends the process immediately. The exit code is always 75: the
same command resumes.

No signal is set to SIG_IGN, because child processes would inherit that.
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
"""Seconds that a command has to close its files and Ray, whatever is pressed."""
RESUMABLE = 75
AGAIN = "(Ctrl-C again ends at once)"
"""Ends the sentence that confirms a request to stop."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"

P = ParamSpec("P")


class Stop:
    """Whether this process was asked to stop, and what the next signal does."""

    def __init__(self) -> None:
        self._asked = False
        self._raised = 0.0
        # A handler interrupts the main thread, which may hold any lock. Of all ways to wake another
        # thread, only this queue is safe there.
        self._listener: queue.SimpleQueue[bool] | None = None
        self._stderr = 2

    def is_set(self) -> bool:
        """Whether the process was asked to stop."""
        return self._asked

    @property
    def raised(self) -> bool:
        """Whether a signal has ended the work with `KeyboardInterrupt`."""
        return self._raised > 0

    def take(self) -> None:
        """Handle the signals. Call it again after Ray has started, which takes SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    @contextmanager
    def saving(
        self, sentence: str | Callable[[], str], say: Callable[[str], object]
    ) -> Iterator[None]:
        """For work that checks `is_set` and saves: the first signal is a request, confirmed by
        `sentence`.

        A thread prints it, because the handler may interrupt the main thread while it prints.
        """
        before, requests = self._listener, queue.SimpleQueue[bool]()

        def confirm() -> None:
            if requests.get():
                say(sentence if isinstance(sentence, str) else sentence())

        thread = threading.Thread(target=confirm, name="stopping", daemon=True)
        thread.start()
        self._listener = requests
        try:
            yield
        finally:
            self._listener = before
            requests.put(False)
            thread.join(PATIENCE)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.raised:
            if number == signal.SIGINT and time.monotonic() - self._raised > PATIENCE:
                self._end()
            return
        is_repeated, self._asked = self._asked, True
        if self._listener is not None and (not is_repeated or number == signal.SIGTERM):
            if not is_repeated:
                self._listener.put(True)
            return
        self._raised = time.monotonic()
        if is_repeated and self._listener is None:
            return  # the work has been saved and the command is closing: no need to raise
        raise KeyboardInterrupt

    def _end(self) -> NoReturn:
        """End without closing anything, because the user is tired of waiting."""
        cursor = SHOW_CURSOR if os.isatty(self._stderr) else b""
        with suppress(OSError):
            os.write(self._stderr, cursor + b"\nstopped: at once; the same command resumes\n")
        os._exit(RESUMABLE)


_current: Stop | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Handle SIGINT and SIGTERM; nested calls share one `Stop`.

    Signals arrive in the main thread only; in other threads this does nothing.
    """
    global _current  # noqa: PLW0603 - signals belong to the process, so this does
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield _current or Stop()
        return
    stop = _current = Stop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop._stderr = os.dup(2)  # during a run, 2 is the log
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
    """For work that is safe to kill: a signal raises `Interrupted` with this sentence."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(sentence) from None


def _flush() -> None:
    """Flush the output; the interpreter tries again at exit and reports errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def stoppable(main: Callable[P, int]) -> Callable[P, int]:
    """A program's main function, whose process ends quietly when it is interrupted.

    Called without arguments it is the program itself. An interrupted program then skips the
    interpreter's shutdown, which half-imported libraries may not survive; and once a command has
    ended, a signal only makes the process end sooner.
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
