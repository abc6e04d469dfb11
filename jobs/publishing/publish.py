"""Registers a run's bundle as a version in the run's MLflow registry.

mlflow_registry.py makes sure that publishing a bundle twice creates only one version. The result is
saved in `published.json`, so a finished run is recognised without a request to MLflow. Publishing
can be killed at any moment: the same command then uses or removes the incomplete upload.
"""

from dataclasses import dataclass

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
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import at


@dataclass(frozen=True)
class Published:
    """published.json: the version under which a run's bundle is registered."""

    name: str
    version: int
    alias: str
    """The alias that was moved to the version."""
    digest: str
    """Digest of the bundle."""
    uri: str
    """The registry, relative to the run's folder if it is inside it."""


def read_published(path: str) -> Published | None:
    """The content of a published.json; None if it is missing or damaged."""
    try:
        return from_data(Published, at(path).read_json(), ignore_unknown=True)
    except BadField:
        return None


def is_published(config: RunConfig, folder: RunFolder) -> bool:
    """Whether published.json records this bundle, name, alias and registry."""
    try:
        saved = read_published(folder.published)
        return (
            saved is not None
            and saved.digest == digest(folder.bundle)
            and saved.name == config.export.name
            and saved.alias == config.export.alias
            and is_store(saved.uri, tracking_uri(config, folder), folder)
        )
    except (OSError, ValueError, UserError):
        return False


def publish(config: RunConfig, folder: RunFolder, progress: Progress = silent) -> Published:
    """Register the run's bundle, move the alias, and save and return `published.json`.

    Progress counts the bundle twice: it is verified before the upload and read back after it.
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
    saved = Published(
        name=name,
        version=version,
        alias=alias,
        digest=digest(folder.bundle),
        uri=relative_uri(without_secret(uri), folder.root),
    )
    at(folder.published).write_json(to_data(saved))
    return saved
