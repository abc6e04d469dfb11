"""`elmwright doctor TARGET`: is everything there that a run will need?

Versions, the token, the size of the cluster and, on every one of its machines, the dependencies,
the storage of `run.dir` and the names in the environment; where the driver will be, the MLflow
server and the store's secrets too. None of these can be seen from outside, so a small job asks: it
ships the package as any submission does, and trains nothing. Of a Slurm cluster only this machine,
its login node, is looked at, with the Python and the `env_file` of the target: a job that asks
would have to wait in the queue.
"""

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elmwright.jobs.cluster.capacity import check_capacity
from elmwright.jobs.cluster.connection import local_cpus
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_from, load_config
from elmwright.jobs.environment.wheel import content_version, package_files, wheel_members
from elmwright.jobs.runbook.submission import Job, Submission, new_submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.job import check_names, missing_dependencies
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets.kubernetes import Kubernetes
from elmwright.jobs.submit.targets.kubernetes_objects import filled
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, Unreachable, check_nodes, parcel
from elmwright.jobs.submit.targets.ray_token import find_token
from elmwright.jobs.submit.targets.slurm import Slurm, run_slurm
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.store import with_login
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.files import exists, is_url, join, remove, write_bytes

Finding = tuple[bool, str]
PROBE_SECONDS = 180.0
MARK = "elmwright-doctor: "


def examine(
    target: Target, config_name: str | None = None, settings: Sequence[str] = ()
) -> list[Finding]:
    """Everything found out about a target: whether it is good, and what it is."""
    overrides = [] if target.kind == "local" else ['cluster.address="auto"']
    config = load_config(config_name, [*settings, *overrides]) if config_name else None
    found: list[Finding] = []
    try:
        if target.kind == "ray":
            _ray(RayCluster(target), config, found)
        elif target.kind == "slurm":
            _slurm(target, config, found)
        elif target.kind == "k8s":
            _kubernetes(target, config, found)
        else:
            _local(target, config, found)
    except (UserError, Failed) as problem:
        found.append((False, str(problem)))
    return found


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
    found += _machines([look_for(submission, config)], submission.dir, target.secrets)


def _submission(target: Target, config: RunConfig | None) -> Submission:
    """What would be sent; without a config, nothing is asked about its folder."""
    if config is not None:
        return prepare(config, target, "publish")
    version = content_version(package_files())
    given = new_submission(load_config("demo"), target, until="publish", version=version)
    return dataclasses.replace(given, dir="")


def _ray(cluster: RayCluster, config: RunConfig | None, found: list[Finding]) -> None:
    found.append((True, f"{cluster.address} runs Ray {cluster.check_version()}"))
    token = find_token(cluster.target)[1]
    found.append(
        (True, f"it takes the token in {token}" if cluster.has_token else "no token asked")
    )
    nodes = cluster.nodes()
    cpus, gpus = (sum(n["resources_total"].get(k, 0) for n in nodes) for k in ("CPU", "GPU"))
    found.append((True, f"machines: {len(nodes)}, CPUs: {cpus:.0f}, GPUs: {gpus:.0f}"))
    if config is not None:
        check_nodes(config.train, nodes, cluster.address)
        found.append((True, "enough for train.processes × train.threads"))
    submission = _submission(cluster.target, config)
    found += _machines(_look_by_job(cluster, submission), submission.dir, cluster.target.secrets)


def _look_by_job(cluster: RayCluster, submission: Submission) -> list[dict[str, Any]]:
    """Let a small job look at every machine of a cluster."""
    name = f"doctor-{uuid.uuid4().hex[:12]}"
    submission = dataclasses.replace(submission, id=name, run=name)
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
    return list(json.loads(answers[-1]))


def look_around(submission: Submission) -> list[dict[str, Any]]:
    """What the small job does: look at every machine of the cluster it runs on."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    try:
        return _look_at_all(submission)
    finally:
        ray.shutdown()


def _look_at_all(submission: Submission) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look_with(probe: str) -> list[dict[str, Any]]:
        look = ray.remote(num_cpus=0)(look_here)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        answers = [
            look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(probe, submission.target.secrets)
            for node in nodes
        ]
        return list(ray.get(answers, timeout=PROBE_SECONDS))

    try:
        with probing(submission.dir) as probe:
            looked = look_with(probe)
    except (UserError, OSError) as error:  # the folder cannot be written to; the rest is asked
        looked = [answer | {"sees": str(error)} for answer in look_with("")]
    if submission.dir:  # the config is the user's
        config = config_from(submission.config, "the config")
        looked[0]["config"] = _look_at_config(submission, config)
    return looked


def _look_at_config(submission: Submission, config: RunConfig) -> list[Finding]:
    """What only the config names, as this machine sees it: secrets of its stores, its MLflow."""
    found: list[Finding] = []
    try:
        check_names(dataclasses.replace(submission, target=Target("local")), config)
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
    return found


@contextmanager
def probing(folder: str) -> Iterator[str]:
    """A file in a run's folder, for others to look for; nothing stays behind."""
    if not folder:
        yield ""
        return
    made = not is_url(folder) and not os.path.isdir(folder)
    probe = join(folder, f".probe-{uuid.uuid4().hex}")
    write_bytes(probe, b"")
    try:
        yield probe
    finally:
        remove(probe)
        if made:
            with suppress(OSError):
                os.rmdir(folder)


