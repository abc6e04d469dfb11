"""A registry in plain files: a folder or an S3 prefix, for people without an MLflow server.

    models/
      demo/
        index.json              versions with the facts of their bundles; aliases with their history
        3f0c9a…/                a bundle, in a folder named after its digest

A version is added to the index after its files have been stored and read back, so every listed
version is complete. Publishing the same bundle again finds it by its digest, and the next publish
removes what a killed one left. The index exists before the first bundle. Bundles without an index
mean that it was lost, and then nothing is published, because unlisted bundles would be removed.

On a disk a lock admits one command at a time. A store has no locks: after writing, the index is
read again, and written again if another command has overwritten it in between. That makes losing
an entry unlikely, but not impossible.
"""

import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle import SUMS, digest_of, parse_sums, read_sums, verify_bundle
from elmwright.jobs.bundles.model_folder import local_folder
from elmwright.jobs.registry.contract import (
    About,
    Change,
    Version,
    aliases_at,
    check_fetched,
    fetch_reference,
)
from elmwright.jobs.rundir.file_lock import waiting_lock
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.location import Stat
from elmwright.pipeline.storage.untrusted import read_object

FORMAT = 1
INDEX = "index.json"
FOLDER = re.compile(r"[0-9a-f]{32}")
"""Names of folders are digests, so nothing leads out of the registry."""
UNFINISHED = ".writing-"
"""Prefix that earlier versions gave to a folder that was not complete yet."""
ATTEMPTS = 5
OLD_S = 86_400
"""Age in seconds at which an unlisted folder in a store is certainly no longer being written."""


