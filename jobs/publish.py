"""A bundle becomes a version of a registered model; the alias moves to it.

The version is created last, after the artifacts have been stored and verified, so every version
that MLflow lists is whole. Publishing is keyed on the bundle's digest (without provenance): a model
never becomes a second version, however often the command is repeated or killed.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from elmwright.jobs.bundle import digest, verify_bundle
from elmwright.jobs.config import RunConfig
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.tracking import connect, read_run_id, tracking_uri
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import read_json, write_json

DIGEST_TAG = "elmwright.bundle_sha256"


def is_published(config: RunConfig, folder: RunFolder) -> bool:
    """Does published.json speak of this bundle, name, alias and registry?"""
    try:
        saved = read_json(folder.published) or {}
        return bool(
            saved["digest"] == digest(folder.bundle)
            and saved["name"] == config.export.name
            and saved["alias"] == config.export.alias
            and saved["uri"] == tracking_uri(config, folder)
        )
    except (OSError, KeyError, ValueError, UserError):
        return False


def publish(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Register the run's bundle and move the alias; what `published.json` then says."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    verify_bundle(folder.bundle)
    uri = tracking_uri(config, folder)
    try:
        version = _register(config, folder, connect(uri))
    except (MlflowException, SQLAlchemyError) as error:
        raise UserError(
            f"MLflow at {uri} refused the bundle ({str(error).splitlines()[0]}); it is safe in "
            f"{folder.bundle}: run the same command again when the registry answers"
        ) from error
    saved = {
        "name": config.export.name,
        "version": int(version),
        "alias": config.export.alias,
        "digest": digest(folder.bundle),
        "uri": uri,
    }
    write_json(folder.published, saved)
    return saved


def _register(config: RunConfig, folder: RunFolder, client: Any) -> str:
    name, key = config.export.name, digest(folder.bundle)
    run_id = read_run_id(folder)
    if not run_id:
        raise UserError(
            f"MLflow has no record of this run yet; check that tracking.uri answers, then run the "
            f"same command again (the bundle is safe in {folder.bundle})"
        )
    _create_name(client, name)
    for known in client.search_model_versions(f"name = '{name}'"):
        if known.tags.get(DIGEST_TAG) == key:
            client.set_registered_model_alias(name, config.export.alias, known.version)
            return str(known.version)
    place = f"bundle-{key[:12]}"
    client.log_artifacts(run_id, str(folder.bundle), place)
    source = f"{client.get_run(run_id).info.artifact_uri}/{place}"
    local = _local_path(source)
    if local is not None:
        verify_bundle(local)
    provenance = json.loads((folder.bundle / "provenance.json").read_text())
    tags = {
        DIGEST_TAG: key,
        "elmwright.checkpoint_step": str(provenance["checkpoint_step"]),
        "elmwright.corpus_fingerprint": provenance["corpus_fingerprint"],
    }
    evaluation = json.loads((folder.bundle / "config.json").read_text())["evaluation"]
    for split, score in evaluation.items():
        tags[f"{split}_perplexity"] = f"{score['perplexity']:.4f}"
    version = client.create_model_version(name, source, run_id=run_id, tags=tags)
    client.set_registered_model_alias(name, config.export.alias, version.version)
    return str(version.version)


def _create_name(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _local_path(source: str) -> Path | None:
    parsed = urlparse(source)
    if parsed.scheme not in ("", "file"):
        return None
    return Path(url2pathname(parsed.path))
