"""From what a command raises to its exit code and the sentence that a person reads.

0 done, 1 failed, 2 the user's mistake, 75 interrupted but resumable by the same command.
"""

import os
import re
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from elmwright.jobs.environment.machine_use import share_machine
from elmwright.jobs.terminal.unexpected import quiet_threads, report_unexpected
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.storage.disk import explain

DONE, FAILED, MISTAKE, RESUMABLE = 0, 1, 2, 75
STORE_WORDS = re.compile(r"(?i)\b(s3|gs|gcs|aws|bucket|botocore|google::cloud|curlcode)\b")
"""What pyarrow says of object stores, whose errors have no number."""


def exit_code(work: Callable[[], int | None]) -> int:
    """Do the work of a command; its exit code. What went wrong is told on standard error."""
    share_machine()
    quiet_threads()
    try:
        return work() or DONE
    except BrokenPipeError as error:
        if not _has_no_reader(sys.stdout):
            report_unexpected(error)  # another pipe, or a connection
            return FAILED
        # The reader of a pipe (elmwright … | head) has seen enough. SIGPIPE itself stays ignored:
        # it would also end a run whose tracking server closes a connection.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        _tell_stopped("stopped: interrupted; nothing is lost")
        return RESUMABLE
    except Interrupted as stop:
        _tell_stopped(f"stopped: {stop}")
        return RESUMABLE
    except Exception as error:
        code, sentence = _ending(error)
        if sentence:
            tell(sentence, sys.stderr)
        else:
            report_unexpected(error)
        return code


def _has_no_reader(stream: TextIO) -> bool:
    """Whether what is written there goes nowhere, because whoever read it has gone."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors and hang-ups are always told
        return bool(poll.poll(0))
    except (OSError, ValueError):  # no descriptor: no pipe
        return False


def _tell_stopped(sentence: str) -> None:
    """Say it at the left edge: a terminal has just written ^C there."""
    if sys.stderr.isatty():
        sys.stderr.write("\r")
    tell(sentence, sys.stderr)


def _ending(error: Exception) -> tuple[int, str]:
    """The exit code, and what to say; nothing is known to be said of an unexpected error."""
    if isinstance(error, UserError):
        return MISTAKE, f"error: {error}"
    if isinstance(error, Failed):
        return FAILED, f"failed: {error}"
    if isinstance(error, OSError):
        sentence = explain(error, Path(error.filename or "here"))
        if sentence is not None:
            return MISTAKE, f"error: {sentence}"
        if error.errno is None and STORE_WORDS.search(str(error)):
            reason = " ".join(str(error).split())[:300]
            return FAILED, (
                f"failed: the object store does not answer as it should ({reason}); check "
                "AWS_ENDPOINT_URL and the network, then run the same command again"
            )
    return FAILED, ""
