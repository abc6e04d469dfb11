"""From what a user calls a model to a verified folder of it.

A MODEL is a bundle folder, a checkpoint folder, an MLflow URI (`models:/name@alias` or
`models:/name/3`), or a folder with `options.json` and one `*.hdf5` in bilm format. Files that
carry digests are compared with them before anything is loaded.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmwright.pipeline.errors import UserError

if TYPE_CHECKING:
    from elmwright.model.elmo import Elmo


def load(model: str | Path, *, tracking_uri: str = "", **options: Any) -> "Elmo":
    """The ELMo layer over `model`, ready to embed: `load("models:/demo@candidate")`.

    `options` are those of `Elmo`; `tracking_uri` is where a `models:/` URI is looked up (by
    default what MLflow itself would use, MLFLOW_TRACKING_URI first).
    """
    from elmwright.model.elmo import Elmo

    return Elmo.from_pretrained(resolve(str(model), tracking_uri), **options)


def resolve(model: str, tracking_uri: str = "") -> Path:
    """The folder of a model, with its digests checked."""
    folder = _from_registry(model, tracking_uri) if model.startswith("models:/") else Path(model)
    if not folder.is_dir():
        raise UserError(
            f"there is no model folder {model!r}; give a bundle, a checkpoint, a folder with "
            "options.json and one .hdf5, or models:/NAME@ALIAS"
        )
    from elmwright.jobs.bundle import SUMS, verify_bundle
    from elmwright.jobs.checkpoint import MANIFEST, verify_checkpoint

    if (folder / SUMS).is_file():
        verify_bundle(folder)
    elif (folder / MANIFEST).is_file() and (folder / "state.json").is_file():
        verify_checkpoint(folder)
    return folder


def _from_registry(uri: str, tracking_uri: str) -> Path:
    """Download a registered version (a local artifact is used where it lies)."""
    tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not tracking_uri:
        raise UserError(
            f"{uri} is looked up in MLflow; set MLFLOW_TRACKING_URI, for example "
            "sqlite:///runs/demo/mlflow/mlflow.db"
        )
    database = tracking_uri.removeprefix("sqlite:///")
    if database != tracking_uri and not Path(database).is_file():
        raise UserError(f"there is no MLflow database {database} (MLFLOW_TRACKING_URI)")
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    mlflow.set_tracking_uri(tracking_uri)
    try:
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=uri))
    except (MlflowException, SQLAlchemyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{uri} cannot be loaded from {tracking_uri}: {reason}") from error
