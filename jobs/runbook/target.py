"""Where a run can be sent, and the names that users give to targets.

    # ~/.config/elmwright/targets.toml
    [lab]
    kind = "ray"
    address = "http://head.lab:8265"

    [night]
    kind = "slurm"
    partition = "gpu"
    time = "24:00:00"

`--to` takes a name from this file, the address of a Ray cluster's dashboard, or one of `local`,
`slurm` and `k8s` with every option at its default (or as a table of that name in the file says).
"""

import dataclasses
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from elmwright.jobs.terminal.wording import did_you_mean
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, from_data

SHAPES = {
    "nodes": r"\d+",
    "cpus": r"\d+",
    "gpus": r"\d+",
    "warning": r"\d{1,5}",
    "interface": r"[\w.-]{0,15}",
    # As Kubernetes writes it, without fractions.
    "memory": r"\d+([kMGT]|[KMGT]i)?",
    # Minutes, minutes:seconds, hours:minutes:seconds, days-hours, …
    "time": r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE",
    "partition": r"[\w.,+-]*",
    "account": r"[\w.,+-]*",
    "python": r"[^\n]*",
    "env_file": r"[^\n]*",
    "token_file": r"[^\n]*",
}
"""Patterns for the values of options that end up in a script."""
KINDS = ("local", "ray", "slurm", "k8s")
ADDRESSED = ("ray",)
"""Kinds whose address is the cluster itself; `--to` takes the address in place of the kind."""


@dataclass(frozen=True)
class Target:
    """A place that runs jobs. The text of an option begins with the kinds that it applies to."""

    kind: str
    """local, ray, slurm or k8s."""
    name: str = ""
    """What it is called in the user's file."""
    address: str = ""
    """ray, k8s: address of the Ray dashboard, http://HEAD:8265."""
    token_file: str = ""
    """ray, k8s: file with the cluster's token; else RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH and
    ~/.ray/auth_token are tried."""
    python: str = ""
    """ray, slurm: the Python of the cluster's environment, where it is not the first on its
    PATH."""
    env: tuple[str, ...] = ()
    """Names of further variables of your environment that go with the job; never secrets."""
    secrets: tuple[str, ...] = ()
    """Names of variables that must exist where the job runs; it looks for them first."""
    env_file: str = ""
    """slurm: a file of export lines on the cluster, read by the job; the place for secrets."""
    partition: str = ""
    """slurm: as sbatch takes it."""
    account: str = ""
    """slurm: as sbatch takes it."""
    time: str = "24:00:00"
    """slurm: time limit of one attempt."""
    warning: int = 300
    """slurm: seconds before the time limit at which the job is asked to checkpoint. They must be
    enough for a step, the checkpoint, an MLflow that does not answer (60), the end of Ray (30) and
    the queue."""
    interface: str = ""
    """slurm: network interface for Ray, gloo and NCCL, such as "ib0"; else the first address that
    `hostname -I` prints."""
    nodes: int = 0
    """slurm: machines; 0 takes as few as train.processes needs. k8s: worker pods, likewise."""
    cpus: int = 0
    """slurm: CPUs of each machine. k8s: CPUs of a worker pod. 0 takes what the run needs: with GPUs
    one more for each process, which loads its data, and at least 4."""
    gpus: int = 0
    """slurm: GPUs of each machine. k8s: GPUs of a worker pod."""
    lines: tuple[str, ...] = ()
    """slurm: further lines for the script, such as "module load python"; one that begins with
    #SBATCH is an option of the job."""
    image: str = ""
    """k8s: image with Ray and the dependencies; else elmwright:VERSION-cpu or -cuda."""
    pull_secret: str = ""
    """k8s: Secret with the credentials of the image's registry; else elmwright-registry, where
    there is one."""
    namespace: str = "default"
    """k8s: namespace."""
    memory: str = "8Gi"
    """k8s: memory of a worker pod, a quarter of it shared memory."""
    volume: str = ""
    """k8s: claim of a volume that every pod mounts at /runs; not needed with an s3:// run.dir."""
    secret: str = ""
    """k8s: Secret whose keys become environment variables of every pod."""

    def __str__(self) -> str:
        return self.name or self.address or self.kind


