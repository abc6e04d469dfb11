"""The last stage of a run: its bundle becomes a version in the run's MLflow registry.

What a version is, and how one bundle stays one version, is in registry.py and mlflow_registry.py;
`published.json` remembers the result, so that a finished run is recognised without asking MLflow.
"""

from typing import Any

from elmwright.jobs.bundle import digest
from elmwright.jobs.config import RunConfig
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.mlflow_registry import MlflowRegistry
from elmwright.jobs.mlflow_store import is_store
from elmwright.jobs.provenance import relative_uri, without_password
from elmwright.jobs.registry import publish_bundle
from elmwright.jobs.tracking import read_run_id, tracking_uri
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import read_json, write_json


def is_published(config: RunConfig, folder: RunFolder) -> bool:
    """Does published.json speak of this bundle, name, alias and registry?"""
    try:
        saved = read_json(folder.published) or {}
        return bool(
            saved["digest"] == digest(folder.bundle)
            and saved["name"] == config.export.name
            and saved["alias"] == config.export.alias
            and is_store(saved["uri"], without_password(tracking_uri(config, folder)), folder)
        )
    except (OSError, KeyError, ValueError, UserError):
        return False


def publish(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Register the run's bundle and move the alias; what `published.json` then says."""
    if not read_run_id(folder):
        raise UserError(
            f"MLflow has no record of this run yet; check that tracking.uri answers, then run the "
            f"same command again (the bundle is safe in {folder.bundle})"
        )
    uri, name, alias = tracking_uri(config, folder), config.export.name, config.export.alias
    version = publish_bundle(MlflowRegistry(uri), folder.bundle, name, alias)
    saved = {
        "name": name,
        "version": version,
        "alias": alias,
        "digest": digest(folder.bundle),
        "uri": relative_uri(without_password(uri), folder.root),
    }
    write_json(folder.published, saved)
    return saved
