"""`elmwright doctor TARGET`: is everything there that a run will need?

Versions, the token, the size of the cluster and, on every one of its machines, the dependencies,
the storage of `run.dir` and the names in the environment; where the driver will be, the MLflow
server and the store's secrets too. None of these can be seen from outside, so a small job asks: it
ships the package as any submission does, and trains nothing. Of a Slurm cluster only this machine,
its login node, is looked at, with the Python and the `env_file` of the target: a job that asks
would have to wait in the queue.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from elmwright.jobs.cluster.capacity import check_capacity, machines
from elmwright.jobs.cluster.connection import local_cpus
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_from, load_config
from elmwright.jobs.environment.wheel import content_version, package_files, wheel_members
from elmwright.jobs.runbook.submission import Job, Submission, new_submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.job import missing_dependencies
from elmwright.jobs.submit.machine_check import (
    Answer,
    Finding,
    findings_of,
    look_at_config,
    look_for,
    look_here,
    probing,
)
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets.kinds import place_class
from elmwright.jobs.submit.targets.kubernetes import Kubernetes
from elmwright.jobs.submit.targets.kubernetes_objects import filled
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, Unreachable, check_nodes, parcel
from elmwright.jobs.submit.targets.ray_token import find_token
from elmwright.jobs.submit.targets.slurm import Slurm, run_slurm
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import from_data, to_data

PROBE_SECONDS = 180.0
MARK = "elmwright-doctor: "


def examine(
    target: Target, config_name: str | None = None, settings: Sequence[str] = ()
) -> list[Finding]:
    """Everything that can be found out about a target."""
    address = place_class(target).cluster_address
    overrides = [f'cluster.address="{address}"'] if address else []
    config = load_config(config_name, [*settings, *overrides]) if config_name else None
    findings: list[Finding] = []
    try:
        EXAMINERS[target.kind](target, config, findings)
    except (UserError, Failed) as problem:
        findings.append((False, str(problem)))
    return findings


def _local(target: Target, config: RunConfig | None, found: list[Finding]) -> None:
    found.append((True, f"this machine has {len(os.sched_getaffinity(0))} CPUs"))
    if config is not None:
        train = config.train
        have = {"CPU": float(local_cpus(config)), "GPU": 0.0}
        if train.device == "cuda":
            import torch

            have["GPU"] = float(torch.cuda.device_count())
        gpu = train.device == "cuda"
        check_capacity(train, [have], gpu=gpu, where="the Ray of this machine")
        found.append((True, "enough for train.processes × train.threads"))
    submission = _submission(target, config)
    found += findings_of([look_for(submission, config)], submission.dir, target.secrets)


def _submission(target: Target, config: RunConfig | None) -> Submission:
    """What would be sent; without a config, nothing is asked about its folder."""
    if config is not None:
        return prepare(config, target, "publish")
    version = content_version(package_files())
    given = new_submission(load_config("demo"), target, until="publish", version=version)
    return replace(given, dir="")


def _ray(target: Target, config: RunConfig | None, found: list[Finding]) -> None:
    cluster = RayCluster(target)
    found.append((True, f"{cluster.address} runs Ray {cluster.check_version()}"))
    token = find_token(target)[1]
    found.append(
        (True, f"it takes the token in {token}" if cluster.has_token else "no token asked")
    )
    nodes = cluster.nodes()
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    found.append((True, f"machines: {len(nodes)}, CPUs: {cpus:.0f}, GPUs: {gpus:.0f}"))
    if config is not None:
        check_nodes(config.train, nodes, cluster.address)
        found.append((True, "enough for train.processes × train.threads"))
    submission = _submission(target, config)
    found += findings_of(_look_by_job(cluster, submission), submission.dir, target.secrets)


def _look_by_job(cluster: RayCluster, submission: Submission) -> list[Answer]:
    """Let a small job look at every machine of a cluster."""
    name = f"doctor-{uuid.uuid4().hex[:12]}"
    submission = replace(submission, id=name, run=name)
    job = Job(submission, cluster.submit(submission, "elmwright.jobs.submit.doctor"))
    end = time.monotonic() + PROBE_SECONDS
    while not (state := cluster.state(job)).ended:
        if time.monotonic() > end:
            cluster.stop(job)
            raise Failed(f"a small job did not end within {PROBE_SECONDS:.0f} s: {state.why}")
        time.sleep(0.5)
    lines = cluster.log(job, 0)[0].splitlines()
    answers = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if not answers:
        last = " ".join([line for line in lines if line.strip()][-1:])
        raise Failed(f"a small job could not run there ({state.why}; it said: {last[:300]})")
    return _answers(answers[-1])


def _answers(text: str) -> list[Answer]:
    return [from_data(Answer, data) for data in json.loads(text)]


def look_around(submission: Submission) -> list[Answer]:
    """What the small job does: look at every machine of the cluster it runs on."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    try:
        return _look_at_all(submission)
    finally:
        ray.shutdown()


def _look_at_all(submission: Submission) -> list[Answer]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look_with(probe: str) -> list[Answer]:
        look = ray.remote(num_cpus=0)(look_here)
        answers = [
            look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False)
            ).remote(probe, submission.target.secrets)
            for machine in machines()
        ]
        return list(ray.get(answers, timeout=PROBE_SECONDS))

    try:
        with probing(submission.dir) as probe:
            answers = look_with(probe)
    except (UserError, OSError) as error:  # the folder cannot be written to; the rest is asked
        answers = [replace(answer, sees=str(error)) for answer in look_with("")]
    if submission.dir:  # the config is the user's
        config = config_from(submission.config, "the config")
        answers[0] = replace(answers[0], config=look_at_config(submission, config))
    return answers


