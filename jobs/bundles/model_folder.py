"""A model folder on this disk, checked against its digests, wherever it was stored."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from elmwright.jobs.bundles.bundle import SUMS, SUMS_BYTES, parse_sums, verify_bundle
from elmwright.jobs.checkpoints.checkpoint import MANIFEST, parse_manifest, verify_checkpoint
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import read_small

CACHE = "ELMWRIGHT_CACHE"


def verify_folder(folder: Path) -> None:
    """Compare a bundle or a checkpoint with its digests; other folders carry none."""
    if (folder / SUMS).is_file():
        verify_bundle(folder)
    elif (folder / MANIFEST).is_file() and (folder / "state.json").is_file():
        verify_checkpoint(folder)
    else:
        there = {path.name for path in folder.iterdir()}
        if "provenance.json" in there or {"model.safetensors", "README.md"} <= there:
            raise UserError("file-damaged", f"{folder / SUMS} is missing: the bundle is damaged")
        if "state.json" in there:
            raise UserError(
                "file-damaged", f"{folder / MANIFEST} is missing: the checkpoint is damaged"
            )


def local_folder(path: str) -> Path:
    """A bundle or checkpoint as a folder of this disk; out of a store it is copied, once."""
    if not at(path).is_url:
        return Path(path)

    names: Iterable[str]
    if at(join(path, SUMS)).exists():
        listed = read_small(join(path, SUMS), SUMS_BYTES)
        names = (*parse_sums(listed, join(path, SUMS)), SUMS)
    elif at(join(path, MANIFEST)).exists():
        listed = read_small(join(path, MANIFEST))
        names = (*parse_manifest(listed, join(path, MANIFEST)).files, MANIFEST)
    else:
        raise UserError("model-missing", f"{path} holds no bundle and no checkpoint")

    def download(folder: Path) -> None:
        for name in names:
            with at(join(path, name)).reading() as file, (folder / name).open("wb") as out:
                shutil.copyfileobj(file, out, 1 << 22)

    return cached(sha256_bytes(listed), download)


def cached(key: str, download: Callable[[Path], None]) -> Path:
    """The verified folder `key` of the cache; `download` fills it if it is missing or damaged.

    `key` is the sha256 of the folder's list of digests: what has no such list is not that folder.
    """
    home = Path(os.environ.get(CACHE) or "~/.cache/elmwright").expanduser()
    place = home / key
    if place.is_dir():
        try:
            _verify_cached(place, key)
        except UserError:
            shutil.rmtree(place)
        else:
            return place
    home.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=home))
    try:
        download(beside)
        _verify_cached(beside, key)
        try:
            beside.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster, with the same files
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place


def _verify_cached(folder: Path, key: str) -> None:
    lists = [folder / name for name in (SUMS, MANIFEST) if (folder / name).is_file()]
    if [sha256_bytes(read_small(path)) for path in lists] != [key]:
        raise UserError("untrusted", f"{folder} is not what was asked for; fetch it again")
    verify_folder(folder)
