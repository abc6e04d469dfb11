"""The local cluster: what it must never touch, and the README's walkthrough, executed."""

import importlib.util
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType

import pytest
import sqlalchemy
from mlflow.store.tracking.dbmodels.initial_models import Base as InitialBase

from tests.support.checkout import clone
from tests.support.places import INFRA

pytestmark = pytest.mark.slow(8)

SCRIPT = INFRA / "local" / "cluster.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("cluster", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster"] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # as when it is run
        spec.loader.exec_module(module)
        yield module


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env={**os.environ, **environment})


def test_a_number_that_now_belongs_to_another_process_is_not_signalled(cluster, tmp_path):
    bystander = sleeper()
    try:
        record = {"pid": bystander.pid, "ticks": 12345}
        (tmp_path / "head.pid").write_text(json.dumps(record))
        (tmp_path / "mark").write_text("ours")
        cluster.Cluster(tmp_path).stop()
        time.sleep(0.2)
        assert bystander.poll() is None
        assert not (tmp_path / "head.pid").exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_a_child_that_outlived_its_parent_is_found_by_its_mark_and_ended(cluster, tmp_path):
    orphan, bystander = sleeper(ELMWRIGHT_CLUSTER_MARK="ours"), sleeper()
    try:
        (tmp_path / "mark").write_text("ours")
        folder = cluster.Cluster(tmp_path)
        assert folder.marked() == [orphan.pid]
        folder.stop()
        assert orphan.wait(timeout=10) == -9
        assert bystander.poll() is None
    finally:
        for process in (orphan, bystander):
            process.kill()
            process.wait()


def test_a_folder_that_only_looks_like_rays_is_not_removed(cluster, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    state = tmp_path / "state"
    state.mkdir()
    (state / "ray").symlink_to(precious)
    cluster.Cluster(state).stop()
    assert precious.is_dir()
    assert not (state / "ray").exists()


def test_secrets_are_readable_by_their_owner_alone(cluster, tmp_path):
    cluster.write_private(tmp_path / "key", "x")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_taking_down_what_was_never_up_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "down"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ELMWRIGHT_CLUSTER": str(tmp_path / "none")},
    )
    assert done.returncode == 0
    assert done.stdout == "no cluster was started here\n"


def test_mlflow_starts_without_its_job_runner_on_a_database_that_was_upgraded(cluster, tmp_path):
    """As left behind by an older MLflow: its tables, and none of those that came later."""
    started = []

    class Recorded(cluster.Cluster):
        def start(self, name, command, environment):
            started.append((name, command, environment))

    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    InitialBase.metadata.create_all(sqlalchemy.create_engine(database))
    Recorded(tmp_path)._start_mlflow(5999, dict(os.environ))
    ((name, command, environment),) = started
    assert name == "mlflow"
    assert database in command
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as opened:
        names = opened.execute("SELECT name FROM sqlite_master").fetchall()
    assert {("logged_models",), ("alembic_version",)} <= set(names)


def test_a_database_that_mlflow_cannot_upgrade_is_named(cluster, tmp_path):
    (tmp_path / "mlflow.db").write_text("this is no database, although it has the name of one\n")
    with pytest.raises(cluster.Trouble, match=r"mlflow\.db could not be upgraded.*mlflow\.log"):
        cluster.Cluster(tmp_path)._start_mlflow(5999, dict(os.environ))
    assert list(tmp_path.glob("*.pid")) == []


@pytest.mark.heavy
def test_a_part_that_cannot_start_is_named_and_nothing_is_left_running(cluster, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, SCRIPT, "up"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "ELMWRIGHT_CLUSTER": str(tmp_path), "ELMWRIGHT_STORE_PORT": busy},
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: store ended; the end of its log")
    assert list(tmp_path.glob("*.pid")) == []
    assert cluster.Cluster(tmp_path).marked() == []


def shell_blocks(section: str) -> str:
    text = (INFRA / "README.md").read_text()
    begin = text.index(f"\n## {section}\n")
    end = text.index("\n## ", begin + 1)
    return "\n".join(re.findall(r"```sh\n(.*?)```", text[begin:end], re.S))


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_walkthrough_of_the_readme_works_as_it_stands(cluster, tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    home = tmp_path / "home"  # with a token in it, as a local Ray leaves behind
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("a-token-of-some-other-cluster")
    here = clone(tmp_path / "clone")
    script = shell_blocks("Local cluster")
    assert script.index("make cluster-up") < script.index("make cluster-down")
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("RAY_", "AWS_", "MLFLOW_", "MAKE", "ELMWRIGHT_"))
    }
    environment |= {"HOME": str(home), "PYTHONPATH": str(here / "build" / "types")}
    state = cluster.Cluster(here / "build" / "cluster")
    try:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=here,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=800,
        )
        assert done.returncode == 0, done.stdout[-5000:]
        assert state.marked() == []
    finally:
        if state.folder.is_dir():
            state.stop()
    assert "Registered tiny version 1" in done.stdout
    assert (here / "build/cluster/store/elmwright/stored/MANIFEST.json").is_file()
    token = (here / "build/cluster/auth_token").read_text()
    secret = json.loads((here / "build/cluster/keys.json").read_text())["secret"]
    for path in (here / "build").rglob("*"):
        if path.is_file() and path.name not in ("auth_token", "keys.json"):
            data = path.read_bytes()
            assert secret.encode() not in data, path
            assert token.encode() not in data, path
