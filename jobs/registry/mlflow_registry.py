"""Bundles as versions of an MLflow registered model.

A bundle is stored as a logged model of MLflow (logged_models.py). The version is created last,
after what was stored has been read back, so every version that MLflow lists is whole; its digest
stands on it as a tag and is compared at every load.

One bundle is one version, keyed on its digest. With a SQLite file a lock beside it lets one publish
at a time. On a server two may run at once: each creates its version last and then looks; the lowest
number wins, and the other version is removed. What a killed publish left behind is removed by the
next.

MLflow moves aliases and forgets where they were: the history is kept in tags of the registered
model, one per move (alias_history.py). So two moves of one alias at the same instant are both in
the history, also on a server, which knows no lock.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle import digest, verify_bundle
from elmwright.jobs.registry import version_page
from elmwright.jobs.registry.alias_history import History, Move, tag_name
from elmwright.jobs.registry.contract import About, Change, Version, about
from elmwright.jobs.registry.logged_models import DATA, LoggedModels, all_pages, logged_model, twice
from elmwright.jobs.rundir.file_lock import waiting_lock
from elmwright.jobs.rundir.moved_run import at_home, lock_of
from elmwright.jobs.secrets.hiding import for_others, without_secret
from elmwright.jobs.tracking.store import connect, default_uri, sqlite_file
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import from_data, to_data

ABOUT = "mlflow.elmwright.about"
"""Tag of a version: what its bundle says about itself, as JSON. MLflow's pages do not show tags
that begin with its own name; what people read are tags of their own (version_page.py)."""
OLD_ABOUT = "elmwright.about"
"""The same on versions that were published before 0.2."""
READS = 10
"""How often a history that changes while it is read is read again."""


class MlflowRegistry:
    """The registered models of an MLflow server or database."""

    def __init__(self, uri: str) -> None:
        self.uri = without_secret(uri)
        self._uri = uri
        self._connected: Any = None
        self._at_home = False
        # By default MLflow tries for two minutes before it says that nobody answers.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")

    @property
    def _client(self) -> Any:
        if self._connected is None:
            database = sqlite_file(self._uri)
            if database is not None and not database.is_file():
                # MLflow would create it, and say that it knows no such model.
                raise UserError(
                    "tracking-server", f"there is no MLflow database {database}; check the path"
                )
            self._bring_home()
            self._connected = connect(self._uri)
        return self._connected

    def _bring_home(self) -> None:
        """A database in a folder that was moved is put right before it is read."""
        database = sqlite_file(self._uri)
        if database is not None and self._connected is None and not self._at_home:
            at_home(database)
            self._at_home = True

    @property
    def _models(self) -> LoggedModels:
        return LoggedModels(self._client, self._uri)

    def publish(self, bundle: Path, name: str) -> int:
        """Store the files, read them back, and create the version last."""
        verify_bundle(bundle)
        facts = about(bundle)
        with self._answering(f"publish; {bundle} is safe"), self._alone() as alone:
            self._connected = self._connected or connect(self._uri)  # which may create a database
            self._create_name(name)
            number = self._settle(name, facts.digest)
            if number is None:
                number = self._create(bundle, name, facts)
            self._models.keep(self._client.get_model_version(name, str(number)))
            self._models.sweep(name, facts, alone, lambda: self._versions(name))
        return number

    def versions(self, name: str) -> list[Version]:
        """Those that were published from here; others have no bundle."""
        with self._answering("list versions"):
            found = self._versions(name)
            aliases = self._aliases(name) if found else {}
        versions = []
        for version in found:
            number = int(version.version)
            if _is_ours(version):
                created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
                at = tuple(sorted(alias for alias, n in aliases.items() if n == number))
                versions.append(
                    Version(number, f"{created:%Y-%m-%d %H:%M:%S}", _about(version), at)
                )
        return sorted(versions, key=lambda version: version.version)

    def history(self, name: str, alias: str) -> list[int]:
        """As remembered, and corrected by where the alias points: others may have moved it."""
        with self._answering("read aliases"):
            return [entry.version for entry in self._history(name, alias).entries]

    def _history(self, name: str, alias: str) -> History:
        """Read until two answers agree, if the first one has something to explain: MLflow reads
        alias and tags one after the other, and a move may happen in between."""
        found = self._read_history(name, alias)
        for _ in range(READS):
            if not found.unsaid():
                break
            before, found = found, self._read_history(name, alias)
            if found == before:
                break
        return found

    def _read_history(self, name: str, alias: str) -> History:
        model = self._client.get_registered_model(name)
        holder = {key: int(value) for key, value in model.aliases.items()}.get(alias)
        return History.read(model.tags, alias, holder)

    def point(self, name: str, alias: str, change: Change) -> None:
        """Note the move, make it, and note that it is done."""

        def note(move: Move) -> None:
            tag = tag_name(alias, move.key)
            twice(lambda: self._client.set_registered_model_tag(name, tag, move.value))

        with self._answering("move an alias"), self._alone():
            history = self._history(name, alias)
            before = [entry.version for entry in history.entries]
            after = change(before)
            if after == before:
                return
            for unsaid in history.unsaid():
                note(unsaid)
            move = history.noted().move(after)
            note(move)
            twice(lambda: self._client.set_registered_model_alias(name, alias, str(move.to)))
            note(replace(move, done=True))
            self._tidy(name, alias)

    def _tidy(self, name: str, alias: str) -> None:
        """Remove tags of moves that are long forgotten."""
        from mlflow.exceptions import MlflowException

        for key in self._read_history(name, alias).unneeded():
            with suppress(MlflowException):  # another command removes it, or the next one will
                self._client.delete_registered_model_tag(name, tag_name(alias, key))

    def fetch(self, name: str, version: int) -> Path:
        """The folder that MLflow stores it in, if that is on this disk; else a copy."""
        with self._answering(f"fetch version {version} of {name}"):
            found = self._client.get_model_version(name, str(version))
            source = self._client.get_model_version_download_uri(name, str(version))
            if not _is_ours(found):
                raise UserError(
                    "version-missing", f"version {version} of {name} was not published by elmwright"
                )
            folder = self._models.download(f"{source}/{DATA}")
        if digest(folder) != _about(found).digest:
            raise UserError(
                "untrusted",
                f"{source} is not the model that was published as version {version} of {name}; "
                "do not trust it",
            )
        return folder

    def _create(self, bundle: Path, name: str, facts: About) -> int:
        model = self._models.begin(name, facts)
        try:
            self._create_version(name, self._models.upload(bundle, model, facts), facts, bundle)
        except Exception:
            # Another publish of this bundle may have finished and swept ours away half-way; what
            # we have sent since then is ours to remove.
            number = self._settle(name, facts.digest)
            if number is None:
                raise
            if logged_model(self._client.get_model_version(name, str(number))) != model.model_id:
                self._models.remove(model)
            return number
        number = self._settle(name, facts.digest)
        if number is None:
            raise Failed(f"version of {name} vanished after it was created; publish again")
        return number

    def _create_version(self, name: str, model: Any, facts: About, bundle: Path) -> None:
        tags = {ABOUT: json.dumps(to_data(facts)), **version_page.facts(bundle, facts)}
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

    def _settle(self, name: str, key: str) -> int | None:
        """The version of a bundle, if there is one; of several, the first stays."""
        from mlflow.exceptions import MlflowException

        numbers = sorted(
            int(version.version)
            for version in self._versions(name)
            if _is_ours(version) and _about(version).digest == key
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

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """With a SQLite file: wait until no other publish is at it, or creates its tables."""
        database = sqlite_file(self._uri)
        if database is None:
            yield False
            return
        self._bring_home()
        with waiting_lock(lock_of(database)):
            yield True

    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Say in a sentence that MLflow does not answer, or why it refuses."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        # OSError: of the network (requests' errors are some), of a folder with artifacts.
        except (MlflowException, SQLAlchemyError, OSError, *_errors_of_s3()) as error:
            reason = for_others(" ".join(str(error).split()))[:300]
            raise UserError(
                "tracking-server",
                f"MLflow at {self.uri} did not let us {what} ({reason}); "
                "run the same command again when it answers",
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
    """Raised where MLflow speaks to an S3 store itself; boto3 need not be installed."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ()
    return Boto3Error, BotoCoreError, ClientError
