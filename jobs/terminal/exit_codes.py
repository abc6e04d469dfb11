"""From what a command raises to its exit code and the sentence that a person reads.

0 done, 1 failed, 2 the user's mistake, 75 interrupted but resumable by the same command.
"""

import json
import os
import re
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from elmwright.jobs.environment.machine_use import share_machine
from elmwright.jobs.secrets.hiding import for_others
from elmwright.jobs.terminal.unexpected import quiet_threads, report_unexpected
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.disk import explain

DONE, FAILED, MISTAKE, RESUMABLE = 0, 1, 2, 75
STORE_WORDS = re.compile(r"(?i)\b(s3|gs|gcs|aws|bucket|botocore|google::cloud|curlcode)\b")
"""What pyarrow says of object stores, whose errors have no number."""


def exit_code(work: Callable[[], int | None], *, as_json: bool = False) -> int:
    """Do the work of a command; its exit code. What went wrong is told on standard error.

    With `as_json` it is told as one JSON object with the error's code (docs/errors.md).
    """
    share_machine()
    quiet_threads()
    try:
        return work() or DONE
    except BrokenPipeError as error:
        if not _has_no_reader(sys.stdout):
            # Another pipe, or a connection.
            tell(f"failed: {report_unexpected(error)}", sys.stderr)
            return FAILED
        # The reader of a pipe (elmwright … | head) has seen enough. SIGPIPE itself stays ignored:
        # it would also end a run whose tracking server closes a connection.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (KeyboardInterrupt, Exception) as error:
        ending = _ending(error)
        if as_json:
            print(json.dumps({"error": to_data(ending)}), file=sys.stderr)
        elif ending.exit == RESUMABLE:
            _tell_stopped(f"stopped: {ending.message}")
        else:
            tell(f"{'error' if ending.exit == MISTAKE else 'failed'}: {ending.message}", sys.stderr)
        return ending.exit


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


@dataclass(frozen=True)
class Ending:
    """How a command ended early."""

    exit: int
    """Its exit code."""
    code: str
    """A code for programs."""
    message: str
    """What a person reads, without secrets."""


def _ending(error: BaseException) -> Ending:
    ending = _told(error)
    return replace(ending, message=for_others(ending.message))


def _told(error: BaseException) -> Ending:
    if isinstance(error, KeyboardInterrupt):
        return Ending(RESUMABLE, "interrupted", "interrupted; nothing is lost")
    if isinstance(error, Interrupted):
        return Ending(RESUMABLE, "interrupted", str(error))
    if isinstance(error, Failed):
        return Ending(FAILED, "failed", str(error))
    if isinstance(error, OSError):
        if mistake := explain(error, Path(error.filename or "here")):
            error = mistake
        elif error.errno is None and STORE_WORDS.search(str(error)):
            reason = " ".join(str(error).split())[:300]
            return Ending(
                FAILED,
                "store-failed",
                f"the object store does not answer as it should ({reason}); check "
                "AWS_ENDPOINT_URL and the network, then run the same command again",
            )
    if isinstance(error, UserError):
        return Ending(MISTAKE, error.code, str(error))
    return Ending(FAILED, "unexpected", report_unexpected(error))
