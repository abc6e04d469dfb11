"""Everything in `infra/` passes the validators of its kind, and each of them notices a mistake."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.infra import validators
from tests.infra.validators import INFRA, ROOT

Validator = Callable[[Path], list[str]]

# Validator, file, what stands there, the mistake that is planted instead.
MISTAKES: list[tuple[Validator, str, str, str]] = [
    (validators.yaml_style, "compose/compose.yaml", "\nname:", "\nname: one\nname:"),
    (validators.yaml_style, "ray/aws.yaml", "provider:\n  type", "provider:\n   type"),
    (validators.dockerfile, "docker/Dockerfile", "FROM python:${PYTHON} AS base", "FROM python"),
    (validators.dockerfile, "docker/Dockerfile", "WORKDIR /source", "WORKDIR source"),
    (validators.compose, "compose/compose.yaml", "    depends_on:", "    depends-on:"),
    (validators.compose, "compose/compose.yaml", "service_healthy", "service_fine"),
    (validators.built_in_kinds, "kubernetes/base/mlflow.yaml", "replicas: 1", "replica: 1"),
    (validators.built_in_kinds, "kubernetes/base/storage.yaml", "accessModes", "accessMode"),
    (validators.built_in_kinds, "kubernetes/job/rayjob.yaml", "mountPath: /runs", "path: /runs"),
    (validators.built_in_kinds, "kubernetes/job/rayjob.yaml", "medium: Memory", "medium: [Memory]"),
    (validators.ray_objects, "kubernetes/job/rayjob.yaml", "backoffLimit: 3", "backOffLimit: 3"),
    (validators.ray_objects, "kubernetes/job/rayjob.yaml", "rayVersion: 2.60.0", "rayVersion: 2.6"),
    (validators.ray_objects, "kubernetes/job/rayjob.yaml", 'num-cpus: "0"', 'num-cpus: "8"'),
    (validators.ray_objects, "kubernetes/cluster/raycluster.yaml", "mode: token", "mode: tokens"),
    (validators.aws, "ray/aws.yaml", "max_workers: 4\nidle", "max_worker: 4\nidle"),
    (validators.aws, "ray/aws.yaml", "head_node_type: head", "head_node_type: heads"),
    (validators.kustomizations, "kubernetes/base/kustomization.yaml", "- mlflow.yaml", "- ml.yaml"),
    (validators.kustomizations, "kubernetes/job/kustomization.yaml", "- run.toml", "- runs.toml"),
    (validators.kustomizations, "kubernetes/overlays/gpu/kustomization.yaml",
     "name: elmwright", "name: elmwrong"),
    (validators.kustomizations, "kubernetes/overlays/gpu/kustomization.yaml",
     "volumes/3/emptyDir", "volumes/9/emptyDir"),
]  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INFRA, tmp_path / "infra"))


@pytest.mark.parametrize(
    "validator", dict.fromkeys(mistake[0] for mistake in MISTAKES), ids=lambda v: v.__name__
)
def test_infra_passes(validator: Validator, copy: Path) -> None:
    assert validator(copy) == []


@pytest.mark.parametrize(
    ("validator", "file", "right", "wrong"),
    MISTAKES,
    ids=[f"{mistake[0].__name__}-{mistake[3].split()[0]}" for mistake in MISTAKES],
)
def test_a_mistake_is_noticed(
    validator: Validator, file: str, right: str, wrong: str, copy: Path
) -> None:
    text = (copy / file).read_text()
    assert right in text, "the mistake could not be planted"
    (copy / file).write_text(text.replace(right, wrong, 1))
    assert validator(copy), "nothing was noticed"


@pytest.mark.parametrize("overlay", ["dev", "gpu"])
def test_kustomize_builds_what_passes_again(overlay: str, copy: Path, tmp_path: Path) -> None:
    """The patched objects too, where kubectl (which holds kustomize) is installed."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run(
        [kubectl, "kustomize", copy / "kubernetes" / "overlays" / overlay],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    whole = tmp_path / "built" / "kubernetes"
    whole.mkdir(parents=True)
    (whole / "all.yaml").write_text(built)
    assert validators.ray_objects(whole.parent) == []
    objects = {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(built)}
    assert {o["metadata"].get("namespace", "elmwright") for o in objects.values()} == {"elmwright"}
    kind = {"dev": "RayCluster", "gpu": "RayJob"}[overlay]
    head, worker = validators.pod_templates(objects[kind, "elmwright"])
    limits = worker["spec"]["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == (overlay == "gpu")
    assert "nvidia.com/gpu" not in head["spec"]["containers"][0]["resources"]["limits"]
    assert validators.built_in_kinds(whole.parent) == []


def test_the_image_is_built_from_files_that_are_there_and_that_docker_may_see() -> None:
    text = (INFRA / "docker" / "Dockerfile").read_text()
    allowed = (ROOT / ".dockerignore").read_text().split()
    copied = [
        source
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
        if not source.startswith("--")
    ]
    assert len(copied) > 5
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(f"!{part}" in allowed for part in (source, str(Path(source).parent))), source
