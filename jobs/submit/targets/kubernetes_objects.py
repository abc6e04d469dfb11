"""What the target `k8s` asks of Kubernetes: a KubeRay RayJob, and a ConfigMap with what is shipped.

The ConfigMap takes 1 MiB, and the package is about half of that (`filled`). Every pod mounts it,
and Ray unpacks it from there: no image has to be built for a changed line. Both fit the files in
`infra/kubernetes`: a namespace that enforces restricted pods, `/runs` on every node, a token for
Ray, credentials of the store as a mounted file.

Attempts at the run are made inside the RayJob (attempts.py): an interrupted driver is started again
on the same cluster, where KubeRay replaces lost pods, and counted by the policy of every other
target. So KubeRay itself retries nothing (`backoffLimit: 0`): it cannot tell a lost machine from a
mistake in the config, counts every failure, and would build a new cluster for each. A head that is
lost is no failure to KubeRay 1.6 (read, not run): in HTTPMode it finds the new head without the job
and submits it there once more, whatever `backoffLimit` says. A head that is evicted therefore lets
its driver checkpoint, and does not let the job end (`_head`).
"""

import base64
import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from elmwright.jobs.runbook import deployment
from elmwright.jobs.runbook.submission import GRACE_SECONDS, State, Submission, state_of_exit
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.attempts import DRIVER_FILE
from elmwright.jobs.submit.targets.ray_jobs import entrypoint, metadata_of, parcel, runtime_env
from elmwright.jobs.submit.targets.slurm import job_size
from elmwright.pipeline.errors import UserError

MOUNT = "/elmwright-job"
CONFIG_MAP_BYTES = 1_048_576
"""What Kubernetes takes in one ConfigMap. It counts bytes as they are before base64."""
NEARLY_FULL = 0.9
"""From this share on, `submit` says how full it is."""
DEADLINE_SECONDS = 14 * 24 * 3600
"""After so long KubeRay gives an attempt up, whether it waits for machines or trains."""
LABEL = "elmwright.run"
DRIVER_PATH = "/tmp/elmwright-driver"  # noqa: S108 - inside the head's container, one job each
"""The file by which the head's preStop hook finds the job (attempts.py)."""
STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Keeps Kubernetes' autoscaler from moving a pod to empty a machine."""
HEAD_MEMORY = "4Gi"
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def object_name(submission_id: str) -> str:
    """A name KubeRay takes: small letters, digits and dashes, a letter first, short enough for what
    KubeRay puts behind it."""
    name = re.sub(r"[^a-z0-9-]+", "-", submission_id.lower())
    head, tail = name[:-21].strip("-"), name[-21:]  # time and random digits make it unique
    if not re.match("[a-z]", head):
        head = f"run-{head}"
    return f"{head[:24].strip('-')}-{tail.strip('-')}"


def label_of(run: str) -> str:
    """The run's name as the value of a label, which is short and ends in a letter or digit."""
    return run[:63].strip("._-")


def image_of(target: Target) -> str:
    """The image the target names, else the one that infra/README.md builds from this version."""
    if target.image != Target.image:
        return target.image
    return f"{deployment.IMAGE}:{deployment.IMAGE_TAGS[1 if target.gpus else 0]}"


def filled(content: bytes) -> str:
    """How much of a ConfigMap the code and the config fill, to read; refused if they do not fit."""
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
    """The objects of a job, as Kubernetes spells them."""

    config_map: dict[str, Any]
    rayjob: dict[str, Any]

    def as_json(self) -> str:
        """Both as one list that kubectl takes."""
        listed = {"apiVersion": "v1", "kind": "List", "items": [self.config_map, self.rayjob]}
        return json.dumps(listed, indent=1)


