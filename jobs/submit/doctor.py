"""`elmwright doctor TARGET`: does a target have everything that a run will need?

Versions, the token, the size of the cluster and, on each of its machines, the dependencies, the
storage of `run.dir` and the names in the environment; where the driver will be, also the MLflow
server and the store's secrets. None of these can be seen from outside, so a small job looks at
them: it ships the package as any submission does, and trains nothing. Of a Slurm cluster only this
machine, its login node, is checked, with the Python and the `env_file` of the target, because a job
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from elmwright.jobs.cluster.capacity import check_capacity, machines
from elmwright.jobs.cluster.connection import ask_machines, local_cpus
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import Job, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.job import missing_dependencies
from elmwright.jobs.submit.machine_check import Answer, Finding, check_machines, findings_of, look
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets.kinds import place_class
from elmwright.jobs.submit.targets.kubernetes import Kubernetes
from elmwright.jobs.submit.targets.kubernetes_objects import config_map_usage
from elmwright.jobs.submit.targets.place import Unreachable, last_line, unpack
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, check_nodes, pack
from elmwright.jobs.submit.targets.ray_token import find_token
from elmwright.jobs.submit.targets.slurm import Slurm, run_slurm
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import from_data, to_data

PROBE_SECONDS = 180.0
MARK = "elmwright-doctor: "
MODULE = "elmwright.jobs.submit.doctor"
ENOUGH = "enough for train.processes × train.threads"


def examine(
    target: Target, config_name: str | None = None, settings: Sequence[str] = ()
) -> list[Finding]:
    """Everything that can be found out about a target."""
    address = place_class(target).cluster_address
    overrides = [f'cluster.address="{address}"'] if address else []
    config = load_config(config_name, [*settings, *overrides]) if config_name else None
    findings: list[Finding] = []
    try:
        for finding in EXAMINERS[target.kind](target, config):
            findings.append(finding)
    except (UserError, Failed) as problem:
        findings.append((False, str(problem)))
    return findings


def _submission(target: Target, config: RunConfig | None) -> Submission:
    """What would be sent; without a config of the user's, for no folder."""
    submission = prepare(config or load_config("demo"), target, "publish")
    return submission if config else replace(submission, dir="")


def _examine_local(target: Target, config: RunConfig | None) -> Iterator[Finding]:
    yield True, f"this machine has {len(os.sched_getaffinity(0))} CPUs"
    if config is not None:
        is_on_gpu = config.train.device == "cuda"
        gpus = 0
        if is_on_gpu:
            import torch

            gpus = torch.cuda.device_count()
        have = {"CPU": float(local_cpus(config)), "GPU": float(gpus)}
        check_capacity(config.train, [have], gpu=is_on_gpu, where="the Ray of this machine")
        yield True, ENOUGH
    submission = _submission(target, config)
    yield from findings_of(_check_here(submission), submission)


def _check_here(submission: Submission) -> list[Answer]:
    return check_machines(submission, lambda probe: [look(probe, submission.target.secrets)])


def _examine_ray(target: Target, config: RunConfig | None) -> Iterator[Finding]:
    cluster = RayCluster(target)
    yield True, f"{cluster.address} runs Ray {cluster.check_version()}"
    token = find_token(target)[1]
    yield True, f"it takes the token in {token}" if cluster.has_token else "no token required"
    nodes = cluster.nodes()
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    yield True, f"machines: {len(nodes)}, CPUs: {cpus:.0f}, GPUs: {gpus:.0f}"
    if config is not None:
        check_nodes(config.train, nodes, cluster.address)
        yield True, ENOUGH
    submission = _submission(target, config)
    yield from findings_of(_check_by_job(cluster, submission), submission)


def _check_by_job(cluster: RayCluster, submission: Submission) -> list[Answer]:
    """The answers of a small job that looks at every machine of a cluster."""
    name = f"doctor-{uuid.uuid4().hex[:12]}"
    submission = replace(submission, id=name, run=name)
    job = Job(submission, cluster.submit(submission, MODULE))
    end = time.monotonic() + PROBE_SECONDS
    while not (state := cluster.state(job)).ended:
        if time.monotonic() > end:
            cluster.stop(job)
            raise Failed(f"a small job did not end within {PROBE_SECONDS:.0f} s: {state.why}")
        time.sleep(0.5)
    log = cluster.log(job, 0)[0]
    answers = _answers_in(log)
    if not answers:
        raise Failed(f"a small job could not run there ({state.why}; it said: {last_line(log)})")
    return answers


def _answers_in(text: str) -> list[Answer]:
    """The answers that `main` has printed; none if it failed."""
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    rows = json.loads(lines[-1].removeprefix(MARK)) if lines else []
    return [from_data(Answer, row) for row in rows]


def _check_cluster(submission: Submission) -> list[Answer]:
    """In the small job: the answers of every machine of the cluster it runs on."""
    import ray

    def ask(probe: str) -> list[Answer]:
        nodes = machines()
        secrets = submission.target.secrets
        answers = ask_machines(nodes, look, probe, secrets, seconds=PROBE_SECONDS)
        silent = [node for node in nodes if node not in [machine for machine, _ in answers]]
        if silent:
            names = ", ".join(node.address for node in silent)
            raise Failed(f"no answer within {PROBE_SECONDS:.0f} s from {names}")
        return [answer for _, answer in answers]

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    try:
        return check_machines(submission, ask)
    finally:
        ray.shutdown()


