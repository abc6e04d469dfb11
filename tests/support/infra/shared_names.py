"""Ports, paths and names that the files of `infra/` agree on, and the package itself never needs.

Those that it needs are in `jobs/runbook/deployment.py`.
"""

RAY_PORT = 6379
"""Ray's head (GCS): workers and drivers connect here; `cluster.address = "head:6379"`."""
DASHBOARD_PORT = 8265
"""Ray's dashboard and Jobs API: `elmwright submit … --to http://head:8265`."""
MLFLOW_PORT = 5000
"""The MLflow server: `tracking.uri = "http://mlflow:5000"`."""
POSTGRES_PORT = 5432
"""The database behind MLflow; only MLflow talks to it."""
STORE_PORT = 9000
"""The S3-compatible store of a laptop-sized cluster: `AWS_ENDPOINT_URL`."""

CONFIGS_PATH = "/configs"
"""Where the containers of compose find run configs."""
TEXT_PATH = "/text"
"""Where compose mounts the text to train on, read-only: `sources = ["/text/*.txt"]`."""
HOME_PATH = "/home/elmwright"
"""Home of the container's user; Ray looks for its token in `.ray/auth_token` below it."""

DATABASE = "mlflow"
"""Name of MLflow's database and of its owner."""

SERVICE_MLFLOW, SERVICE_POSTGRES, SERVICE_STORE, SERVICE_HEAD = (
    "mlflow",
    "postgres",
    "store",
    "head",
)
"""Host names of the parts, in compose and (MLflow and PostgreSQL) in Kubernetes."""

SECRET_DATABASE = "elmwright-database"  # noqa: S105 - a name
"""Kubernetes secret: MLflow's database password (key `password`)."""
