"""The commands that look at runs, here or submitted: runs, status, logs, ui, checkpoints,
prune."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from elmwright.jobs.cli.completion import completes, runs
from elmwright.jobs.terminal.wording import tell
from elmwright.jobs.upkeep.ui import add_ui_command
from elmwright.pipeline.errors import Failed, UserError

if TYPE_CHECKING:
    from elmwright.jobs.rundir.layout import RunFolder
    from elmwright.jobs.upkeep.prune import Removal

RUN_HELP = "a run's folder, its name in runs/ here, its config, or the name of a submitted run"
POLL_SECONDS = 0.5


def add_commands(
    add: Callable[..., argparse.ArgumentParser],
    with_json: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Register the commands with the parser of `elmwright`."""
    sub = add("runs", _runs, "list the runs here: state, step, perplexity, size")
    sub.add_argument(
        "folder", nargs="?", default="runs", metavar="FOLDER", help="where they are (runs)"
    )
    with_json(sub)

    sub = add("status", _status, "how far a run is, here or submitted")
    with_run(sub)
    with_json(sub)

    sub = add("logs", _logs, "the log of a run, here or submitted")
    with_run(sub)
    sub.add_argument("-f", "--follow", action="store_true", help="print what it says as it comes")

    add_ui_command(add)

    sub = add("checkpoints", _checkpoints, "list a run's checkpoints")
    with_run(sub)
    sub.add_argument("--verify", action="store_true", help="compare every file with its digest")
    with_json(sub)

    sub = add("prune", _prune, "remove what a run can make again: work files, caches")
    with_run(sub)
    sub.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    with_json(sub)


def with_run(sub: argparse.ArgumentParser) -> None:
    """Give a command its RUN."""
    completes(sub.add_argument("run", metavar="RUN", help=RUN_HELP), runs)


def _runs(options: argparse.Namespace) -> None:
    from elmwright.jobs.upkeep.list_runs import as_json, as_table, list_runs

    found = list_runs(options.folder)
    if options.json:
        print(as_json(found))
        return
    if not found:
        tell(
            f"there is no run in {options.folder}/ here; 'elmwright run demo' makes one, "
            "'elmwright jobs' lists those that were submitted"
        )
        return
    for line in as_table(found):
        print(line)


def _status(options: argparse.Namespace) -> None:
    from elmwright.jobs.runbook.find_run import find_attempts, user_of
    from elmwright.jobs.runbook.submission import State
    from elmwright.jobs.submit.send import state_of
    from elmwright.jobs.upkeep.status import as_json, as_lines, read_progress, state_by_files

    folder, attempts = find_attempts(options.run)
    if not attempts:
        assert folder is not None  # noqa: S101 - or find_attempts would have raised
        _status_here(folder, options)
        return
    job = attempts[-1]
    progress = read_progress(job.submission)
    try:
        state = state_of(job)
    except (UserError, Failed) as error:
        if progress is None:
            raise
        # The files still tell how far it came, not whether it is running.
        state = state_by_files(job.submission, progress, str(error))
    if state.ended and folder is not None and not folder.remote and (user := user_of(folder)):
        state = State("running", user)  # somebody took it up again by hand
    if options.json:
        print(as_json(job.submission, state, progress))
        return
    for line in as_lines(job.submission, state, progress):
        print(line)
    if state.word == "interrupted":
        tell(f"'elmwright resume {options.run}' resumes from the newest checkpoint")


def _status_here(folder: "RunFolder", options: argparse.Namespace) -> None:
    """A run that was started by hand."""
    from elmwright.jobs.runbook.find_run import last_holder
    from elmwright.jobs.upkeep.status import (
        as_json,
        as_lines,
        asked_until,
        read_progress,
        state_here,
        submission_here,
    )

    sent = submission_here(folder, asked_until(folder))
    progress = read_progress(sent)
    state = state_here(folder, progress)
    if options.json:
        print(as_json(sent, state, progress))
        return
    for line in as_lines(sent, state, progress):
        print(line)
    if state.word == "interrupted":
        command = last_holder(folder).command or "the command that started it"
        tell(f"'{command}' resumes from there")


