"""The files of published bundles in MLflow: logged models.

A logged model is a folder with MLmodel, which names `elmwright.jobs.serving` as its loader, and
`data/`, which is the bundle. No pickle, no code. It belongs to the run that made the bundle, where
MLflow still has that run.

One that has become a version is marked, and its files are never removed by us, even if MLflow has
deleted the version: copies of it under other names use the same files. Others are what publishes
left that were killed, or came second.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from elmwright.jobs.bundles.bundle import SUMS, digest, verify_bundle
from elmwright.jobs.bundles.model_folder import cached
from elmwright.jobs.registry.contract import About
from elmwright.jobs.registry.mlflow_signature import EXAMPLE, LOADER, signature
from elmwright.jobs.rundir.metrics import PERPLEXITY
from elmwright.jobs.tracking.metric_names import heldout_metric
from elmwright.jobs.tracking.store import artifact_folder, remove_logged_model
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.retry import retry

NAME, DIGEST = "elmwright.name", "elmwright.digest"
"""Tags of a logged model: the registered model it is for, and its bundle's digest."""
VERSION = "elmwright.version"
"""Tag of a logged model: the version that it has become."""
KIND = "elmwright-bundle"
"""The type of our logged models."""
EXPERIMENT = "elmwright"
"""Where a bundle is logged whose run this MLflow does not know."""
DATA = "data"
"""The bundle's folder inside the logged model."""
TESTED_MLFLOW = "3.17"
"""The MLflow whose private function writes the example of a request."""
OLD_MS = 86_400_000
"""Age of an unfinished publish on a server that nobody can still be at, in milliseconds."""

Versions = Callable[[], list[Any]]
"""The versions of a registered model, as they are now."""


