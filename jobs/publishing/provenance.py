"""provenance.json: what made a bundle. The only file of a bundle that knows the time."""

import time
from dataclasses import dataclass
from typing import Any

from elmwright.jobs.bundles.base_model import BaseModel
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash, to_dict
from elmwright.jobs.environment.checkout import commit_of
from elmwright.jobs.environment.machine_facts import environment, own_git
from elmwright.jobs.environment.wheel import content_version, package_files
from elmwright.jobs.runbook.runbook import jobs_below
from elmwright.jobs.secrets.hiding import store_all, without_secret
from elmwright.jobs.tracking.store import relative_uri
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.records import to_data


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The content of provenance.json, in its order."""

    elmwright: str
    """Version of this package."""
    code: str
    """Version of its files, by content."""
    git: dict[str, str | bool] | None
    """Commit and cleanliness of the code; None outside a checkout."""
    python: str
    platform: str
    machine: str
    packages: dict[str, str]
    exported: str
    """When the bundle was written, UTC."""
    config: dict[str, Any]
    """The resolved config without secrets."""
    config_sha256: str
    seeds: dict[str, int]
    corpus_fingerprint: str
    corpus_created_by: str
    """The version that built the corpus."""
    corpus_words: int
    checkpoint_step: int
    checkpoint_sha256: str
    """Digest of its model.safetensors."""
    weights: str
    """Which weights of the checkpoint these are: the last, or an average."""
    mlflow_run_id: str
    mlflow_tracking_uri: str
    base: BaseModel | None
    """The model in train.init_from, if training began with one."""


def provenance(
    config: RunConfig,
    manifest: Manifest,
    *,
    run: str,
    step: int,
    sha256: str,
    weights: str,
    run_id: str,
    tracking_uri: str,
    base: BaseModel | None = None,
) -> Provenance:
    """Code, config, corpus, checkpoint, tracking, packages, seeds, machine and time.

    `run` is run.dir, which has the submissions of a run that was sent to a cluster.
    """
    return Provenance(
        **to_data(environment()) | {"git": to_data(own_git()) or submitted_git(run)},
        exported=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        config=store_all(to_dict(config)),
        config_sha256=config_hash(config),
        seeds={"run.seed": config.run.seed},
        corpus_fingerprint=manifest.fingerprint,
        corpus_created_by=manifest.created_by,
        corpus_words=manifest.splits["train"].words,
        checkpoint_step=step,
        checkpoint_sha256=sha256,
        weights=weights,
        mlflow_run_id=run_id,
        mlflow_tracking_uri=relative_uri(without_secret(tracking_uri), run),
        base=base,
    )


def submitted_git(run: str) -> dict[str, str | bool] | None:
    """Commit and cleanliness that a submission of this run came from, if it brought this very code.

    A job runs from files that were sent, not from a checkout; their digest is in the version.
    """
    own = content_version(package_files())
    try:
        jobs = jobs_below(run)  # of a copy too: its training may have been the original's
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None  # a note that cannot be read must not keep a trained model from its bundle
    for job in reversed(jobs):
        sent = job.submission
        commit = commit_of(sent.git)
        if sent.version == own and commit:
            return {**to_data(commit), "submission": sent.id}
    return None
