"""`elmwright verify PATH`: is this exactly what was written?

Finds out by itself what PATH is. Prints what was checked; the first thing that is wrong is an
error that names the file. Progress is by bytes read; what has to be fetched first (a bundle in a
registry or a store) shows none while it is fetched.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright.jobs.bundles.bundle import SUMS, bundle_bytes, verify_bundle
from elmwright.jobs.checkpoints.checkpoint import (
    MANIFEST,
    checkpoint_folders,
    read_info,
    verify_checkpoint,
)
from elmwright.jobs.registry.plain_folder import fetch_from_folder
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.journal_lines import journal_end, known_damage, read_lines
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, Shard
from elmwright.pipeline.format.shards import verify_shard
from elmwright.pipeline.format.verify_corpus import verify_corpus
from elmwright.pipeline.progress import Progress, counting_bytes, plural, silent
from elmwright.pipeline.storage.files import at, join


def verify_path(name: str, key: str = "", progress: Progress = silent) -> list[str]:
    """Check a run, corpus, shard, checkpoint or bundle; a line for each thing that was good.

    With `key`, a public key, only a bundle signed with it is good.
    """
    is_url = at(name).is_url
    if key or name.startswith("models:/") or (is_url and at(join(name, SUMS)).exists()):
        resolve(name, require_signature=key)
        return [f"bundle {name}" + (f", signed with the key of {key}" if key else "")]
    if not is_url:
        path = Path(name)
        if not path.exists():
            if fetch_from_folder(name) is not None:
                return [f"bundle {name}"]
            raise UserError("file-missing", f"there is no {path}")
        if path.suffix == ".tar":
            return [_shard(path, progress)]
        if (path / SUMS).is_file():
            with _bytes(progress, bundle_bytes(path)):
                verify_bundle(path)
            return [f"bundle {path}"]
    elif not at(join(name, MANIFEST)).exists() and fetch_from_folder(name) is not None:
        return [f"bundle {name}"]
    name = name.rstrip("/")
    if at(join(name, "state.json")).exists() or name.rpartition("/")[2].startswith("step-"):
        with _bytes(progress, read_info(name).bytes):
            verify_checkpoint(name)
        return [f"checkpoint {name}"]
    if at(join(name, MANIFEST)).exists():
        with _bytes(progress, _corpus_bytes(name)):
            return [_corpus(name)]
    return _run(name, progress)


@contextmanager
def _bytes(progress: Progress, total: int) -> Iterator[None]:
    """A bar of the bytes that are read for digests."""
    with progress("verifying", total, "bytes") as advance, counting_bytes(advance):
        yield


def _corpus_bytes(path: str | Path) -> int:
    manifest = Manifest.load(path)
    splits = manifest.splits.values()
    small = (manifest.vocab.file, manifest.vocab.counts, *manifest.extra_files)
    found = [at(join(path, name)).stat() for name in small]
    return sum(file.bytes for file in found if file) + _deep_bytes(
        shard for split in splits for shard in split.shards
    )


def _deep_bytes(shards: Iterable[Shard]) -> int:
    """What `verify_shard` counts: every byte for its digest, and again for its blocks."""
    return 2 * sum(shard.bytes for shard in shards)


def _corpus(path: str | Path) -> str:
    manifest = Manifest.load(path)
    problems = verify_corpus(manifest, path)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError("file-damaged", problems[0] + more)
    shards = sum(len(split.shards) for split in manifest.splits.values())
    return f"corpus {path} ({shards} shards, fingerprint {manifest.fingerprint[:12]})"


def _shard(path: Path, progress: Progress) -> str:
    """Verify one shard against the manifest of its corpus."""
    manifest = Manifest.load(path.resolve().parent.parent)
    for split in manifest.splits.values():
        for shard in split.shards:
            if Path(shard.tar).name == path.name:
                with _bytes(progress, _deep_bytes([shard])):
                    verify_shard(path, shard)
                return f"shard {path} ({shard.blocks} blocks)"
    raise UserError("file-missing", f"{path} is not in the manifest of its corpus")


def _run(path: str, progress: Progress) -> list[str]:
    folder = RunFolder.at(path)
    has_corpus = at(join(folder.corpus, MANIFEST)).exists()
    has_bundle = (folder.bundle / SUMS).is_file()
    checkpoints = checkpoint_folders(folder.checkpoints)
    if not (has_corpus or has_bundle or checkpoints):
        raise UserError(
            "run-missing",
            f"{path} is neither a run, a corpus, a shard, a checkpoint nor a bundle of elmwright",
        )
    total = sum(read_info(checkpoint).bytes for checkpoint in checkpoints)
    total += _corpus_bytes(folder.corpus) if has_corpus else 0
    total += bundle_bytes(folder.bundle) if has_bundle else 0
    checked = []
    with _bytes(progress, total):
        if has_corpus:
            checked.append(_corpus(folder.corpus))
        for checkpoint in checkpoints:
            verify_checkpoint(checkpoint)
            checked.append(f"checkpoint {checkpoint}")
        if has_bundle:
            verify_bundle(folder.bundle)
            checked.append(f"bundle {folder.bundle}")
    if journal_end(folder.journal):
        checked.append(_journal(folder.journal))
    return checked


def _journal(path: str) -> str:
    """Damage that training has noted and reported is not an error."""
    records, damaged = 0, []
    for line in read_lines(path, 0):
        records += len(line.records)
        damaged += [line] if line.damaged else []
    known = known_damage(path) if damaged else set()
    new = [line for line in damaged if line.mark not in known]
    if new:
        raise UserError(
            "file-damaged",
            f"{path} has {plural(len(new), 'damaged line')}, the first at byte {new[0].begin}; "
            "resume the run: it uses every other line and sets the damaged ones aside",
        )
    aside = f", {plural(len(damaged), 'damaged line')} set aside" if damaged else ""
    return f"journal {path} ({plural(records, 'record')}{aside})"
