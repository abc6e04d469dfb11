"""The target `http://HEAD:8265`: jobs of a Ray cluster, through the Jobs API of its dashboard.

Plain HTTP with a time limit on every request, so that a cluster that is not there is told of within
seconds and `elmwright status` need not import Ray. What is shipped is one zip with the unpacked
wheel and the submission, named by its content: it becomes the job's `working_dir`, which Ray puts
first on the path of the driver and of every worker. So changed code is always the code that runs,
and nothing is installed on the nodes.

A token is sent only to a cluster that asks for one.
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
from typing import Any
from urllib.parse import quote, urlsplit

from packaging.requirements import Requirement

from elmwright.jobs.cluster.capacity import check_capacity
from elmwright.jobs.config.sections import TrainSection
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.environment.wheel import requirements, wheel_members, zipped
from elmwright.jobs.runbook.submission import (
    GRACE_SECONDS,
    Job,
    NoHandle,
    State,
    Submission,
    state_of_exit,
)
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.place import Place
from elmwright.jobs.submit.targets.ray_token import DEFAULT_TOKEN, find_token
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.files import is_url

TIMEOUT = 8.0
"""Seconds for an answer; a slow network answers in a fraction of it."""
SUBMIT_TIMEOUT = 60.0
"""Seconds for sending the package and for taking the job, which starts an actor."""


class Unreachable(UserError):  # noqa: N818 - a state of the world
    """The cluster does not answer."""


class NotLetIn(Unreachable):
    """The cluster answers, but not to us: to ask it again would not help."""


class RayCluster(Place):
    """Jobs of a running Ray cluster."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.address = target.address
        self._token = ""

    def note(self, submission: Submission) -> str:
        if is_url(submission.dir) or is_this_machine(self.address):
            return ""
        return (
            f"run.dir {submission.dir} must be on storage that every machine of {self.address} "
            "mounts; the job looks first"
        )

    def check(self, submission: Submission) -> None:
        """Refuse what cannot work on this cluster: its version, its size, its reach."""
        self.check_version()
        config = config_from(submission.config, "the config")
        if config.cluster.wait_minutes:
            return
        nodes = self.nodes()
        end = time.monotonic() + TIMEOUT
        while not nodes and time.monotonic() < end:  # it is just being started
            time.sleep(0.5)
            nodes = self.nodes()
        check_nodes(config.train, nodes, self.address)

    def running(self, run: str) -> str:
        """The submission id of a job of this run that has not ended, if there is one."""
        jobs = self._get("/api/jobs/")
        try:
            for job in jobs:
                is_of_run = (job.get("metadata") or {}).get("elmwright.run") == run
                if is_of_run and job["status"] in ("PENDING", "RUNNING"):
                    return str(job["submission_id"])
        except (KeyError, TypeError, AttributeError):
            raise self._not_ray() from None
        return ""

    def describe(self, submission: Submission) -> str:
        name, package = parcel(submission)
        request = self._request_of(submission, name)
        return (
            f"PUT {self.address}/api/packages/gcs/{name} "
            f"({len(package):,} bytes: elmwright {submission.version} and the submission)\n"
            f"POST {self.address}/api/jobs/\n{json.dumps(request, indent=1)}"
        )

    def submit(self, submission: Submission, module: str = "elmwright.jobs.submit.job") -> NoHandle:
        name, package = parcel(submission)
        try:
            path = f"/api/packages/gcs/{name}"
            # Asking for it also keeps Ray from throwing it away before the job starts.
            if self._call("GET", path)[0] == 404:
                self._ok("PUT", path, package, SUBMIT_TIMEOUT)
            data = json.dumps(self._request_of(submission, name, module)).encode()
            self._ok("POST", "/api/jobs/", data, SUBMIT_TIMEOUT)
        except NotLetIn:
            raise
        except Unreachable as error:
            raise Failed(
                f"the Ray cluster at {self.address} went away while the job was being sent "
                f"({error.__cause__ or error}); 'elmwright jobs' tells whether it arrived, once "
                f"the cluster answers again, and 'elmwright cancel {submission.run}' stops it then"
            ) from error
        return NoHandle()

    def _request_of(
        self, submission: Submission, package: str, module: str = "elmwright.jobs.submit.job"
    ) -> dict[str, Any]:
        return {
            "submission_id": submission.id,
            "entrypoint": entrypoint(self.target, module),
            "runtime_env": runtime_env(submission, f"gcs://{package}"),
            "metadata": metadata_of(submission),
        }

    def state(self, job: Job) -> State:
        status, body = self._call("GET", f"/api/jobs/{quote(job.submission.id)}")
        if status == 404:
            return State("interrupted", "the cluster does not know it (any more)")
        self._must(status, body)
        try:
            return state_of_job(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._not_ray() from None

    def log(self, job: Job, start: int) -> tuple[str, int]:
        status, body = self._call(
            "GET", f"/api/jobs/{quote(job.submission.id)}/logs", timeout=SUBMIT_TIMEOUT
        )
        if status != 200:
            return "", start  # not started yet, or its node is gone with its log
        try:
            text = str(json.loads(body)["logs"] or "")
        except (ValueError, KeyError, TypeError):
            raise self._not_ray() from None
        return text[start:], max(start, len(text))

    def stop(self, job: Job) -> None:
        self._ok("POST", f"/api/jobs/{quote(job.submission.id)}/stop", b"")

    @property
    def grace(self) -> float:
        return GRACE_SECONDS + 30

    @property
    def has_token(self) -> bool:
        """Whether the cluster has asked for a token and got one."""
        return bool(self._token)

    def version(self) -> str:
        status, body = self._call("GET", "/api/version")
        self._must(status, body)
        try:
            return str(json.loads(body)["ray_version"])
        except (ValueError, KeyError, TypeError):
            raise self._not_ray() from None

    def check_version(self) -> str:
        """The version of Ray there, which must be one this package works with."""
        found = self.version()
        need = next(r for r in map(Requirement, requirements()) if r.name == "ray")
        if not need.specifier.contains(found, prereleases=True):
            raise UserError(
                "environment",
                f"the cluster at {self.address} runs Ray {found}, elmwright needs "
                f"{need.specifier}; bring the cluster to such a version",
            )
        return found

    def nodes(self) -> list[dict[str, float]]:
        """The resources of each machine that is up."""
        answer = self._get("/api/v0/nodes?limit=10000")
        try:
            rows = answer["data"]["result"]["result"]
            return [dict(row["resources_total"]) for row in rows if row["state"] == "ALIVE"]
        except (KeyError, TypeError):
            raise Failed(
                f"the dashboard at {self.address} does not list its nodes "
                f"({str(answer.get('msg', ''))[:200]})"
            ) from None

    def _get(self, path: str) -> Any:
        status, body = self._call("GET", path)
        self._must(status, body)
        try:
            return json.loads(body)
        except ValueError:
            raise self._not_ray() from None

    def _ok(self, method: str, path: str, data: bytes, timeout: float = 0) -> None:
        self._must(*self._call(method, path, data, timeout))

    def _must(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        if status in (301, 302, 307, 308, 404, 405):
            raise self._not_ray()
        lines = [line for line in body.decode(errors="replace").splitlines() if line.strip()]
        # Ray answers with a traceback; its last line says what is wrong.
        reason = lines[-1][:300] if lines else "nothing"
        if status in (502, 503, 504):
            raise Unreachable(
                "cluster-unreachable",
                f"the Ray cluster at {self.address} does not answer: what stands before it says "
                f"{status}; check that the cluster is up",
            )
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
        status, body = self._once(method, path, data, timeout)
        if status == 401 and not self._token and os.environ.get("RAY_AUTH_MODE") != "disabled":
            self._token, _ = find_token(self.target)
            if self._token:
                status, body = self._once(method, path, data, timeout)
        if status == 401:
            raise NotLetIn(
                "cluster-refused",
                f"the Ray cluster at {self.address} wants a token; set RAY_AUTH_TOKEN, or "
                f"RAY_AUTH_TOKEN_PATH to the file that holds it, or put it into {DEFAULT_TOKEN}, "
                "or name its file as token_file of the target",
            )
        if status == 403 and not self._token:
            raise NotLetIn(
                "cluster-refused",
                f"{self.address} refuses us (403) and asks for no token; check the address, and "
                "what stands between this machine and the cluster's dashboard",
            )
        if status == 403:
            raise NotLetIn(
                "cluster-refused",
                f"the Ray cluster at {self.address} refuses the token in "
                f"{find_token(self.target)[1]}: it is expired or another cluster's; put the "
                "current one there ('ray get-auth-token' on the cluster's head prints it)",
            )
        return status, body

    def _once(
        self, method: str, path: str, data: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        request = urllib.request.Request(self.address + path, data, method=method)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        tries = 3 if method == "GET" else 1
        try:
            while True:
                tries -= 1
                try:
                    with _OPENER.open(request, timeout=timeout or TIMEOUT) as answer:
                        return int(answer.status), answer.read()
                except ConnectionResetError:
                    # A busy dashboard drops a connection now and then; to ask twice does no harm.
                    if not tries:
                        raise
                    time.sleep(1)
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
            probe.bind(where)  # possible for an address of one's own only
    except OSError:
        return False
    return True


def parcel(submission: Submission) -> tuple[str, bytes]:
    """What is shipped, and its name in the cluster, which says what is in it."""
    _, members = wheel_members()
    content = zipped(members | {"submission.json": submission.to_json().encode()})
    return f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip", content


def entrypoint(target: Target, module: str = "elmwright.jobs.submit.job") -> str:
    """`exec`, so that the stop signal reaches the driver itself and not a shell around it."""
    python = shlex.quote(target.python or "python")
    return f"exec {python} -m {module} submission.json"


def runtime_env(submission: Submission, working_dir: str) -> dict[str, Any]:
    return {
        "working_dir": working_dir,
        "env_vars": {
            **submission.settings,
            # Ray itself gives a stopped job 3 s, too few for a checkpoint.
            "RAY_JOB_STOP_WAIT_TIME_S": str(GRACE_SECONDS),
        },
    }


def metadata_of(submission: Submission) -> dict[str, str]:
    """What the cluster's job listing shows."""
    return {
        "elmwright.run": submission.run,
        "elmwright.dir": submission.dir,
        "elmwright.until": submission.until,
        "elmwright.version": submission.version,
        "elmwright.git": submission.git,
        "elmwright.config_sha256": submission.config_sha256,
        "elmwright.sender": submission.sender,
    }


def state_of_job(info: dict[str, Any]) -> State:
    """Ray's words in ours."""
    status, message = info["status"], str(info.get("message") or "").strip()
    if status == "PENDING":
        return State("pending", "waiting for its environment or for room on the cluster")
    if status == "RUNNING":
        return State("running", _since(info))
    if status == "SUCCEEDED":
        return State("finished", exit_code=0)
    if status == "STOPPED":
        return State("interrupted", "stopped on request", 75)
    code = info.get("driver_exit_code")
    if code is not None:
        return state_of_exit(int(code))
    if info.get("error_type") == "RUNTIME_ENV_SETUP_FAILURE":
        return State("failed", f"its environment could not be set up: {_last_line(message)}")
    return State("interrupted", f"its driver or its node is gone: {_last_line(message)}")


def _since(info: dict[str, Any]) -> str:
    begun = (info.get("start_time") or 0) / 1000
    minutes = int(time.time() - begun) // 60 if begun else 0
    return f"for {minutes // 60} h {minutes % 60} min" if begun else ""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no reason given"


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
