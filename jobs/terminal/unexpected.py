"""What happens to an error that nobody expected: one sentence on the screen, the rest in a file.

A traceback says nothing to most people and is all that matters to whoever mends the defect. So it
goes to the log of the run, if one is going, and otherwise to a file of its own in the user's cache
folder; the screen gets a sentence with the path. `ELMWRIGHT_DEBUG=1` shows the traceback as well.
Only the command line does this: from Python, exceptions are raised as always.
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
KEPT = 20
"""Error files that are kept, the newest."""
LONGEST = 200
"""Characters of an error's own words that are shown."""
_NOTED = "elmwright_log"


@contextmanager
def noting(log_file: Path) -> Iterator[None]:
    """Write the traceback of an unexpected error that passes through to the log of the run."""
    try:
        yield
    except (UserError, Interrupted, Failed):
        raise
    except Exception as error:
        log.exception("the command failed")
        vars(error)[_NOTED] = log_file
        raise


def report_unexpected(error: BaseException) -> str:
    """Write the traceback to a file; a sentence of what happened, and where the traceback is."""
    log_file = vars(error).get(_NOTED) or write_error_file(error)
    if os.environ.get(DEBUG, "") not in ("", "0"):
        sys.stderr.write(for_others("".join(traceback.format_exception(error))))
    where = f"the details are in {log_file}" if log_file else f"set {DEBUG}=1 to see the details"
    return f"an unexpected error ({in_words(error)}); {where}"


def in_words(error: BaseException) -> str:
    """An error on one line: its kind and its own words, without the traceback Ray puts there."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and cause is not error:
        return in_words(cause)
    lines = [line.strip() for line in for_others(str(error)).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    # The last line of a traceback names the error itself.
    handed_on = any(line.startswith(("Traceback", 'File "')) for line in lines)
    words = lines[-1] if handed_on else lines[0]
    words = words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
    return words if handed_on else f"{name}: {words}"


def error_folder() -> Path:
    """Where error files are kept: in the user's cache folder."""
    own = os.environ.get("ELMWRIGHT_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME")
    if own:
        home = Path(own)
    elif cache and os.path.isabs(cache):
        home = Path(cache, "elmwright")
    else:
        home = Path("~/.cache/elmwright")
    return home.expanduser() / "errors"


def write_error_file(error: BaseException) -> Path | None:
    """A file with the traceback and what was typed; None where nothing can be written."""
    text = for_others(
        f"elmwright {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        # Each word by itself: quotes of the shell may stand inside a password.
        f"command: {shlex.join(map(shown_word, sys.argv))}\n"
        f"folder: {_folder()}\n\n" + "".join(traceback.format_exception(error))
    )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (error_folder(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / (name if folder.name == "errors" else f"elmwright-{name}")
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except (OSError, RuntimeError):  # no home, or no room: the next place
            continue
        if folder.name == "errors":
            _tidy(folder)
        return path
    return None


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "(gone)"


def _tidy(folder: Path) -> None:
    with suppress(OSError):
        for old in sorted(folder.glob("*.txt"))[:-KEPT]:
            old.unlink(missing_ok=True)


def quiet_threads() -> None:
    """Keep tracebacks of other threads, and of what Python cleans up, off the screen."""
    threading.excepthook = _thread_failed
    sys.unraisablehook = _not_raisable


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    error = failure.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    name = failure.thread.name if failure.thread else "unknown"
    _put_aside(error, failure.exc_traceback, f"the thread {name!r} failed")


def _not_raisable(failure: "sys.UnraisableHookArgs") -> None:
    error = failure.exc_value
    if error is None or isinstance(error, KeyboardInterrupt):  # Ctrl-C while the process ends
        return
    what = failure.err_msg or "an error where it cannot be raised"
    _put_aside(error, failure.exc_traceback, f"{what}: {failure.object!r}")


def _put_aside(error: BaseException, trace: TracebackType | None, what: str) -> None:
    """To the log of the run if there is one, else to an error file."""
    error = error.with_traceback(trace)
    if any(isinstance(one, logging.FileHandler) for one in logging.getLogger().handlers):
        log.error(what, exc_info=error)
        return
    path = write_error_file(error)
    if not sys.is_finalizing() and path:
        with suppress(OSError, ValueError):
            tell(f"warning: {what} ({in_words(error)}); the details are in {path}", sys.stderr)
