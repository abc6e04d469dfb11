"""The target `k8s`: a KubeRay RayJob, which brings its own Ray cluster.

`kubernetes_objects.py` has the objects; this module sends them with kubectl (`--dry-run` prints
them). State, logs and cancel go through the Ray address of the target, because deleting a RayJob
leaves no time to checkpoint. Kubernetes is asked if Ray does not answer because its head is not up
yet or already gone.
"""

import json
import re
import sys

from elmwright.jobs.cluster.capacity import check_capacity
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.runbook.deployment import RUNS_PATH
from elmwright.jobs.runbook.runbook import outcome_of
from elmwright.jobs.runbook.submission import (
    Job,
    RayJobHandle,
    State,
    Submission,
    relative_paths,
    state_of_exit,
)
from elmwright.jobs.submit.targets.kubernetes_objects import (
    CONFIG_MAP_BYTES,
    LABEL,
    NEARLY_FULL,
    RayJob,
    config_map_usage,
    label_of,
    object_name,
    render,
    state_of_rayjob,
)
from elmwright.jobs.submit.targets.place import (
    Place,
    ProgramFailed,
    Unreachable,
    job_size,
    run_program,
)
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, pack
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.files import at

NO_ANSWER = "unable to connect|connection to the server|timeout|timed out|no such host"
"""Errors of kubectl if Kubernetes itself does not answer."""


