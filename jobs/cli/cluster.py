"""The commands for submitted runs, on a cluster or in the background here: submit, jobs, cancel,
resume, doctor."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from elmwright.jobs.cli.completion import completes, configs, runs
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import to_data

RUN_HELP = "the name of a submitted run, or its folder (run.dir)"
TARGET_HELP = (
    "local, slurm, k8s, the address of a Ray dashboard (http://HEAD:8265), or a name from "
    "~/.config/elmwright/targets.toml"
)


def add_cluster_commands(
    add: Callable[..., argparse.ArgumentParser],
    with_config: Callable[[argparse.ArgumentParser], None],
    with_overrides: Callable[[argparse.ArgumentParser], None],
    with_json: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Register the commands with the parser of `elmwright`."""
    sub = add("submit", _submit, "send a run to a cluster, or into the background of this machine")
    with_config(sub)
    sub.add_argument("--to", required=True, metavar="TARGET", help=TARGET_HELP)
    sub.add_argument("--until", choices=STAGES, default=STAGES[-1], help="last stage to do")
    sub.add_argument("--name", metavar="RUN", help="name of the run, instead of run.name")
    sub.add_argument(
        "--dry-run", action="store_true", help="print what would be sent, send nothing"
    )
    _with_follow(sub)
    with_json(sub)

    sub = add("jobs", _jobs, "list the runs that were submitted, and their states")
    with_json(sub)

    sub = add("cancel", _cancel, "ask a submitted run to checkpoint and stop")
    completes(sub.add_argument("run", metavar="RUN", help=RUN_HELP), runs)
    sub.add_argument("--no-wait", action="store_true", help="do not wait until it has stopped")

    sub = add("resume", _resume, "submit a run again, to resume from its newest checkpoint")
    completes(sub.add_argument("run", metavar="RUN", help=RUN_HELP), runs)
    sub.add_argument("--to", metavar="TARGET", help="another target than before")
    _with_follow(sub)

    sub = add("doctor", _doctor, "check a target: version, token, resources, storage, environment")
    sub.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    given = sub.add_argument("--config", metavar="CONFIG", help="check what this config needs, too")
    completes(given, configs)
    with_overrides(sub)
    with_json(sub)


