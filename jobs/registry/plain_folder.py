"""A registry that is nothing but files: a folder or an S3 prefix, for people without MLflow.

    models/
      demo/
        index.json              versions with what their bundles say; aliases with their history
        3f0c9a…/                a bundle, in a folder named after its digest

A version is in the index only after its files have been stored and read back, so every listed
version is whole; publishing the same bundle again finds it by its digest, and what a killed publish
left behind is removed by the next. The index is there before the first bundle: bundles without one
mean that it was lost, and then nothing is published, because what no index lists would be removed.

On a disk a lock lets one command at an index. A store has no locks: after writing, the index is
read again, and written again if another command has overwritten it in between, which makes losing
an entry unlikely but not impossible.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle import SUMS, digest_of, parse_sums, read_sums, verify_bundle
from elmwright.jobs.bundles.model_folder import local_folder
from elmwright.jobs.registry.contract import (
    About,
    Change,
    Version,
    about,
    check_name,
    find_version,
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
WRITING = ".writing-"
"""How the name of a folder begins that is not whole yet."""
ATTEMPTS = 5
OLD_S = 86_400
"""Age of an unlisted folder in a store that nobody can still be writing, in seconds."""

Index = dict[str, Any]
"""As it is in the file: what a newer version added to it is kept when it is written again."""


@dataclass(frozen=True)
class Entry(About):
    """A version in the index."""

    folder: str
    """The name of the bundle's folder."""
    created: str
    """When it was published, UTC."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_folder(self.folder):
            raise ValueError(f"folder {self.folder!r:.100}")


class FolderRegistry:
    """Versions in a folder, or below an s3:// prefix."""

    def __init__(self, uri: str) -> None:
        self.uri = at(uri).resolved()
        self._is_url = at(uri).is_url

    def publish(self, bundle: Path, name: str) -> int:
        """Store the files first, and list them last."""
        verify_bundle(bundle)
        facts = about(bundle)
        key = facts.digest
        with self._alone(name):
            known = _number(self._read(name), key)
            if known is not None:
                return known
            if not at(join(self.uri, name, INDEX)).exists():
                self._write(name, _empty())
            # Of all files, provenance too: a re-export must not write into a listed version.
            folder = sha256_bytes((bundle / SUMS).read_bytes())[:32]
            self._place(bundle, name, folder, key)

            def add(index: Index) -> None:
                if _number(index, key) is None:
                    number = 1 + max(map(int, index["versions"]), default=0)
                    created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
                    entry = {**to_data(facts), "folder": folder, "created": created}
                    index["versions"][str(number)] = entry

            index = self._change(name, add, lambda index: _number(index, key) is not None)
            self._sweep(name, index)
        number = _number(index, key)
        assert number is not None  # noqa: S101 - _change has seen it
        return number

    def versions(self, name: str) -> list[Version]:
        """What the index lists."""
        index = self._read(name)
        holders = {alias: history[-1] for alias, history in index["aliases"].items()}
        return [
            Version(
                number,
                entry.created,
                entry,
                tuple(sorted(alias for alias, holder in holders.items() if holder == number)),
            )
            for number, entry in sorted(_entries(index).items())
        ]

    def history(self, name: str, alias: str) -> list[int]:
        """As the index says."""
        return list(self._read(name)["aliases"].get(alias, []))

    def point(self, name: str, alias: str, change: Change) -> None:
        """Write the alias into the index."""
        written: list[int] = []

        def move(index: Index) -> None:
            written[:] = change(index["aliases"].get(alias, []))
            index["aliases"][alias] = list(written)

        def moved(index: Index) -> bool:  # and perhaps moved on by another command
            return bool(index["aliases"].get(alias, [])[: len(written)] == written)

        with self._alone(name):
            self._change(name, move, moved)

    def fetch(self, name: str, version: int) -> Path:
        """The version's folder (a copy of it, out of a store)."""
        entry = _entries(self._read(name))[version]
        where = join(self.uri, name, entry.folder)
        folder = local_folder(where)
        if folder == Path(where):
            verify_bundle(folder)
        if digest_of(read_sums(folder)) != entry.digest:
            raise UserError(
                "untrusted",
                f"{where} is not the model that was published as version {version} of {name}; "
                "do not trust it",
            )
        return folder

    def _place(self, bundle: Path, name: str, folder: str, key: str) -> None:
        """Store the bundle's files in a folder of this name."""
        target = join(self.uri, name, folder)
        if self._is_url:
            self._store(bundle, target, key)
            return
        source = bundle.resolve()
        if source == Path(target):
            return  # it is where it belongs, and has been verified
        if source.is_relative_to(Path(self.uri, name)):
            raise UserError(
                "argument",
                f"{bundle} lies on the shelf itself, where what no version lists is removed; copy "
                "it elsewhere and publish the copy",
            )
        # Nobody else is here, and no version lists what is there: a publish was killed.
        beside = join(self.uri, name, f"{WRITING}{folder}")
        at(beside).remove_folder()
        self._store(bundle, beside, key)
        at(target).remove_folder()
        Path(beside).rename(target)

    def _store(self, bundle: Path, target: str, key: str) -> None:
        """Copy the bundle's files, its list last, and read them back."""
        sums = read_sums(bundle)
        for file in (*sums, SUMS):
            with (bundle / file).open("rb") as source, at(join(target, file)).writing() as out:
                while block := source.read(1 << 22):
                    out.write(block)
        stored = parse_sums(at(join(target, SUMS)).read_bytes(), join(target, SUMS))
        for file, expected in stored.items():
            if at(join(target, file)).sha256() != expected:
                raise Failed(f"{join(target, file)} was not stored whole; publish again")
        if digest_of(stored) != key:
            raise Failed(f"{target} was changed by another command; publish again")

    def _sweep(self, name: str, index: Index) -> None:
        """Remove folders that no version lists: a publish was killed before it listed them."""
        listed = {entry.folder for entry in _entries(index).values()}
        for folder, files in self._folders(name).items():
            changed = max(file.mtime_ns for file in files) / 1e9
            # In a store another command may be writing this very folder.
            if folder not in listed and (not self._is_url or changed < time.time() - OLD_S):
                at(join(self.uri, name, folder)).remove_folder()

    def _folders(self, name: str) -> dict[str, list[Stat]]:
        """The files of every bundle that is stored here, listed or not, whole or not."""
        found: dict[str, list[Stat]] = {}
        start = len(join(self.uri, name)) + 1
        for file in at(join(self.uri, name)).list_files():
            folder, slash, _ = file.path[start:].partition("/")
            if slash and _is_folder(folder.removeprefix(WRITING)):
                found.setdefault(folder, []).append(file)
        return found

    def _read(self, name: str) -> Index:
        check_name(name)
        path = join(self.uri, name, INDEX)
        if not at(path).exists():
            self._check_not_lost(name)
            return _empty()
        try:
            index = read_object(path)
            found = index["format"]
            _entries(index)
            for history in index["aliases"].values():
                known = [isinstance(at, int) and str(at) in index["versions"] for at in history]
                if not known or not all(known):
                    raise ValueError("an alias points nowhere")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                "file-damaged", f"{path} is damaged ({error}); put it back from a backup"
            ) from error
        if found != FORMAT:
            raise UserError(
                "format", f"{path} has format {found!r}, and this version reads {FORMAT}"
            )
        return dict(index)

    def _check_not_lost(self, name: str) -> None:
        folders = self._folders(name).values()
        bundles = sum(any(file.path.endswith(f"/{SUMS}") for file in files) for files in folders)
        if bundles:
            raise UserError(
                "file-damaged",
                f"{join(self.uri, name, INDEX)} is missing, but bundles lie beside it ({bundles}); "
                "put the index back from a backup, or move the bundles elsewhere and publish them "
                "again",
            )

    def _write(self, name: str, index: Index) -> None:
        text = json.dumps(index, indent=1, sort_keys=True)
        at(join(self.uri, name, INDEX)).write_bytes(text.encode())

    def _change(
        self, name: str, change: Callable[[Index], None], done: Callable[[Index], bool]
    ) -> Index:
        """Read, change and write the index until it is found changed."""
        for _ in range(ATTEMPTS):
            index = self._read(name)
            change(index)
            self._write(name, index)
            index = self._read(name)
            if done(index):
                return index
        raise Failed(f"{self.uri} is being written by other commands; run the same command again")

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """On a disk: wait until no other command is at this model."""
        check_name(name)
        if self._is_url:
            yield
            return
        with waiting_lock(Path(self.uri, name, ".lock")):
            yield


