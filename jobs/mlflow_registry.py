"""Bundles as versions of an MLflow registered model.

A bundle is stored as a logged model of MLflow (the run that made it stays linked): a folder with
MLmodel, which names `elmwright.jobs.serving` as its loader, and `data/`, which is the bundle. No
pickle, no code. The version is created last, after what was stored has been read back, so every
version that MLflow lists is whole; its digest stands on it as a tag and is compared at every load.

One bundle is one version, keyed on its digest. With a SQLite file a lock beside it lets one publish
at a time. On a server two may run at once: each creates its version last and then looks; the lowest
number wins, and the other version is removed. What a killed publish left behind is removed by the
next; files that a version has had are never removed, even if MLflow has deleted that version, for
copies of it under other names use the same files.

MLflow moves aliases and forgets where they were: the history is a tag of the registered model. A
move starts from what is there: with a SQLite file under the lock; a server knows no lock, and two
moves of one alias within the same moment may leave one of them out of the history.
"""

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from elmwright.jobs.bundle import SUMS, digest, verify_bundle
from elmwright.jobs.models import cached
from elmwright.jobs.provenance import without_password
from elmwright.jobs.registry import Change, Version, about, check_about
from elmwright.jobs.tracking import connect
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage import sha256_bytes

ABOUT = "elmwright.about"
"""Tag of a version: what its bundle says about itself, as JSON."""
NAME, DIGEST = "elmwright.name", "elmwright.digest"
"""Tags of a logged model: the registered model it is for, and its bundle's digest."""
VERSION = "elmwright.version"
"""Tag of a logged model: the version that it has become."""
HISTORY = "elmwright.history."
"""Tag of a registered model, with an alias behind: the versions it has pointed to, as JSON."""
KIND = "elmwright-bundle"
"""The type of our logged models."""
EXPERIMENT = "elmwright"
"""Where a bundle is logged whose run this MLflow does not know."""
DATA = "data"
"""The bundle's folder inside the logged model."""
OLD_MS = 86_400_000
"""Age of an unfinished publish on a server that nobody can still be at, in milliseconds."""


