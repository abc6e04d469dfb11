"""Bundles as versions of an MLflow registered model.

A bundle is stored as a logged model of MLflow (logged_models.py). The version is created last,
after the stored files have been read back, so every version that MLflow lists is complete. A tag of
the version has the digest of its bundle, which is compared at every load.

One bundle is one version, identified by its digest. With a SQLite file a lock beside it admits one
publish at a time. On a server two may run at once: each creates its version last and then lists
them. The lowest number stays, and the other version is removed. The next publish removes what a
killed one left.

MLflow does not remember where an alias has pointed. The history is in tags of the registered model,
one per move (alias_history.py), so two simultaneous moves are both in it, even on a server, which
has no locks.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elmwright.jobs.registry import version_page
from elmwright.jobs.registry.alias_history import History, Move, tag_name
from elmwright.jobs.registry.contract import About, Change, Version, aliases_at, check_fetched
from elmwright.jobs.registry.logged_models import DATA, LoggedModels, all_pages, logged_model, twice
from elmwright.jobs.rundir.file_lock import waiting_lock
from elmwright.jobs.rundir.moved_run import correct_database, lock_of
from elmwright.jobs.secrets.hiding import for_others, without_secret
from elmwright.jobs.tracking.store import connect, default_uri, remove_logged_model, sqlite_file
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import from_data, to_data

ABOUT = "mlflow.elmwright.about"
"""Tag of a version: the facts of its bundle as JSON. MLflow's pages hide tags that begin with its
own name. People read other tags (version_page.py)."""
OLD_ABOUT = "elmwright.about"
"""The same tag on early versions."""
READS = 10
"""How many times a history is read again if it may have changed while it was read."""


class MlflowRegistry:
    """The registered models of an MLflow server or database."""

    def __init__(self, uri: str) -> None:
        self.uri = without_secret(uri)
        self._uri = uri
        self._connected: Any = None
        # By default MLflow tries for two minutes before it reports that no server answers.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")

    @property
    def _client(self) -> Any:
        if self._connected is None:
            database = sqlite_file(self._uri)
            if database is not None:
                if not database.is_file():
                    # MLflow would create it, and report that it has no such model.
                    raise UserError(
                        "tracking-server", f"there is no MLflow database {database}; check the path"
                    )
                correct_database(database)
            self._connected = connect(self._uri)
        return self._connected

    @property
    def _models(self) -> LoggedModels:
        return LoggedModels(self._client, self._uri)

    def publish(self, bundle: Path, about: About, name: str) -> int:
        """Store the files, read them back, create the version last, and return its number."""
        with self._answering("publish", f"{bundle} is safe: "), self._alone() as alone:
            # Unlike `_client`, this may create the database.
            self._connected = self._connected or connect(self._uri)
            self._register_name(name)
            number = self._settle(name, about.digest)
            if number is None:
                number = self._create(bundle, about, name)
            self._models.keep(self._client.get_model_version(name, str(number)))
            self._models.sweep(name, about, alone, lambda: self._versions(name))
        return number

    def versions(self, name: str) -> list[Version]:
        """The versions that elmwright published; others have no bundle."""
        with self._answering("list versions"):
            stored = self._versions(name)
            aliases = self._client.get_registered_model(name).aliases if stored else {}
        holders = {alias: int(version) for alias, version in aliases.items()}
        versions = []
        for version in filter(_is_ours, stored):
            number = int(version.version)
            created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
            versions.append(
                Version(
                    number,
                    f"{created:%Y-%m-%d %H:%M:%S}",
                    _about(version),
                    aliases_at(number, holders),
                )
            )
        return sorted(versions, key=lambda version: version.version)

    def history(self, name: str, alias: str) -> list[int]:
        """The versions by the noted moves, and by where the alias points if others moved it."""
        with self._answering("read aliases"):
            return [entry.version for entry in self._history(name, alias).entries]

    def _history(self, name: str, alias: str) -> History:
        """The history of an alias. If it has moves that were not noted, it is read again until two
        answers agree: MLflow reads alias and tags one after the other, and a move may happen in
        between."""
        history = self._read_history(name, alias)
        for _ in range(READS):
            if not history.unnoted():
                break
            before, history = history, self._read_history(name, alias)
            if history == before:
                break
        return history

    def _read_history(self, name: str, alias: str) -> History:
        model = self._client.get_registered_model(name)
        holder = model.aliases.get(alias)
        return History.read(model.tags, alias, int(holder) if holder else None)

    def point(self, name: str, alias: str, change: Change) -> None:
        """Note the move, make it, and note that it is done."""

        def note(move: Move) -> None:
            tag = tag_name(alias, move.key)
            twice(lambda: self._client.set_registered_model_tag(name, tag, move.value))

        with self._answering("move an alias"):
            _ = self._client  # connecting may take the lock of `_alone`
        with self._answering("move an alias"), self._alone():
            history = self._history(name, alias)
            before = [entry.version for entry in history.entries]
            after = change(before)
            if after == before:
                return
            for move in history.unnoted():
                note(move)
            move = history.with_unnoted().plan_move(after)
            note(move)
            twice(lambda: self._client.set_registered_model_alias(name, alias, str(move.to)))
            note(replace(move, done=True))
            self._tidy(name, alias)

    def _tidy(self, name: str, alias: str) -> None:
        """Remove tags of moves that no longer matter."""
        from mlflow.exceptions import MlflowException

        for key in self._read_history(name, alias).unneeded():
            with suppress(MlflowException):  # another command removes it, or the next one will
                self._client.delete_registered_model_tag(name, tag_name(alias, key))

    def fetch(self, name: str, version: int) -> Path:
        """The folder in which MLflow stores the bundle, if that is on this disk; else a copy."""
        with self._answering(f"fetch version {version} of {name}"):
            stored = self._client.get_model_version(name, str(version))
            source = self._client.get_model_version_download_uri(name, str(version))
            if not _is_ours(stored):
                raise UserError(
                    "version-missing", f"version {version} of {name} was not published by elmwright"
                )
            folder = self._models.download(f"{source}/{DATA}")
        return check_fetched(folder, _about(stored), name, version, source)

    def _create(self, bundle: Path, about: About, name: str) -> int:
        model = self._models.begin(name, about)
        try:
            self._create_version(name, self._models.upload(bundle, model, about), about, bundle)
        except Exception:
            # Another publish of this bundle may have finished and removed our logged model
            # meanwhile. Files that we sent after that are ours to remove.
            number = self._settle(name, about.digest)
            if number is None:
                raise
            if logged_model(self._client.get_model_version(name, str(number))) != model.model_id:
                remove_logged_model(self._client, self._uri, model)
            return number
        number = self._settle(name, about.digest)
        if number is None:
            raise Failed(f"the version of {name} vanished after it was created; publish again")
        return number

    def _create_version(self, name: str, model: Any, about: About, bundle: Path) -> None:
        tags = {ABOUT: json.dumps(to_data(about)), **version_page.facts(bundle, about)}
        with default_uri(self._uri):
            self._client.create_model_version(
                name,
                f"models:/{model.model_id}",
                run_id=model.source_run_id,
                tags=tags,
                description=version_page.description(bundle),
                await_creation_for=0,
                model_id=model.model_id,
            )

    def _settle(self, name: str, digest: str) -> int | None:
        """The version of a bundle, if there is one; all but the first are deleted."""
        from mlflow.exceptions import MlflowException

        numbers = sorted(
            int(version.version)
            for version in self._versions(name)
            if _is_ours(version) and _about(version).digest == digest
        )
        for number in numbers[1:]:
            try:
                self._client.delete_model_version(name, str(number))
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        return numbers[0] if numbers else None

    def _versions(self, name: str) -> list[Any]:
        return all_pages(self._client.search_model_versions, filter_string=f"name = '{name}'")

    def _register_name(self, name: str) -> None:
        """Create the registered model, unless it exists."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Wait for other publishes to end and keep new ones out, which only a SQLite file allows.
        Yields whether it does."""
        database = sqlite_file(self._uri)
        if database is None:
            yield False
            return
        correct_database(database)  # which takes the same lock
        with waiting_lock(lock_of(database)):
            yield True

    @contextmanager
    def _answering(self, what: str, comfort: str = "") -> Iterator[None]:
        """Report in a sentence that MLflow does not answer, or why it refuses. `comfort` says what
        is not lost."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        # OSError: of the network (errors of requests included), of a folder with artifacts.
        except (MlflowException, SQLAlchemyError, OSError, *_errors_of_s3()) as error:
            reason = for_others(" ".join(str(error).split()))[:300]
            raise UserError(
                "tracking-server",
                f"MLflow at {self.uri} did not let us {what} ({reason}); "
                f"{comfort}run the same command again when it answers",
            ) from error


def _is_ours(version: Any) -> bool:
    return ABOUT in version.tags or OLD_ABOUT in version.tags


def _about(version: Any) -> About:
    tag = ABOUT if ABOUT in version.tags else OLD_ABOUT
    try:
        return from_data(About, json.loads(version.tags[tag]), ignore_unknown=True, finite=False)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "tracking-server",
            f"the tag {tag} of version {version.version} of {version.name} was changed "
            f"({error!r:.100}); delete that version in MLflow and publish again",
        ) from error


def _errors_of_s3() -> tuple[type[Exception], ...]:
    """Errors of boto3, with which MLflow uses an S3 store; none if boto3 is not installed."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ()
    return Boto3Error, BotoCoreError, ClientError