class Kubernetes(Place):
    """Jobs as RayJob objects."""

    starts_ray = True

    def check_follow(self) -> None:
        if not self.target.address:
            raise UserError(
                "argument",
                "--follow reads the log through the head's dashboard, which exists only once the "
                "job has its cluster; submit without --follow, forward the dashboard as "
                "infra/README.md shows, set the target's address, and use 'elmwright logs -f'",
            )

    def check(self, submission: Submission) -> None:
        """Refuse a package that does not fit, and pods that are too small for the run."""
        config = submission.read_config()
        check_paths(submission, config)
        content = pack(submission)[1]
        usage = config_map_usage(content)  # raises if it does not fit
        if len(content) >= NEARLY_FULL * CONFIG_MAP_BYTES:
            print(f"note: {usage}", file=sys.stderr)
        workers, cpus = job_size(submission)
        check_capacity(
            config.train,
            [{"CPU": float(cpus), "GPU": float(self.target.gpus)}] * workers,
            gpu=config.train.device == "cuda",
            where="a job of the target",
            advice="raise nodes, cpus or gpus of the target",
            unit="worker pod",
        )
        self._note_capacity(workers, cpus)

    def _note_capacity(self, workers: int, cpus: int) -> None:
        """Print a note if the cluster has no machine for the pods now; it may still grow."""
        gpus = self.target.gpus
        try:
            nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        except UserError:
            return  # listing machines needs a right that submitting does not
        sizes = []
        for node in nodes:
            have = node["status"].get("allocatable") or {}
            sizes.append((_amount(have.get("cpu")), _amount(have.get("nvidia.com/gpu"))))
        pods = sum(int(min(c // cpus, g // gpus if gpus else c // cpus)) for c, g in sizes)
        if pods < workers:
            sizes.sort(reverse=True)
            listed = ", ".join(f"{c:g} CPUs and {g:g} GPUs" for c, g in sizes) or "nothing"
            print(
                f"note: the run needs {workers} pods with {cpus} CPUs and {gpus} GPUs each, and "
                f"the cluster's machines have {listed}: the job waits until the cluster has grown; "
                "if it never does, cancel the run and change nodes, cpus or gpus of the target",
                file=sys.stderr,
            )

    def running(self, run: str) -> str:
        answer = self.kubectl("get", "rayjobs", "-l", f"{LABEL}={label_of(run)}", "-o", "json")
        for item in json.loads(answer)["items"]:
            rayjob = RayJob.parse(item)
            # Long names may share a label.
            if rayjob.run == run and not state_of_rayjob(rayjob).ended:
                return rayjob.name
        return ""

    def describe(self, submission: Submission) -> str:
        print(f"note: {config_map_usage(pack(submission)[1])}", file=sys.stderr)
        return render(submission).as_json()

    def submit(self, submission: Submission) -> RayJobHandle:
        """Create both objects, and make the RayJob the owner of the ConfigMap.

        Created, not applied: apply copies an object into an annotation, which takes no more than
        256 KiB. Names are never used twice.
        """
        name = object_name(submission.id)
        objects = render(submission)
        self.kubectl("create", "-f", "-", text=json.dumps(objects.config_map))
        try:
            answer = self.kubectl(
                "create", "-o", "json", "-f", "-", text=json.dumps(objects.rayjob)
            )
        except (UserError, Failed) as error:
            answer = self._find_created(name, error)
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

    def _find_created(self, name: str, error: UserError | Failed) -> str:
        """The RayJob, which may exist although kubectl failed; else the ConfigMap is deleted."""
        try:
            answer = self._get_rayjob(name)
            if not answer:
                self.kubectl("delete", "configmap", name, "--ignore-not-found")
        except UserError:
            if not isinstance(error, Unreachable | Failed):
                raise error from None  # it was refused, so it does not exist
            raise Failed(
                f"Kubernetes stopped answering while the job was being sent ({error}); once it "
                "answers again, 'elmwright jobs' shows whether the job arrived, and 'elmwright "
                "cancel' stops the job"
            ) from None
        if not answer:
            raise error
        return answer

    def _get_rayjob(self, name: str) -> str:
        """The RayJob of this name as JSON; empty if there is none."""
        return self.kubectl("get", "rayjob", name, "--ignore-not-found", "-o", "json").strip()

    def state(self, job: Job) -> State:
        if not self.target.address:
            return self._state_in_kubernetes(job)
        try:
            state = RayCluster(self.target).state(job)
        except Unreachable as error:
            # Its head is not up yet, or was deleted after the end.
            return self._state_in_kubernetes(job, error)
        if state.word == "interrupted" and state.exit_code is None:
            # Perhaps not submitted to Ray yet, or the address leads to another run's cluster.
            unknown = Unreachable(
                "cluster-unreachable", f"{self.target.address} says of the job: {state.why}"
            )
            return self._state_in_kubernetes(job, unknown)
        return state

    def _state_in_kubernetes(self, job: Job, ray_error: Unreachable | None = None) -> State:
        """The state by the RayJob's status; `ray_error` says why Ray itself did not report it."""
        code = outcome_of(job.submission)
        try:
            rayjob = self._rayjob(job)
        except UserError as error:
            if code is not None:
                return state_of_exit(code)
            if ray_error is None:
                raise
            raise Unreachable(
                "cluster-unreachable", f"{ray_error}; and Kubernetes cannot be asked: {error}"
            ) from error
        state = State("interrupted", "Kubernetes no longer knows it")
        if rayjob:
            state = state_of_rayjob(rayjob)
        # A noted exit code may come from an earlier head: KubeRay submits a job again to a new one.
        return state_of_exit(code) if code is not None and state.ended else state

    def _rayjob(self, job: Job) -> RayJob | None:
        answer = self._get_rayjob(object_name(job.submission.id))
        return RayJob.parse(json.loads(answer)) if answer else None

    def log(self, job: Job, start: int) -> tuple[str, int]:
        try:
            return self._ray_cluster(job).log(job, start)
        except Unreachable as error:
            if self._state_in_kubernetes(job, error).word == "running":
                raise
            return "", start  # its head is not up yet, or gone with its log

    def stop(self, job: Job) -> None:
        if self.state(job).word == "pending":
            # Nothing runs yet that could checkpoint, and there may be no Ray to ask.
            self.kubectl("delete", "rayjob", object_name(job.submission.id), "--wait=false")
            return
        self._ray_cluster(job).stop(job)

    def _ray_cluster(self, job: Job) -> RayCluster:
        if not self.target.address:
            rayjob = self._rayjob(job)
            cluster = (rayjob and rayjob.cluster) or "CLUSTER"
            raise UserError(
                "cluster-unreachable",
                "the k8s target has no Ray address; make the head's dashboard reachable ('kubectl "
                f"port-forward -n {self.target.namespace} service/{cluster}-head-svc 8265') and "
                'set address = "http://localhost:8265" for the target; the token is in the secret '
                f"{cluster}, as infra/README.md shows",
            )
        return RayCluster(self.target)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """The output of kubectl in the target's namespace."""
        try:
            return run_program(
                ["kubectl", "-n", self.target.namespace, *arguments],
                text,
                if_missing="install it, or create what 'elmwright submit … --dry-run' prints by "
                "other means",
            )
        except ProgramFailed as error:
            if error.is_timeout and text:  # it may still arrive, so the run book keeps the run
                raise Failed(f"Kubernetes does not answer (kubectl {error})") from None
            is_silent = re.search(NO_ANSWER, str(error), re.IGNORECASE)
            raise (Unreachable if is_silent else UserError)(
                "cluster-unreachable",
                f"kubectl {arguments[0]} failed ({error}); check its context, the namespace, and "
                "that KubeRay is installed",
            ) from None


def check_paths(submission: Submission, config: RunConfig) -> None:
    """Refuse paths that pods do not have: those on the submitter's disk."""
    relative = relative_paths(config)
    if relative:
        raise UserError(
            "shared-path",
            f"{relative[0]!r} is relative to a folder of this machine, which no pod has; write "
            f"absolute paths below {RUNS_PATH}, or s3:// URLs",
        )
    if at(submission.dir).is_url:
        return
    if not submission.target.volume:
        raise UserError(
            "shared-path",
            f"run.dir {submission.dir} would be lost with its pods: set the target's volume to a "
            f"claim, which is mounted at {RUNS_PATH}, or use an s3:// URL",
        )
    if not submission.dir.startswith(f"{RUNS_PATH}/"):
        raise UserError(
            "shared-path",
            f"run.dir {submission.dir} is on no volume of the pods; put it below {RUNS_PATH}, "
            f"where the claim {submission.target.volume} is mounted, or use an s3:// URL",
        )


def _amount(text: str | None) -> float:
    """A number of CPUs or GPUs from the way Kubernetes writes it: 4, or 3920m."""
    text = str(text or 0)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
