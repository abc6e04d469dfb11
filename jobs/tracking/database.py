"""Create MLflow's SQLite database whole or not at all.

MLflow creates its tables in dozens of steps, and SQLite keeps each of them at once. A process that
is killed in between leaves a database that MLflow can neither use nor complete. So the tables are
made in a file beside, which gets its name when all of them are there.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def create_database(database: Path) -> None:
    """Create a database of MLflow's, unless there is one or another process is faster."""
    if database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=database.parent) as folder:
        beside = Path(folder) / "mlflow.db"
        MlflowClient(tracking_uri=f"sqlite:///{beside}").search_experiments(max_results=1)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(beside, database)  # unlike a rename, never over one that is there
