#!/usr/bin/env python3
"""What a RayJob's entrypoint and its head's preStop hook call, inside the container.

    rayjob run NAME COMMAND…   run the command as the RayJob NAME; its exit code is ours
    rayjob stop                ask that command to checkpoint and wait until it has ended

KubeRay knows one kind of failure: a driver that does not exit with 0 fails its RayJob, and
`backoffLimit` then builds a whole new cluster and tries again. That is right for what time cures
(exit 1: failed, exit 75: interrupted, resumable) and wrong for a user's mistake (exit 2), which the
next cluster would repeat at the price of its GPUs. To exit with 0 instead would call the job a
success. So on exit 2 this sets the RayJob's own `backoffLimit` to 0 first, which KubeRay reads anew
each time it decides: the RayJob ends as Failed, at once. That takes the right to patch this one
RayJob (`service-account.yaml`); without it the mistake is retried, and the log says so.

Only the standard library is used: `ray` and `elmwright` take seconds to import.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

MISTAKE = 2
ACCOUNT = Path(os.environ.get("RAYJOB_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
PID_FILE = Path(os.environ.get("RAYJOB_PID_FILE", "/tmp/rayjob.pid"))  # noqa: S108 - one job a pod


def run(name: str, command: list[str]) -> int:
    """Run the command; on a user's mistake, see to it that nothing runs it again."""
    # Ray stops a job by signalling every process of it. The command acts on that and we wait for
    # it; were we to pass the signal on, it would arrive twice, which means "at once".
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command)
    PID_FILE.write_text(str(child.pid))
    code = child.wait()
    PID_FILE.unlink(missing_ok=True)
    if code == MISTAKE:
        try:
            forbid_retries(name)
            print(f"rayjob: a mistake in what was asked; {name} will not be retried", flush=True)
        except (OSError, KeyError, ValueError) as error:
            print(f"rayjob: cannot forbid retries of {name} ({error}); KubeRay will repeat the "
                  "mistake up to backoffLimit times", flush=True)  # fmt: skip
    return code if code >= 0 else 128 - code


def forbid_retries(name: str) -> None:
    """Set `spec.backoffLimit` of the RayJob to 0 through the cluster's API."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    port = os.environ["KUBERNETES_SERVICE_PORT"]
    namespace = (ACCOUNT / "namespace").read_text().strip()
    request = urllib.request.Request(
        f"https://{host}:{port}/apis/ray.io/v1/namespaces/{namespace}/rayjobs/{name}",
        data=json.dumps({"spec": {"backoffLimit": 0}}).encode(),
        method="PATCH",
        headers={
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",
            "Content-Type": "application/merge-patch+json",
        },
    )
    trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    with urllib.request.urlopen(request, timeout=10, context=trusted):  # noqa: S310 - https above
        pass


def stop() -> int:
    """SIGTERM to the running command, then wait; Kubernetes itself limits how long."""
    try:
        pid = int(PID_FILE.read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    while PID_FILE.exists() and Path(f"/proc/{pid}").exists():
        time.sleep(0.2)
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["run", name, *command] if command:
            return run(name, command)
        case ["stop"]:
            return stop()
    print("usage: rayjob run NAME COMMAND… | rayjob stop", file=sys.stderr)
    return MISTAKE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
