"""The step before Kubernetes' MLflow server, run against a real PostgreSQL.

Heavy: `make infra-test`.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.support.infra.validators import documents
from tests.support.places import INFRA
from tests.support.servers import mlflow_server, postgres

pytestmark = pytest.mark.heavy


def deployment() -> dict[str, Any]:
    objects = documents(INFRA / "kubernetes" / "base" / "mlflow.yaml")
    (found,) = [o for o in objects if o["kind"] == "Deployment"]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_it_makes_the_tables_of_a_new_database_and_upgrades_old_ones(tmp_path: Path) -> None:
    (step,) = deployment()["initContainers"]
    name, *arguments = step["command"]
    with postgres(tmp_path) as database:
        command = [str(Path(sys.executable).with_name(name)), *arguments]
        environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": database}
        engine = create_engine(database)

        def version() -> str:
            with engine.begin() as connection:
                found = connection.execute(text("SELECT version_num FROM alembic_version"))
                return str(found.scalar_one())

        subprocess.run(command, env=environment, check=True, timeout=200)
        newest = version()
        subprocess.run(command, env=environment, check=True, timeout=200)
        assert version() == newest
        with engine.begin() as connection:
            assert back_one_step(connection) != newest
        subprocess.run(command, env=environment, check=True, timeout=200)
        assert version() == newest
        engine.dispose()
        with mlflow_server(tmp_path, database):
            pass  # it refuses to start with tables that are not up to date


def back_one_step(connection: Any) -> str:
    """Undo MLflow's last migration of the tables; the version they have then."""
    from alembic import command
    from alembic.runtime.migration import MigrationContext
    from mlflow.store.db.utils import _get_alembic_config

    config = _get_alembic_config(str(connection.engine.url))
    config.attributes["connection"] = connection
    command.downgrade(config, "-1")
    return str(MigrationContext.configure(connection).get_current_revision())
