"""The target `k8s`: a KubeRay RayJob, which brings a Ray cluster of its own.

What is shipped lies in a ConfigMap (the package is well below its limit of 1 MiB), mounted by every
pod, and Ray unpacks it from there: no image has to be built for a changed line. `kubectl` applies
both objects; `--dry-run` prints them. Status, logs and cancel go through the Ray address of the
target, because deleting a RayJob leaves no time to checkpoint.

There are no retries by Kubernetes: it would build a new cluster for a mistake in the config as well
as for a lost machine. `elmwright resume` sends the run again.
"""

import base64
import json
import re
import shutil
import subprocess
from typing import Any

from elmwright.jobs.ray_jobs import (
    RayCluster,
    entrypoint,
    metadata_of,
    parcel,
    runtime_env,
)
from elmwright.jobs.runbook import outcome_of
from elmwright.jobs.slurm import job_size
from elmwright.jobs.submission import GRACE_SECONDS, Job, State, Submission, state_of_exit
from elmwright.jobs.targets import Target
from elmwright.pipeline.errors import Failed, UserError

MOUNT = "/elmwright-job"
CONFIG_MAP_BYTES = 1_000_000
"""A little below what Kubernetes takes, encoding included."""


class Kubernetes:
    """Jobs as RayJob objects."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def check(self, submission: Submission) -> None:
        if shutil.which("kubectl") is None:
            raise UserError(
                "kubectl is not on this machine's PATH; install it, or apply what "
                "'elmwright submit … --dry-run' prints by other means"
            )

    def running(self, run: str) -> str:
        answer = self.kubectl("get", "rayjobs", "-l", f"elmwright.run={run}", "-o", "json")
        for item in json.loads(answer)["items"]:
            if not state_of_rayjob(item.get("status") or {}).ended:
                return str(item["metadata"]["name"])
        return ""

    def describe(self, submission: Submission) -> str:
        return json.dumps(render(submission), indent=1)

    def submit(self, submission: Submission) -> dict[str, Any]:
        self.kubectl("apply", "-f", "-", text=json.dumps(render(submission)))
        return {"rayjob": object_name(submission.id)}

    def state(self, job: Job) -> State:
        if self.target.address:
            return self._through_ray().state(job)
        code = outcome_of(job.submission)
        if code is not None:
            return state_of_exit(code)
        answer = self.kubectl(
            "get", "rayjob", str(job.handle["rayjob"]), "--ignore-not-found", "-o", "json"
        )
        if not answer.strip():
            return State("interrupted", "Kubernetes does not know it any more")
        return state_of_rayjob(json.loads(answer).get("status") or {})

    def log(self, job: Job, start: int) -> tuple[str, int]:
        return self._through_ray().log(job, start)

    def stop(self, job: Job) -> None:
        self._through_ray().stop(job)

    def kill(self, job: Job) -> None:
        """Ray does this by itself when the time is over."""

    @property
    def grace(self) -> float:
        return GRACE_SECONDS + 30

    def _through_ray(self) -> RayCluster:
        if not self.target.address:
            raise UserError(
                "the k8s target has no Ray address; make the head's dashboard reachable ('kubectl "
                f"port-forward -n {self.target.namespace} service/…-head-svc 8265') and set "
                'address = "http://localhost:8265" for the target'
            )
        return RayCluster(self.target)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        command = ["kubectl", "-n", self.target.namespace, *arguments]
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, check=False, timeout=60
            )
        except FileNotFoundError:
            raise UserError("kubectl is not on this machine's PATH; install it") from None
        except subprocess.TimeoutExpired:
            raise Failed("Kubernetes does not answer (kubectl took more than 60 s)") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
            raise UserError(
                f"kubectl {arguments[0]} failed ({lines[-1][:300]}); check its context, the "
                "namespace, and that KubeRay is installed"
            )
        return done.stdout


def object_name(submission_id: str) -> str:
    """A name Kubernetes takes: small letters, digits and dashes, short enough for what KubeRay
    puts behind it."""
    name = re.sub(r"[^a-z0-9-]+", "-", submission_id.lower())
    head, tail = name[:-21], name[-21:]  # the time and the random digits make it unique
    return f"{head[:24].strip('-') or 'run'}-{tail.strip('-')}"


def render(submission: Submission) -> dict[str, Any]:
    """The ConfigMap and the RayJob, as one list."""
    name = object_name(submission.id)
    package, content = parcel(submission)
    encoded = base64.b64encode(content).decode()
    if len(encoded) > CONFIG_MAP_BYTES:
        raise UserError(
            f"the package is {len(encoded):,} bytes, more than a ConfigMap takes; submit to the "
            "cluster's Ray address instead"
        )
    meta = {
        "name": name,
        "namespace": submission.target.namespace,
        "labels": {"elmwright.run": submission.run[:63].rstrip("._-")},
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "immutable": True,
        "binaryData": {package: encoded},
    }
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [config_map, _rayjob(submission, name, meta, package)],
    }


def _rayjob(
    submission: Submission, name: str, meta: dict[str, Any], package: str
) -> dict[str, Any]:
    target = submission.target
    workers, cpus = job_size(submission)
    environment = runtime_env(submission, f"file://{MOUNT}/{package}")
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": meta,
        "spec": {
            "entrypoint": entrypoint(target),
            "jobId": submission.id,
            "metadata": metadata_of(submission),
            # JSON is YAML.
            "runtimeEnvYAML": json.dumps(environment),
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {
                "headGroupSpec": {
                    # Without work of its own: what is lost with a worker can be computed again.
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104
                    "template": _pod("ray-head", target, name, {"cpu": "1", "memory": "4Gi"}),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": workers,
                        "minReplicas": workers,
                        "maxReplicas": workers,
                        "rayStartParams": {"num-cpus": str(cpus)},
                        "template": _pod("ray-worker", target, name, _size(target, cpus)),
                    }
                ],
            },
        },
    }


def _size(target: Target, cpus: int) -> dict[str, str]:
    size = {"cpu": str(cpus), "memory": target.memory}
    return size | {"nvidia.com/gpu": str(target.gpus)} if target.gpus else size


def _pod(container: str, target: Target, name: str, size: dict[str, str]) -> dict[str, Any]:
    mounts = [
        {"name": "job", "mountPath": MOUNT, "readOnly": True},
        # Ray's object store; a container has 64 MB of shared memory by default.
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": name}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    if target.volume:
        mounts.append({"name": "data", "mountPath": "/data"})
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": target.volume}})
    spec: dict[str, Any] = {
        "name": container,
        "image": target.image,
        "resources": {"requests": size, "limits": size},
        "volumeMounts": mounts,
    }
    if target.secret:
        spec["envFrom"] = [{"secretRef": {"name": target.secret}}]
    return {"spec": {"containers": [spec], "volumes": volumes}}


def state_of_rayjob(status: dict[str, Any]) -> State:
    """What KubeRay says, in our words."""
    word = status.get("jobStatus") or ""
    reason = status.get("message") or status.get("reason") or ""
    if word == "SUCCEEDED":
        return State("finished", exit_code=0)
    if word == "STOPPED":
        return State("interrupted", "stopped on request", 75)
    if word == "RUNNING":
        return State("running")
    if word == "FAILED" or status.get("jobDeploymentStatus") == "Failed":
        found = re.search(r"exit code (\d+)", reason)
        return state_of_exit(int(found[1])) if found else State("failed", reason[:300])
    return State("pending", status.get("jobDeploymentStatus") or "waiting for its cluster")