class LoggedModels:
    """The logged models of an MLflow server or database."""

    def __init__(self, client: Any, uri: str) -> None:
        self._client, self._uri = client, uri

    def begin(self, name: str, facts: About) -> Any:
        """A logged model without files."""
        _example_writer()  # refuse an unknown MLflow before anything is written there
        run_id, experiment_id = self.home(facts)
        key = facts.digest
        return self._client.create_logged_model(
            experiment_id,
            name=f"{name}-{key[:12]}".replace(".", "-"),
            source_run_id=run_id or None,
            tags={NAME: name, DIGEST: key},
            params={"step": str(facts.step), "corpus": facts.corpus_fingerprint},
            model_type=KIND,
        )

    def upload(self, bundle: Path, model: Any, facts: About) -> Any:
        """The logged model with the bundle's files, read back."""
        run_id, key = model.source_run_id or "", facts.digest
        with tempfile.TemporaryDirectory() as beside:
            _write_mlmodel(Path(beside), model.model_id, run_id, key)
            self._client.log_model_artifacts(model.model_id, beside)
        self._client.log_model_artifacts(model.model_id, str(bundle), DATA)
        if digest(self.download(f"{model.artifact_location}/{DATA}")) != key:
            raise Failed("MLflow stored something else than the bundle; publish again")
        for split, value in facts.perplexity.items() if run_id else ():
            name, at = self._point(run_id, split, facts.step)
            self._client.log_metric(
                run_id, name, value, timestamp=at, step=facts.step, model_id=model.model_id
            )
        return self._client.finalize_logged_model(model.model_id, "READY")

    def _point(self, run_id: str, split: str, step: int) -> tuple[str, int | None]:
        """The point of the run's curve that is this score, so that no second chart is drawn."""
        for name in (heldout_metric(split), PERPLEXITY.of(split)):
            for point in self._client.get_metric_history(run_id, name):
                if point.step == step:
                    return name, point.timestamp
        return heldout_metric(split), None

    def home(self, facts: About) -> tuple[str, str]:
        """The run and the experiment a bundle belongs to, as far as this MLflow knows them."""
        from mlflow.exceptions import MlflowException

        if facts.run_id:
            try:
                run = self._client.get_run(facts.run_id)
                home = self._client.get_experiment(run.info.experiment_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                # What was deleted takes nothing in any more.
                if (run.info.lifecycle_stage, home.lifecycle_stage) == ("active", "active"):
                    return facts.run_id, run.info.experiment_id
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None and experiment.lifecycle_stage != "active":
            number = experiment.experiment_id
            raise UserError(
                "tracking-server",
                f"the experiment {EXPERIMENT!r}, in which bundles without a run are kept, was "
                f"deleted in MLflow; mlflow experiments restore --experiment-id {number}",
            )
        if experiment is not None:
            return "", experiment.experiment_id
        place = artifact_folder(self._uri)
        return "", self._client.create_experiment(EXPERIMENT, artifact_location=place)

    def download(self, source: str) -> Path:
        """The verified folder of a bundle in MLflow's artifact store."""
        import mlflow

        here = _local_path(source)
        if here is not None:
            verify_bundle(here)
            return here

        def fetch(what: str, target: Path) -> Path:
            options = {"artifact_uri": what, "dst_path": str(target), "tracking_uri": self._uri}
            return Path(mlflow.artifacts.download_artifacts(**options))

        def fill(target: Path) -> None:
            with tempfile.TemporaryDirectory(dir=target.parent) as beside:
                for file in fetch(source, Path(beside)).iterdir():
                    shutil.move(file, target / file.name)

        with tempfile.TemporaryDirectory() as beside:
            listed = fetch(f"{source}/{SUMS}", Path(beside)).read_bytes()
        return cached(sha256_bytes(listed), fill)

    def sweep(self, name: str, facts: About, alone: bool, versions: Versions) -> None:
        """Remove logged models that became no version.

        Those of this bundle are no longer needed, whoever is at them. Of others only those that
        nobody can be at.
        """
        _, experiment_id = self.home(facts)
        models = all_pages(
            self._client.search_logged_models,
            experiment_ids=[experiment_id],
            filter_string=f"tags.`{NAME}` = '{name}'",
        )
        # Looked up last: what has become a version meanwhile is one.
        become = {logged_model(version): version for version in versions()}
        for model in models:
            mine = model.tags.get(DIGEST) == facts.digest
            old = model.creation_timestamp < time.time() * 1000 - OLD_MS
            if VERSION in model.tags:
                continue
            if model.model_id in become:
                if not mine:  # its publish was killed before it could do so
                    self.keep(become[model.model_id])
            elif mine or alone or old:
                self.remove(model)

    def remove(self, model: Any) -> None:
        """A logged model and its files."""
        remove_logged_model(self._client, self._uri, model)

    def keep(self, version: Any) -> None:
        """Remember at a version's files that they have been one, whatever becomes of it."""
        model_id = logged_model(version)
        if model_id:
            tag = {VERSION: f"{version.name}/{version.version}"}
            twice(lambda: self._client.set_logged_model_tags(model_id, tag))


def logged_model(version: Any) -> str:
    """Its id; empty for a copy of another version, which names that one."""
    source = str(version.source).removeprefix("models:/")
    return "" if "/" in source else source


def twice(write: Callable[[], object]) -> None:
    """Of two that create one row at once the database refuses the slower; then it exists."""
    from mlflow.exceptions import MlflowException

    retry(write, [0.5], lambda error: isinstance(error, MlflowException))


def all_pages(search: Any, **what: Any) -> list[Any]:
    found, token = [], None
    while True:
        page = search(**what, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _write_mlmodel(folder: Path, model_id: str, run_id: str, key: str) -> None:
    """What MLflow needs to load and serve the bundle beside it, with an example of a request."""
    from mlflow.models import Model
    from mlflow.pyfunc import add_to_model

    model = Model(
        run_id=run_id or None, model_id=model_id, signature=signature(), metadata={DIGEST: key}
    )
    add_to_model(model, loader_module=LOADER, data=DATA)
    _example_writer()(model, EXAMPLE, str(folder))
    model.save(str(folder / "MLmodel"))


def _example_writer() -> Callable[[Any, Any, str], Any]:
    """MLflow's function that saves an example of a request; MLflow has no public one that writes
    neither code nor the bundle a second time."""
    import mlflow
    from mlflow.models import utils

    try:
        writer: Callable[[Any, Any, str], Any] = utils._save_example
    except AttributeError as error:
        raise UserError(
            "tracking-server",
            f"MLflow {mlflow.__version__} cannot store a bundle ({error}); install the version "
            f"that elmwright is tested with: pip install 'mlflow=={TESTED_MLFLOW}.*'",
        ) from error
    return writer


def _local_path(source: str) -> Path | None:
    parsed = urlparse(source)
    if parsed.scheme not in ("", "file"):
        return None
    return Path(url2pathname(parsed.path))