def targets_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "elmwright" / "targets.toml"


def find_target(text: str) -> Target:
    """The target that the user means by `--to TEXT`."""
    named = named_targets()
    kinds = [kind for kind in KINDS if kind not in ADDRESSED]
    if text in named:
        return named[text]
    if text in kinds:
        return Target(text)
    if re.match(r"https?://[^/]", text):
        if "@" in text:
            raise UserError(
                "secret",
                f"{text.partition('@')[2]}: an address has no user or password; a token comes from "
                "RAY_AUTH_TOKEN or a file",
            )
        address = text.rstrip("/")
        _check_address(address, repr(text))
        return Target("ray", address=address)
    if text.startswith("ray://") or re.fullmatch(r"[\w.-]+:\d+", text):
        host = text.removeprefix("ray://").partition(":")[0]
        raise UserError(
            "target",
            f"{text!r} is not the address of a Ray dashboard; jobs are submitted there, usually at "
            f"http://{host}:8265",
        )
    raise UserError(
        "target",
        f"there is no target {text!r}{did_you_mean(text, [*named, *kinds])}; say local, slurm, "
        f"k8s, http://HEAD:8265, or a name ({', '.join(sorted(named)) or 'none'} in "
        f"{targets_file()})",
    )


def with_current_address(target: Target) -> Target:
    """The target of a job, with the address and token file that the user's file has now.

    The forwarded address of a Kubernetes cluster and the file with a token may change while a job
    runs. The address of a Ray cluster is the cluster itself: if it has changed, the name means
    another cluster, whose token must not be sent to the old one.
    """
    try:
        now = named_targets().get(target.name) if target.name else None
    except UserError:  # just being edited, or broken by a table that does not concern this job
        return target
    if now is None or now.kind != target.kind:
        return target
    if target.kind in ADDRESSED and now.address != target.address:
        return target
    return dataclasses.replace(target, address=now.address, token_file=now.token_file)


def _check_address(address: str, name: str) -> None:
    """Refuse an address that is not a host, perhaps with a port."""
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").rstrip(".")
        host.encode("idna")
        is_valid = bool(host) and parts.port != 0 and not re.search(r"[\s@]", address)
    except ValueError:  # also for an invalid host name
        is_valid = False
    if not is_valid:
        raise UserError("target", f"{name} is not an address; write it as http://HEAD:8265")


def named_targets() -> dict[str, Target]:
    """The targets in the user's file."""
    path = targets_file()
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError("target", f"{path} cannot be read: {error}") from error
    return {name: _target(path, name, table) for name, table in tables.items()}


def _target(path: Path, name: str, table: object) -> Target:
    """The target of a table of the user's file; a mistake is reported with its key."""
    kind = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(table, dict) or kind not in KINDS:
        hint = did_you_mean(str(kind or ""), KINDS)
        raise UserError(
            "target", f"{path}: [{name}] needs kind = one of {', '.join(map(repr, KINDS))}{hint}"
        )
    valid = [field.name for field in dataclasses.fields(Target) if field.name != "name"]
    for key in table:
        if key not in valid:
            hint = did_you_mean(key, valid) or f"; valid: {', '.join(valid)}"
            raise UserError("target", f"{path}: {name}.{key}: unknown key{hint}")
    try:
        target = from_data(Target, {**table, "name": name}, prefix=f"{name}.")
    except BadField as problem:
        raise UserError("target", f"{path}: {problem.key}: {problem.reason}") from None
    for key, shape in SHAPES.items():
        value = str(getattr(target, key))
        if not re.fullmatch(shape, value):
            raise UserError("target", f"{path}: {name}.{key}: {value!r} is not a valid value")
    if any("\n" in line for line in target.lines):
        raise UserError("target", f"{path}: {name}.lines: write one string per line")
    address = target.address.rstrip("/")
    if target.kind in ADDRESSED and not re.match(r"https?://[^/@]+$", address):
        raise UserError("target", f"{path}: {name}.address: write it as http://HEAD:8265")
    if address:
        shown = f": {target.address!r}" if "@" not in address else ""  # a password
        _check_address(target.address, f"{path}: {name}.address{shown}")
    return dataclasses.replace(target, address=address)
