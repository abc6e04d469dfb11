"""The RayJob that is rendered, and what KubeRay's words about it mean.

That Ray unpacks what the ConfigMap mounts is tested on a real Ray in test_ray_cluster.py.
"""

import base64
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elmwright import __version__
from elmwright.jobs.kubernetes_objects import (
    CONFIG_MAP_BYTES,
    label_of,
    object_name,
    render,
    state_of_rayjob,
)
from elmwright.jobs.submission import GRACE_SECONDS
from elmwright.jobs.targets import Target
from tests.jobs.rayjobs import GPU, submission


def test_the_objects_hang_together(tmp_path: Path) -> None:
    sent = submission(tmp_path, GPU, train_processes=4)
    config_map, rayjob = render(sent)["items"]
    assert (config_map["kind"], rayjob["kind"]) == ("ConfigMap", "RayJob")
    assert rayjob["apiVersion"] == "ray.io/v1"
    spec = rayjob["spec"]
    assert spec["jobId"] == sent.id
    assert spec["backoffLimit"] == 0
    environment = json.loads(spec["runtimeEnvYAML"])
    (package,) = config_map["binaryData"]
    assert environment["working_dir"] == f"file:///elmwright-job/{package}"
    content = base64.b64decode(config_map["binaryData"][package])
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert "elmwright/jobs/entry.py" in names
    assert "submission.json" in names
    head = spec["rayClusterSpec"]["headGroupSpec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 4
    for group in (head, workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "lab/elmwright:1"
        assert {"secretRef": {"name": "s3"}} in container["envFrom"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted["job"] == "/elmwright-job"
        assert mounted["runs"] == "/runs"
        assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
        assert container["resources"]["limits"] == container["resources"]["requests"]
    stop = head["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert stop == ["ray", "job", "stop", "--address", "http://127.0.0.1:8265", sent.id]
    assert head["template"]["spec"]["terminationGracePeriodSeconds"] > GRACE_SECONDS
    (volume,) = [v for v in pod["volumes"] if v["name"] == "job"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_package_is_far_below_what_a_config_map_takes(tmp_path: Path) -> None:
    (encoded,) = render(submission(tmp_path, GPU))["items"][0]["binaryData"].values()
    assert len(encoded) < CONFIG_MAP_BYTES * 0.75


@pytest.mark.parametrize("run", ["tiny", "A.b_C", "x" * 100, "9", "7b", "a-._", "-"])
def test_every_run_name_becomes_a_name_and_a_label_kubernetes_takes(run: str) -> None:
    name = object_name(f"{run}-20260102-030405-ab12")
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= 47
    assert name.endswith("20260102-030405-ab12")
    assert re.fullmatch(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", label_of(run))


@pytest.mark.parametrize(("gpus", "variant"), [(0, "cpu"), (1, "cuda")])
def test_the_image_that_is_built_is_the_image_that_is_asked_for(
    gpus: int, variant: str, tmp_path: Path
) -> None:
    _, rayjob = render(submission(tmp_path, Target("k8s", gpus=gpus)))["items"]
    worker = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert worker["containers"][0]["image"] == f"elmwright:{__version__}-{variant}"


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({}, "pending"),
        ({"jobDeploymentStatus": "Initializing"}, "pending"),
        ({"jobStatus": "RUNNING"}, "running"),
        ({"jobStatus": "SUCCEEDED"}, "finished"),
        ({"jobStatus": "STOPPED"}, "interrupted"),
        ({"jobStatus": "FAILED", "message": "failed with exit code 75, last"}, "interrupted"),
        ({"jobStatus": "FAILED", "message": "failed with exit code 2, last"}, "failed"),
        ({"jobStatus": "FAILED", "message": "failed with exit code -9. No logs"}, "interrupted"),
        ({"jobStatus": "FAILED", "message": "The actor died"}, "interrupted"),
        ({"jobStatus": "FAILED", "message": "runtime_env setup failed: no zip"}, "failed"),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, "interrupted"),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "no such field"}, "failed"),
        # What Ray said last stays when KubeRay has given up.
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Failed"}, "failed"),
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"},
         "interrupted"),
    ],
)  # fmt: skip
def test_kuberays_words_become_ours(status: dict[str, Any], word: str) -> None:
    assert state_of_rayjob(status).word == word
