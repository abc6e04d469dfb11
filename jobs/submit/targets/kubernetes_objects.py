"""The objects of the target `k8s`: a KubeRay RayJob, and a ConfigMap with the package it ships.

A ConfigMap can hold 1 MiB, and the package is about half of that. Every pod mounts it, and Ray
unpacks it from there, so no image has to be built for a changed line. The pods rely on what the
files in `infra/kubernetes` set up: shared storage for `/runs`, and the store's credentials as a
secret. They meet the restrictions that the namespace there enforces.

Attempts at the run are made inside the RayJob (attempts.py): an interrupted driver is started again
on the same cluster, where KubeRay replaces lost pods, and counted as on every other target. So
KubeRay itself retries nothing (`backoffLimit: 0`): it cannot tell a lost machine from a mistake in
the config, counts every failure, and would build a new cluster for each. KubeRay 1.6 does not count
a lost head as a failure (so its source says; it has not been tried): in HTTPMode it finds the new
head without the job and submits it again, whatever `backoffLimit` says. So the head's preStop hook
(`_head`) lets the driver checkpoint without ending the job.
"""

import base64
import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from elmwright.jobs.runbook import deployment
from elmwright.jobs.runbook.submission import State, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.attempts import DRIVER_FILE
from elmwright.jobs.submit.targets.place import job_size
from elmwright.jobs.submit.targets.ray_jobs import (
    RayJobInfo,
    entrypoint,
    metadata_of,
    pack,
    runtime_env,
    state_of_job,
)
from elmwright.pipeline.errors import UserError

MOUNT = "/elmwright-job"
"""Where every pod finds the package."""
CONFIG_MAP_BYTES = 1_048_576
"""The size that Kubernetes allows a ConfigMap, counted before base64."""
NEARLY_FULL = 0.9
"""The share of that size from which on `submit` says how full the ConfigMap is."""
DEADLINE_SECONDS = 14 * 24 * 3600
"""KubeRay ends a job after this time, all its attempts and its wait for machines included."""
LABEL = "elmwright.run"
"""The label with the run's name, on both objects."""
DRIVER_PATH = "/tmp/elmwright-driver"  # noqa: S108 - inside the head's container, one job each
"""The file by which the head's preStop hook finds the job (attempts.py)."""
STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Keeps Kubernetes' autoscaler from moving a pod to empty a machine."""
HEAD_MEMORY = "4Gi"
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def object_name(submission_id: str) -> str:
    """The name of a job's objects: lowercase letters, digits and dashes, a letter first, short
    enough for the suffixes that KubeRay adds."""
    name = re.sub(r"[^a-z0-9-]+", "-", submission_id.lower())
    head, tail = name[:-21].strip("-"), name[-21:]  # the tail is unique: time and random digits
    if not re.match("[a-z]", head):
        head = f"run-{head}"
    return f"{head[:24].strip('-')}-{tail.strip('-')}"


def label_of(run: str) -> str:
    """The run's name as the value of a label, which is short and ends in a letter or digit."""
    return run[:63].strip("._-")


def config_map_usage(content: bytes) -> str:
    """How much of a ConfigMap the package fills, in words; raises UserError if it does not fit."""
    size = f"code and config are {len(content):,} bytes"
    if len(content) > CONFIG_MAP_BYTES:
        raise UserError(
            "target",
            f"{size}, and a ConfigMap takes {CONFIG_MAP_BYTES:,}; make the config smaller, or "
            "submit to the Ray address of a cluster that is up, which has no such limit",
        )
    return f"{size} of the {CONFIG_MAP_BYTES:,} that a ConfigMap takes"


@dataclass(frozen=True)
class Objects:
    """The objects of a job, in the form of the Kubernetes API."""

    config_map: dict[str, Any]
    rayjob: dict[str, Any]

    def as_json(self) -> str:
        """Both as one list that kubectl takes."""
        listed = {"apiVersion": "v1", "kind": "List", "items": [self.config_map, self.rayjob]}
        return json.dumps(listed, indent=1)


