"""The objects of a RayJob, and the state of a job by the status that KubeRay reports.

That Ray unpacks what the ConfigMap mounts is tested on a real Ray in test_ray_cluster.py.
"""

import base64
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elmwright import __version__
from elmwright.jobs.runbook.deployment import STOP_SECONDS
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.attempts import DRIVER_FILE
from elmwright.jobs.submit.targets.kubernetes_objects import (
    CONFIG_MAP_BYTES,
    RayJob,
    label_of,
    object_name,
    render,
    state_of_rayjob,
)
from elmwright.jobs.submit.targets.ray_jobs import pack
from tests.support.cluster.rayjobs import GPU, submission
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow(3)


def test_rayjob_and_config_map_refer_to_each_other(tmp_path: Path) -> None:
    sent = submission(tmp_path, GPU, train_processes=4)
    config_map, rayjob = render(sent).config_map, render(sent).rayjob
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
    assert "elmwright/jobs/submit/job.py" in names
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
    assert head["template"]["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS
    assert int(environment["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) == STOP_SECONDS
    (volume,) = [v for v in pod["volumes"] if v["name"] == "job"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


JOB = """
import os, signal, sys, time
from pathlib import Path
file = Path(os.environ["ELMWRIGHT_DRIVER_FILE"])
def told(*_):
    time.sleep(1)
    Path(sys.argv[1]).touch()
    file.unlink()
signal.signal(signal.SIGUSR1, told)
file.write_text(str(os.getpid()))
while True:
    time.sleep(0.1)
"""


def test_prestop_hook_waits_for_the_checkpoint_and_does_not_end_the_job(
    tmp_path: Path,
) -> None:
    """The hook as it is rendered, run by a real shell; that the job does as it is told here is
    tested in test_attempts.py."""
    rayjob = render(submission(tmp_path, GPU)).rayjob
    head, worker = (
        group["template"]["spec"]["containers"][0]
        for group in (
            rayjob["spec"]["rayClusterSpec"]["headGroupSpec"],
            *rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"],
        )
    )
    assert "lifecycle" not in worker
    (file,) = [one["value"] for one in head["env"] if one["name"] == DRIVER_FILE]
    here = str(tmp_path / "driver")
    hook = [word.replace(file, here) for word in head["lifecycle"]["preStop"]["exec"]["command"]]
    assert subprocess.run(hook, timeout=30, check=False).returncode == 0, "no job: nothing to do"
    done = tmp_path / "checkpoint"
    job = subprocess.Popen([sys.executable, "-c", JOB, done], env={DRIVER_FILE: here})
    try:
        assert wait_until(Path(here).exists, 30)
        assert subprocess.run(hook, timeout=60, check=False).returncode == 0
        assert done.exists(), "it did not wait"
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()


@pytest.mark.parametrize(
    ("target", "processes", "threads", "cpus"),
    [
        (Target("k8s"), 2, 3, 6),
        (Target("k8s", gpus=1), 2, 1, 4),
        (Target("k8s", gpus=1), 2, 6, 7),
        (Target("k8s", gpus=2), 4, 2, 6),
        (Target("k8s", gpus=1, cpus=2), 2, 1, 2),
    ],
)
def test_a_pod_has_cpus_for_its_processes_and_with_gpus_for_their_data(
    target: Target, processes: int, threads: int, cpus: int, tmp_path: Path
) -> None:
    sent = submission(tmp_path, target, train_processes=processes, train_threads=threads)
    (workers,) = render(sent).rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == str(cpus)
    assert workers["rayStartParams"]["num-cpus"] == str(cpus)


@pytest.mark.parametrize(
    ("memory", "shm"), [("8Gi", 2 * 2**30), ("512Mi", 2**27), ("4G", 10**9), ("16000000000", 4e9)]
)
def test_rays_object_store_fits_into_shared_memory_and_that_into_the_pod(
    memory: str, shm: int, tmp_path: Path
) -> None:
    rayjob = render(submission(tmp_path, Target("k8s", memory=memory))).rayjob
    (workers,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (volume,) = [
        v["emptyDir"] for v in workers["template"]["spec"]["volumes"] if v["name"] == "shm"
    ]
    assert volume == {"medium": "Memory", "sizeLimit": str(int(shm))}
    assert int(workers["rayStartParams"]["object-store-memory"]) == shm // 2


def test_an_image_of_a_private_registry_can_be_pulled(tmp_path: Path) -> None:
    for target, secret in (
        (Target("k8s"), "elmwright-registry"),
        (Target("k8s", pull_secret="lab-registry"), "lab-registry"),  # noqa: S106
    ):
        rayjob = render(submission(tmp_path, target)).rayjob
        spec = rayjob["spec"]["rayClusterSpec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            assert group["template"]["spec"]["imagePullSecrets"] == [{"name": secret}]


def test_two_submissions_of_a_run_share_no_object(tmp_path: Path) -> None:
    """Runs one after another or at the same time: no object has a fixed name."""
    names = []
    for _ in range(2):
        objects = render(submission(tmp_path, GPU))
        both = (objects.config_map, objects.rayjob)
        names.append({(one["kind"], one["metadata"]["name"]) for one in both})
    assert not names[0] & names[1]


def test_package_fills_at_most_three_quarters_of_a_config_map(tmp_path: Path) -> None:
    assert len(pack(submission(tmp_path, GPU))[1]) < CONFIG_MAP_BYTES * 0.75


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
    rayjob = render(submission(tmp_path, Target("k8s", gpus=gpus))).rayjob
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
        # The last message of Ray is kept after KubeRay has given up.
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Failed"}, "failed"),
        (
            {"jobStatus": "RUNNING", "jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"},
            "interrupted",
        ),
    ],
)
def test_state_of_a_job_by_the_status_of_its_rayjob(status: dict[str, Any], word: str) -> None:
    assert state_of_rayjob(RayJob.parse({"status": status})).word == word