def _logs(options: argparse.Namespace) -> int:
    from elmwright.jobs.runbook.find_run import find_attempts
    from elmwright.jobs.submit.send import follow, read_log, state_of

    folder, attempts = find_attempts(options.run)
    if not attempts:
        assert folder is not None  # noqa: S101 - or find_attempts would have raised
        return _logs_here(folder, options.follow)
    job = attempts[-1]
    if options.follow:
        state = follow(folder.root if folder else options.run, job, through=True)
        tell(f"-- {job.submission.run} is {state.word}" + (f": {state.why}" if state.why else ""))
        return 0
    said = read_log(job)
    sys.stdout.write(said)
    if said:
        return 0
    state = state_of(job)
    about = f"{state.word}: {state.why}" if state.why else state.word
    yet = "its log is not there (any more)" if state.ended else "it has said nothing yet"
    tell(f"{job.submission.id} is {about}; {yet}", sys.stderr)
    return 1 if state.ended else 0


def _logs_here(folder: "RunFolder", follow: bool) -> int:
    """Print the log file of a run that was started by hand and, with `follow`, what is appended
    while it runs."""
    from elmwright.jobs.runbook.find_run import user_of
    from elmwright.jobs.terminal.wording import nearby
    from elmwright.jobs.upkeep.status import asked_until, read_progress, state_here, submission_here

    if not folder.log.is_file():
        raise UserError(
            "run-missing",
            f"{nearby(folder.root)} has no log here: there is no {nearby(folder.log)}",
        )
    with folder.log.open(encoding="utf-8", errors="replace") as log:
        while True:
            # Asked first: what is said between the two is then still read.
            running = follow and bool(user_of(folder))
            sys.stdout.write(log.read())
            sys.stdout.flush()
            if not running:
                break
            time.sleep(POLL_SECONDS)
    if follow:
        sent = submission_here(folder, asked_until(folder))
        tell(f"-- {sent.run} is {state_here(folder, read_progress(sent)).word}")
    return 0


def _checkpoints(options: argparse.Namespace) -> None:
    from elmwright.jobs.checkpoints.checkpoint import verify_checkpoint
    from elmwright.jobs.publishing.choose_checkpoint import list_scored
    from elmwright.jobs.runbook.find_run import find_run
    from elmwright.jobs.rundir.layout import RunFolder
    from elmwright.jobs.terminal.wording import nearby
    from elmwright.pipeline.storage.files import is_url

    there = is_url(options.run) or Path(options.run).is_dir()
    folder = RunFolder.at(options.run) if there else find_run(options.run)
    infos = list_scored(folder)
    if not infos:
        raise UserError("checkpoint-missing", f"{nearby(folder.root)} has no checkpoints")
    if options.verify:
        for info in infos:
            verify_checkpoint(info.path)
    if options.json:
        rows = [
            {
                "step": info.step,
                "path": info.path,
                "sha256": info.sha256,
                "bytes": info.bytes,
                "perplexity": info.perplexity,
            }
            for info in infos
        ]
        print(json.dumps(rows, indent=1))
        return
    from elmwright.jobs.terminal.listing import checkpoint_table
    from elmwright.jobs.terminal.wording import terminal_width

    listed = [
        (
            info.step,
            info.bytes,
            info.sha256,
            ", ".join(f"{split} {value:.2f}" for split, value in info.perplexity.items()),
            info.path,
        )
        for info in infos
    ]
    for line in checkpoint_table(listed, terminal_width(sys.stdout), verified=options.verify):
        print(line)
    tell(f"in {nearby(folder.checkpoints)}")


def _prune(options: argparse.Namespace) -> None:
    from elmwright.jobs.runbook.find_run import find_run
    from elmwright.jobs.terminal.wording import nearby, size
    from elmwright.jobs.upkeep.prune import as_lines, prune

    folder = find_run(options.run)

    def announce(found: "list[Removal]") -> None:
        if found and not options.json:
            verb = "Would remove" if options.dry_run else "Removing"
            print(f"{verb} from {nearby(folder.root)}:")
            print("\n".join(as_lines(folder, found)), flush=True)

    found = prune(folder, dry_run=options.dry_run, tell=announce)
    total = sum(removal.bytes for removal in found)
    if options.json:
        rows = [{"path": str(r.path), "bytes": r.bytes, "why": r.why} for r in found]
        print(json.dumps({"dry_run": options.dry_run, "bytes": total, "removed": rows}, indent=1))
    elif not found:
        tell(f"{nearby(folder.root)} has nothing to remove")
    else:
        print(f"{size(total)} {'would be freed' if options.dry_run else 'freed'}")
