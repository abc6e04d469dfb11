"""Whether the corpus on disk is the one that these settings and inputs would give.

The manifest alone decides, without Ray and in milliseconds, so that a finished run is recognised at
once.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elmwright.pipeline.build.ray_tasks import RECIPE
from elmwright.pipeline.config import (
    EMBEDDED,
    CorpusConfig,
    ShardsConfig,
    Source,
    VocabConfig,
    as_settings,
)
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import NAME, Input, Manifest, canonical
from elmwright.pipeline.reading import harvest, sources
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.location import Stat

log = logging.getLogger("elmwright")

SEEN = ".inputs.json"
"""File of a corpus: digests of inputs whose time or place has changed since it was built."""
_HOW = ("chunk_mb", "keep_work", "dir")
"""Settings that say how the corpus is built, not what comes out."""


def corpus_key(
    corpus: CorpusConfig,
    vocab: VocabConfig,
    shards: ShardsConfig,
    seed: int,
    recipe: int = RECIPE,
) -> str:
    """Digest of the settings that determine the corpus (how much a task reads does not), and of the
    recipe by which it is built."""
    return sha256_bytes(canonical({"recipe": recipe, **settings_of(corpus, vocab, shards, seed)}))


def settings_of(
    corpus: CorpusConfig, vocab: VocabConfig, shards: ShardsConfig, seed: int
) -> dict[str, object]:
    """The settings that determine the corpus, as plain data."""
    settings = {name: value for name, value in as_settings(corpus).items() if name not in _HOW}
    return {"corpus": settings, "vocab": to_data(vocab), "shards": to_data(shards), "seed": seed}


def current_manifest(
    folder: str | Path, key: str, corpus: CorpusConfig, vocab: str = ""
) -> Manifest | None:
    """The manifest of a finished corpus with these settings and unchanged inputs, else None.

    Inputs count as unchanged if all of them are gone, but not if only some are.
    """
    folder = str(folder)
    if not at(join(folder, NAME)).exists():
        return None
    try:
        # A manifest that is damaged or of another format counts as none: build again.
        manifest = Manifest.load(folder)
        if manifest.key != key or not _is_complete(folder, manifest):
            return None
        if not any(at(_input_path(folder, item)).exists() for item in manifest.inputs):
            return manifest  # the raw text was removed, and the corpus no longer needs it
        inputs = [
            *find_inputs(folder, corpus),
            *evaluation_files(corpus),
            *vocab_file(vocab),
        ]
    except UserError:
        return None
    if len(inputs) != len(manifest.inputs):
        return None
    digests = _Digests(folder)
    is_same = all(map(digests.is_same, manifest.inputs, inputs))
    digests.save()
    return manifest if is_same else None


def _is_complete(folder: str, manifest: Manifest) -> bool:
    sizes = {file.path: file.bytes for file in at(folder).list_files()}
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return all(join(folder, name) in sizes for name, _ in manifest.files()) and all(
        sizes[join(folder, shard.tar)] == shard.bytes for shard in shards
    )


def _input_path(folder: str, item: Input) -> str:
    """Where an input of the manifest is stored."""
    return at(join(folder, item.path) if at(item.path).is_relative else item.path).absolute()


@dataclass(frozen=True)
class _Digest:
    """The digest of an input, and the size and time of the file when it was read for it."""

    stat: tuple[int, int]
    sha256: str


class _Digests:
    """Digests of inputs whose time or place is not the manifest's, in a file beside the manifest.

    Copying a project gives its files new times. Each is then read once, and not again.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file = join(folder, SEEN)
        self._has_changed = False

    def is_same(self, item: Input, file: SourceFile) -> bool:
        """Whether a file is the input of the manifest: at its place and time, or by its content."""
        is_here = _input_path(self._folder, item) == file.path
        if is_here and at(file.path).is_unchanged(item.bytes, item.mtime_ns):
            return True
        # A file is read according to the ending of its name.
        if os.path.basename(item.path) != os.path.basename(file.path):
            return False
        return file.bytes == item.bytes and bool(item.sha256) and self._sha256(file) == item.sha256

    def _sha256(self, file: SourceFile) -> str:
        key, stat = file.path, (file.bytes, file.mtime_ns)
        if not (at(key).is_url or at(self._folder).is_url):
            key = os.path.relpath(key, self._folder)
        saved = self._known.get(key)
        if saved is None or saved.stat != stat:
            self._known[key] = saved = _Digest(stat, at(file.path).sha256())
            self._has_changed = True
        return saved.sha256

    @cached_property
    def _known(self) -> dict[str, _Digest]:
        known = {}
        for name, entry in (at(self._file).read_json() or {}).items():
            with suppress(BadField):  # a damaged entry only costs reading that input again
                known[name] = from_data(_Digest, entry, ignore_unknown=True)
        return known

    def save(self) -> None:
        """Write the digests if there are new ones."""
        if self._has_changed:
            try:
                at(self._file).write_json(to_data(self._known))
            except (OSError, UserError) as error:  # a corpus may be read-only: it is only slower
                log.info("digests of inputs are not kept: %s", error)


