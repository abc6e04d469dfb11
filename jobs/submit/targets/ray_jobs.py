"""The target `http://HEAD:8265`: jobs of a Ray cluster, through the Jobs API of its dashboard.

Plain HTTP with a time limit on every request, so that an unreachable cluster is reported within
seconds and `elmwright status` need not import Ray. A job ships as one zip with the unpacked wheel
and the submission, named by its content. It becomes the job's `working_dir`, which Ray puts first
on the path of the driver and of every worker. So changed code is always the code that runs, and
nothing is installed on the nodes.

A token is sent only to a cluster that requires one.
"""

import hashlib
import http.client
import json
import os
import shlex
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from packaging.requirements import Requirement

from elmwright.jobs.cluster.capacity import check_capacity
from elmwright.jobs.config.sections import TrainSection
from elmwright.jobs.environment.wheel import requirements, wheel_members, zipped
from elmwright.jobs.runbook.deployment import STOP_SECONDS
from elmwright.jobs.runbook.submission import Job, NoHandle, State, Submission, state_of_exit
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.place import AccessRefused, Place, Unreachable, last_line
from elmwright.jobs.submit.targets.ray_token import DEFAULT_TOKEN, find_token
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import from_data
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.retry import retry

TIMEOUT = 8.0
"""Seconds for an answer; a slow network answers in a fraction of it."""
SUBMIT_TIMEOUT = 60.0
"""Seconds for sending the package and for accepting the job, which starts an actor."""
JOB_MODULE = "elmwright.jobs.submit.job"


@dataclass(frozen=True)
class RayJobInfo:
    """A job as Ray's dashboard describes it."""

    status: str
    submission_id: str | None = None
    metadata: dict[str, str] | None = None
    message: str | None = None
    driver_exit_code: int | None = None
    error_type: str | None = None
    start_time: float | None = None
    """Milliseconds since 1970."""