def _with_follow(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--follow", action="store_true", help="print its log until it ends")
    sub.add_argument(
        "--wait",
        type=int,
        nargs="?",
        const=30,
        default=None,
        metavar="MINUTES",
        help="let the job wait so long (30) for a cluster that grows by itself",
    )


def _submit(options: argparse.Namespace) -> int:
    from elmwright.jobs.config.toml_file import load_config
    from elmwright.jobs.runbook.target import find_target
    from elmwright.jobs.submit.send import prepare, submit
    from elmwright.jobs.submit.targets.kinds import open_place

    target = find_target(options.to)
    overrides = list(options.overrides)
    if options.name is not None:
        overrides.append(f"run.name={json.dumps(options.name)}")
    if options.wait is not None:
        overrides.append(f"cluster.wait_minutes={options.wait}")
    place = open_place(target)
    if place.cluster_address or load_config(options.config, overrides).cluster.address:
        overrides.append(f'cluster.address="{place.cluster_address}"')
    submission = prepare(load_config(options.config, overrides), target, options.until)
    if options.dry_run:
        if options.json:
            print(submission.to_json())
        else:
            print(place.describe(submission))
        return 0
    if options.follow:
        place.check_follow()  # before anything is sent: an error after that would hide the job
    if note := place.note(submission):
        print(f"note: {note}", file=sys.stderr)
    return _sent(submit(submission), options)


def _sent(job: Any, options: argparse.Namespace) -> int:
    from elmwright.jobs.submit.send import follow

    sent = job.submission
    if getattr(options, "json", False):
        handle = to_data(job.handle)
        print(json.dumps({"run": sent.run, "id": sent.id, "dir": sent.dir, "handle": handle}))
    else:
        print(f"submitted {sent.id} to {sent.target} (elmwright {sent.version})")
        print(
            f"  watch   elmwright status {sent.run}\n  follow  elmwright logs -f {sent.run}\n"
            f"  stop    elmwright cancel {sent.run}",
            flush=True,
        )
    if not options.follow:
        return 0
    state = follow(sent.run, job, through=False)
    print(f"{sent.run} is {state.word}" + (f": {state.why}" if state.why else ""))
    if state.exit_code is not None and 0 <= state.exit_code < 128:
        return state.exit_code
    return 75 if state.word == "interrupted" else 1


def _jobs(options: argparse.Namespace) -> None:
    from elmwright.jobs.runbook import runbook
    from elmwright.jobs.submit.send import state_of

    rows = []
    silent: dict[Any, str] = {}  # a cluster that does not answer is asked once
    found, damaged = runbook.read_all()
    for text in damaged:
        print(f"warning: {text}", file=sys.stderr)
    for job in found:
        sent = job.submission
        word, why = "unknown", silent.get(sent.target, "")
        if not why:
            try:
                state = state_of(job)
                word, why = state.word, state.why
            except (UserError, Failed) as error:
                silent[sent.target] = why = str(error)
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
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print("the run book is empty; 'elmwright submit CONFIG --to TARGET' sends a run")
    for row in rows:
        print(f"{row['run']:<24} {row['state']:<12} {row['target']:<22} {row['submitted']}")
        if row["why"] and row["state"] != "running":
            print(f"    {row['why']}")


def _submitted(text: str) -> Any:
    """The newest attempt that was submitted at a run; one that was started by hand has none."""
    from elmwright.jobs.runbook.find_run import find_attempts, last_holder, user_of
    from elmwright.jobs.terminal.wording import nearby

    folder, attempts = find_attempts(text)
    if attempts:
        return attempts[-1]
    assert folder is not None  # noqa: S101 - or find_attempts would have raised
    user = user_of(folder)
    if user:
        raise UserError(
            "busy",
            f"{nearby(folder.root)} was not submitted; it is in use by {user}: Ctrl-C there, or "
            "SIGTERM, lets it checkpoint and stop",
        )
    command = last_holder(folder).command or "elmwright run CONFIG"
    raise UserError(
        "run-missing",
        f"{nearby(folder.root)} was not submitted, and nothing runs in it; "
        f"'{command}' continues it",
    )


def _cancel(options: argparse.Namespace) -> int:
    from elmwright.jobs.submit.send import cancel
    from elmwright.jobs.upkeep.status import read_progress

    job = _submitted(options.run)
    run = job.submission.run
    state = cancel(job, wait=not options.no_wait)
    if options.no_wait:
        print(f"{run} was asked to checkpoint and stop")
        return 0
    if not state.ended:
        raise Failed(
            f"{run} is still {state.word}, although its time to stop is over; look at "
            f"'elmwright status {run}' and cancel it again"
        )
    progress = read_progress(job.submission)
    at = ""
    if progress is not None and progress.checkpoint_step >= 0:
        at = f", with a checkpoint at step {progress.checkpoint_step:,}"
    print(f"{run} is {state.word}{at}")
    if state.word == "interrupted":
        print(f"  resume  elmwright resume {run}")
    return 0


def _resume(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from elmwright.jobs.runbook.runbook import outcome_of
    from elmwright.jobs.runbook.target import find_target
    from elmwright.jobs.submit.send import about_resuming, again, already, state_of, submit
    from elmwright.jobs.submit.targets.kinds import open_place
    from elmwright.jobs.submit.targets.place import Unreachable

    job = _submitted(options.run)
    try:
        state = state_of(job)
        if not state.ended:
            raise already(job.submission.run, job.submission.id, job.submission.target)
        finished = state.word == "finished"
    except Unreachable as error:
        # Gone, or not to be asked from here; the run's own lock guards its folder.
        finished = outcome_of(job.submission) == 0
        print(f"note: {error}", file=sys.stderr)
    if finished:
        raise UserError(
            "run-state", f"run {job.submission.run!r} is finished; there is nothing to resume"
        )
    if options.to:
        job = replace(job, submission=replace(job.submission, target=find_target(options.to)))
    submission = again(job, wait_minutes=options.wait)
    if options.follow:
        open_place(submission.target).check_follow()
    print(about_resuming(job), flush=True)
    return _sent(submit(submission), options)


def _doctor(options: argparse.Namespace) -> int:
    from elmwright.jobs.runbook.target import find_target
    from elmwright.jobs.submit.doctor import examine

    if options.overrides and not options.config:
        raise UserError("argument", "--set changes a setting of a config; name that with --config")
    findings = examine(find_target(options.target), options.config, options.overrides)
    if options.json:
        print(json.dumps([{"ok": good, "about": text} for good, text in findings], indent=1))
    else:
        for good, text in findings:
            print(f"{'ok' if good else 'missing'}: {text}")
    return 0 if all(good for good, _ in findings) else 2
