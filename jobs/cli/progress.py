"""The commands that follow a run, started here or submitted: status, logs."""

import sys
import time
from argparse import Namespace

from elmwright.jobs.runbook.find_run import find_attempts, last_holder, running_command
from elmwright.jobs.runbook.submission import State
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.submit.send import follow, read_log, state_of
from elmwright.jobs.terminal.wording import nearby, tell
from elmwright.jobs.upkeep.status import (
    as_json,
    as_lines,
    read_progress,
    requested_until,
    state_by_files,
    state_here,
    submission_here,
)
from elmwright.pipeline.errors import Failed, UserError

POLL_SECONDS = 0.5


def status(options: Namespace) -> None:
    folder, attempts = find_attempts(options.run)
    if attempts:
        submission = attempts[-1].submission
        progress = read_progress(submission)
        resume = f"'elmwright resume {options.run}' resumes from the newest checkpoint"
        try:
            state = state_of(attempts[-1])
        except (UserError, Failed) as error:
            if progress is None:
                raise
            # The files still show its progress, but not whether it is running.
            state = state_by_files(submission, progress, str(error))
        if (
            state.ended
            and folder
            and not folder.is_in_store
            and (command := running_command(folder))
        ):
            state = State("running", command)  # resumed by hand
    else:
        assert folder is not None  # noqa: S101 - or find_attempts would have raised
        submission = submission_here(folder, requested_until(folder))
        progress = read_progress(submission)
        state = state_here(folder, progress)
        command = last_holder(folder).command or "the command that started it"
        resume = f"'{command}' resumes from there"
    if options.json:
        print(as_json(submission, state, progress))
        return
    print(*as_lines(submission, state, progress), sep="\n")
    if state.word == "interrupted":
        tell(resume)


def logs(options: Namespace) -> int:
    folder, attempts = find_attempts(options.run)
    if not attempts:
        assert folder is not None  # noqa: S101 - or find_attempts would have raised
        _print_local_log(folder, follow=options.follow)
        return 0
    job = attempts[-1]
    if options.follow:
        state = follow(folder.root if folder else options.run, job, through=True)
        tell(f"-- {job.submission.run} is {state}")
        return 0
    text = read_log(job)
    sys.stdout.write(text)
    if text:
        return 0
    state = state_of(job)
    reason = "it has no log, or no longer has one" if state.ended else "its log is still empty"
    tell(f"{job.submission.id} is {state}; {reason}", sys.stderr)
    return 1 if state.ended else 0


def _print_local_log(folder: RunFolder, *, follow: bool) -> None:
    """Print the log file of a run that was started by hand."""
    if not folder.log.is_file():
        raise UserError(
            "run-missing",
            f"{nearby(folder.root)} has no log here: there is no {nearby(folder.log)}",
        )
    with folder.log.open(encoding="utf-8", errors="replace") as log:
        while True:
            # Looked up before reading, so that the last lines are read as well.
            is_running = follow and bool(running_command(folder))
            sys.stdout.write(log.read())
            sys.stdout.flush()
            if not is_running:
                break
            time.sleep(POLL_SECONDS)
    if follow:
        submission = submission_here(folder, requested_until(folder))
        tell(f"-- {submission.run} is {state_here(folder, read_progress(submission)).word}")
