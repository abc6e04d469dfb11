"""The target `k8s`: a KubeRay RayJob, which brings a Ray cluster of its own.

`kubernetes_objects.py` says what is asked of Kubernetes; here is who asks: kubectl (`--dry-run`
prints what it would be given). Status, logs and cancel go through the Ray address of the target,
because deleting a RayJob leaves no time to checkpoint; what Ray cannot tell, because its head is
not up yet or gone already, is asked of Kubernetes.
"""

import json
import subprocess
import sys
from typing import Any

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.runbook.deployment import RUNS_PATH
from elmwright.jobs.runbook.runbook import outcome_of
from elmwright.jobs.runbook.submission import (
    GRACE_SECONDS,
    Job,
    RayJobHandle,
    State,
    Submission,
    relative_paths,
    state_of_exit,
)
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.kubernetes_objects import (
    CONFIG_MAP_BYTES,
    LABEL,
    NEARLY_FULL,
    filled,
    label_of,
    object_name,
    render,
    state_of_rayjob,
)
from elmwright.jobs.submit.targets.place import Place
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, Unreachable, parcel
from elmwright.jobs.submit.targets.slurm import job_size
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.files import is_url

SILENT = ("unable to connect", "connection to the server", "timeout", "no such host")
"""What kubectl says, in small letters, when Kubernetes itself does not answer."""


