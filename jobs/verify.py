"""`elmwright verify PATH`: is this exactly what was written?

Finds out by itself what PATH is. Prints what was checked; the first thing that is wrong is an
error that names the file.
"""

from pathlib import Path

from elmwright.jobs.bundle import SUMS, verify_bundle
from elmwright.jobs.checkpoint import MANIFEST, checkpoint_folders, verify_checkpoint
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.shelf import fetch_reference
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import exists, is_url, join
from elmwright.pipeline.manifest import Manifest


def verify_path(name: str, key: str = "") -> list[str]:
    """Check a run, corpus, shard, checkpoint or bundle; a line for each thing that was good.

    With `key`, a public key, only a bundle signed with it is good.
    """
    if key or name.startswith("models:/") or (is_url(name) and exists(join(name, SUMS))):
        from elmwright.jobs.models import resolve

        resolve(name, require_signature=key)
        return [f"bundle {name}" + (f", signed with the key of {key}" if key else "")]
    if not is_url(name):
        path = Path(name)
        if not path.exists():
            if fetch_reference(name) is not None:
                return [f"bundle {name}"]
            raise UserError(f"there is no {path}")
        if path.suffix == ".tar":
            return [_shard(path)]
        if (path / SUMS).is_file():
            verify_bundle(path)
            return [f"bundle {path}"]
    elif not exists(join(name, MANIFEST)) and fetch_reference(name) is not None:
        return [f"bundle {name}"]
    name = name.rstrip("/")
    if exists(join(name, "state.json")) or name.rpartition("/")[2].startswith("step-"):
        verify_checkpoint(name)
        return [f"checkpoint {name}"]
    if exists(join(name, MANIFEST)):
        return [_corpus(name)]
    return _run(name)


def _corpus(path: str | Path) -> str:
    manifest = Manifest.load(path)
    problems = manifest.verify(path)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(problems[0] + more)
    shards = sum(len(split.shards) for split in manifest.splits.values())
    return f"corpus {path} ({shards} shards, fingerprint {manifest.fingerprint[:12]})"


def _shard(path: Path) -> str:
    """One shard, against the manifest of the corpus it lies in."""
    from elmwright.pipeline.shards import verify_shard

    manifest = Manifest.load(path.resolve().parent.parent)
    for split in manifest.splits.values():
        for shard in split.shards:
            if Path(shard.tar).name == path.name:
                try:
                    verify_shard(path, shard)
                except ValueError as error:
                    raise UserError(str(error)) from error
                return f"shard {path} ({shard.blocks} blocks)"
    raise UserError(f"{path} is not in the manifest of its corpus")


def _run(path: str) -> list[str]:
    folder = RunFolder.at(path)
    checked = []
    if exists(join(folder.corpus, MANIFEST)):
        checked.append(_corpus(folder.corpus))
    for checkpoint in checkpoint_folders(folder.checkpoints):
        verify_checkpoint(checkpoint)
        checked.append(f"checkpoint {checkpoint}")
    if (folder.bundle / SUMS).is_file():
        verify_bundle(folder.bundle)
        checked.append(f"bundle {folder.bundle}")
    if not checked:
        raise UserError(
            f"{path} is neither a run, a corpus, a shard, a checkpoint nor a bundle of elmwright"
        )
    return checked