def look_for(submission: Submission, config: RunConfig | None) -> dict[str, Any]:
    """What this machine has of what a submission needs."""
    try:
        with probing(submission.dir) as probe:
            answer = look_here(probe, submission.target.secrets)
    except (UserError, OSError) as error:
        answer = look_here("", submission.target.secrets) | {"sees": str(error)}
    if config is not None:
        answer["config"] = _look_at_config(submission, config)
    return answer


def look_here(probe: str, secrets: tuple[str, ...]) -> dict[str, Any]:
    """What one machine has. Of secrets only whether they are set."""
    sees: bool | str = True
    if probe:
        try:
            sees = exists(probe)
        except (UserError, OSError) as error:
            sees = str(error)
    return {
        "host": platform.node(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "missing": missing_dependencies(),
        "unset": [name for name in secrets if not os.environ.get(name)],
        "sees": sees,
    }


def _machines(
    answers: list[dict[str, Any]], folder: str, secrets: tuple[str, ...]
) -> list[Finding]:
    """What the machines answered, as findings."""
    found: list[Finding] = []
    for answer in answers:
        host = answer["host"]
        found.append((True, f"{host}: Python {answer['python']}"))
        lacks = "; ".join(answer["missing"])
        found.append((not lacks, f"{host}: {lacks or 'all dependencies'}"))
        if folder:
            seen = answer["sees"] is True
            why = "" if seen or answer["sees"] is False else f" ({answer['sees']})"
            advice = "" if seen else "; use storage that every machine has, or an s3:// URL"
            text = "is visible" if seen else "is not visible"
            found.append((seen, f"{host}: run.dir {folder} {text}{why}{advice}"))
        if secrets:
            unset = ", ".join(answer["unset"])
            found.append(
                (not unset, f"{host}: {unset or 'every secret'} is {'not ' * bool(unset)}set")
            )
        found += [(good, text) for good, text in answer.get("config", ())]
    return found


def _slurm(target: Target, config: RunConfig | None, found: list[Finding]) -> None:
    found.append((True, run_slurm("sinfo", "--version").strip()))
    partition = ["--partition", target.partition] if target.partition else []
    rows = run_slurm("sinfo", "--noheader", "--format=%P: %D machines with %c CPUs, %T", *partition)
    lines = [line for line in rows.splitlines() if line.strip()]
    if not lines:
        raise UserError(f"Slurm has no partition {target.partition!r}; sinfo lists what there is")
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
    found += _machines([_look_as_a_job(submission, config)], submission.dir, target.secrets)


def _look_as_a_job(submission: Submission, config: RunConfig | None) -> dict[str, Any]:
    """Look at this machine as the batch script would: its Python, its env_file, our code."""
    target = submission.target
    python = os.path.expanduser(target.python or sys.executable)
    if shutil.which(python) is None:
        raise UserError(f"there is no {python}; name the cluster's Python as python of the target")
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
        )  # fmt: skip
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not answers:
        last = " ".join((done.stderr.strip() or "it said nothing").splitlines()[-1:])
        raise UserError(
            f"{python} cannot run elmwright ({last[:300]}); install its dependencies, or name "
            "another as python of the target"
        )
    return dict(json.loads(answers[-1].removeprefix(MARK))[0])


def _run_for_a_while(
    command: list[str], environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False,
            timeout=PROBE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(
            f"looking at this machine took more than {PROBE_SECONDS:.0f} s; see whether its disks "
            "and the servers of the config answer"
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
        _ray(RayCluster(target), config, found)


def _answer(place: Kubernetes, *arguments: str) -> str | None:
    """What kubectl answers; nothing where it refuses."""
    try:
        return place.kubectl(*arguments).strip()
    except Unreachable:
        raise
    except UserError:
        return None


def main(path: str, here: str = "") -> int:
    """The small job: `python -m elmwright.jobs.submit.doctor SUBMISSION.json`.

    With a second word it looks at this machine only; "config" says that the config is the user's.
    """
    submission = Submission.from_data(json.loads(Path(path).read_text(encoding="utf-8")))
    missing = missing_dependencies()
    if here:
        config = config_from(submission.config, "the config") if here == "config" else None
        answers = [look_for(submission, config)]
    elif any(line.startswith("ray ") for line in missing):
        answers = [look_here("", submission.target.secrets)]
    else:
        answers = look_around(submission)
    print(MARK + json.dumps(answers), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