class Kubernetes(Place):
    """Jobs as RayJob objects."""

    starts_ray = True

    def __init__(self, target: Target) -> None:
        self.target = target

    def check_follow(self) -> None:
        if not self.target.address:
            raise UserError(
                "argument",
                "--follow reads the log through the head's dashboard, which is there only once the "
                "job has its cluster; submit without it, forward the dashboard as infra/README.md "
                "shows, set address of the target, and use 'elmwright logs -f'",
            )

    def check(self, submission: Submission) -> None:
        """Refuse a package that does not fit, and pods that are too small for the run."""
        config = config_from(submission.config, "the config")
        check_paths(submission, config)
        content = parcel(submission)[1]
        share = filled(content)
        if len(content) >= NEARLY_FULL * CONFIG_MAP_BYTES:
            print(f"note: {share}", file=sys.stderr)
        train = config.train
        workers, cpus = job_size(submission)
        if workers * (cpus // train.threads) < train.processes:
            raise UserError(
                "capacity",
                f"train.processes = {train.processes} with {train.threads} threads each do not fit "
                f"into {workers} worker pods with {cpus} CPUs each; raise nodes or cpus of the "
                "target",
            )
        gpus = self.target.gpus
        if train.device == "cuda" and workers * min(gpus, cpus // train.threads) < train.processes:
            raise UserError(
                "capacity",
                f'train.device = "cuda" needs a GPU and {train.threads} CPUs for each of '
                f"{train.processes} processes, but the target asks Kubernetes for {workers} worker "
                f"pods with {gpus} GPUs and {cpus} CPUs each; raise nodes, gpus or cpus of the "
                "target",
            )
        self._note_capacity(workers, cpus, gpus)

    def _note_capacity(self, workers: int, cpus: int, gpus: int) -> None:
        """Say at once if no machine is there for the pods; not refused, for clusters grow."""
        try:
            nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        except UserError:
            return  # listing machines is a right of its own, which submitting does not take
        sizes = [node["status"].get("allocatable") or {} for node in nodes]
        rooms = [(amount(s.get("cpu")), amount(s.get("nvidia.com/gpu"))) for s in sizes]
        fit = sum(int(min(c // cpus, g // gpus if gpus else c // cpus)) for c, g in rooms)
        if fit < workers:
            has = ", ".join(f"{c:g} CPUs and {g:g} GPUs" for c, g in sorted(rooms, reverse=True))
            print(
                f"note: the run wants {workers} pods with {cpus} CPUs and {gpus} GPUs each, and "
                f"the machines that are there offer {has or 'nothing'}: the job waits until the "
                "cluster has grown; if it never does, cancel the run and change nodes, cpus or "
                "gpus of the target",
                file=sys.stderr,
            )

    def running(self, run: str) -> str:
        answer = self.kubectl("get", "rayjobs", "-l", f"{LABEL}={label_of(run)}", "-o", "json")
        for item in json.loads(answer)["items"]:
            # Long names may share a label.
            is_of_run = (item["spec"].get("metadata") or {}).get("elmwright.run") == run
            if is_of_run and not state_of_rayjob(item.get("status") or {}).ended:
                return str(item["metadata"]["name"])
        return ""

    def describe(self, submission: Submission) -> str:
        print(f"note: {filled(parcel(submission)[1])}", file=sys.stderr)
        return render(submission).as_json()

    def submit(self, submission: Submission) -> RayJobHandle:
        """Create both objects, and let the ConfigMap go when the RayJob goes.

        Created, not applied: apply copies an object into an annotation of its own, which takes no
        more than 256 KiB, and names are never used twice.
        """
        name = object_name(submission.id)
        objects = render(submission)
        self.kubectl("create", "-f", "-", text=json.dumps(objects.config_map))
        try:
            answer = self.kubectl(
                "create", "-o", "json", "-f", "-", text=json.dumps(objects.rayjob)
            )
        except (UserError, Failed) as error:
            answer = self._arrived(name, error)
        owner = {
            "apiVersion": objects.rayjob["apiVersion"],
            "kind": objects.rayjob["kind"],
            "name": name,
            "uid": json.loads(answer)["metadata"]["uid"],
        }
        patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
        try:
            self.kubectl("patch", "configmap", name, "--type", "merge", "-p", patch)
        except (UserError, Failed) as error:
            print(
                f"note: the ConfigMap {name} stays when the RayJob is deleted: {error}",
                file=sys.stderr,
            )
        return RayJobHandle(name)

    def _arrived(self, name: str, error: Exception) -> str:
        """The RayJob, which may be there although kubectl failed; else nothing is left behind."""
        try:
            answer = self.kubectl("get", "rayjob", name, "--ignore-not-found", "-o", "json")
            if not answer.strip():
                self.kubectl("delete", "configmap", name, "--ignore-not-found")
        except (UserError, Failed):
            if not isinstance(error, Unreachable | Failed):
                raise error from None  # it was refused, so it is not there
            raise Failed(
                f"Kubernetes went away while the job was being sent ({error}); 'elmwright jobs' "
                "tells whether it arrived, once it answers again, and 'elmwright cancel' stops it "
                "then"
            ) from None
        if not answer.strip():
            raise error
        return answer

    def state(self, job: Job) -> State:
        if not self.target.address:
            return self._in_kubernetes(job)
        try:
            state = RayCluster(self.target).state(job)
        except Unreachable as error:
            # Its head is not up yet, or taken away after the end.
            return self._in_kubernetes(job, error)
        if state.word == "interrupted" and state.exit_code is None:
            # Perhaps not submitted to Ray yet, or the address leads to another run's cluster.
            unknown = Unreachable(
                "cluster-unreachable", f"{self.target.address} says of the job: {state.why}"
            )
            return self._in_kubernetes(job, unknown)
        return state

    def _in_kubernetes(self, job: Job, why: Unreachable | None = None) -> State:
        """The state as KubeRay tells it; `why` is what Ray's address had to say instead."""
        code = outcome_of(job.submission)
        try:
            found = self._rayjob(job)
        except UserError as error:
            if code is not None:
                return state_of_exit(code)
            if why is None:
                raise
            raise Unreachable(
                "cluster-unreachable", f"{why}; and Kubernetes cannot be asked: {error}"
            ) from error
        state = State("interrupted", "Kubernetes does not know it any more")
        if found:
            state = state_of_rayjob(found.get("status") or {})
        # A note of an end may be of an earlier head: KubeRay submits a job again to the next one.
        return state_of_exit(code) if code is not None and state.ended else state

    def _rayjob(self, job: Job) -> dict[str, Any]:
        """The RayJob as it stands; nothing where it is gone."""
        name = object_name(job.submission.id)
        answer = self.kubectl("get", "rayjob", name, "--ignore-not-found", "-o", "json")
        return dict(json.loads(answer)) if answer.strip() else {}

    def log(self, job: Job, start: int) -> tuple[str, int]:
        try:
            return self._through_ray(job).log(job, start)
        except Unreachable as error:
            if self._in_kubernetes(job, error).word == "running":
                raise
            return "", start  # its head is not up yet, or gone with its log

    def stop(self, job: Job) -> None:
        if self.state(job).word == "pending":
            # Nothing runs yet that could checkpoint, and there may be no Ray to ask.
            self.kubectl("delete", "rayjob", object_name(job.submission.id), "--wait=false")
            return
        self._through_ray(job).stop(job)

    @property
    def grace(self) -> float:
        return GRACE_SECONDS + 30

    def _through_ray(self, job: Job) -> RayCluster:
        if not self.target.address:
            status = self._rayjob(job).get("status") or {}
            cluster = status.get("rayClusterName") or "CLUSTER"
            raise UserError(
                "cluster-unreachable",
                "the k8s target has no Ray address; make the head's dashboard reachable ('kubectl "
                f"port-forward -n {self.target.namespace} service/{cluster}-head-svc 8265') and "
                'set address = "http://localhost:8265" for the target; the token is in the secret '
                f"{cluster}, as infra/README.md shows",
            )
        return RayCluster(self.target)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        command = ["kubectl", "-n", self.target.namespace, *arguments]
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, check=False, timeout=60
            )
        except FileNotFoundError:
            raise Unreachable(
                "cluster-unreachable",
                "kubectl is not on this machine's PATH; install it, or create what "
                "'elmwright submit … --dry-run' prints by other means",
            ) from None
        except subprocess.TimeoutExpired:
            if text:
                raise Failed("Kubernetes does not answer (kubectl took more than 60 s)") from None
            raise Unreachable(
                "cluster-unreachable",
                "Kubernetes does not answer (kubectl took more than 60 s); check its context",
            ) from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
            kind = Unreachable if any(s in lines[-1].lower() for s in SILENT) else UserError
            raise kind(
                "cluster-unreachable",
                f"kubectl {arguments[0]} failed ({lines[-1][:300]}); check its context, the "
                "namespace, and that KubeRay is installed",
            )
        return done.stdout


def check_paths(submission: Submission, config: RunConfig) -> None:
    """Pods have the image and what they mount, and nothing of the submitter's disk."""
    relative = relative_paths(config)
    if relative:
        raise UserError(
            "shared-path",
            f"{relative[0]!r} is relative to a folder of this machine, which no pod has; write "
            f"absolute paths below {RUNS_PATH}, or s3:// URLs",
        )
    if is_url(submission.dir):
        return
    if not submission.target.volume:
        raise UserError(
            "shared-path",
            f"run.dir {submission.dir} would be lost with its pods: name a claim as volume of the "
            f"target, which is mounted at {RUNS_PATH}, or use an s3:// URL",
        )
    if not submission.dir.startswith(f"{RUNS_PATH}/"):
        raise UserError(
            "shared-path",
            f"run.dir {submission.dir} is on no volume of the pods; put it below {RUNS_PATH}, "
            f"where the claim {submission.target.volume} is mounted, or use an s3:// URL",
        )


def amount(text: str | None) -> float:
    """A number of CPUs or GPUs as Kubernetes writes it: 4, or 3920m."""
    text = str(text or 0)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
