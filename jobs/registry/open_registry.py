"""The registry that a URI means: MLflow, or versions in plain files."""

import re

from elmwright.jobs.registry.contract import Registry
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.registry.plain_folder import FolderRegistry
from elmwright.jobs.secrets.hiding import hide
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at


def open_registry(uri: str) -> Registry:
    """What `--to` means: an MLflow tracking URI, or else a folder or s3:// prefix."""
    if re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri):
        return MlflowRegistry(uri)
    if "://" in uri and not at(uri).is_url:
        raise UserError(
            "argument",
            f"{hide(uri)!r} is not a registry: give an MLflow server (http://…, sqlite:///…), a "
            "folder, or an s3:// prefix",
        )

    return FolderRegistry(uri)
