"""The wrapper around a RayJob's driver, with a stand-in for Kubernetes' API that speaks TLS."""

import datetime
import http.server
import ipaddress
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.infra.validators import INFRA

SCRIPT = INFRA / "docker" / "rayjob.py"


class Api(http.server.BaseHTTPRequestHandler):
    """Notes every PATCH, and answers what it was told to."""

    patches: list[dict[str, Any]]
    answer = 200

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.headers["Content-Type"]
        self.patches.append({"path": self.path, "body": json.loads(body), "kind": kind,
                             "token": self.headers["Authorization"]})  # fmt: skip
        self.send_response(self.answer)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, and the service account that trusts it."""
    folder = tmp_path_factory.mktemp("account")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.crt").write_bytes(pem)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "server.pem").write_bytes(secret + pem)
    (folder / "token").write_text("the-token\n")
    (folder / "namespace").write_text("elmwright")
    return folder


@pytest.fixture
def api(identity: Path) -> Iterator[type[Api]]:
    handler = type("Handler", (Api,), {"patches": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    handler.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


def environment(identity: Path, pid_file: Path, port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
        "RAYJOB_ACCOUNT": str(identity),
        "RAYJOB_PID_FILE": str(pid_file),
    }


def run(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "run", "my-job", sys.executable, "-c", code],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_mistake_sets_the_jobs_backoff_limit_to_zero(api, identity, tmp_path):
    done = run("exit(2)", environment(identity, tmp_path / "pid", api.port))
    assert done.returncode == 2
    assert "will not be retried" in done.stdout
    assert api.patches == [
        {
            "path": "/apis/ray.io/v1/namespaces/elmwright/rayjobs/my-job",
            "body": {"spec": {"backoffLimit": 0}},
            "kind": "application/merge-patch+json",
            "token": "Bearer the-token",
        }
    ]


@pytest.mark.parametrize("code", [0, 1, 75])
def test_what_time_may_cure_is_left_to_kuberays_retries(code, api, identity, tmp_path):
    done = run(f"exit({code})", environment(identity, tmp_path / "pid", api.port))
    assert done.returncode == code
    assert api.patches == []


def test_a_driver_that_is_killed_ends_as_shells_say_it(api, identity, tmp_path):
    code = "import os; os.kill(os.getpid(), 9)"
    assert run(code, environment(identity, tmp_path / "pid", api.port)).returncode == 128 + 9


def test_without_the_right_to_patch_the_mistake_stays_a_mistake_and_the_log_says_so(
    api, identity, tmp_path
):
    api.answer = 403
    done = run("exit(2)", environment(identity, tmp_path / "pid", api.port))
    assert done.returncode == 2
    assert "cannot forbid retries of my-job (HTTP Error 403" in done.stdout
    assert "Traceback" not in done.stderr


def test_outside_kubernetes_it_says_what_is_missing(tmp_path):
    env = {"PATH": os.environ["PATH"], "RAYJOB_PID_FILE": str(tmp_path / "pid")}
    done = run("exit(2)", env)
    assert done.returncode == 2
    assert "KUBERNETES_SERVICE_HOST" in done.stdout


COUNTING = """
import signal, sys, time
seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.05)
time.sleep(1)
print("signals", len(seen), flush=True)
sys.exit(75)
"""


def start(identity: Path, pid_file: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, SCRIPT, "run", "my-job", sys.executable, "-c", COUNTING],
        env=environment(identity, pid_file, 1), stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.01)
    return child


def test_stop_asks_the_driver_once_and_waits_for_its_end(identity, tmp_path):
    child = start(identity, tmp_path / "pid")
    began = time.monotonic()
    env = environment(identity, tmp_path / "pid", 1)
    subprocess.run([sys.executable, SCRIPT, "stop"], env=env, check=True, timeout=60)
    assert time.monotonic() - began >= 1, "it did not wait"
    output, _ = child.communicate(timeout=60)
    assert output == "signals 1\n"
    assert child.returncode == 75


def test_a_signal_to_the_whole_group_reaches_the_driver_only_once(identity, tmp_path):
    """Ray's Jobs API signals every process of a job; a second signal would mean 'at once'."""
    child = start(identity, tmp_path / "pid")
    os.killpg(child.pid, signal.SIGTERM)
    output, _ = child.communicate(timeout=60)
    assert output == "signals 1\n"
    assert child.returncode == 75


def test_stop_without_a_job_has_nothing_to_do(identity, tmp_path):
    env = environment(identity, tmp_path / "pid", 1)
    assert subprocess.run([sys.executable, SCRIPT, "stop"], env=env, check=False).returncode == 0


def test_nonsense_gets_the_usage(identity, tmp_path):
    env = environment(identity, tmp_path / "pid", 1)
    done = subprocess.run(
        [sys.executable, SCRIPT, "run", "my-job"], env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")