class RayCluster(Place):
    """Jobs of a running Ray cluster."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.address = target.address
        self._token = ""

    def note(self, submission: Submission) -> str:
        if at(submission.dir).is_url or is_this_machine(self.address):
            return ""
        return (
            f"run.dir {submission.dir} must be on storage that every machine of {self.address} "
            "mounts; the job checks this first"
        )

    def check(self, submission: Submission) -> None:
        """Refuse a cluster with another version of Ray, or too small for the run."""
        self.check_version()
        config = submission.read_config()
        if config.cluster.wait_minutes:
            return
        nodes = self.nodes()
        end = time.monotonic() + TIMEOUT
        while not nodes and time.monotonic() < end:  # it is just being started
            time.sleep(0.5)
            nodes = self.nodes()
        check_nodes(config.train, nodes, self.address)

    def running(self, run: str) -> str:
        try:
            rows = self._ask("/api/jobs/")
            own = [row for row in rows if (row["metadata"] or {}).get("elmwright.run") == run]
            jobs = [from_data(RayJobInfo, row, ignore_unknown=True) for row in own]
        except (ValueError, TypeError, AttributeError, KeyError):
            raise self._not_ray() from None
        for job in jobs:
            if job.status in ("PENDING", "RUNNING"):
                return str(job.submission_id)
        return ""

    def describe(self, submission: Submission) -> str:
        name, package = pack(submission)
        request = self._request(submission, name, JOB_MODULE)
        return (
            f"PUT {self.address}/api/packages/gcs/{name} "
            f"({len(package):,} bytes: elmwright {submission.version} and the submission)\n"
            f"POST {self.address}/api/jobs/\n{json.dumps(request, indent=1)}"
        )

    def submit(self, submission: Submission, module: str = JOB_MODULE) -> NoHandle:
        name, package = pack(submission)
        path = f"/api/packages/gcs/{name}"
        try:
            # Asking for it also keeps Ray from throwing it away before the job starts.
            if self._call("GET", path)[0] == 404:
                self._check_status(*self._call("PUT", path, package, SUBMIT_TIMEOUT))
            data = json.dumps(self._request(submission, name, module)).encode()
            self._check_status(*self._call("POST", "/api/jobs/", data, SUBMIT_TIMEOUT))
        except AccessRefused:
            raise
        except Unreachable as error:
            raise Failed(
                f"the Ray cluster at {self.address} stopped answering while the job was being sent "
                f"({error.__cause__ or error}); 'elmwright jobs' shows whether it arrived, once "
                f"the cluster answers again, and 'elmwright cancel {submission.run}' stops it then"
            ) from error
        return NoHandle()

    def _request(self, submission: Submission, package: str, module: str) -> dict[str, object]:
        return {
            "submission_id": submission.id,
            "entrypoint": entrypoint(self.target, module),
            "runtime_env": runtime_env(submission, f"gcs://{package}"),
            "metadata": metadata_of(submission),
        }

    def state(self, job: Job) -> State:
        status, body = self._call("GET", f"/api/jobs/{quote(job.submission.id)}")
        if status == 404:
            return State("interrupted", "the cluster does not know it, or no longer does")
        self._check_status(status, body)
        try:
            return state_of_job(from_data(RayJobInfo, json.loads(body), ignore_unknown=True))
        except ValueError:
            raise self._not_ray() from None

    def log(self, job: Job, start: int) -> tuple[str, int]:
        path = f"/api/jobs/{quote(job.submission.id)}/logs"
        status, body = self._call("GET", path, timeout=SUBMIT_TIMEOUT)
        if status != 200:
            return "", start  # not started yet, or its node is gone with its log
        try:
            text = str(json.loads(body)["logs"] or "")
        except (ValueError, KeyError, TypeError):
            raise self._not_ray() from None
        return text[start:], max(start, len(text))

    def stop(self, job: Job) -> None:
        path = f"/api/jobs/{quote(job.submission.id)}/stop"
        self._check_status(*self._call("POST", path, b""))

    @property
    def has_token(self) -> bool:
        """Whether the cluster has required a token and accepted ours."""
        return bool(self._token)

    def check_version(self) -> str:
        """The version of Ray there, which must be one this package works with."""
        try:
            version = str(self._ask("/api/version")["ray_version"])
        except (KeyError, TypeError):
            raise self._not_ray() from None
        need = next(r for r in map(Requirement, requirements()) if r.name == "ray")
        if not need.specifier.contains(version, prereleases=True):
            raise UserError(
                "environment",
                f"the cluster at {self.address} runs Ray {version}, elmwright needs "
                f"{need.specifier}; bring the cluster to such a version",
            )
        return version

    def nodes(self) -> list[dict[str, float]]:
        """The resources of each machine that is up."""
        answer = self._ask("/api/v0/nodes?limit=10000")
        try:
            rows = answer["data"]["result"]["result"]
            return [dict(row["resources_total"]) for row in rows if row["state"] == "ALIVE"]
        except (KeyError, TypeError):
            raise Failed(
                f"the dashboard at {self.address} does not list its nodes "
                f"({str(answer.get('msg', ''))[:200]})"
            ) from None

    def _ask(self, path: str) -> Any:
        """The JSON that the dashboard answers."""
        status, body = self._call("GET", path)
        self._check_status(status, body)
        try:
            return json.loads(body)
        except ValueError:
            raise self._not_ray() from None

    def _check_status(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        if status in (301, 302, 307, 308, 404, 405):
            raise self._not_ray()
        if status in (502, 503, 504):
            raise Unreachable(
                "cluster-unreachable",
                f"the Ray cluster at {self.address} does not answer: a proxy in front of it says "
                f"{status}; check that the cluster is up",
            )
        reason = last_line(body.decode(errors="replace"))
        raise Failed(f"the Ray cluster at {self.address} answers {status}: {reason}")

    def _not_ray(self) -> UserError:
        return UserError(
            "cluster-unreachable",
            f"{self.address} is not the dashboard of a Ray cluster; name that, usually "
            "http://HEAD:8265",
        )

    def _call(
        self, method: str, path: str, data: bytes | None = None, timeout: float = 0
    ) -> tuple[int, bytes]:
        """Status and body of an answer; sends a token if the cluster requires one."""
        status, body = self._send(method, path, data, timeout or TIMEOUT)
        if status == 401 and not self._token and os.environ.get("RAY_AUTH_MODE") != "disabled":
            self._token, _ = find_token(self.target)
            if self._token:
                status, body = self._send(method, path, data, timeout or TIMEOUT)
        if status == 401:
            raise AccessRefused(
                "cluster-refused",
                f"the Ray cluster at {self.address} requires a token; set RAY_AUTH_TOKEN, or "
                f"RAY_AUTH_TOKEN_PATH to the file that contains it, or put it into "
                f"{DEFAULT_TOKEN}, or name its file as token_file of the target",
            )
        if status == 403 and not self._token:
            raise AccessRefused(
                "cluster-refused",
                f"{self.address} refuses us (403) without requiring a token; check the address, "
                "and any proxy between this machine and the cluster's dashboard",
            )
        if status == 403:
            raise AccessRefused(
                "cluster-refused",
                f"the Ray cluster at {self.address} refuses the token in "
                f"{find_token(self.target)[1]}: it is expired or another cluster's; put the "
                "current one there ('ray get-auth-token' on the cluster's head prints it)",
            )
        return status, body

    def _send(
        self, method: str, path: str, data: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        request = urllib.request.Request(self.address + path, data, method=method)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")

        def ask() -> tuple[int, bytes]:
            with _OPENER.open(request, timeout=timeout) as answer:
                return int(answer.status), answer.read()

        # A busy dashboard drops a connection now and then. Asking twice does no harm.
        pauses = [1, 1] if method == "GET" else []
        try:
            return retry(ask, pauses, lambda error: isinstance(error, ConnectionResetError))
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(
                "cluster-unreachable",
                f"the Ray cluster at {self.address} does not answer ({reason}); check the address, "
                "that the cluster is up, and that this machine may reach its dashboard",
            ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not follow a redirect to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def is_this_machine(address: str) -> bool:
    """Whether an address is one of this machine's own."""
    host = urlsplit(address).hostname or ""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(where)  # possible only for an address of this machine
    except OSError:
        return False
    return True


