"""A process that publishes when it is told to, so that it can be killed while it does.

    python -m tests.support.tiny_runs.publisher URI

A line on standard input is a name and a bundle's folder: a child of this process publishes it, and
its process id is printed at once. Everything is imported before, so that a kill some tenths of a
second later hits the publishing and not an import; a child that ends by itself prints `done`.
"""

import os
import sys
from pathlib import Path

import mlflow
import mlflow.artifacts
import mlflow.models
import mlflow.pyfunc
import mlflow.store.artifact.local_artifact_repo
import mlflow.store.artifact.mlflow_artifacts_repo
import mlflow.store.model_registry.rest_store
import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.rest_store
import mlflow.store.tracking.sqlalchemy_store

from elmwright.jobs.publishing.promotion import publish_bundle
from elmwright.jobs.registry.open_registry import open_registry


def main() -> None:
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    (uri,) = sys.argv[1:]
    print("ready", mlflow.__version__, flush=True)
    for line in sys.stdin:
        name, bundle = line.split()
        child = os.fork()
        if child == 0:
            version = publish_bundle(open_registry(uri), Path(bundle), name, "candidate")
            print("done", version, flush=True)
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main()
