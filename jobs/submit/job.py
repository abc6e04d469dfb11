"""What a job runs, wherever it runs: `python -m elmwright.jobs.submit.job SUBMISSION.json`.

It makes attempts (attempts.py) until the run is done or not worth another one (retries.py). Each
attempt changes to the folder that the run was submitted from if it exists here, checks what the
cluster should have (dependencies, names in the environment), writes the submission below `run.dir`
and does what `elmwright run` does. At the end the exit code is written beside the submission.
"""

import dataclasses
import json
import os
import platform
import re
import sys
import time
import traceback
from importlib import metadata

from packaging.requirements import Requirement

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.environment.wheel import requirements
from elmwright.jobs.runbook.runbook import write_job, write_outcome
from elmwright.jobs.runbook.submission import Job, Submission, relative_paths
from elmwright.jobs.submit import retries
from elmwright.jobs.submit.attempts import Attempts, command_for, stop_with_parent
from elmwright.jobs.submit.targets.kinds import place_class
from elmwright.jobs.terminal.exit_codes import exit_code
from elmwright.jobs.terminal.signals import stoppable
from elmwright.jobs.terminal.unexpected import DEBUG
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at

STARTING_MINUTES = 10
"""How long the machines of a job that brings its own Ray may take to join it."""
S3_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
S3_OTHER_WAYS = (
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Other ways to give the credentials of an S3 store."""


def main(path: str, watcher: str = "") -> int:
    """Run a submission to its end; the exit code of its command.

    `watcher` is the process that started this one for a single attempt (attempts.py). On Slurm
    there is none: the batch script starts each attempt, with its own machines.
    """
    submission = Submission.load(path)
    if watcher:
        stop_with_parent(int(watcher))
        return run_once(submission)
    if place_class(submission.target).repeats_attempts:
        code = run_once(submission)
    else:
        code = Attempts(command_for(path), submission).run()
    try:
        write_outcome(submission, code)
    except (OSError, UserError) as error:
        print(f"warning: the outcome could not be noted in {submission.dir} ({error})")
    return code


def run_once(submission: Submission) -> int:
    """Run a submission in this process; the exit code of its command."""
    print(
        f"elmwright {submission.version} on {platform.node()}: {submission.id}"
        + (f" from {submission.git[:12]}{submission.git[40:]}" if submission.git else ""),
        flush=True,
    )
    # The output of a job is its log: errors belong there, not on that machine's disk.
    os.environ.setdefault(DEBUG, "1")
    try:
        return stoppable(exit_code)(lambda: run_submission(submission))
    except Exception:
        # A defect: it must not look like a job that was interrupted.
        traceback.print_exc()
        return 1


def run_submission(submission: Submission) -> None:
    """Make one attempt at a submission."""
    config = submission.read_config()
    enter_folder(submission, config)
    check_dependencies()
    check_names(submission, config)
    # Only now: it imports what the cluster may lack, which was just checked.
    from elmwright.jobs.stages.workflow import run

    attempts = retries.begin(submission)
    if attempts.used_up:
        raise Interrupted(retries.given_up(attempts, submission.run))
    write_job(Job(submission, place_class(submission.target).own_handle()))
    config = waiting_config(config, submission, is_retry=attempts.starts > 1)
    run(config, until=submission.until, config_name=submission.run)


def waiting_config(
    config: RunConfig, submission: Submission, *, is_retry: bool = False
) -> RunConfig:
    """The config, with a wait for machines that are still coming up.

    A Ray that is started with the job gets its workers only after the driver. One that has just
    lost machines may get others.
    """
    is_starting = is_retry or place_class(submission.target).starts_ray
    if not is_starting or config.cluster.wait_minutes:
        return config
    cluster = dataclasses.replace(config.cluster, wait_minutes=STARTING_MINUTES)
    return dataclasses.replace(config, cluster=cluster)


def enter_folder(submission: Submission, config: RunConfig) -> None:
    """Change to the folder of the submission, to which relative paths of the config refer."""
    if submission.cwd and os.path.isdir(submission.cwd):
        os.chdir(submission.cwd)
        return
    relative = relative_paths(config)
    if relative:
        raise UserError(
            "shared-path",
            f"{relative[0]!r} is relative to {submission.cwd}, which does not exist on "
            f"{platform.node()}; write absolute paths that every machine of the cluster mounts, "
            "or s3:// URLs",
        )


def check_dependencies() -> None:
    """Refuse an environment that lacks what the wheel needs; nothing is ever installed."""
    problems = missing_dependencies()
    if problems:
        raise UserError(
            "environment",
            f"the environment of {sys.executable} on {platform.node()} lacks what elmwright needs: "
            f"{'; '.join(problems)}; install it there, or name another Python as python = … of the "
            "target",
        )


def missing_dependencies() -> list[str]:
    """Requirements that this environment does not meet."""
    problems = []
    for line in requirements():
        need = Requirement(line)
        if need.marker is not None and not need.marker.evaluate():
            continue
        try:
            installed = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{need.name} is missing")
            continue
        if not need.specifier.contains(installed, prereleases=True):
            problems.append(f"{need.name} is {installed}, needed is {need.specifier}")
    return problems


def check_names(submission: Submission, config: RunConfig) -> None:
    """Refuse an environment that lacks secrets; they are named, never shown."""
    missing = [name for name in submission.target.secrets if not os.environ.get(name)]
    user, password = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
    if bool(os.environ.get(user)) != bool(os.environ.get(password)):
        missing.append(password if os.environ.get(user) else user)
    urls = re.findall(r'"(s3://[^"]*)"', json.dumps(to_data(config)))
    if urls and not missing and not any(os.environ.get(name) for name in S3_OTHER_WAYS):
        missing = [name for name in S3_NAMES if not os.environ.get(name)]
        if len(missing) == len(S3_NAMES) and _store_answers(urls[0]):
            missing = []  # the machine itself has a role that may use the store
    if missing:
        raise UserError(
            "secret",
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set in the job's "
            f"environment on {platform.node()}; secrets are never sent with a job: set them for "
            "the cluster's nodes (a mounted secret, the environment of 'ray start', a file)",
        )


def _store_answers(url: str) -> bool:
    try:
        at(url.rstrip("/") + f"/.nothing-{time.time_ns()}").list_files()
    except (OSError, UserError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