@dataclass(frozen=True)
class Entry(About):
    """A version in the index."""

    folder: str
    """The name of the bundle's folder."""
    created: str
    """When it was published, UTC."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not FOLDER.fullmatch(self.folder):
            raise ValueError(f"folder {self.folder!r:.100}")


@dataclass(frozen=True)
class Index:
    """The content of index.json that is used."""

    format: int
    versions: dict[int, Entry]
    aliases: dict[str, tuple[int, ...]]
    """Alias → the versions that it has pointed to."""

    def __post_init__(self) -> None:
        if min(self.versions, default=1) < 1:
            raise ValueError("versions are numbered from 1")
        for history in self.aliases.values():
            if not history or not self.versions.keys() >= set(history):
                raise ValueError("an alias points nowhere")

    @property
    def numbers(self) -> dict[str, int]:
        """Digest of a bundle → its version; the first, if there are several."""
        newest_first = sorted(self.versions.items(), reverse=True)
        return {entry.digest: number for number, entry in newest_first}


Edit = Callable[[Index, dict[str, Any]], None]
"""Changes the JSON object of an index. Keys that a newer version added to it stay."""


class FolderRegistry:
    """Versions in a folder, or below an s3:// prefix."""

    def __init__(self, uri: str) -> None:
        self.uri = at(uri).resolved()
        self._is_url = at(uri).is_url

    def publish(self, bundle: Path, about: About, name: str) -> int:
        """Store the files first, and list them last."""
        # Digest of all files, provenance too: a new export must not write into a listed version.
        folder = sha256_bytes((bundle / SUMS).read_bytes())[:32]

        def add(index: Index, content: dict[str, Any]) -> None:
            if about.digest not in index.numbers:
                created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
                entry = {**to_data(about), "folder": folder, "created": created}
                content["versions"][str(1 + max(index.versions, default=0))] = entry

        with self._lock(name):
            index, content = self._read(name)
            if about.digest not in index.numbers:
                if not at(join(self.uri, name, INDEX)).exists():
                    self._write(name, content)
                self._store(bundle, join(self.uri, name, folder), about.digest)
                index = self._change(name, add, lambda index: about.digest in index.numbers)
                self._sweep(name, index)
        return index.numbers[about.digest]

    def versions(self, name: str) -> list[Version]:
        """The versions in the index."""
        index, _ = self._read(name)
        holders = {alias: history[-1] for alias, history in index.aliases.items()}
        return [
            Version(number, entry.created, entry, aliases_at(number, holders))
            for number, entry in sorted(index.versions.items())
        ]

    def history(self, name: str, alias: str) -> list[int]:
        """The history in the index."""
        index, _ = self._read(name)
        return list(index.aliases.get(alias, ()))

    def point(self, name: str, alias: str, change: Change) -> None:
        """Write the changed history into the index."""
        history: list[int] = []

        def move(index: Index, content: dict[str, Any]) -> None:
            history[:] = change(list(index.aliases.get(alias, ())))
            content["aliases"][alias] = list(history)

        def is_moved(index: Index) -> bool:  # and perhaps moved again by another command
            return list(index.aliases.get(alias, ()))[: len(history)] == history

        with self._lock(name):
            self._change(name, move, is_moved)

    def fetch(self, name: str, version: int) -> Path:
        """The version's folder (a copy of it, from a store)."""
        index, _ = self._read(name)
        entry = index.versions[version]
        source = join(self.uri, name, entry.folder)
        folder = local_folder(source)
        if not self._is_url:
            verify_bundle(folder)
        return check_fetched(folder, entry, name, version, source)

    def _store(self, bundle: Path, target: str, digest: str) -> None:
        """Copy the bundle's files, its list last, and read them back."""
        if not self._is_url:
            if bundle.resolve() == Path(target):
                return  # it is in its place, and has been verified
            if bundle.resolve().is_relative_to(Path(target).parent):
                raise UserError(
                    "argument",
                    f"{bundle} is inside the registry, where bundles without a version are "
                    "removed; copy it elsewhere and publish the copy",
                )
            at(target).remove_folder()  # left by a killed publish: no version lists it
        for file in (*read_sums(bundle), SUMS):
            with (bundle / file).open("rb") as source, at(join(target, file)).writing() as out:
                shutil.copyfileobj(source, out, 1 << 22)
        stored = parse_sums(at(join(target, SUMS)).read_bytes(), join(target, SUMS))
        for file, expected in stored.items():
            if at(join(target, file)).sha256() != expected:
                raise Failed(f"{join(target, file)} was not stored completely; publish again")
        if digest_of(stored) != digest:
            raise Failed(f"{target} was changed by another command; publish again")

    def _sweep(self, name: str, index: Index) -> None:
        """Remove folders that no version lists: a publish was killed before it listed them."""
        listed = {entry.folder for entry in index.versions.values()}
        for folder, files in self._folders(name).items():
            changed = max(file.mtime_ns for file in files) / 1e9
            # In a store another command may be writing this folder.
            if folder not in listed and (not self._is_url or changed < time.time() - OLD_S):
                at(join(self.uri, name, folder)).remove_folder()

    def _folders(self, name: str) -> dict[str, list[Stat]]:
        """The files of every bundle that is stored here, listed or not, complete or not."""
        folders: dict[str, list[Stat]] = {}
        start = len(join(self.uri, name)) + 1
        for file in at(join(self.uri, name)).list_files():
            folder, slash, _ = file.path[start:].partition("/")
            if slash and FOLDER.fullmatch(folder.removeprefix(UNFINISHED)):
                folders.setdefault(folder, []).append(file)
        return folders

    def _read(self, name: str) -> tuple[Index, dict[str, Any]]:
        """The index of a model, empty if there is none, and its JSON object."""
        path = join(self.uri, name, INDEX)
        if not at(path).exists():
            self._check_not_lost(name)
            return Index(FORMAT, {}, {}), {"format": FORMAT, "versions": {}, "aliases": {}}
        content = read_object(path)
        try:
            index = from_data(Index, content, ignore_unknown=True, finite=False)
        except (ValueError, RecursionError) as error:
            raise UserError(
                "file-damaged", f"{path} is damaged ({error}); restore it from a backup"
            ) from error
        if index.format != FORMAT:
            raise UserError(
                "format", f"{path} has format {index.format}, and this version reads {FORMAT}"
            )
        return index, content

    def _check_not_lost(self, name: str) -> None:
        folders = self._folders(name).values()
        bundles = sum(any(file.path.endswith(f"/{SUMS}") for file in files) for files in folders)
        if bundles:
            raise UserError(
                "file-damaged",
                f"{join(self.uri, name, INDEX)} is missing, but its bundles are there ({bundles}); "
                "restore the index from a backup, or move the bundles elsewhere and publish them "
                "again",
            )

    def _write(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1, sort_keys=True)
        at(join(self.uri, name, INDEX)).write_bytes(text.encode())

    def _change(self, name: str, edit: Edit, is_done: Callable[[Index], bool]) -> Index:
        """Read, edit and write the index until the edit is found in it."""
        for _ in range(ATTEMPTS):
            index, content = self._read(name)
            edit(index, content)
            self._write(name, content)
            index, _ = self._read(name)
            if is_done(index):
                return index
        raise Failed(f"{self.uri} is being written by other commands; run the same command again")

    def _lock(self, name: str) -> AbstractContextManager[int | None]:
        """On a disk: wait until no other command changes this model."""
        return nullcontext() if self._is_url else waiting_lock(Path(self.uri, name, ".lock"))


def fetch_from_folder(model: str) -> Path | None:
    """The bundle of `ROOT/NAME@ALIAS` or `ROOT/NAME/3`; None if there is no such registry."""
    match = re.fullmatch(r"(.*?)/?(([^/@]+)(?:@[\w-]+|/[0-9]+))", model)
    if not match or not at(join(match[1] or ".", match[3], INDEX)).exists():
        return None
    return fetch_reference(FolderRegistry(match[1] or "."), match[2], model)
