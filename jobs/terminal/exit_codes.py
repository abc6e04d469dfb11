"""From the exception of a command to its exit code and one sentence for the user.

0 done, 1 failed, 2 the user's mistake, 75 interrupted but resumable by the same command.
"""

import json
import os
import re
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from elmwright.jobs.environment.machine_use import share_machine
from elmwright.jobs.secrets.hiding import for_others
from elmwright.jobs.terminal.signals import RESUMABLE
from elmwright.jobs.terminal.unexpected import quiet_threads, report_unexpected
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.storage.disk import explain

DONE = 0
FAILED = 1
MISTAKE = 2
STORE_WORDS = re.compile(r"(?i)\b(s3|gs|gcs|aws|bucket|botocore|google::cloud|curlcode)\b")
"""Words in pyarrow's errors about object stores, which have no errno."""


def exit_code(work: Callable[[], int | None], *, as_json: bool = False) -> int:
    """Do the work of a command and return its exit code; errors are printed to standard error.

    With `as_json` an error is one JSON object with the error's code (docs/errors.md).
    """
    share_machine()
    quiet_threads()
    try:
        return work() or DONE
    except BrokenPipeError as error:
        if not _has_no_reader(sys.stdout):
            # Not standard output, but another pipe or a connection was closed.
            tell(f"failed: {report_unexpected(error)}", sys.stderr)
            return FAILED
        # The reader of a pipe (elmwright … | head) has seen enough. SIGPIPE itself stays ignored:
        # it would also end a run whose tracking server closes a connection.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (KeyboardInterrupt, Exception) as error:
        number, code, message = _ending(error)
        if as_json:
            ending = {"exit": number, "code": code, "message": message}
            print(json.dumps({"error": ending}), file=sys.stderr)
            return number
        if number == RESUMABLE and sys.stderr.isatty():
            sys.stderr.write("\r")  # over the ^C of the terminal
        words = {FAILED: "failed", MISTAKE: "error", RESUMABLE: "stopped"}
        tell(f"{words[number]}: {message}", sys.stderr)
        return number


def _has_no_reader(stream: TextIO) -> bool:
    """Whether the reader of a pipe has closed it."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors and hang-ups are always reported
        return bool(poll.poll(0))
    except (OSError, ValueError):  # no descriptor, so not a pipe
        return False


def _ending(error: BaseException) -> tuple[int, str, str]:
    """The exit code, a code for programs, and a sentence for the user without secrets."""
    if isinstance(error, OSError):
        path = Path(error.filename or "here")  # not every error names its file
        error = explain(error, path) or error
    number, code, message = FAILED, "failed", str(error)
    if isinstance(error, KeyboardInterrupt):
        number, code, message = RESUMABLE, "interrupted", "interrupted; nothing is lost"
    elif isinstance(error, Interrupted):
        number, code = RESUMABLE, "interrupted"
    elif isinstance(error, UserError):
        number, code = MISTAKE, error.code
    elif isinstance(error, OSError) and error.errno is None and STORE_WORDS.search(message):
        code = "store-failed"
        message = (
            f"the object store does not answer as it should ({' '.join(message.split())[:300]}); "
            "check AWS_ENDPOINT_URL and the network, then run the same command again"
        )
    elif not isinstance(error, Failed):
        code, message = "unexpected", report_unexpected(error)
    return number, code, for_others(message)