def pack(submission: Submission) -> tuple[str, bytes]:
    """Name and content of the zip that a job ships as; the name is a digest of the content."""
    content = zipped(wheel_members() | {"submission.json": submission.to_json().encode()})
    return f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip", content


def entrypoint(target: Target, module: str = JOB_MODULE) -> str:
    """The command of a job: `exec`, so that the stop signal reaches the driver and no shell."""
    python = shlex.quote(target.python or "python")
    return f"exec {python} -m {module} submission.json"


def runtime_env(submission: Submission, working_dir: str) -> dict[str, object]:
    """The environment of a job as Ray spells it."""
    # Ray itself gives a stopped job 3 s, too few for a checkpoint.
    variables = {**submission.settings, "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}
    return {"working_dir": working_dir, "env_vars": variables}


def metadata_of(submission: Submission) -> dict[str, str]:
    """What the cluster's job listing shows."""
    names = ("run", "dir", "until", "version", "git", "config_sha256", "sender")
    return {f"elmwright.{name}": getattr(submission, name) for name in names}


def state_of_job(job: RayJobInfo) -> State:
    """The state of a job by what Ray says of it."""
    if job.status == "PENDING":
        return State("pending", "waiting for its environment or for capacity on the cluster")
    if job.status == "RUNNING":
        minutes = int(time.time() - job.start_time / 1000) // 60 if job.start_time else 0
        return State(
            "running", f"for {minutes // 60} h {minutes % 60} min" if job.start_time else ""
        )
    if job.status == "SUCCEEDED":
        return State("finished", exit_code=0)
    if job.status == "STOPPED":
        return State("interrupted", "stopped on request", 75)
    if job.driver_exit_code is not None:
        return state_of_exit(job.driver_exit_code)
    reason = last_line(job.message or "")
    if job.error_type == "RUNTIME_ENV_SETUP_FAILURE":
        return State("failed", f"its environment could not be set up: {reason}")
    return State("interrupted", f"its driver or its node is gone: {reason}")


def check_nodes(train: TrainSection, nodes: list[dict[str, float]], where: str) -> None:
    """Refuse a training that does not fit on the machines of a cluster."""
    check_capacity(
        train,
        nodes,
        gpu=train.device == "cuda",
        where=where,
        advice="lower train.processes or train.threads, or add --wait if the cluster grows by "
        "itself",
    )
