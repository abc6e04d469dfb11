"""Registers a run's bundle as a version in the run's MLflow registry.

What a version is, and how one bundle stays one version, is in contract.py and mlflow_registry.py;
`published.json` remembers the result, so that a finished run is recognised without asking MLflow.
Publishing is safe to kill at any moment; the same command finds or removes what it left.
"""

from typing import Any

from elmwright.jobs.bundles.bundle import bundle_bytes, digest
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.publishing.promotion import publish_bundle
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.secrets.hiding import without_secret
from elmwright.jobs.tracking.store import is_store, relative_uri
from elmwright.jobs.tracking.tracker import read_run_id, tracking_uri
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import Progress, counting_bytes, silent
from elmwright.pipeline.storage.files import read_json, write_json


def is_published(config: RunConfig, folder: RunFolder) -> bool:
    """Does published.json speak of this bundle, name, alias and registry?"""
    try:
        saved = read_json(folder.published) or {}
        return bool(
            saved["digest"] == digest(folder.bundle)
            and saved["name"] == config.export.name
            and saved["alias"] == config.export.alias
            and is_store(saved["uri"], tracking_uri(config, folder), folder)
        )
    except (OSError, KeyError, ValueError, UserError):
        return False


def publish(config: RunConfig, folder: RunFolder, progress: Progress = silent) -> dict[str, Any]:
    """Register the run's bundle and move the alias; what `published.json` then says.

    The bundle is read before it is sent, and read back: that is what the progress counts.
    """
    if not read_run_id(folder):
        raise UserError(
            "tracking-server",
            f"MLflow has no record of this run yet; check that tracking.uri answers, then run the "
            f"same command again (the bundle is safe in {folder.bundle})",
        )
    uri, name, alias = tracking_uri(config, folder), config.export.name, config.export.alias
    total = 2 * bundle_bytes(folder.bundle)
    with progress("publishing", total, "bytes") as advance, counting_bytes(advance):
        version = publish_bundle(MlflowRegistry(uri), folder.bundle, name, alias)
    saved = {
        "name": name,
        "version": version,
        "alias": alias,
        "digest": digest(folder.bundle),
        "uri": relative_uri(without_secret(uri), folder.root),
    }
    write_json(folder.published, saved)
    return saved
