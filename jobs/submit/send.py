"""Submit, watch, cancel, resume: the same for every target.

A target (targets/place.py) checks, describes and accepts a submission, finds a running job, reports
its state, reads its log, and stops or kills it. This module prepares the submission, refuses to
send a run twice, keeps the run book, and limits how long a stopping job may take.
"""

import dataclasses
import getpass
import secrets
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash, to_dict
from elmwright.jobs.environment.checkout import checkout, git_state
from elmwright.jobs.environment.wheel import content_version, package_files
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.submission import (
    Job,
    State,
    Submission,
    check_lines,
    folder_of,
    passed_on,
    state_of_exit,
)
from elmwright.jobs.runbook.target import Target, with_current_address
from elmwright.jobs.secrets.in_configs import refuse_secrets
from elmwright.jobs.submit.targets.kinds import open_place, place_class
from elmwright.jobs.submit.targets.place import AccessRefused, Place, Unreachable
from elmwright.jobs.training.driver.devices import with_promised_gpus
from elmwright.jobs.upkeep.status import has_checkpoint
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.retry import retry

POLL_SECONDS = 1.0
KILLED_SECONDS = 15.0
"""How long a killed job may take to end."""
LOG_BYTES_PER_SECOND = 500_000
"""A large log is fetched less often, so that following it transfers no more than this."""

Answer = TypeVar("Answer")


def prepare(
    config: RunConfig, target: Target, until: str, settings: dict[str, str] | None = None
) -> Submission:
    """The submission of a config to a target; `settings` are those of an earlier attempt."""
    check_lines(target.lines)
    config = with_promised_gpus(config, target)
    data = to_dict(config)
    refuse_secrets(data, "the config")
    now = time.gmtime()
    return Submission(
        id=f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S', now)}-{secrets.token_hex(2)}",
        run=config.run.name,
        dir=folder_of(config),
        until=until,
        target=target,
        config=data,
        config_sha256=config_hash(config),
        version=content_version(package_files()),
        git=git_state(checkout()),
        cwd=str(Path.cwd()),
        sender=f"{getpass.getuser()}@{socket.gethostname()}",
        time=time.strftime("%Y-%m-%d %H:%M:%S", now),
        settings={**(settings or {}), **passed_on(target.env)},
    )


def submit(submission: Submission) -> Job:
    """Send a submission, unless its run is already running.

    It is recorded before it is sent: if the job arrives but the answer is lost, it can be found,
    watched and stopped. Only a refused submission is removed again.
    """
    place = open_place(submission.target)
    _refuse_second(submission, place)
    place.check(submission)
    runbook.remember(Job(submission))
    try:
        job = Job(submission, place.submit(submission))
    except UserError:
        runbook.forget(submission)
        raise
    runbook.remember(job)
    return job


def _refuse_second(submission: Submission, place: Place) -> None:
    """Refuse a run with a job that has not ended: its checkpoints have one writer."""
    for job in runbook.attempts_of(submission.run)[-1:]:
        try:
            has_ended = state_of(job).ended
        except Unreachable:
            # That cluster is gone or cannot be asked. The run's own lock still guards its folder.
            has_ended = True
        if not has_ended:
            raise already_running(submission.run, job.submission.id, job.submission.target)
    running = place.running(submission.run)
    if running:
        raise already_running(submission.run, running, submission.target)


def already_running(run: str, job: str, target: Target) -> UserError:
    """The error for a run that is sent a second time."""
    return UserError(
        "busy",
        f"run {run!r} is already running on {target} (job {job}); follow it with 'elmwright logs "
        f"-f {run}', stop it with 'elmwright cancel {run}', or give this one another --name",
    )


def _place_of(job: Job) -> Place:
    """The target of a job, at the address that the user's file has now."""
    return open_place(with_current_address(job.submission.target))


def state_of(job: Job) -> State:
    """The state of a job; its files below run.dir count if its target is unsure."""
    return _state_of(job, _place_of(job))


