"""Paths, names and times that are the same in this package and in `infra/`, as a test checks."""

from elmwright import __version__

RUNS_PATH = "/runs"
"""Shared storage, mounted here on every node; `run.dir` is below it."""
SECRETS_PATH = "/secrets"
"""Where Kubernetes mounts credentials as files; they are never part of a submission."""
USER_ID = 1000
"""The container's user and group; shared storage must be writable for it."""

BUCKET = "elmwright"
"""Bucket that the laptop-sized clusters create in their store."""
IMAGE = "elmwright"
"""Name of the container image; put your registry in front."""
IMAGE_TAGS = (f"{__version__}-cpu", f"{__version__}-cuda")
"""Tags of the image: this version of the package, built for CPUs and for GPUs."""

SECRET_AWS, SECRET_REGISTRY = "elmwright-aws", "elmwright-registry"
"""Kubernetes secrets: the store's credentials (key `credentials`), and those of a private registry
for the image."""
CONFIG_STORE = "elmwright-store"
"""Kubernetes ConfigMap with public settings of the store, such as AWS_ENDPOINT_URL."""

STOP_SECONDS = 300
"""Seconds that a stopped job has to write its checkpoint: up to 60 for an MLflow that does not
answer, 30 for Ray to drain its nodes, 120 for the checkpoint, the rest for the step before it and
for going back into the queue."""