def _examine_slurm(target: Target, config: RunConfig | None) -> Iterator[Finding]:
    yield True, run_slurm("sinfo", "--version").strip()
    partition = ["--partition", target.partition] if target.partition else []
    rows = run_slurm("sinfo", "--noheader", "--format=%P: %D machines with %c CPUs, %T", *partition)
    lines = [line for line in rows.splitlines() if line.strip()]
    if not lines:
        raise UserError(
            "target", f"Slurm has no partition {target.partition!r}; sinfo lists what there is"
        )
    for line in lines:
        yield True, f"partition {line}"
    submission = _submission(target, config)
    if target.env_file:
        exists = Path(target.env_file).expanduser().is_file()
        yield exists, f"env_file {target.env_file} is {'there' if exists else 'missing'}"
    if config is not None:
        try:
            Slurm(target).check(submission)
            yield True, ENOUGH
        except UserError as problem:
            yield False, str(problem)
    yield from findings_of(_check_like_a_job(submission), submission)


def _check_like_a_job(submission: Submission) -> list[Answer]:
    """The answer of this machine with the target's Python and env_file, as in the batch script."""
    target = submission.target
    python = os.path.expanduser(target.python or sys.executable)
    if shutil.which(python) is None:
        raise UserError(
            "environment",
            f"there is no {python}; name the cluster's Python as python of the target",
        )
    with tempfile.TemporaryDirectory(prefix="elmwright-doctor-") as name:
        folder = Path(name)
        unpack(submission, folder)
        secrets = os.path.expanduser(target.env_file) or "/nowhere"
        script = 'set -a; [ ! -f "$1" ] || . "$1"; set +a; shift; exec "$@"'
        command = [python, "-m", MODULE, str(folder / "submission.json"), "here"]
        try:
            done = subprocess.run(
                ["bash", "-c", script, "bash", secrets, *command],
                env={**os.environ, "PYTHONPATH": str(folder / "code")},
                capture_output=True,
                text=True,
                check=False,
                timeout=PROBE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                "cluster-unreachable",
                f"looking at this machine took more than {PROBE_SECONDS:.0f} s; see whether its "
                "disks and the servers of the config answer",
            ) from None
    answers = _answers_in(done.stdout)
    if not answers:
        raise UserError(
            "environment",
            f"{python} cannot run elmwright ({last_line(done.stderr)}); install its dependencies, "
            "or name another as python of the target",
        )
    return answers


def _examine_kubernetes(target: Target, config: RunConfig | None) -> Iterator[Finding]:
    place = Kubernetes(target)
    place.kubectl("get", "crd", "rayjobs.ray.io", "-o", "name")
    yield True, "KubeRay is installed"
    # If the answer is no, kubectl fails with it.
    may = _ask_kubectl(place, "auth", "can-i", "create", "rayjobs.ray.io") == "yes"
    rights = f"create RayJobs in namespace {target.namespace}"
    yield may, f"may {rights}" if may else f"may not {rights}; ask its administrator"
    for kind, name in (
        ("persistentvolumeclaim", target.volume),
        ("secret", target.secret),
        ("secret", target.pull_secret),
    ):
        if not name:
            continue
        answer = _ask_kubectl(place, "get", kind, name, "--ignore-not-found", "-o", "name")
        if answer is None:  # it needs a right that submitting does not
            yield True, f"no permission to look for {kind} {name}"
        elif answer:
            yield True, f"{kind} {name} exists"
        else:
            yield False, f"{kind} {name} does not exist; create it in namespace {target.namespace}"
    submission = _submission(target, config)
    yield True, config_map_usage(pack(submission)[1])
    if config is not None:
        place.check(submission)
        yield True, "the target asks for enough for the config"
    if target.address:
        yield from _examine_ray(target, config)
    else:
        yield True, "the target has no address: machines, storage and token are not checked"


def _ask_kubectl(place: Kubernetes, *arguments: str) -> str | None:
    """What kubectl answers; None if it refuses."""
    try:
        return place.kubectl(*arguments).strip()
    except Unreachable:
        raise
    except UserError:
        return None


EXAMINERS = {
    "local": _examine_local,
    "ray": _examine_ray,
    "slurm": _examine_slurm,
    "k8s": _examine_kubernetes,
}


def main(path: str, where: str = "cluster") -> int:
    """The small job: `python -m elmwright.jobs.submit.doctor SUBMISSION.json [here]`.

    It looks at every machine of the Ray cluster around it, or at this machine only.
    """
    submission = Submission.load(path)
    if where == "here":
        answers = _check_here(submission)
    elif any(line.startswith("ray ") for line in missing_dependencies()):
        answers = [look("", submission.target.secrets)]
    else:
        answers = _check_cluster(submission)
    print(MARK + json.dumps(to_data(answers)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
