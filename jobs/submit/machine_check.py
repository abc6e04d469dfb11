"""What one machine has of what a run needs, for `elmwright doctor`."""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from elmwright.jobs.cluster.connection import probe_file
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.job import check_names, missing_dependencies
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.store import with_login
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at

Finding = tuple[bool, str]
"""Whether something is as it should be, and a description of it."""


@dataclass(frozen=True)
class Answer:
    """What one machine has of what a run needs. Of secrets only whether they are set."""

    host: str
    python: str
    """Version and path."""
    missing: tuple[str, ...]
    """Dependencies that it lacks."""
    unset: tuple[str, ...]
    """Names of secrets that are not set."""
    sees: bool | str
    """Whether it sees run.dir, or why that is unknown."""
    config: tuple[Finding, ...] = ()
    """Findings about the MLflow server and the stores of the config."""


def check_machines(submission: Submission, ask: Callable[[str], list[Answer]]) -> list[Answer]:
    """The answers of machines; `ask` returns them, with whether each machine sees a probe file."""
    try:
        with probe_file(submission.dir) if submission.dir else nullcontext("") as probe:
            answers = ask(probe)
    except (UserError, OSError) as error:  # the folder cannot be written to
        answers = [replace(answer, sees=str(error)) for answer in ask("")]
    if submission.dir:
        answers[0] = replace(answers[0], config=_check_config(submission))
    return answers


def _check_config(submission: Submission) -> tuple[Finding, ...]:
    """Findings about the secrets of the config's stores and its MLflow, seen from this machine."""
    config = submission.read_config()
    findings: list[Finding] = []
    try:
        check_names(replace(submission, target=Target("local")), config)
    except UserError as error:
        findings.append((False, str(error)))
    uri = config.tracking.uri
    if uri:
        try:
            problem = check_server(with_login(uri))
        except UserError as error:
            problem = str(error)
        good = f"MLflow at {uri} answers" if uri.startswith("http") else "MLflow's driver is there"
        findings.append((problem is None, f"{platform.node()}: {problem or good}"))
    return tuple(findings)


def look(probe: str, secrets: tuple[str, ...]) -> Answer:
    """What this machine has, and whether it sees a probe file."""
    sees: bool | str = True
    if probe:
        try:
            sees = at(probe).exists()
        except (UserError, OSError) as error:
            sees = str(error)
    return Answer(
        host=platform.node(),
        python=f"{platform.python_version()} ({sys.executable})",
        missing=tuple(missing_dependencies()),
        unset=tuple(name for name in secrets if not os.environ.get(name)),
        sees=sees,
    )


def findings_of(answers: list[Answer], submission: Submission) -> Iterator[Finding]:
    """The answers of machines as findings."""
    for answer in answers:
        host = answer.host
        yield True, f"{host}: Python {answer.python}"
        yield not answer.missing, f"{host}: {'; '.join(answer.missing) or 'all dependencies'}"
        if submission.dir:
            is_seen = answer.sees is True
            why = f" ({answer.sees})" if isinstance(answer.sees, str) else ""
            advice = "" if is_seen else "; use storage that every machine has, or an s3:// URL"
            text = "is visible" if is_seen else "is not visible"
            yield is_seen, f"{host}: run.dir {submission.dir} {text}{why}{advice}"
        if answer.unset:
            yield False, f"{host}: {', '.join(answer.unset)} is not set"
        elif submission.target.secrets:
            yield True, f"{host}: every secret is set"
        yield from answer.config