def _slurm(target: Target, config: RunConfig | None, found: list[Finding]) -> None:
    found.append((True, run_slurm("sinfo", "--version").strip()))
    partition = ["--partition", target.partition] if target.partition else []
    rows = run_slurm("sinfo", "--noheader", "--format=%P: %D machines with %c CPUs, %T", *partition)
    lines = [line for line in rows.splitlines() if line.strip()]
    if not lines:
        raise UserError(
            "target", f"Slurm has no partition {target.partition!r}; sinfo lists what there is"
        )
    found += [(True, f"partition {line}") for line in lines]
    submission = _submission(target, config)
    if target.env_file:
        there = Path(target.env_file).expanduser().is_file()
        found.append((there, f"env_file {target.env_file} is {'there' if there else 'missing'}"))
    if config is not None:
        try:
            Slurm(target).check(submission)
            found.append((True, "enough for train.processes × train.threads"))
        except UserError as problem:
            found.append((False, str(problem)))
    found += findings_of([_look_as_a_job(submission, config)], submission.dir, target.secrets)


def _look_as_a_job(submission: Submission, config: RunConfig | None) -> Answer:
    """Look at this machine as the batch script would: its Python, its env_file, our code."""
    target = submission.target
    python = os.path.expanduser(target.python or sys.executable)
    if shutil.which(python) is None:
        raise UserError(
            "environment",
            f"there is no {python}; name the cluster's Python as python of the target",
        )
    with tempfile.TemporaryDirectory(prefix="elmwright-doctor-") as folder:
        for name, content in wheel_members()[1].items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        note = Path(folder) / "submission.json"
        note.write_text(submission.to_json(), encoding="utf-8")
        secrets = os.path.expanduser(target.env_file)
        script = 'set -a; [ ! -f "$1" ] || . "$1"; set +a; shift; exec "$@"'
        asked = "config" if config is not None else "machine"
        command = [python, "-m", "elmwright.jobs.submit.doctor", str(note), asked]
        done = _run_for_a_while(
            ["bash", "-c", script, "bash", secrets or "/nowhere", *command],
            {**os.environ, "PYTHONPATH": folder},
        )
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not answers:
        last = " ".join((done.stderr.strip() or "it said nothing").splitlines()[-1:])
        raise UserError(
            "environment",
            f"{python} cannot run elmwright ({last[:300]}); install its dependencies, or name "
            "another as python of the target",
        )
    return _answers(answers[-1].removeprefix(MARK))[0]


def _run_for_a_while(
    command: list[str], environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            "cluster-unreachable",
            f"looking at this machine took more than {PROBE_SECONDS:.0f} s; see whether its disks "
            "and the servers of the config answer",
        ) from None


def _kubernetes(target: Target, config: RunConfig | None, found: list[Finding]) -> None:
    place = Kubernetes(target)
    place.kubectl("get", "crd", "rayjobs.ray.io", "-o", "name")
    found.append((True, "KubeRay is installed"))
    # Where the answer is no, kubectl fails with it.
    may = _answer(place, "auth", "can-i", "create", "rayjobs.ray.io") == "yes"
    rights = f"create RayJobs in namespace {target.namespace}"
    found.append((may, f"may {rights}" if may else f"may not {rights}; ask who runs the cluster"))
    named = (
        ("persistentvolumeclaim", target.volume),
        ("secret", target.secret),
        ("secret", target.pull_secret),
    )
    for kind, name in named:
        if not name:
            continue
        there = _answer(place, "get", kind, name, "--ignore-not-found", "-o", "name")
        if there is None:  # a right of its own, which submitting does not take
            found.append((True, f"{kind} {name} may not be looked for from here"))
        else:
            missing = "" if there else f"; create it in namespace {target.namespace}"
            found.append((bool(there), f"{kind} {name} is {'' if there else 'not '}there{missing}"))
    submission = _submission(target, config)
    found.append((True, filled(parcel(submission)[1])))
    if config is not None:
        place.check(submission)
        found.append((True, "the target asks for enough for the config"))
    if not target.address:
        said = "no address of the target: the machines, their storage and the token are not seen"
        found.append((True, said))
    else:
        _ray(target, config, found)


def _answer(place: Kubernetes, *arguments: str) -> str | None:
    """What kubectl answers; nothing where it refuses."""
    try:
        return place.kubectl(*arguments).strip()
    except Unreachable:
        raise
    except UserError:
        return None


EXAMINERS = {"local": _local, "ray": _ray, "slurm": _slurm, "k8s": _kubernetes}
"""What examines each kind of target."""


def main(path: str, here: str = "") -> int:
    """The small job: `python -m elmwright.jobs.submit.doctor SUBMISSION.json`.

    With a second word it looks at this machine only; "config" says that the config is the user's.
    """
    submission = Submission.load(path)
    missing = missing_dependencies()
    if here:
        config = config_from(submission.config, "the config") if here == "config" else None
        answers = [look_for(submission, config)]
    elif any(line.startswith("ray ") for line in missing):
        answers = [look_here("", submission.target.secrets)]
    else:
        answers = look_around(submission)
    print(MARK + json.dumps(to_data(answers)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
