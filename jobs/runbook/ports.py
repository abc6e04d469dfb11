"""Where the parts of a cluster find each other: ports, paths and names.

Everything in `infra/` must agree with these values, and a test compares them one by one: what is
changed here and not there, or there and not here, fails it. Nothing else in the package depends on
a fixed port; a local run takes free ones.
"""

from elmwright import __version__

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

RUNS_PATH = "/runs"
"""Shared storage, mounted here on every node; `run.dir` lies below it."""
CONFIGS_PATH = "/configs"
"""Where the containers of compose find run configs."""
TEXT_PATH = "/text"
"""Where compose mounts the text to train on, read-only: `sources = ["/text/*.txt"]`."""
SECRETS_PATH = "/secrets"
"""Where Kubernetes mounts credentials as files; they are never part of a submission."""
HOME_PATH = "/home/elmwright"
"""Home of the container's user; Ray looks for its token in `.ray/auth_token` below it."""

USER_ID = 1000
"""The container's user and group; shared storage must be writable for it."""

BUCKET = "elmwright"
"""Bucket that the laptop-sized clusters create in their store."""
DATABASE = "mlflow"
"""Name of MLflow's database and of its owner."""

SERVICE_MLFLOW, SERVICE_POSTGRES, SERVICE_STORE, SERVICE_HEAD = (
    "mlflow",
    "postgres",
    "store",
    "head",
)
"""Host names of the parts, in compose and (MLflow and PostgreSQL) in Kubernetes."""

IMAGE = "elmwright"
"""Name of the container image; put your registry in front."""
VARIANTS = ("cpu", "cuda")
"""What the image is built for: build argument VARIANT, and the end of its tag."""
IMAGE_TAGS = tuple(f"{__version__}-{variant}" for variant in VARIANTS)
"""Tags of the image: this version of the package, for each variant."""

SECRET_AWS, SECRET_DATABASE, SECRET_REGISTRY = (
    "elmwright-aws",
    "elmwright-database",
    "elmwright-registry",
)
"""Kubernetes secrets: the store's credentials (key `credentials`), MLflow's database password
(key `password`), credentials of the image's registry where it is not public."""
CONFIG_STORE = "elmwright-store"
"""Kubernetes ConfigMap with what is not secret about the store: AWS_ENDPOINT_URL and the like."""

STOP_SECONDS = 300
"""Seconds that a stopped job has to write its checkpoint, by Slurm's warning and by Kubernetes: up
to 60 for an MLflow that does not answer, 30 for Ray to drain its nodes, 120 for the checkpoint, the
rest for the step before it and for going back into the queue. `docker compose stop` stops the
workers first, and Ray tells training that they are leaving."""