def _state_of(job: Job, place: Place) -> State:
    state = place.state(job)
    if state.word == "interrupted":
        code = runbook.outcome_of(job.submission)
        # A job may also have finished just when it was asked to stop.
        if code is not None and (state.exit_code is None or code == 0):
            return state_of_exit(code)
    return state


def cancel(job: Job, *, wait: bool = True) -> State:
    """Ask a job to checkpoint and stop, and wait for its end; it is killed if it takes too long."""
    run = job.submission.run
    place = _place_of(job)
    state = _state_of(job, place)
    if state.ended:
        again = f"; 'elmwright resume {run}' resumes it" if state.word == "interrupted" else ""
        raise UserError(
            "run-state",
            f"run {run!r} is not running, there is nothing to cancel: it is {state.word}{again}",
        )
    place.stop(job)
    if not wait:
        return state
    end = time.monotonic() + place.grace_seconds
    while not state.ended and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        state = _patiently(partial(_state_of, job, place))
    if not state.ended:
        place.kill(job)
        end = time.monotonic() + KILLED_SECONDS
        while not (state := _state_of(job, place)).ended and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
    return state


def next_attempt(job: Job, wait_minutes: int | None = None) -> Submission:
    """The next attempt at the same run, with the code as it is now."""
    old = job.submission
    config = old.read_config()
    address = place_class(old.target).cluster_address
    wait = config.cluster.wait_minutes if wait_minutes is None else wait_minutes
    cluster = dataclasses.replace(config.cluster, address=address, wait_minutes=wait)
    config = dataclasses.replace(config, cluster=cluster)
    new = prepare(config, with_current_address(old.target), old.until, old.settings)
    return dataclasses.replace(new, cwd=old.cwd, dir=old.dir)


def about_resuming(job: Job) -> str:
    """The step from which resuming will start, in words."""
    can_resume = has_checkpoint(job.submission)
    if can_resume is None:
        return "its folder is not visible from here; the job finds its checkpoints itself"
    if not can_resume:
        return "it has no checkpoint yet, so training starts from the beginning"
    return "it resumes from its newest checkpoint"


def read_log(job: Job) -> str:
    """The whole log of a job."""
    return _place_of(job).log(job, 0)[0]


def follow(run: str, job: Job, *, through: bool) -> State:
    """Print the log of a job as it grows; `through` continues with later attempts of the run.

    `run` is its name or its folder. Given the folder, attempts sent from other machines are found.
    """
    while True:
        state = _follow_one(job)
        if not through:
            return state
        later = _attempts_after(run, job)
        if state.word in ("finished", "failed") and not later:
            return state
        if not later:
            print(
                f"-- {job.submission.id} is {state.word} ({state.why}); waiting for 'elmwright "
                f"resume {run}' (Ctrl-C ends)",
                flush=True,
            )
        while not later:
            time.sleep(POLL_SECONDS)
            later = _attempts_after(run, job)
        job = later[0]
        print(f"-- {job.submission.id}", flush=True)


def _attempts_after(run: str, job: Job) -> list[Job]:
    """The attempts after one, in the order in which they were sent."""
    attempts = runbook.attempts_of(run)
    if not attempts:
        attempts = runbook.attempts_at(job.submission.dir, job.submission.run)
    ids = [attempt.submission.id for attempt in attempts]
    return attempts[ids.index(job.submission.id) + 1 :] if job.submission.id in ids else []


def _follow_one(job: Job) -> State:
    place = _place_of(job)
    position = size = 0
    while True:
        # The state first, so that lines written between the two are still read.
        state = _patiently(partial(_state_of, job, place))
        text, position = _patiently(partial(place.log, job, position))
        size += len(text)
        sys.stdout.write(text)
        sys.stdout.flush()
        if state.ended:
            return state
        time.sleep(max(POLL_SECONDS, size / LOG_BYTES_PER_SECOND))


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """The answer of a cluster, which is asked again if it does not answer at once."""

    def may_pass(error: Exception) -> bool:
        return isinstance(error, Unreachable | Failed) and not isinstance(error, AccessRefused)

    return retry(ask, [POLL_SECONDS * n for n in range(1, 10)], may_pass)
