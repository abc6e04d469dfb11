"""Are the files of a corpus as its manifest says?"""

from pathlib import Path

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import SHARDS, Manifest
from elmwright.pipeline.format.shards import verify_shard
from elmwright.pipeline.storage.files import at, join

_SHARD_ERRORS = {"file-damaged", "file-missing", "file-unreadable", "format"}
"""Codes of errors about a shard itself; any other is about access to it."""


def verify_corpus(manifest: Manifest, folder: str | Path, *, deep: bool = True) -> list[str]:
    """What is wrong with the files of a corpus, one sentence each; nothing if all is well.

    Deep: read and check every block. Otherwise sizes and digests only.
    """
    problems = []
    for file, digest in manifest.files():
        path = join(folder, file)
        is_shard = file.startswith(f"{SHARDS}/")
        if not at(path).exists():
            problems.append(f"{path} is missing")
        elif not is_shard and at(path).sha256() != digest:  # `verify_shard` checks the others
            problems.append(f"{path} was changed: its sha256 is not the manifest's")
    for split in manifest.splits.values():
        for shard in split.shards:
            path = join(folder, shard.tar)
            if at(path).exists() and at(join(folder, shard.index)).exists():
                try:
                    verify_shard(path, shard, deep=deep)
                except UserError as error:
                    if error.code not in _SHARD_ERRORS:
                        raise
                    problems.append(str(error))
    return problems
