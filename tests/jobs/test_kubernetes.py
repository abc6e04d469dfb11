"""The RayJob that is rendered, and what kubectl is asked to do with it.

No Kubernetes is needed: kubectl is played by a script. That Ray unpacks what the ConfigMap mounts
is tested on a real Ray in test_ray_cluster.py.
"""

import base64
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.config_file import load_config
from elmwright.jobs.kubernetes import (
    CONFIG_MAP_BYTES,
    Kubernetes,
    object_name,
    render,
    state_of_rayjob,
)
from elmwright.jobs.submission import Job, Submission
from elmwright.jobs.submit import prepare, state_of, submit
from elmwright.jobs.targets import Target
from elmwright.pipeline.errors import UserError
from tests.jobs.tiny import write_config, write_text

GPU = Target.from_data(
    {"kind": "k8s", "gpus": 1, "image": "lab/elmwright:1", "namespace": "ml", "secret": "s3",
     "volume": "claim", "memory": "16Gi"}
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def submission(folder: Path, target: Target, **changes: Any) -> Submission:
    write_text(folder / "text.txt", 3)
    file = write_config(
        folder, folder / "text.txt", tracking_uri="http://mlflow:5000", **changes
    )  # fmt: skip
    return prepare(load_config(str(file), ["cluster.address=auto"]), target, "publish")


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
        assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted == {"job": "/elmwright-job", "shm": "/dev/shm", "data": "/data"}  # noqa: S108
        assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
        assert container["resources"]["limits"] == container["resources"]["requests"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "job"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_package_is_far_below_what_a_config_map_takes(tmp_path: Path) -> None:
    (encoded,) = render(submission(tmp_path, GPU))["items"][0]["binaryData"].values()
    assert len(encoded) < CONFIG_MAP_BYTES * 0.75


@pytest.mark.parametrize("run", ["tiny", "A.b_C", "x" * 100, "9", "a-._"])
def test_every_run_name_becomes_a_name_kubernetes_takes(run: str) -> None:
    name = object_name(f"{run}-20260102-030405-ab12")
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= 47
    assert name.endswith("20260102-030405-ab12")


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "kubectl").write_text(
        f'#!/bin/sh\necho "$*" >>"{tmp_path}/calls"\n'
        f'case "$*" in *apply*) cat >"{tmp_path}/applied";; *) cat "{tmp_path}/answer";; esac\n'
    )
    (bin_ / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    return tmp_path


def test_kubectl_applies_what_is_rendered(kubectl: Path) -> None:
    (kubectl / "answer").write_text('{"items": []}')
    job = submit(submission(kubectl, GPU))
    assert json.loads((kubectl / "applied").read_text()) == render(job.submission)
    assert "-n ml apply -f -" in (kubectl / "calls").read_text()
    (kubectl / "answer").write_text('{"status": {"jobStatus": "RUNNING"}}')
    assert state_of(job).word == "running"
    (kubectl / "answer").write_text("")
    assert state_of(job).word == "interrupted"
    with pytest.raises(UserError, match=r"no Ray address; .* port-forward -n ml"):
        Kubernetes(GPU).stop(job)


def test_a_run_that_is_going_on_there_is_refused(kubectl: Path) -> None:
    item = {"metadata": {"name": "tiny-1"}, "status": {"jobDeploymentStatus": "Initializing"}}
    (kubectl / "answer").write_text(json.dumps({"items": [item]}))
    with pytest.raises(UserError, match=r"'tiny' is going on already .* \(job tiny-1\)"):
        submit(submission(kubectl, GPU))
    assert not (kubectl / "applied").exists()


def test_without_kubectl_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="kubectl is not on this machine's PATH"):
        submit(submission(tmp_path, GPU))


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
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, "failed"),
    ],
)
def test_kuberays_words_become_ours(status: dict[str, Any], word: str) -> None:
    assert state_of_rayjob(status).word == word


def test_the_state_of_a_job_on_its_ray_address_is_asked_there(tmp_path: Path) -> None:
    target = Target("k8s", address="http://127.0.0.1:9")
    job = Job(submission(tmp_path, target), {"rayjob": "x"})
    with pytest.raises(UserError, match=r"http://127.0.0.1:9 does not answer"):
        state_of(job)
