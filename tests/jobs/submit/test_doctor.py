"""`elmwright doctor` for this machine and a Slurm cluster; test_ray_cluster.py tests it for Ray."""

import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.doctor import examine
from tests.support.mistakes import mistake
from tests.support.tiny import write_config

pytestmark = pytest.mark.slow(2)

PLANTED = "planted-secret-d0c7"


@pytest.fixture(autouse=True)
def isolated_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake `sinfo` on the PATH that lists two machines; returns the test's folder."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sinfo").write_text(
        '#!/bin/sh\ncase "$*" in\n*--version*) echo slurm-wlm 22.05 ;;\n'
        '*--Node*) printf "n1|2|(null)|main*\\nn2|2|(null)|main*\\n" ;;\n'
        '*) echo "main*: 2 machines with 2 CPUs, idle" ;;\nesac\n'
    )
    (bin_ / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def mlflow() -> Iterator[str]:
    """The address of a server that answers like MLflow."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200 if self.path == "/api/2.0/mlflow/experiments/search" else 404)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def problems(target: Target, config: Path | None = None) -> list[str]:
    """The findings of the doctor that are not good."""
    return [text for good, text in examine(target, config and str(config)) if not good]


def test_this_machine_is_checked_against_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    good = write_config(tmp_path, tmp_path / "text.txt", train_processes=1)
    assert problems(Target("local"), good) == []
    assert not (tmp_path / "run").exists()
    large = write_config(tmp_path, tmp_path / "text.txt", train_threads=64)
    assert "needs 128 CPUs, but the Ray of this" in problems(Target("local"), large)[0]
    blocked = tmp_path / "file"
    blocked.write_text("")
    config = write_config(tmp_path, tmp_path / "x", train_processes=1, run_dir=f"{blocked}/run")
    assert "is not visible" in problems(Target("local"), config)[0]
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    config = write_config(tmp_path, tmp_path / "text.txt", train_processes=1)
    assert "MLFLOW_TRACKING_PASSWORD is not set" in problems(Target("local"), config)[0]


def test_the_mlflow_of_a_config_must_answer(tmp_path: Path, mlflow: str) -> None:
    for uri, problem in (
        (mlflow, ""),
        (f"{mlflow}/elsewhere", "is not an MLflow server; check tracking.uri"),
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://host:abc", "tracking.uri is not an address"),
        ("http://a..b:5000", "tracking.uri is not an address"),
    ):
        config = write_config(tmp_path, tmp_path / "text.txt", tracking_uri=uri, train_processes=1)
        report = "; ".join(problems(Target("local"), config))
        assert problem in report
        assert bool(problem) == bool(report)


def test_doctor_refuses_a_config_with_a_password(slurm: Path) -> None:
    config = write_config(slurm, slurm / "t", tracking_uri=f"http://me:{PLANTED}@mlflow:5000")
    with mistake("secret", "tracking.uri") as caught:
        problems(Target("slurm"), config)
    assert PLANTED not in str(caught.value)


def test_a_slurm_cluster_is_checked_against_a_config(slurm: Path, mlflow: str) -> None:
    server = {"tracking_uri": mlflow}
    (slurm / "secrets.env").write_text(f"LAB_TOKEN={PLANTED}\n")
    target = Target("slurm", env_file=str(slurm / "secrets.env"), secrets=("LAB_TOKEN",))
    good = write_config(slurm, slurm / "text.txt", **server)
    findings = examine(target, str(good))
    assert all(good for good, _ in findings), findings
    report = "\n".join(text for _, text in findings)
    for part in (
        "slurm-wlm 22.05",
        "partition main",
        "all dependencies",
        "enough for train.",
        "is visible",
        "every secret is set",
        "Python 3.",
        "answers",
    ):
        assert part in report
    assert PLANTED not in report
    large = write_config(slurm, slurm / "text.txt", train_threads=64, **server)
    without_secret = Target("slurm", secrets=("LAB_TOKEN",))
    report = "\n".join(problems(without_secret, large))
    assert "needs 1 machines with 128 CPUs each, but the cluster has 2 with 2" in report
    assert "LAB_TOKEN is not set" in report


def test_missing_python_or_dependencies_are_reported(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no /no/such/python" in problems(Target("slurm", python="/no/such/python"))[0]
    bare = slurm / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    assert f"{bare} cannot run elmwright" in problems(Target("slurm", python=str(bare)))[0]