def render(submission: Submission) -> Objects:
    """The ConfigMap and the RayJob of a submission."""
    name = object_name(submission.id)
    package, content = parcel(submission)
    filled(content)
    meta = {
        "name": name,
        "namespace": submission.target.namespace,
        "labels": {LABEL: label_of(submission.run)},
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "immutable": True,
        "binaryData": {package: base64.b64encode(content).decode()},
    }
    return Objects(config_map, _rayjob(submission, name, meta, package))


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
            # KubeRay itself submits: no further pod, which would need all of this as well.
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {
                # The image must have the same; KubeRay wants it for authOptions.
                "rayVersion": version("ray"),
                # KubeRay makes a token: whoever reaches the head could run anything as this job.
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    # Without work of its own: what is lost with a worker can be computed again.
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
                        "template": _pod("ray-worker", target, name, _size(target, cpus)),
                    }
                ],
            },
        },
    }


def _head(target: Target, name: str) -> dict[str, Any]:
    """A head that must go, because its machine does, lets the driver write its checkpoint first.

    The hook tells the job and waits until its driver has ended. `ray job stop` would end the job
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
    """Bytes of /dev/shm in a pod with this much memory, of which they are a part."""
    unit = memory.lstrip("0123456789")
    return int(memory.removesuffix(unit)) * UNITS[unit] // 4


def object_store(memory: str) -> int:
    """Bytes of Ray's object store there: half of /dev/shm, the rest of which NCCL may use."""
    return shared_memory(memory) // 2


def _size(target: Target, cpus: int) -> dict[str, str]:
    size = {"cpu": str(cpus), "memory": target.memory}
    return size | {"nvidia.com/gpu": str(target.gpus)} if target.gpus else size


def _pod(container: str, target: Target, name: str, size: dict[str, str]) -> dict[str, Any]:
    mounts = [
        {"name": "job", "mountPath": MOUNT, "readOnly": True},
        {"name": "secrets", "mountPath": deployment.SECRETS_PATH, "readOnly": True},
        # Ray's object store; a container has 64 MB of shared memory by default.
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": name}},
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
    spec = {
        "name": container,
        "image": image_of(target),
        "env": [{"name": "AWS_SHARED_CREDENTIALS_FILE", "value": credentials}],
        "envFrom": sources,
        "resources": {"requests": size, "limits": size},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    pod: dict[str, Any] = {
        # One that is not there is ignored.
        "imagePullSecrets": [{"name": target.pull_secret or deployment.SECRET_REGISTRY}],
        "automountServiceAccountToken": False,
        # They would set MLFLOW_PORT, which MLflow reads as its own.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS + 30 if container == "ray-head" else 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": deployment.USER_ID,
            "runAsGroup": deployment.USER_ID,
            "fsGroup": deployment.USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [spec],
        "volumes": volumes,
    }
    if "nvidia.com/gpu" in size:
        pod["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
    return {"metadata": {"annotations": STAY}, "spec": pod}


def state_of_rayjob(status: dict[str, Any]) -> State:
    """What KubeRay says, in our words.

    jobStatus is what Ray said last, and stays when KubeRay gives the job up; so an end that
    jobDeploymentStatus tells of counts for more than a jobStatus that is none.
    """
    word = status.get("jobStatus") or ""
    deployment = status.get("jobDeploymentStatus") or ""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or "")
    if word == "SUCCEEDED":
        return State("finished", exit_code=0)
    if word == "STOPPED":
        return State("interrupted", "stopped on request", 75)
    if word == "FAILED":
        return _state_of_failure(message or reason)
    if deployment == "Failed" and reason == "DeadlineExceeded":
        return State("interrupted", "its time limit (activeDeadlineSeconds) is over")
    if deployment in ("Failed", "ValidationFailed"):
        return State("failed", f"KubeRay gave it up ({reason or 'no reason'}) {message}"[:300])
    if word == "RUNNING":
        return State("running")
    return State("pending", deployment or "waiting for its cluster")


def _state_of_failure(message: str) -> State:
    found = re.search(r"failed with exit code (-?\d+)", message)
    if found:
        return state_of_exit(int(found[1]))
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    if "runtime_env" in message:
        return State("failed", f"its environment could not be set up: {lines[-1][:300]}")
    return State("interrupted", f"its driver or its node is gone: {lines[-1][:300]}")
