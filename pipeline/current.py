"""Is the corpus on disk the one these settings and inputs would give?

Answered from the manifest alone, without Ray and in milliseconds, so that a finished run is
recognised at once and a mistake in the sources is reported before anything is started.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmwright.pipeline import harvest, sources
from elmwright.pipeline.config import EMBEDDED, CorpusConfig, ShardsConfig, VocabConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.manifest import NAME, Input, Manifest, canonical
from elmwright.pipeline.storage import sha256_bytes, sha256_file

RECIPE = 1
"""Raised whenever a change of the code changes the shards that the same settings give."""


def corpus_key(corpus: CorpusConfig, vocab: VocabConfig, shards: ShardsConfig, seed: int) -> str:
    """Digest of the settings that determine the corpus (how much a task reads does not)."""
    return sha256_bytes(canonical({"recipe": RECIPE, **settings_of(corpus, vocab, shards, seed)}))


def settings_of(
    corpus: CorpusConfig, vocab: VocabConfig, shards: ShardsConfig, seed: int
) -> dict[str, Any]:
    settings = asdict(corpus)
    del settings["chunk_mb"]
    return {"corpus": settings, "vocab": asdict(vocab), "shards": asdict(shards), "seed": seed}


def is_current(folder: Path, key: str, corpus: CorpusConfig) -> Manifest | None:
    """The manifest of a finished corpus with these settings and unchanged inputs, else None.

    Inputs that are all gone count as unchanged; that some were added, changed or removed does not.
    """
    folder = Path(folder)
    if not (folder / NAME).exists():
        return None
    try:
        # A manifest that is damaged or of another format is as good as none: build again.
        manifest = Manifest.load(folder)
        if manifest.key != key or not all((folder / file).exists() for file, _ in manifest.files()):
            return None
        if not any(_input_path(folder, item).exists() for item in manifest.inputs):
            return manifest  # the raw text was taken away: the corpus does not need it any more
        found = [str(path) for paths in find_inputs(folder, corpus).values() for path in paths]
    except UserError:
        return None
    known = [str(_input_path(folder, item)) for item in manifest.inputs]
    unchanged = found == known and all(_unchanged(folder, item) for item in manifest.inputs)
    return manifest if unchanged else None


def _input_path(folder: Path, item: Input) -> Path:
    return folder / item.path  # an absolute path stays as it is


def _unchanged(folder: Path, item: Input) -> bool:
    path = _input_path(folder, item)
    if not path.is_file() or path.stat().st_size != item.bytes:
        return False
    return path.stat().st_mtime_ns == item.mtime_ns or sha256_file(path) == item.sha256


def find_inputs(folder: Path, corpus: CorpusConfig) -> dict[str, list[Path]]:
    """The input files of each split; those of train first."""
    if not corpus.sources:
        raise UserError(
            "corpus.sources is empty; name files or folders of text there, or "
            f'"{EMBEDDED}" for the documentation already on this machine'
        )
    paths: list[Path] = []
    for source in corpus.sources:
        if source == EMBEDDED:
            paths.extend(harvest.frozen_parts(folder) or ())
        else:
            paths.extend(path.absolute() for path in sources.expand([source]))
    found = {"train": list(dict.fromkeys(paths))}
    for name, files in sorted(corpus.heldout.items()):
        _check_name(name)
        expanded = sources.expand(files, f"corpus.heldout.{name}")
        found[name] = [path.absolute() for path in expanded]
    return found


def check_sources(folder: Path, corpus: CorpusConfig) -> None:
    """Raise the `UserError` of a source that cannot be found, before anything is started."""
    find_inputs(Path(folder).absolute(), corpus)


def _check_name(name: str) -> None:
    if name == "train" or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 60:
        raise UserError(
            f'"{name}" cannot name a held-out set; use letters, digits, - and _, and not "train"'
        )