def _empty() -> Index:
    return {"format": FORMAT, "versions": {}, "aliases": {}}


def _is_folder(name: object) -> bool:
    """Names of folders are digests: nothing leads out of the registry."""
    return isinstance(name, str) and re.fullmatch(r"[0-9a-f]{32}", name) is not None


def _entries(index: Index) -> dict[int, Entry]:
    """The versions of an index by number; ValueError where one is damaged."""
    entries = {}
    for number, facts in index["versions"].items():
        if not re.fullmatch(r"[0-9]+", number):
            raise ValueError(f"version {number!r}")
        entries[int(number)] = from_data(Entry, facts, ignore_unknown=True, finite=False)
    return entries


def _number(index: Index, key: str) -> int | None:
    numbers = [number for number, entry in _entries(index).items() if entry.digest == key]
    return min(numbers, default=None)


def fetch_reference(model: str) -> Path | None:
    """The bundle that `ROOT/NAME@ALIAS` or `ROOT/NAME/3` names; None if it is no such name."""
    match = re.fullmatch(r"(.*?)/?([^/@]+(?:@[\w-]+|/[0-9]+))", model)
    if not match:
        return None
    root, reference = match.groups()
    name = re.split("[@/]", reference)[0]
    if not at(join(root or ".", name, INDEX)).exists():
        return None
    registry = FolderRegistry(root or ".")
    return registry.fetch(*find_version(registry, reference, model))
