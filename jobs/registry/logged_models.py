"""The files of published bundles in MLflow: logged models.

A logged model is a folder with MLmodel, which names `elmwright.jobs.serving` as its loader, and
`data/`, which is the bundle. No pickle, no code. It belongs to the run that made the bundle, where
MLflow still has that run.

A logged model that has become a version is marked, and its files are never removed here, even if
MLflow has deleted the version: copies of it under other names use the same files. Unmarked ones
were left by a publish that was killed, or that came second.
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
from elmwright.jobs.registry.mlflow_signature import LOADER, example, signature
from elmwright.jobs.rundir.metrics import Regime, perplexity_metric
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
"""The experiment of bundles whose run this MLflow does not have."""
DATA = "data"
"""The bundle's folder inside the logged model."""
TESTED_MLFLOW = "3.17"
"""The MLflow whose private function writes the example of a request."""
OLD_MS = 86_400_000
"""Age in milliseconds at which an unfinished publish on a server has certainly ended."""

Versions = Callable[[], list[Any]]
"""The versions of a registered model, as they are now."""


class LoggedModels:
    """The logged models of an MLflow server or database."""

    def __init__(self, client: Any, uri: str) -> None:
        self._client, self._uri = client, uri

    def begin(self, name: str, about: About) -> Any:
        """A logged model without files."""
        _example_writer()  # refuse an unknown MLflow before anything is written there
        run_id, experiment_id = self._home(about)
        return self._client.create_logged_model(
            experiment_id,
            name=f"{name}-{about.digest[:12]}".replace(".", "-"),
            source_run_id=run_id or None,
            tags={NAME: name, DIGEST: about.digest},
            params={"step": str(about.step), "corpus": about.corpus_fingerprint},
            model_type=KIND,
        )

    def upload(self, bundle: Path, model: Any, about: About) -> Any:
        """The logged model with the bundle's files, read back."""
        run_id = model.source_run_id or ""
        with tempfile.TemporaryDirectory() as folder:
            _write_mlmodel(Path(folder), bundle, model.model_id, run_id, about.digest)
            self._client.log_model_artifacts(model.model_id, folder)
        self._client.log_model_artifacts(model.model_id, str(bundle), DATA)
        if digest(self.download(f"{model.artifact_location}/{DATA}")) != about.digest:
            raise Failed("MLflow stored something other than the bundle; publish again")
        scores, states = about.shown_perplexity
        for split, value in scores.items() if run_id else ():
            name, time_ms = self._point(run_id, split, about.step, states)
            self._client.log_metric(
                run_id, name, value, timestamp=time_ms, step=about.step, model_id=model.model_id
            )
        return self._client.finalize_logged_model(model.model_id, "READY")

    def _point(self, run_id: str, split: str, step: int, states: Regime) -> tuple[str, int | None]:
        """Name and time of this score in the run's curve, so that no second chart is drawn."""
        usual = heldout_metric(split, states)
        for name in (usual, perplexity_metric(states).of(split)):
            for point in self._client.get_metric_history(run_id, name):
                if point.step == step:
                    return name, point.timestamp
        return usual, None

    def _home(self, about: About) -> tuple[str, str]:
        """The run and the experiment of a bundle; no run if this MLflow does not have it."""
        from mlflow.exceptions import MlflowException

        if about.run_id:
            try:
                run = self._client.get_run(about.run_id)
                home = self._client.get_experiment(run.info.experiment_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                # MLflow logs nothing to a deleted run or experiment.
                if (run.info.lifecycle_stage, home.lifecycle_stage) == ("active", "active"):
                    return about.run_id, run.info.experiment_id
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

        parsed = urlparse(source)
        if parsed.scheme in ("", "file"):
            folder = Path(url2pathname(parsed.path))
            verify_bundle(folder)
            return folder

        def fetch(artifact: str, target: str) -> Path:
            return Path(
                mlflow.artifacts.download_artifacts(
                    artifact_uri=artifact, dst_path=target, tracking_uri=self._uri
                )
            )

        def fill(target: Path) -> None:
            with tempfile.TemporaryDirectory(dir=target.parent) as beside:
                for file in fetch(source, beside).iterdir():
                    shutil.move(file, target / file.name)

        with tempfile.TemporaryDirectory() as beside:
            sums = fetch(f"{source}/{SUMS}", beside).read_bytes()
        return cached(sha256_bytes(sums), fill)

    def sweep(self, name: str, about: About, alone: bool, versions: Versions) -> None:
        """Remove logged models that did not become a version.

        Those of this bundle are not needed by any command. Of the others only those that no
        command can be writing.
        """
        _, experiment_id = self._home(about)
        models = all_pages(
            self._client.search_logged_models,
            experiment_ids=[experiment_id],
            filter_string=f"tags.`{NAME}` = '{name}'",
        )
        # Looked up last: a model may have become a version meanwhile.
        published = {logged_model(version): version for version in versions()}
        for model in models:
            is_this_bundle = model.tags.get(DIGEST) == about.digest
            is_old = model.creation_timestamp < time.time() * 1000 - OLD_MS
            if VERSION in model.tags:
                continue
            if model.model_id in published:
                if not is_this_bundle:  # its publish was killed before it was marked
                    self.keep(published[model.model_id])
            elif is_this_bundle or alone or is_old:
                remove_logged_model(self._client, self._uri, model)

    def keep(self, version: Any) -> None:
        """Mark the logged model of a version, so that its files stay if the version is deleted."""
        model_id = logged_model(version)
        if model_id:
            tag = {VERSION: f"{version.name}/{version.version}"}
            twice(lambda: self._client.set_logged_model_tags(model_id, tag))


def logged_model(version: Any) -> str:
    """The id of a version's logged model; empty for a copy of another version."""
    source = str(version.source).removeprefix("models:/")
    return "" if "/" in source else source


def twice(write: Callable[[], object]) -> None:
    """Write again after an error: of two commands that create one row at once, the database refuses
    the second, and then the row exists."""
    from mlflow.exceptions import MlflowException

    retry(write, [0.5], lambda error: isinstance(error, MlflowException))


def all_pages(search: Any, **conditions: Any) -> list[Any]:
    page = search(**conditions)
    results = list(page)
    while page.token:
        page = search(**conditions, page_token=page.token)
        results += page
    return results


def _write_mlmodel(folder: Path, bundle: Path, model_id: str, run_id: str, digest: str) -> None:
    """Write what MLflow needs to load and serve the bundle, with an example of a request."""
    from mlflow.models import Model
    from mlflow.pyfunc import add_to_model

    model = Model(
        run_id=run_id or None, model_id=model_id, signature=signature(), metadata={DIGEST: digest}
    )
    add_to_model(model, loader_module=LOADER, data=DATA)
    _example_writer()(model, example(bundle), str(folder))
    model.save(str(folder / "MLmodel"))


def _example_writer() -> Callable[[Any, Any, str], Any]:
    """MLflow's function that saves an example of a request. It is private, because the public ones
    also write code, or the bundle a second time."""
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
