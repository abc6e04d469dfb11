"""A SQLite database of MLflow's is there whole or not at all."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from elmwright.jobs.tracking.database import create_database
from elmwright.jobs.tracking.store import connect

pytestmark = pytest.mark.slow(3)


def tables(database: Path) -> int:
    with closing(sqlite3.connect(database)) as opened:
        return int(opened.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def test_killed_while_the_tables_are_made_it_leaves_no_database(tmp_path: Path) -> None:
    database = tmp_path / "mlflow" / "mlflow.db"
    program = "import sys; from elmwright.jobs.tracking.store import connect; connect(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", program, f"sqlite:///{database}"])
    beside: list[Path] = []
    for _ in range(12_000):
        beside = list(tmp_path.rglob("*.db"))
        if beside and tables(beside[0]) >= 3:
            break
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert beside[0] != database
    assert not database.exists()
    client = connect(f"sqlite:///{database}")
    assert client.search_experiments()
    whole = database.read_bytes()
    create_database(database)
    assert database.read_bytes() == whole  # one that is there is left alone
