"""Unexpected errors: one sentence on the screen, the traceback in a file.

Developers need the traceback, most users do not. It is written to the log of the run, if there is
one, and otherwise to a file in the user's cache folder. The screen shows a sentence with the path.
`ELMWRIGHT_DEBUG=1` shows the traceback as well. Only the command line does this: in Python,
exceptions are raised as usual.
"""

import logging
import os
import platform
import shlex
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from elmwright import __version__
from elmwright.jobs.secrets.hiding import for_others, shown_word
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import Failed, Interrupted, UserError

log = logging.getLogger("elmwright")

DEBUG = "ELMWRIGHT_DEBUG"
MAX_FILES = 20
"""How many error files are kept."""
MAX_CHARACTERS = 200
"""Longer messages of errors are cut."""
_LOG_FILE = "elmwright_log"
"""Attribute of an error: the log that has its traceback already."""


@contextmanager
def logging_errors(log_file: Path) -> Iterator[None]:
    """Write the traceback of an unexpected error to the log of the run, and raise it again."""
    try:
        yield
    except (UserError, Interrupted, Failed):
        raise
    except Exception as error:
        log.exception("the command failed")
        vars(error)[_LOG_FILE] = log_file
        raise


def report_unexpected(error: BaseException) -> str:
    """Write the traceback to a file; return a sentence with the error and the file."""
    log_file = vars(error).get(_LOG_FILE) or write_error_file(error)
    if os.environ.get(DEBUG, "") not in ("", "0"):
        sys.stderr.write(for_others("".join(traceback.format_exception(error))))
    where = f"the details are in {log_file}" if log_file else f"set {DEBUG}=1 to see the details"
    return f"an unexpected error ({in_words(error)}); {where}"


def in_words(error: BaseException) -> str:
    """An error on one line: its type and message, without the traceback that Ray adds."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and cause is not error:
        return in_words(cause)
    lines = [line.strip() for line in for_others(str(error)).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    # The last line of a traceback names the error itself.
    has_traceback = any(line.startswith(("Traceback", 'File "')) for line in lines)
    words = lines[-1] if has_traceback else lines[0]
    words = words if len(words) <= MAX_CHARACTERS else f"{words[: MAX_CHARACTERS - 1]}…"
    return words if has_traceback else f"{name}: {words}"


def error_folder() -> Path:
    """The folder of error files, in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    default = Path(cache if os.path.isabs(cache) else "~/.cache", "elmwright")
    return Path(os.environ.get("ELMWRIGHT_CACHE") or default).expanduser() / "errors"


def write_error_file(error: BaseException) -> Path | None:
    """Write a file with the traceback and the command; None if it cannot be written."""
    try:
        here = os.getcwd()
    except OSError:
        here = "(removed)"
    text = for_others(
        f"elmwright {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        # Word by word, because a password may contain shell quotes.
        f"command: {shlex.join(map(shown_word, sys.argv))}\n"
        f"folder: {here}\n\n" + "".join(traceback.format_exception(error))
    )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    with suppress(OSError, RuntimeError):  # no home folder, or no space
        path = error_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, text)
        with suppress(OSError):
            for old in sorted(path.parent.glob("*.txt"))[:-MAX_FILES]:
                old.unlink(missing_ok=True)
        return path
    with suppress(OSError):
        path = Path(tempfile.gettempdir(), f"elmwright-{name}")
        _append(path, text)
        return path
    return None


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def quiet_threads() -> None:
    """Keep tracebacks of other threads, and of errors that Python ignores, off the screen."""
    threading.excepthook = _thread_failed
    sys.unraisablehook = _record_ignored


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    error = failure.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    name = failure.thread.name if failure.thread else "unknown"
    _record(error, failure.exc_traceback, f"the thread {name!r} failed")


def _record_ignored(failure: "sys.UnraisableHookArgs") -> None:
    error = failure.exc_value
    if error is None or isinstance(error, KeyboardInterrupt):  # Ctrl-C while the process ends
        return
    what = failure.err_msg or "an error where it cannot be raised"
    _record(error, failure.exc_traceback, f"{what}: {failure.object!r}")


def _record(error: BaseException, trace: TracebackType | None, what: str) -> None:
    """Write an error to the log of the run if there is one, else to an error file."""
    error = error.with_traceback(trace)
    if any(isinstance(handler, logging.FileHandler) for handler in logging.getLogger().handlers):
        log.error(what, exc_info=error)
        return
    path = write_error_file(error)
    if not sys.is_finalizing() and path:
        with suppress(OSError, ValueError):
            tell(f"warning: {what} ({in_words(error)}); the details are in {path}", sys.stderr)
