"""The commands for submitted runs, on a cluster or in the background here: submit, jobs, cancel,
resume, doctor."""

import json
import sys
from argparse import Namespace
from dataclasses import replace

from elmwright.jobs.cli.output import print_json
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.find_run import find_attempts, last_holder, running_command
from elmwright.jobs.runbook.submission import Job
from elmwright.jobs.runbook.target import Target, find_target
from elmwright.jobs.submit import send
from elmwright.jobs.submit.targets.kinds import open_place
from elmwright.jobs.submit.targets.place import Unreachable
from elmwright.jobs.terminal.exit_codes import DONE, FAILED, MISTAKE
from elmwright.jobs.terminal.signals import RESUMABLE
from elmwright.jobs.terminal.wording import nearby
from elmwright.jobs.upkeep.status import read_progress
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import to_data


def submit(options: Namespace) -> int:
    target = find_target(options.to)
    overrides = list(options.overrides)
    if options.name is not None:
        overrides.append(f"run.name={json.dumps(options.name)}")
    if options.wait is not None:
        overrides.append(f"cluster.wait_minutes={options.wait}")
    place = open_place(target)
    if place.cluster_address or load_config(options.config, overrides).cluster.address:
        overrides.append(f'cluster.address="{place.cluster_address}"')
    submission = send.prepare(load_config(options.config, overrides), target, options.until)
    if options.dry_run:
        print(submission.to_json() if options.json else place.describe(submission))
        return DONE
    if options.follow:
        place.check_follow()  # before anything is sent: an error after that would hide the job
    if note := place.note(submission):
        print(f"note: {note}", file=sys.stderr)
    job = send.submit(submission)
    if not options.json:
        return _announce(job, follow=options.follow)
    handle = to_data(job.handle)
    summary = {"run": submission.run, "id": submission.id, "dir": submission.dir, "handle": handle}
    print(json.dumps(summary))
    return _follow(job) if options.follow else DONE


def _announce(job: Job, *, follow: bool) -> int:
    """Print the commands for a submitted job; with `follow`, print its log and return its code."""
    submission = job.submission
    run = submission.run
    print(
        f"submitted {submission.id} to {submission.target} (elmwright {submission.version})\n"
        f"  watch   elmwright status {run}\n"
        f"  follow  elmwright logs -f {run}\n"
        f"  stop    elmwright cancel {run}",
        flush=True,
    )
    return _follow(job) if follow else DONE


def _follow(job: Job) -> int:
    """Print the log of a job until it ends, and return its exit code."""
    run = job.submission.run
    state = send.follow(run, job, through=False)
    print(f"{run} is {state}")
    if state.exit_code is not None and 0 <= state.exit_code < 128:
        return state.exit_code
    return RESUMABLE if state.word == "interrupted" else FAILED


def jobs(options: Namespace) -> None:
    rows = []
    unreachable: dict[Target, str] = {}  # wait only once for a cluster that does not answer
    entries, damaged = runbook.read_all()
    for text in damaged:
        print(f"warning: {text}", file=sys.stderr)
    for job in entries:
        sent = job.submission
        word, why = "unknown", unreachable.get(sent.target, "")
        if not why:
            try:
                state = send.state_of(job)
                word, why = state.word, state.why
            except (UserError, Failed) as error:
                unreachable[sent.target] = why = str(error)
        rows.append(
            {
                "run": sent.run,
                "state": word,
                "why": why,
                "target": str(sent.target),
                "submitted": sent.time,
                "id": sent.id,
                "dir": sent.dir,
            }
        )
    if options.json:
        print_json(rows)
        return
    if not rows:
        print("the run book is empty; 'elmwright submit CONFIG --to TARGET' sends a run")
    for row in rows:
        print(f"{row['run']:<24} {row['state']:<12} {row['target']:<22} {row['submitted']}")
        if row["why"] and row["state"] != "running":
            print(f"    {row['why']}")


def _newest_attempt(text: str) -> Job:
    """The newest submitted attempt at a run; a `UserError` for a run that was started by hand."""
    folder, attempts = find_attempts(text)
    if attempts:
        return attempts[-1]
    assert folder is not None  # noqa: S101 - or find_attempts would have raised
    if running := running_command(folder):
        raise UserError(
            "busy",
            f"{nearby(folder.root)} was not submitted; it is in use by {running}: Ctrl-C there, or "
            "SIGTERM, makes it checkpoint and stop",
        )
    command = last_holder(folder).command or "elmwright run CONFIG"
    raise UserError(
        "run-missing",
        f"{nearby(folder.root)} was not submitted, and nothing runs in it; "
        f"'{command}' continues it",
    )


def cancel(options: Namespace) -> None:
    job = _newest_attempt(options.run)
    run = job.submission.run
    state = send.cancel(job, wait=not options.no_wait)
    if options.no_wait:
        print(f"{run} was asked to checkpoint and stop")
        return
    if not state.ended:
        raise Failed(
            f"{run} is still {state.word}, although its time limit for stopping has passed; "
            f"look at 'elmwright status {run}' and cancel it again"
        )
    progress = read_progress(job.submission)
    checkpoint = ""
    if progress is not None and progress.checkpoint_step >= 0:
        checkpoint = f", with a checkpoint at step {progress.checkpoint_step:,}"
    print(f"{run} is {state.word}{checkpoint}")
    if state.word == "interrupted":
        print(f"  resume  elmwright resume {run}")


def resume(options: Namespace) -> int:
    job = _newest_attempt(options.run)
    submission = job.submission
    try:
        state = send.state_of(job)
        if not state.ended:
            raise send.already_running(submission.run, submission.id, submission.target)
        is_finished = state.word == "finished"
    except Unreachable as error:
        # If the job is still running, its lock on the run's folder stops the new attempt.
        is_finished = runbook.outcome_of(submission) == 0
        print(f"note: {error}", file=sys.stderr)
    if is_finished:
        raise UserError(
            "run-state", f"run {submission.run!r} is finished; there is nothing to resume"
        )
    if options.to:
        job = replace(job, submission=replace(submission, target=find_target(options.to)))
    attempt = send.next_attempt(job, wait_minutes=options.wait)
    if options.follow:
        open_place(attempt.target).check_follow()
    print(send.about_resuming(job), flush=True)
    return _announce(send.submit(attempt), follow=options.follow)


def doctor(options: Namespace) -> int:
    from elmwright.jobs.submit.doctor import examine

    if options.overrides and not options.config:
        raise UserError("argument", "--set changes a config; name the config with --config")
    findings = examine(find_target(options.target), options.config, options.overrides)
    if options.json:
        print_json([{"ok": good, "about": text} for good, text in findings])
    else:
        for good, text in findings:
            print(f"{'ok' if good else 'missing'}: {text}")
    return DONE if all(good for good, _ in findings) else MISTAKE
