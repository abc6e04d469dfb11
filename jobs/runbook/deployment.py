"""Paths, names and times that jobs on a cluster and the files of `infra/` agree on.

A test compares them one by one: what is changed here and not there, or there and not here, fails
it. No port is among them: the package depends on no fixed one.
"""

from elmwright import __version__

RUNS_PATH = "/runs"
"""Shared storage, mounted here on every node; `run.dir` lies below it."""
SECRETS_PATH = "/secrets"
"""Where Kubernetes mounts credentials as files; they are never part of a submission."""
USER_ID = 1000
"""The container's user and group; shared storage must be writable for it."""

BUCKET = "elmwright"
"""Bucket that the laptop-sized clusters create in their store."""
IMAGE = "elmwright"
"""Name of the container image; put your registry in front."""
VARIANTS = ("cpu", "cuda")
"""What the image is built for: build argument VARIANT, and the end of its tag."""
IMAGE_TAGS = tuple(f"{__version__}-{variant}" for variant in VARIANTS)
"""Tags of the image: this version of the package, for each variant."""

SECRET_AWS, SECRET_REGISTRY = "elmwright-aws", "elmwright-registry"
"""Kubernetes secrets: the store's credentials (key `credentials`), and credentials of the image's
registry where it is not public."""
CONFIG_STORE = "elmwright-store"
"""Kubernetes ConfigMap with what is not secret about the store: AWS_ENDPOINT_URL and the like."""

STOP_SECONDS = 300
"""Seconds that a stopped job has to write its checkpoint, by Slurm's warning and by Kubernetes: up
to 60 for an MLflow that does not answer, 30 for Ray to drain its nodes, 120 for the checkpoint, the
rest for the step before it and for going back into the queue. `docker compose stop` stops the
workers first, and Ray tells training that they are leaving."""
