"""The compose file: each test is for a failure that was seen when it was run."""

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.runbook import deployment
from tests.support.infra import shared_names
from tests.support.infra.texts import TEXT
from tests.support.infra.validators import documents
from tests.support.places import INFRA, ROOT

pytestmark = pytest.mark.slow(5)

NODES = ("head", "worker")
UNITS = {"m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def services() -> dict[str, Any]:
    (compose,) = documents(INFRA / "compose" / "compose.yaml")
    return dict(compose["services"])


def default(text: str) -> str:
    """The value of `${NAME:-default}` without NAME."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def size(text: str) -> int:
    """Bytes, of a size as compose writes it."""
    found = re.fullmatch(r"(\d+)([a-z]+)", default(text))
    assert found, text
    return int(found[1]) * UNITS[found[2]]


@pytest.mark.parametrize("name", NODES)
def test_rays_object_store_fits_into_shared_memory_and_that_into_the_limit(name: str) -> None:
    """Ray takes 30 % of the memory it sees, and keeps objects in /tmp if /dev/shm is smaller."""
    node = services()[name]
    (store,) = re.findall(r"--object-store-memory=(\d+)", node["command"])
    assert int(store) < size(node["shm_size"]) < size(node["mem_limit"]) / 2


def test_mlflow_has_no_job_runner_and_memory_to_spare() -> None:
    """It was killed at 2 GiB: the job runner alone held 1.2. Without it, 0.7 in a whole run."""
    mlflow = services()["mlflow"]
    assert mlflow["environment"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert size(mlflow["mem_limit"]) >= 3 / 2 * 2**30


def shell_of_mlflow() -> list[str]:
    mlflow = services()["mlflow"]
    assert mlflow["entrypoint"] == ["/bin/sh", "-c"]
    (line,) = mlflow["command"]
    return shlex.split(line)


def test_mlflows_database_is_upgraded_before_the_server_starts(tmp_path: Path) -> None:
    """Runs the command as it stands: on a new database, and again on one that has its tables."""
    words = shell_of_mlflow()
    end = words.index("&&")
    assert words[end + 1 : end + 4] == ["exec", "mlflow", "server"]
    python, *arguments = words[:end]
    assert python == "python"
    database = tmp_path / "mlflow.db"
    database.touch()
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{database}"}
    for _ in range(2):
        subprocess.run([sys.executable, *arguments], env=environment, check=True, timeout=300)
        with closing(sqlite3.connect(database)) as opened:
            tables = opened.execute("SELECT name FROM sqlite_master").fetchall()
            assert {("runs",), ("alembic_version",)} <= set(tables)


def test_the_databases_password_is_on_no_command_line() -> None:
    for name, service in services().items():
        line = f"{service.get('entrypoint', '')} {service.get('command', '')}"
        assert "$" not in line, name  # neither compose nor the shell puts anything in


def test_the_file_with_the_secrets_is_not_committed_by_accident() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_a_database_that_is_being_set_up_is_not_healthy() -> None:
    """PostgreSQL's image sets up with a server on a Unix socket, which pg_isready would ask."""
    test = services()["postgres"]["healthcheck"]["test"]
    assert "--host=127.0.0.1" in test


def test_the_image_is_named_in_one_place_where_it_can_be_changed() -> None:
    lines = [line for line in TEXT["compose/compose.yaml"].splitlines() if "#" not in line]
    assert len([line for line in lines if f"{deployment.IMAGE}:" in line]) == 1
    images = {services()[name]["image"] for name in (*NODES, "mlflow")}
    assert images == {f"${{ELMWRIGHT_IMAGE:-{deployment.IMAGE}:{deployment.IMAGE_TAGS[0]}}}"}


@pytest.mark.parametrize("name", NODES)
def test_text_and_configs_are_mounted_and_cannot_be_changed(name: str) -> None:
    volumes = services()[name]["volumes"]
    for path in (shared_names.CONFIGS_PATH, shared_names.TEXT_PATH):
        assert [volume for volume in volumes if volume.endswith(f":{path}:ro")], path


def test_training_has_the_time_to_write_a_checkpoint_when_its_worker_is_stopped() -> None:
    worker = services()["worker"]
    drain = int(worker["environment"]["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert drain == deployment.STOP_SECONDS
    assert int(worker["stop_grace_period"].removesuffix("s")) > drain
    # Ray never calls a head idle, so each second there would be waited for.
    assert "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" not in services()["head"]["environment"]


def test_the_readme_says_where_mlflow_is_to_whoever_submits_from_outside() -> None:
    """The containers' own MLFLOW_TRACKING_URI is not a setting of a run."""
    text = TEXT["README.md"]
    begin = text.index("\n## Compose\n")
    section = text[begin : text.index("\n## ", begin + 1)].replace("\\\n", "")
    sent = [line for line in section.splitlines() if "elmwright submit" in line]
    assert sent
    for line in sent:
        assert "--set tracking.uri=http://mlflow:5000" in line


def test_a_head_whose_own_node_is_not_up_yet_is_not_healthy() -> None:
    """Its dashboard answers before the node has started; workers that join then may fail."""
    test = services()["head"]["healthcheck"]["test"]
    assert test[:2] == ["CMD", "wget"]
    assert {word.rpartition("/")[2] for word in test if word.startswith("http://")} == {
        "gcs_healthz",
        "local_raylet_healthz",
    }