def render(submission: Submission) -> Objects:
    """The ConfigMap and the RayJob of a submission."""
    package, content = pack(submission)
    config_map_usage(content)
    metadata = {
        "name": object_name(submission.id),
        "namespace": submission.target.namespace,
        "labels": {LABEL: label_of(submission.run)},
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "binaryData": {package: base64.b64encode(content).decode()},
    }
    rayjob = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": _rayjob_spec(submission, package),
    }
    return Objects(config_map, rayjob)


def _rayjob_spec(submission: Submission, package: str) -> dict[str, Any]:
    target, name = submission.target, object_name(submission.id)
    workers, cpus = job_size(submission)
    worker_size = {"cpu": str(cpus), "memory": target.memory}
    if target.gpus:
        worker_size["nvidia.com/gpu"] = str(target.gpus)
    return {
        "entrypoint": entrypoint(target),
        "jobId": submission.id,
        "metadata": metadata_of(submission),
        # JSON is YAML.
        "runtimeEnvYAML": json.dumps(runtime_env(submission, f"file://{MOUNT}/{package}")),
        # KubeRay itself submits the job. A pod for submitting would need mounts and secrets, too.
        "submissionMode": "HTTPMode",
        "backoffLimit": 0,
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": {
            # The image must have the same version. KubeRay reads it because of authOptions.
            "rayVersion": version("ray"),
            # KubeRay makes a token: without one, anyone who reaches the head could run anything.
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                # No tasks run on the head: losing it interrupts the run, losing a worker does not.
                "rayStartParams": {
                    "num-cpus": "0",
                    "dashboard-host": "0.0.0.0",  # noqa: S104
                    "object-store-memory": str(object_store(HEAD_MEMORY)),
                },
                "template": _head(target, name),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "replicas": workers,
                    "minReplicas": workers,
                    "maxReplicas": workers,
                    "rayStartParams": {
                        "num-cpus": str(cpus),
                        "object-store-memory": str(object_store(target.memory)),
                    },
                    "template": _pod("ray-worker", target, name, worker_size),
                }
            ],
        },
    }


def _head(target: Target, name: str) -> dict[str, Any]:
    """The head's pod, which on eviction lets the driver write its checkpoint first.

    Its hook signals the job and waits until the driver has ended. `ray job stop` would end the job
    for good, as `elmwright cancel` does.
    """
    pod = _pod("ray-head", target, name, {"cpu": "1", "memory": HEAD_MEMORY})
    hook = (
        f'job="$(cat {DRIVER_PATH})" && kill -USR1 "$job" && '
        f"while [ -e {DRIVER_PATH} ]; do sleep 1; done; true"
    )
    (container,) = pod["spec"]["containers"]
    container["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", hook]}}}
    container["env"].append({"name": DRIVER_FILE, "value": DRIVER_PATH})
    return pod


def shared_memory(memory: str) -> int:
    """Bytes of /dev/shm in a pod with this much memory, a quarter of it."""
    unit = memory.lstrip("0123456789")
    return int(memory.removesuffix(unit)) * UNITS[unit] // 4


def object_store(memory: str) -> int:
    """Bytes of Ray's object store in a pod with this much memory: half of /dev/shm, the rest is for
    NCCL."""
    return shared_memory(memory) // 2


