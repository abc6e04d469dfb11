"""A submission: a run as it is sent to a target, with everything needed to send it again.

It is plain data: kept in the submitter's run book, shipped with the job, and written by the job
itself below `run.dir`, so that another machine can find out where the run is. It never contains a
secret. Addresses in the submitter's environment (`PASSED_ON`) travel with it. Credentials must
exist where the job runs, and the job checks for them by name.
"""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.secrets.hiding import SECRET, secret_in
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.storage.files import at

PASSED_ON = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_REQUEST_CHECKSUM_CALCULATION",
    "AWS_RESPONSE_CHECKSUM_VALIDATION",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)
"""Variables of the submitter's environment that go with the job. None of them is a secret."""

T = TypeVar("T")
StateWord = Literal["pending", "running", "finished", "failed", "interrupted", "unknown"]


@dataclass(frozen=True)
class Submission:
    """A run as it is sent to a target."""

    id: str
    """Unique: the run's name, the time, and four random digits."""
    run: str
    """run.name."""
    dir: str
    """run.dir: absolute, or a URL."""
    until: str
    """Last stage to do."""
    target: Target
    """Where it runs."""
    config: dict[str, Any]
    """The resolved config as saved JSON, perhaps by another version; `read_config` checks it."""
    config_sha256: str
    """Its digest."""
    version: str
    """Version of the code, with its digest."""
    git: str = ""
    """The commit of the code, followed by "+changes" if files differ from it."""
    cwd: str = ""
    """The folder it was submitted from."""
    sender: str = ""
    """Who submitted it, and from which machine."""
    time: str = ""
    """When, UTC."""
    settings: dict[str, str] = field(default_factory=dict)
    """What goes into the job's environment; see PASSED_ON."""

    def read_config(self) -> RunConfig:
        """The config; raises UserError if this version cannot read it."""
        return config_from(self.config, f"the config of {self.id}")

    def setting(self, section: str, name: str, default: T) -> T:
        """A setting of the config, even if this version cannot read the config as a whole."""
        value = (self.config.get(section) or {}).get(name)
        return value if isinstance(value, type(default)) else default

    def to_json(self) -> str:
        return json.dumps(to_data(self), indent=1, ensure_ascii=False)

    @classmethod
    def load(cls, path: str | Path) -> "Submission":
        """From the file that is shipped with a job; keys of a newer elmwright are ignored."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return from_data(cls, data, ignore_unknown=True)


@dataclass(frozen=True)
class ProcessHandle:
    """A process on a machine; its start distinguishes it from later ones with the same id."""

    pid: int
    started: int
    """Clock ticks between the start of the machine and of the process; 0 if it is gone."""
    host: str


@dataclass(frozen=True)
class SlurmHandle:
    """A job of Slurm, by its number."""

    job: str


@dataclass(frozen=True)
class RayJobHandle:
    """A RayJob object of Kubernetes, by its name."""

    rayjob: str


@dataclass(frozen=True)
class NoHandle:
    """The target identifies the job by the submission's id, or its answer was lost."""


Handle = ProcessHandle | SlurmHandle | RayJobHandle | NoHandle


@dataclass(frozen=True)
class Job:
    """A submission that was accepted."""

    submission: Submission
    handle: Handle = NoHandle()
    """How its target identifies it."""


@dataclass(frozen=True)
class State:
    """The state of a job."""

    word: StateWord
    """The state in one word."""
    why: str = ""
    """The reason, or where and since when it runs."""
    exit_code: int | None = None
    """The exit code of its command, once it has one."""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word

    @property
    def ended(self) -> bool:
        return self.word not in ("pending", "running", "unknown")


def state_of_exit(code: int) -> State:
    """What an exit code of the command means; 75 and signals leave a run that can be resumed."""
    if code == 0:
        return State("finished", exit_code=code)
    if code == 75:
        return State("interrupted", "stopped at a checkpoint", code)
    if code < 0 or code > 128:
        return State("interrupted", f"killed by signal {-code if code < 0 else code - 128}", code)
    why = "a mistake in what was asked" if code == 2 else "see its log"
    return State("failed", why, code)


def passed_on(more: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables of this environment that go with a job: PASSED_ON, and `more` of the target."""
    for name in more:
        if SECRET.search(name):
            raise UserError(
                "secret",
                f"env = [{name!r}, …]: a variable of this name may be a secret and is never sent; "
                "put it into the cluster's own environment and name it under secrets instead",
            )
    settings = {name: os.environ[name] for name in (*PASSED_ON, *more) if os.environ.get(name)}
    for name, value in settings.items():
        if secret_in(value):
            raise UserError(
                "secret",
                f"{name} holds a password or a token and is never sent; take it out of the URL",
            )
    return settings


def check_lines(lines: tuple[str, ...]) -> None:
    """Refuse secrets in a target's lines for the batch script, which the run's folder keeps."""
    for line in lines:
        if re.match(r"#SBATCH\s+--export\b", line):
            raise UserError(
                "secret",
                "lines = […] has an --export, which would have no effect; name variables as env "
                "of the target, and put secrets into a file on the cluster, its env_file",
            )
        pattern = r"([A-Za-z_][\w-]*)\s*=\s*[\"']?([^\s,;&|\"']*)"
        for name, value in re.findall(pattern, line):
            # A path, or what the cluster's own shell expands, is no secret.
            is_expanded = value[:1] in ("", "$", "`", "/", "~")
            if SECRET.search(name) and not is_expanded and name != "wckey":  # Slurm's accounting
                raise UserError(
                    "secret",
                    f"lines = […] sets {name}, which may be a secret and would be copied into the "
                    "script and the run's folder; put it into a file on the cluster and name that "
                    "as env_file",
                )
        if secret_in(line):
            raise UserError(
                "secret",
                "lines = […] contains a URL with a password or a token; put it into a file on the "
                "cluster and name that as env_file",
            )


def folder_of(config: RunConfig) -> str:
    """run.dir, absolute or a URL."""
    return at(config.run.dir).absolute()


def relative_paths(config: RunConfig) -> list[str]:
    """Paths of a config that are relative to the folder it was submitted from."""
    corpus = config.corpus
    paths = [config.run.dir, corpus.dir, config.vocab.file, *corpus.decontaminate]
    paths += [source.path for source in corpus.sources if source.path != EMBEDDED]
    if config.train.init_from and not config.train.init_from.startswith("models:/"):
        paths.append(config.train.init_from)
    for entry in corpus.heldout.values():
        paths += [] if isinstance(entry, float) else entry
    return [path for path in paths if path and at(path).is_relative]
