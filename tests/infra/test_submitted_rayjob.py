"""What `elmwright submit --to k8s` renders passes the validators of `infra/` and fits its files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook import deployment
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.attempts import DRIVER_FILE
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets.kubernetes_objects import DEADLINE_SECONDS, render
from tests.support.infra import validators
from tests.support.infra.validators import documents, pod_templates
from tests.support.places import INFRA

pytestmark = pytest.mark.slow(6)

CLUSTER = INFRA / "kubernetes" / "cluster" / "raycluster.yaml"

PLAIN = Target("k8s")
FULL = Target(
    "k8s",
    gpus=1,
    image="lab/elmwright:1",
    namespace="elmwright",
    secret="s3",  # noqa: S106
    volume="runs",
    memory="16Gi",
)


def rendered(target: Target, run: str = "tiny") -> list[dict[str, Any]]:
    settings = ["cluster.address=auto", "tracking.uri=http://mlflow:5000", f'run.name="{run}"']
    config = load_config("demo", settings)
    objects = render(prepare(config, target, "publish"))
    return [objects.config_map, objects.rayjob]


def rayjob(target: Target) -> dict[str, Any]:
    return rendered(target)[1]


def written(folder: Path, objects: list[dict[str, Any]]) -> Path:
    """A folder in the form of infra/, for the validators."""
    (folder / "kubernetes").mkdir()
    (folder / "kubernetes" / "submitted.yaml").write_text(yaml.safe_dump_all(objects))
    return folder


@pytest.mark.parametrize("run", ["tiny", "9.B_", "x" * 60])
@pytest.mark.parametrize("target", [PLAIN, FULL], ids=["plain", "full"])
def test_the_rayjob_has_the_fields_kuberay_knows(target: Target, run: str, tmp_path: Path) -> None:
    assert validators.ray_objects(written(tmp_path, rendered(target, run))) == []


@pytest.mark.parametrize("target", [PLAIN, FULL], ids=["plain", "full"])
def test_the_config_map_and_the_pods_are_what_kubernetes_takes(
    target: Target, tmp_path: Path
) -> None:
    assert validators.built_in_kinds(written(tmp_path, rendered(target))) == []
    assert validators.memory(tmp_path) == []


def test_a_mistake_in_a_rendered_rayjob_is_noticed(tmp_path: Path) -> None:
    config_map, job = rendered(FULL)
    job["spec"]["rayClusterSpec"].pop("rayVersion")
    next(pod_templates(job))["spec"]["containers"][0]["volumeMounts"][0].pop("mountPath")
    folder = written(tmp_path, [config_map, job])
    assert validators.ray_objects(folder)
    assert validators.built_in_kinds(folder)


def test_its_pods_are_allowed_in_the_namespace_of_infra() -> None:
    """Pod Security "restricted", which storage/namespace.yaml enforces."""
    (namespace,) = documents(INFRA / "kubernetes" / "storage" / "namespace.yaml")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (reference, _) = documents(CLUSTER)
    for one, other in zip(pod_templates(rayjob(FULL)), pod_templates(reference), strict=True):
        ours, theirs = one["spec"], other["spec"]
        assert ours["securityContext"] == theirs["securityContext"]
        assert ours["securityContext"]["runAsNonRoot"] is True
        assert ours["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert one["metadata"] == other["metadata"], "the autoscaler leaves them alone"
        assert ours["enableServiceLinks"] == theirs["enableServiceLinks"]
        (container,), (model,) = ours["containers"], theirs["containers"]
        assert container["securityContext"] == model["securityContext"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
        assert all(volume.keys() - {"name"} <= allowed for volume in ours["volumes"])


def test_it_finds_what_the_files_of_infra_offer() -> None:
    (reference, _) = documents(CLUSTER)
    spec, theirs = rayjob(FULL)["spec"], reference["spec"]
    assert spec["submissionMode"] == "HTTPMode", "what the README says of lost heads"
    assert spec["activeDeadlineSeconds"] == DEADLINE_SECONDS
    for key in ("rayVersion", "authOptions"):
        assert spec["rayClusterSpec"][key] == theirs[key]
    for one, other in zip(pod_templates(rayjob(FULL)), pod_templates(reference), strict=True):
        mounts, known = mounted(one["spec"]), mounted(other["spec"])
        for path in (deployment.RUNS_PATH, deployment.SECRETS_PATH):
            assert mounts[path] == known[path]
        assert one["spec"]["imagePullSecrets"] == other["spec"]["imagePullSecrets"]
        (container,), (model,) = one["spec"]["containers"], other["spec"]["containers"]
        env = [entry for entry in container["env"] if entry["name"] != DRIVER_FILE]
        assert all(entry in model["env"] for entry in env)
        assert all(entry in container["envFrom"] for entry in model["envFrom"])


def mounted(pod: dict[str, Any]) -> dict[str, Any]:
    """The volume at each mount point."""
    volumes = {v["name"]: {k: x for k, x in v.items() if k != "name"} for v in pod["volumes"]}
    (container,) = pod["containers"]
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
