"""Everything in `infra/` passes the validators of its kind, and each of them notices mistakes."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elmwright.jobs.submit.targets.kubernetes_objects import STAY
from tests.support.infra import validators
from tests.support.places import INFRA, ROOT

pytestmark = pytest.mark.slow(6)

Validator = Callable[[Path], list[str]]
CLUSTER = "kubernetes/cluster/raycluster.yaml"

# Validator, file, right text, wrong text.
MISTAKES: list[tuple[Validator, str, str, str]] = [
    (validators.yaml_style, "compose/compose.yaml", "\nname:", "\nname: one\nname:"),
    (validators.yaml_style, "ray/aws.yaml", "provider:\n  type", "provider:\n   type"),
    (validators.dockerfile, "docker/Dockerfile", "FROM python:${PYTHON} AS base", "FROM python"),
    (validators.dockerfile, "docker/Dockerfile", "WORKDIR /source", "WORKDIR source"),
    (validators.compose, "compose/compose.yaml", "    depends_on:", "    depends-on:"),
    (validators.compose, "compose/compose.yaml", "service_healthy", "service_fine"),
    (validators.built_in_kinds, "kubernetes/base/mlflow.yaml", "replicas: 1", "replica: 1"),
    (validators.built_in_kinds, "kubernetes/base/mlflow.yaml", "minAvailable: 1", "available: 1"),
    (
        validators.built_in_kinds,
        "kubernetes/base/postgres.yaml",
        "whenDeleted: Retain",
        "whenDeleted: [Keep]",
    ),
    (validators.built_in_kinds, "kubernetes/storage/claims.yaml", "accessModes", "accessMode"),
    (validators.built_in_kinds, CLUSTER, "mountPath: /runs", "path: /runs"),
    (validators.built_in_kinds, CLUSTER, "medium: Memory", "medium: [Memory]"),
    (validators.ray_objects, CLUSTER, "workerGroupSpecs", "workerGroupSpec"),
    (validators.ray_objects, CLUSTER, "rayVersion: 2.60.0", "rayVersion: 2.6"),
    (validators.ray_objects, CLUSTER, 'num-cpus: "0"', 'num-cpus: "8"'),
    (validators.ray_objects, CLUSTER, "mode: token", "mode: tokens"),
    (
        validators.memory,
        CLUSTER,
        'object-store-memory: "1000000000"',
        'object-store-memory: "3000000000"',
    ),
    (validators.memory, CLUSTER, "sizeLimit: 2Gi", "sizeLimit: 6Gi"),
    (validators.memory, CLUSTER, 'object-store-memory: "500000000"', 'dashboard-port: "8265"'),
    (validators.aws, "ray/aws.yaml", "max_workers: 4\nidle", "max_worker: 4\nidle"),
    (validators.aws, "ray/aws.yaml", "head_node_type: head", "head_node_type: heads"),
    (validators.kustomizations, "kubernetes/base/kustomization.yaml", "- mlflow.yaml", "- ml.yaml"),
    (
        validators.kustomizations,
        "kubernetes/overlays/gpu/kustomization.yaml",
        "- name: elmwright",
        "- name: elmwrong",
    ),
    (
        validators.kustomizations,
        "kubernetes/overlays/gpu/kustomization.yaml",
        "      name: elmwright",
        "      name: elmwrong",
    ),
    (
        validators.kustomizations,
        "kubernetes/overlays/gpu/kustomization.yaml",
        "volumes/2/emptyDir",
        "volumes/9/emptyDir",
    ),
]


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


def kustomize(folder: Path) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send, where kubectl (which holds kustomize) is installed."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=True
    ).stdout
    return [document for document in yaml.safe_load_all(built) if document]


@pytest.mark.parametrize("overlay", ["dev", "gpu"])
def test_kustomize_builds_what_passes_again(overlay: str, copy: Path, tmp_path: Path) -> None:
    """The patched objects too."""
    built = kustomize(copy / "kubernetes" / "overlays" / overlay)
    whole = tmp_path / "built" / "kubernetes"
    whole.mkdir(parents=True)
    (whole / "all.yaml").write_text(yaml.safe_dump_all(built))
    assert validators.ray_objects(whole.parent) == []
    assert validators.memory(whole.parent) == []
    assert {o["metadata"]["namespace"] for o in built} == {"elmwright"}
    (cluster,) = [o for o in built if o["kind"] == "RayCluster"]
    head, worker = validators.pod_templates(cluster)
    limits = worker["spec"]["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == (overlay == "gpu")
    assert "nvidia.com/gpu" not in head["spec"]["containers"][0]["resources"]["limits"]
    assert validators.built_in_kinds(whole.parent) == []


@pytest.mark.parametrize("folder", ["base", "overlays/dev", "overlays/gpu"])
def test_the_image_is_named_in_one_place_for_all_that_is_applied(folder: str, copy: Path) -> None:
    where = copy / "kubernetes" / folder / "kustomization.yaml"
    text = where.read_text()
    assert text.count("newName: ") == 1
    where.write_text(text.replace("newName: elmwright", "newName: lab.example/team/elmwright"))
    (tag,) = re.findall(r"newTag: (\S+)", text)
    images = list(found_at("image", kustomize(where.parent)))
    ours = [image for image in images if "elmwright" in image]
    assert len(ours) == (2 if folder == "base" else 4)
    assert set(ours) == {f"lab.example/team/elmwright:{tag}"}


def found_at(key: str, value: Any) -> Iterator[Any]:
    """Every value of a key, however deep."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from found_at(key, one)


@pytest.mark.parametrize("overlay", ["base", "overlays/dev", "overlays/gpu"])
def test_deleting_an_overlay_deletes_no_data(overlay: str) -> None:
    """Neither a claim nor the namespace with all claims in it is among its objects."""
    objects = list(validators.objects(INFRA / "kubernetes" / overlay))
    assert objects
    assert not [o for o in objects if o["kind"] in ("Namespace", "PersistentVolumeClaim")]
    storage = validators.objects(INFRA / "kubernetes" / "storage")
    kept = {o["metadata"]["name"] for o in storage if o["kind"] == "PersistentVolumeClaim"}
    assert set(found_at("claimName", objects)) <= kept
    for one in objects:
        if list(found_at("volumeClaimTemplates", one)):
            policy = one["spec"]["persistentVolumeClaimRetentionPolicy"]
            assert set(policy.values()) == {"Retain"}


def test_pods_that_must_not_be_moved_say_so() -> None:
    (cluster, *_) = validators.documents(INFRA / CLUSTER)
    for template in validators.pod_templates(cluster):
        assert template["metadata"]["annotations"] == STAY
    budgets = [
        o["spec"]["selector"]["matchLabels"]
        for _, o in validators.manifests(INFRA)
        if o["kind"] == "PodDisruptionBudget"
    ]
    labels = [set(found.values()) for found in budgets]
    assert sorted(labels, key=sorted) == [{"elmwright", "head"}, {"mlflow"}, {"postgres"}]


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
