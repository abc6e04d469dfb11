"""Is the corpus on disk the one these settings and inputs would give?

Answered from the manifest alone, without Ray and in milliseconds, so that a finished run is
recognised at once and a mistake in the sources is reported before anything is started.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmwright.pipeline import files, harvest, sources
from elmwright.pipeline.config import EMBEDDED, CorpusConfig, ShardsConfig, Source, VocabConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.manifest import NAME, Input, Manifest, canonical
from elmwright.pipeline.sources import SourceFile
from elmwright.pipeline.storage import sha256_bytes
from elmwright.pipeline.tasks import RECIPE

_HOW = ("chunk_mb", "keep_work", "dir")
"""Settings that say how the corpus is built, not what comes out."""


def corpus_key(corpus: CorpusConfig, vocab: VocabConfig, shards: ShardsConfig, seed: int) -> str:
    """Digest of the settings that determine the corpus (how much a task reads does not)."""
    return sha256_bytes(canonical({"recipe": RECIPE, **settings_of(corpus, vocab, shards, seed)}))


def settings_of(
    corpus: CorpusConfig, vocab: VocabConfig, shards: ShardsConfig, seed: int
) -> dict[str, Any]:
    settings = asdict(corpus)
    for name in _HOW:
        del settings[name]
    return {"corpus": settings, "vocab": asdict(vocab), "shards": asdict(shards), "seed": seed}


def is_current(folder: str | Path, key: str, corpus: CorpusConfig) -> Manifest | None:
    """The manifest of a finished corpus with these settings and unchanged inputs, else None.

    Inputs that are all gone count as unchanged; that some were added, changed or removed does not.
    """
    folder = str(folder)
    if not files.exists(files.join(folder, NAME)):
        return None
    try:
        # A manifest that is damaged or of another format is as good as none: build again.
        manifest = Manifest.load(folder)
        if manifest.key != key or not _all_there(folder, manifest):
            return None
        if not any(files.exists(input_path(folder, item)) for item in manifest.inputs):
            return manifest  # the raw text was taken away: the corpus does not need it any more
        found = [file.path for inputs in find_inputs(folder, corpus).values() for file in inputs]
    except UserError:
        return None
    known = [input_path(folder, item) for item in manifest.inputs]
    unchanged = found == known and all(_unchanged(folder, item) for item in manifest.inputs)
    return manifest if unchanged else None


def _all_there(folder: str, manifest: Manifest) -> bool:
    there = {file.path for file in files.list_folder(folder)}
    return all(files.join(folder, name) in there for name, _ in manifest.files())


def input_path(folder: str, item: Input) -> str:
    """Where an input of the manifest lies."""
    outside = files.is_url(item.path) or item.path.startswith("/")
    return item.path if outside else files.join(folder, item.path)


def _unchanged(folder: str, item: Input) -> bool:
    path = input_path(folder, item)
    found = files.stat(path)
    if found is None or found.bytes != item.bytes:
        return False
    return found.mtime_ns == item.mtime_ns or (
        bool(item.sha256) and files.sha256(path) == item.sha256
    )


def find_inputs(folder: str, corpus: CorpusConfig) -> dict[str, list[SourceFile]]:
    """The input files of each split; those of train first. Each file counts once."""
    if not corpus.sources:
        raise UserError(
            "corpus.sources is empty; name files or folders of text there, or "
            f'"{EMBEDDED}" for the documentation already on this machine'
        )
    seen: set[str] = set()
    train: list[SourceFile] = []
    for index, source in enumerate(corpus.sources):
        for stat in _fresh(_files_of(folder, source), seen):
            train.append(sources.source_file(stat, len(train), "train", corpus, source, index))
    found = {"train": train}
    for name, paths in sorted(corpus.heldout.items()):
        check_name(name)
        if isinstance(paths, float):
            continue
        seen = set()
        stats = [s for path in paths for s in sources.expand(path, f"corpus.heldout.{name}")]
        found[name] = [
            sources.source_file(stat, number, name, corpus)
            for number, stat in enumerate(_fresh(stats, seen))
        ]
    return found


def _files_of(folder: str, source: Source) -> list[files.Stat]:
    if source.path != EMBEDDED:
        return sources.expand(source.path)
    parts = harvest.frozen_parts(folder) or []
    return [stat for part in parts if (stat := files.stat(part))]


def _fresh(stats: Iterable[files.Stat], seen: set[str]) -> Iterable[files.Stat]:
    for stat in stats:
        real = stat.path if files.is_url(stat.path) else os.path.realpath(stat.path)
        if real not in seen:
            seen.add(real)
            yield stat


def evaluation_files(corpus: CorpusConfig) -> list[SourceFile]:
    """The files that train must share no n-gram with, besides held-out sets."""
    stats = [
        s for path in corpus.decontaminate for s in sources.expand(path, "corpus.decontaminate")
    ]
    return [
        sources.source_file(stat, number, "decontaminate", corpus)
        for number, stat in enumerate(_fresh(stats, set()))
    ]


def check_sources(folder: str | Path, corpus: CorpusConfig) -> None:
    """Raise the `UserError` of a source that cannot be found, before anything is started."""
    found = find_inputs(str(folder), corpus)
    sources.check_readable([file for inputs in found.values() for file in inputs])
    evaluation_files(corpus)


def check_name(name: str) -> None:
    if name == "train" or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 60:
        raise UserError(
            f'"{name}" cannot name a held-out set; use letters, digits, - and _, and not "train"'
        )