def _pod(role: str, target: Target, config_map: str, size: dict[str, str]) -> dict[str, Any]:
    """The template of a pod with one container, which is named after its role."""
    mounts = [
        {"name": "job", "mountPath": MOUNT, "readOnly": True},
        {"name": "secrets", "mountPath": deployment.SECRETS_PATH, "readOnly": True},
        # Ray's object store; a container has 64 MB of shared memory by default.
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": config_map}},
        {
            "name": "secrets",
            "secret": {"secretName": deployment.SECRET_AWS, "optional": True, "defaultMode": 0o440},
        },
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": str(shared_memory(size["memory"]))},
        },
    ]
    if target.volume:
        mounts.append({"name": "runs", "mountPath": deployment.RUNS_PATH})
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": target.volume}})
    sources: list[dict[str, Any]] = [
        {"configMapRef": {"name": deployment.CONFIG_STORE, "optional": True}}
    ]
    if target.secret:
        sources.append({"secretRef": {"name": target.secret}})
    credentials = f"{deployment.SECRETS_PATH}/credentials"
    built = f"{deployment.IMAGE}:{deployment.IMAGE_TAGS[1 if target.gpus else 0]}"
    container = {
        "name": role,
        "image": target.image or built,  # else the one that infra/README.md builds
        "env": [{"name": "AWS_SHARED_CREDENTIALS_FILE", "value": credentials}],
        "envFrom": sources,
        "resources": {"requests": size, "limits": size},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    grace_seconds = deployment.STOP_SECONDS + 30 if role == "ray-head" else 60
    spec: dict[str, Any] = {
        # Kubernetes ignores a secret that does not exist.
        "imagePullSecrets": [{"name": target.pull_secret or deployment.SECRET_REGISTRY}],
        "automountServiceAccountToken": False,
        # A link to a service called mlflow would set MLFLOW_PORT, which MLflow reads as a setting.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": deployment.USER_ID,
            "runAsGroup": deployment.USER_ID,
            "fsGroup": deployment.USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    if "nvidia.com/gpu" in size:
        spec["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
    return {"metadata": {"annotations": STAY}, "spec": spec}


@dataclass(frozen=True)
class RayJob:
    """A RayJob of the cluster; a text that KubeRay has not set is empty."""

    name: str
    run: str
    """run.name of its submission."""
    job_status: str
    """Status of the job by Ray, as KubeRay last heard it. It stays when KubeRay ends the job."""
    deployment_status: str
    """Status of the RayJob by KubeRay, such as Initializing, Running, Complete or Failed."""
    reason: str
    message: str
    cluster: str
    """Name of its Ray cluster."""

    @classmethod
    def parse(cls, data: dict[str, Any]) -> "RayJob":
        """From the JSON of kubectl."""
        status = data.get("status") or {}
        metadata = (data.get("spec") or {}).get("metadata") or {}
        return cls(
            name=str((data.get("metadata") or {}).get("name", "")),
            run=str(metadata.get("elmwright.run", "")),
            job_status=status.get("jobStatus") or "",
            deployment_status=status.get("jobDeploymentStatus") or "",
            reason=status.get("reason") or "",
            message=status.get("message") or "",
            cluster=status.get("rayClusterName") or "",
        )


def state_of_rayjob(rayjob: RayJob) -> State:
    """The state of a job by the status of its RayJob.

    If KubeRay has given up on a job that Ray has not reported as ended, KubeRay's status decides.
    """
    deployment_status, reason, message = rayjob.deployment_status, rayjob.reason, rayjob.message
    if rayjob.job_status not in ("SUCCEEDED", "STOPPED", "FAILED"):
        if deployment_status == "Failed" and reason == "DeadlineExceeded":
            return State("interrupted", "its time limit (activeDeadlineSeconds) is over")
        if deployment_status in ("Failed", "ValidationFailed"):
            return State(
                "failed", f"KubeRay gave up on it ({reason or 'no reason'}) {message}"[:300]
            )
        if rayjob.job_status != "RUNNING":
            return State("pending", deployment_status or "waiting for its cluster")
    text = message or reason
    code = re.search(r"failed with exit code (-?\d+)", text)
    job = RayJobInfo(
        status=rayjob.job_status,
        message=text,
        driver_exit_code=int(code[1]) if code else None,
        error_type="RUNTIME_ENV_SETUP_FAILURE" if "runtime_env" in text else None,
    )
    return state_of_job(job)
