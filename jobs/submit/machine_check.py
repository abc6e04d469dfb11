"""What one machine has of what a run needs: `elmwright doctor` asks each machine of a target."""

import os
import platform
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.job import check_names, missing_dependencies
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.store import with_login
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import exists, is_url, join, remove, write_bytes

Finding = tuple[bool, str]
"""Whether a thing is good, and what it is."""


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
    """Whether it sees run.dir, or why that cannot be told."""
    config: tuple[Finding, ...] = ()
    """Findings about what only the config names."""


def look_at_config(submission: Submission, config: RunConfig) -> tuple[Finding, ...]:
    """What only the config names, as this machine sees it: secrets of its stores, its MLflow."""
    found: list[Finding] = []
    try:
        check_names(replace(submission, target=Target("local")), config)
    except UserError as error:
        found.append((False, str(error)))
    if config.tracking.uri:
        try:
            silent = check_server(with_login(config.tracking.uri))
        except UserError as error:
            silent = str(error)
        server = config.tracking.uri.startswith("http")
        good = f"MLflow at {config.tracking.uri} answers" if server else "MLflow's driver is there"
        text = silent or good
        found.append((silent is None, f"{platform.node()}: {text}"))
    return tuple(found)


@contextmanager
def probing(folder: str) -> Iterator[str]:
    """A file in a run's folder, for other machines to look for; it is removed in the end."""
    if not folder:
        yield ""
        return
    is_new = not is_url(folder) and not os.path.isdir(folder)
    probe = join(folder, f".probe-{uuid.uuid4().hex}")
    write_bytes(probe, b"")
    try:
        yield probe
    finally:
        remove(probe)
        if is_new:
            with suppress(OSError):
                os.rmdir(folder)


def look_for(submission: Submission, config: RunConfig | None) -> Answer:
    """What this machine has of what a submission needs."""
    try:
        with probing(submission.dir) as probe:
            answer = look_here(probe, submission.target.secrets)
    except (UserError, OSError) as error:
        answer = replace(look_here("", submission.target.secrets), sees=str(error))
    if config is not None:
        answer = replace(answer, config=look_at_config(submission, config))
    return answer


def look_here(probe: str, secrets: tuple[str, ...]) -> Answer:
    """What this machine has, and whether it sees a probe file."""
    sees: bool | str = True
    if probe:
        try:
            sees = exists(probe)
        except (UserError, OSError) as error:
            sees = str(error)
    return Answer(
        host=platform.node(),
        python=f"{platform.python_version()} ({sys.executable})",
        missing=tuple(missing_dependencies()),
        unset=tuple(name for name in secrets if not os.environ.get(name)),
        sees=sees,
    )


def findings_of(answers: list[Answer], folder: str, secrets: tuple[str, ...]) -> list[Finding]:
    """What the machines answered, as findings."""
    found: list[Finding] = []
    for answer in answers:
        host = answer.host
        found.append((True, f"{host}: Python {answer.python}"))
        lacks = "; ".join(answer.missing)
        found.append((not lacks, f"{host}: {lacks or 'all dependencies'}"))
        if folder:
            is_seen = answer.sees is True
            why = f" ({answer.sees})" if isinstance(answer.sees, str) else ""
            advice = "" if is_seen else "; use storage that every machine has, or an s3:// URL"
            text = "is visible" if is_seen else "is not visible"
            found.append((is_seen, f"{host}: run.dir {folder} {text}{why}{advice}"))
        if secrets:
            unset = ", ".join(answer.unset)
            found.append(
                (not unset, f"{host}: {unset or 'every secret'} is {'not ' * bool(unset)}set")
            )
        found += answer.config
    return found