def find_inputs(folder: str, corpus: CorpusConfig) -> list[SourceFile]:
    """The input files of train, then of each held-out set. Each counts once in its split."""
    if not corpus.sources:
        raise UserError(
            "no-text",
            "corpus.sources is empty; name files or folders of text there, or "
            f'"{EMBEDDED}" for the documentation already on this machine',
        )
    seen: set[str] = set()
    inputs: list[SourceFile] = []
    for index, source in enumerate(corpus.sources):
        for stat in _unseen(_files_of(folder, source), seen):
            inputs.append(sources.source_file(stat, len(inputs), "train", corpus, source, index))
    for name, paths in sorted(corpus.heldout.items()):
        _check_name(name)
        if not isinstance(paths, float):
            inputs += _given_files(name, f"corpus.heldout.{name}", paths, corpus)
    return inputs


def evaluation_files(corpus: CorpusConfig) -> list[SourceFile]:
    """The files that train must share no n-gram with, besides held-out sets."""
    name = "decontaminate"
    return _given_files(name, f"corpus.{name}", corpus.decontaminate, corpus)


def _given_files(
    split: str, setting: str, paths: Iterable[str], corpus: CorpusConfig
) -> list[SourceFile]:
    stats = [stat for path in paths for stat in sources.expand(path, setting)]
    return [
        sources.source_file(stat, number, split, corpus)
        for number, stat in enumerate(_unseen(stats, set()))
    ]


def _files_of(folder: str, source: Source) -> list[Stat]:
    if source.path == EMBEDDED:
        parts = harvest.frozen_parts(folder) or []
        return [stat for part in parts if (stat := at(part).stat())]
    others = [stat for stat in sources.expand(source.path) if not _is_own(folder, stat.path)]
    if not others:
        raise UserError(
            "setting",
            f"{source.path} in corpus.sources is in the run's own folder, where files come and "
            "go; move the text elsewhere",
        )
    return others


def _is_own(folder: str, path: str) -> bool:
    """Whether a file is in the corpus folder or in the folder of its run, which we write to."""
    run = os.path.dirname(folder)
    own = [folder, run] if os.path.exists(os.path.join(run, "run.lock")) else [folder]
    return any(path.startswith(f"{place.rstrip('/')}/") for place in own)


def _unseen(stats: Iterable[Stat], seen: set[str]) -> Iterable[Stat]:
    for stat in stats:
        real = at(stat.path).resolved()
        if real not in seen:
            seen.add(real)
            yield stat


def vocab_file(path: str) -> list[SourceFile]:
    """The vocabulary given as a file, as one of the inputs."""
    if not path:
        return []
    stat = at(path).stat()
    if stat is None:
        raise UserError("file-missing", f"vocab.file = {path!r} does not exist; check the path")
    return [SourceFile(stat.path, 0, stat.bytes, stat.mtime_ns, "vocab")]


def _check_name(name: str) -> None:
    """Refuse a name that no held-out set may have."""
    if name == "train" or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 60:
        raise UserError(
            "setting",
            f'"{name}" cannot name a held-out set; use letters, digits, - and _, and not "train"',
        )