class MlflowRegistry:
    """The registered models of an MLflow server or database."""

    def __init__(self, uri: str) -> None:
        self.uri = without_password(uri)
        self._uri = uri
        self._connected: Any = None
        # By default MLflow tries for two minutes before it says that nobody answers.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")

    @property
    def _client(self) -> Any:
        if self._connected is None:
            database = self._database()
            if database is not None and not database.is_file():
                # MLflow would create it, and say that it knows no such model.
                raise UserError(f"there is no MLflow database {database}; check the path")
            self._connected = connect(self._uri)
        return self._connected

    def publish(self, bundle: Path, name: str) -> int:
        """Store the files, read them back, and create the version last."""
        verify_bundle(bundle)
        facts = about(bundle)
        with self._answering(f"publish; {bundle} is safe"), self._alone() as alone:
            self._connected = self._connected or connect(self._uri)  # which may create a database
            self._create_name(name)
            number = self._settle(name, facts["digest"])
            if number is None:
                number = self._create(bundle, name, facts)
            self._keep(self._client.get_model_version(name, str(number)))
            self._sweep(name, facts, alone)
        return number

    def versions(self, name: str) -> list[Version]:
        """Those that were published from here; others have no bundle."""
        with self._answering("list versions"):
            found = self._versions(name)
            aliases = self._aliases(name) if found else {}
        versions = []
        for version in found:
            number = int(version.version)
            if ABOUT in version.tags:
                created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
                at = tuple(sorted(alias for alias, n in aliases.items() if n == number))
                versions.append(
                    Version(number, f"{created:%Y-%m-%d %H:%M:%S}", _about(version), at)
                )
        return sorted(versions, key=lambda version: version.version)

    def history(self, name: str, alias: str) -> list[int]:
        """As remembered, and corrected by where the alias points: others may have moved it."""
        with self._answering("read aliases"):
            return self._history(name, alias)

    def _history(self, name: str, alias: str) -> list[int]:
        model = self._client.get_registered_model(name)
        holder = {key: int(value) for key, value in model.aliases.items()}.get(alias)
        saved = model.tags.get(f"{HISTORY}{alias}")
        history = _numbers(saved) if saved else []
        if holder is None:
            return []
        if holder not in history:
            return [*history, holder]
        return history[: len(history) - history[::-1].index(holder)]

    def point(self, name: str, alias: str, change: Change) -> None:
        """Remember first, then move: a kill in between only leaves an entry too many."""

        def move() -> None:
            self._client.set_registered_model_tag(name, f"{HISTORY}{alias}", json.dumps(history))
            self._client.set_registered_model_alias(name, alias, str(history[-1]))

        with self._answering("move an alias"), self._alone():
            history = change(self._history(name, alias))
            _twice(move)

    def fetch(self, name: str, version: int) -> Path:
        """Where it lies, if that is on this disk; else a copy."""
        with self._answering(f"fetch version {version} of {name}"):
            found = self._client.get_model_version(name, str(version))
            source = self._client.get_model_version_download_uri(name, str(version))
            if ABOUT not in found.tags:
                raise UserError(f"version {version} of {name} was not published by elmwright")
            folder = self._download(f"{source}/{DATA}")
        if digest(folder) != _about(found)["digest"]:
            raise UserError(
                f"{source} is not the model that was published as version {version} of {name}; "
                "do not trust it"
            )
        return folder

    def _download(self, source: str) -> Path:
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

    def _create(self, bundle: Path, name: str, facts: dict[str, Any]) -> int:
        model = self._begin(name, facts)
        try:
            self._create_version(name, self._upload(bundle, model, facts), facts)
        except Exception:
            # Another publish of this bundle may have finished and swept ours away half-way; what
            # we have sent since then is ours to remove.
            number = self._settle(name, facts["digest"])
            if number is None:
                raise
            self._remove(model)
            return number
        number = self._settle(name, facts["digest"])
        if number is None:
            raise Failed(f"version of {name} vanished after it was created; publish again")
        return number

    def _begin(self, name: str, facts: dict[str, Any]) -> Any:
        """A logged model without files."""
        run_id, experiment_id = self._home(facts)
        key = facts["digest"]
        return self._client.create_logged_model(
            experiment_id,
            name=f"{name}-{key[:12]}".replace(".", "-"),
            source_run_id=run_id or None,
            tags={NAME: name, DIGEST: key},
            params={"step": str(facts["step"]), "corpus": facts["corpus_fingerprint"]},
            model_type=KIND,
        )

    def _upload(self, bundle: Path, model: Any, facts: dict[str, Any]) -> Any:
        """The logged model with the bundle's files, read back."""
        run_id, key = model.source_run_id or "", facts["digest"]
        with tempfile.TemporaryDirectory() as beside:
            _write_mlmodel(Path(beside) / "MLmodel", model.model_id, run_id, key)
            self._client.log_model_artifacts(model.model_id, beside)
        self._client.log_model_artifacts(model.model_id, str(bundle), DATA)
        if digest(self._download(f"{model.artifact_location}/{DATA}")) != key:
            raise Failed("MLflow stored something else than the bundle; publish again")
        for split, value in facts["perplexity"].items() if run_id else ():
            self._client.log_metric(
                run_id,
                f"bundle/{split}_perplexity",
                value,
                step=facts["step"],
                model_id=model.model_id,
            )
        return self._client.finalize_logged_model(model.model_id, "READY")

    def _create_version(self, name: str, model: Any, facts: dict[str, Any]) -> None:
        tags = {ABOUT: json.dumps(facts), "elmwright.step": str(facts["step"])}
        tags |= {f"{split}_perplexity": f"{v:.4f}" for split, v in facts["perplexity"].items()}
        with _default_uri(self._uri):
            self._client.create_model_version(
                name,
                f"models:/{model.model_id}",
                run_id=model.source_run_id,
                tags=tags,
                await_creation_for=0,
                model_id=model.model_id,
            )

    def _home(self, facts: dict[str, Any]) -> tuple[str, str]:
        """The run and the experiment a bundle belongs to, as far as this MLflow knows them."""
        from mlflow.exceptions import MlflowException

        if facts["run_id"]:
            try:
                run = self._client.get_run(facts["run_id"])
                home = self._client.get_experiment(run.info.experiment_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                # What was deleted takes nothing in any more.
                if (run.info.lifecycle_stage, home.lifecycle_stage) == ("active", "active"):
                    return facts["run_id"], run.info.experiment_id
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None and experiment.lifecycle_stage != "active":
            number = experiment.experiment_id
            raise UserError(
                f"the experiment {EXPERIMENT!r}, in which bundles without a run are kept, was "
                f"deleted in MLflow; mlflow experiments restore --experiment-id {number}"
            )
        if experiment is not None:
            return "", experiment.experiment_id
        database = self._database()
        place = (database.parent / "artifacts").as_uri() if database else None
        return "", self._client.create_experiment(EXPERIMENT, artifact_location=place)

    def _settle(self, name: str, key: str) -> int | None:
        """The version of a bundle, if there is one; of several, the first stays."""
        from mlflow.exceptions import MlflowException

        numbers = sorted(
            int(version.version)
            for version in self._versions(name)
            if ABOUT in version.tags and _about(version)["digest"] == key
        )
        for number in numbers[1:]:
            try:
                self._client.delete_model_version(name, str(number))
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        return numbers[0] if numbers else None

    def _sweep(self, name: str, facts: dict[str, Any], alone: bool) -> None:
        """Remove logged models that became no version.

        Those of this bundle are no longer needed, whoever is at them. Of others only those that
        nobody can be at.
        """
        _, experiment_id = self._home(facts)
        models = _all_pages(
            self._client.search_logged_models,
            experiment_ids=[experiment_id],
            filter_string=f"tags.`{NAME}` = '{name}'",
        )
        # Looked up last: what has become a version meanwhile is one.
        versions = {_logged_model(version): version for version in self._versions(name)}
        for model in models:
            mine = model.tags.get(DIGEST) == facts["digest"]
            old = model.creation_timestamp < time.time() * 1000 - OLD_MS
            if VERSION in model.tags:
                continue
            if model.model_id in versions:
                if not mine:  # its publish was killed before it could do so
                    self._keep(versions[model.model_id])
            elif mine or alone or old:
                self._remove(model)

    def _remove(self, model: Any) -> None:
        """A logged model and its files.

        In this order nobody can make a version of a model whose files are going; should this be
        killed in between, `mlflow gc` knows the files.
        """
        from mlflow.exceptions import MlflowException
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        try:
            self._client.delete_logged_model(model.model_id)
        except MlflowException as error:  # another publish may be removing it, too
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        place = get_artifact_repository(model.artifact_location, tracking_uri=self._uri)
        place.delete_artifacts()

    def _keep(self, version: Any) -> None:
        """Remember at a version's files that they have been one, whatever becomes of it."""
        model_id = _logged_model(version)
        if model_id:
            tag = {VERSION: f"{version.name}/{version.version}"}
            _twice(lambda: self._client.set_logged_model_tags(model_id, tag))

    def _versions(self, name: str) -> list[Any]:
        return _all_pages(self._client.search_model_versions, filter_string=f"name = '{name}'")

    def _aliases(self, name: str) -> dict[str, int]:
        found = self._client.get_registered_model(name).aliases
        return {alias: int(version) for alias, version in found.items()}

    def _create_name(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _database(self) -> Path | None:
        """The SQLite file, if that is what MLflow is here."""
        if not self._uri.startswith("sqlite:///"):
            return None
        return Path(self._uri.removeprefix("sqlite:///").partition("?")[0]).absolute()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """With a SQLite file: wait until no other publish is at it, or creates its tables."""
        database = self._database()
        if database is None:
            yield False
            return
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = database.with_name(f".{database.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield True
        finally:
            os.close(descriptor)

    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Say in a sentence that MLflow does not answer, or why it refuses."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        # OSError: of the network (requests' errors are some), of a folder with artifacts.
        except (MlflowException, SQLAlchemyError, OSError, *_errors_of_s3()) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"MLflow at {self.uri} did not let us {what} ({reason}); "
                "run the same command again when it answers"
            ) from error


def _about(version: Any) -> dict[str, Any]:
    try:
        facts = dict(json.loads(version.tags[ABOUT]))
        check_about(facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the tag {ABOUT} of version {version.version} of {version.name} was changed "
            f"({error!r:.100}); delete that version in MLflow and publish again"
        ) from error
    return facts


def _logged_model(version: Any) -> str:
    """Its id; empty for a copy of another version, which names that one."""
    source = str(version.source).removeprefix("models:/")
    return "" if "/" in source else source


def _numbers(saved: str) -> list[int]:
    """The history in a tag, which anybody may have changed: it is a help, not a truth."""
    try:
        return [int(number) for number in json.loads(saved)]
    except (ValueError, TypeError, RecursionError):
        return []


def _twice(write: Callable[[], object]) -> None:
    """Of two that create one row at once the database refuses the slower; then it exists."""
    from mlflow.exceptions import MlflowException

    try:
        write()
    except MlflowException:
        time.sleep(0.5)
        write()


def _all_pages(search: Any, **what: Any) -> list[Any]:
    found, token = [], None
    while True:
        page = search(**what, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _write_mlmodel(path: Path, model_id: str, run_id: str, key: str) -> None:
    """What MLflow needs to load and serve the bundle beside it."""
    from mlflow.models import Model
    from mlflow.pyfunc import add_to_model

    from elmwright.jobs.serving import LOADER, signature

    model = Model(
        run_id=run_id or None, model_id=model_id, signature=signature(), metadata={DIGEST: key}
    )
    add_to_model(model, loader_module=LOADER, data=DATA)
    model.save(str(path))


def _local_path(source: str) -> Path | None:
    parsed = urlparse(source)
    if parsed.scheme not in ("", "file"):
        return None
    return Path(url2pathname(parsed.path))


def _errors_of_s3() -> tuple[type[Exception], ...]:
    """Raised where MLflow speaks to an S3 store itself; boto3 need not be installed."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ()
    return Boto3Error, BotoCoreError, ClientError


@contextmanager
def _default_uri(uri: str) -> Iterator[None]:
    """MLflow's own code looks up a logged model where the process's default says.

    Changing that default also changes the environment, which is the user's.
    """
    from mlflow.tracking._tracking_service.utils import _use_tracking_uri

    before = os.environ.get("MLFLOW_TRACKING_URI")
    try:
        with _use_tracking_uri(uri):
            yield
    finally:
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before
