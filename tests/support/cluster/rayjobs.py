"""Submissions to Kubernetes, for tests."""

from pathlib import Path
from typing import Any

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.send import prepare
from tests.support.tiny import write_config, write_text

GPU = Target(
    "k8s",
    gpus=1,
    image="lab/elmwright:1",
    namespace="ml",
    secret="s3",  # noqa: S106
    volume="claim",
    memory="16Gi",
)


def submission(folder: Path, target: Target, **changes: Any) -> Submission:
    write_text(folder / "text.txt", 3)
    changes = {"run_dir": "/runs/tiny", **changes}
    file = write_config(folder, folder / "text.txt", tracking_uri="http://mlflow:5000", **changes)
    return prepare(load_config(str(file), ["cluster.address=auto"]), target, "publish")
