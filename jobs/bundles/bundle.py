"""The bundle: the folder that is published, and how its files are checked.

bundle/
  model.safetensors     the biLM, as the checkpoint had it
  softmax.safetensors   the tied softmax: only scoring and further training need it (optional)
  weights.hdf5          the biLM again, in bilm format, with
  options.json          its options: what AllenNLP and bilm-tf users load
  vocab.txt             one word a line, in the order of the softmax
  sentencepiece.model   where the corpus was tokenised by one
  config.json           the model's shape, its tokeniser, and what it was measured at
  README.md             the model card, with
  training.svg          the training curve (where the run still has its journal)
  provenance.json       what made it: code, config, corpus, checkpoint, packages
  model.sig             a signature of all of the above (optional)
  SHA256SUMS            digests of all of the above, written last

Nothing else may lie in it: no code, no pickle, no link. The signature does not cover SHA256SUMS,
which covers the signature; both cover every file of the model.
"""

import hashlib
import re
import time
from pathlib import Path

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import count_bytes
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import JSON_BYTES
from elmwright.pipeline.storage.untrusted import read_small

SUMS = "SHA256SUMS"
SIGNATURE = "model.sig"
SUMS_BYTES = 1 << 16
"""The largest SHA256SUMS."""
SMALL = (".json", ".md", ".sig", ".svg")
"""Files that describe a model; those that hold one are as large as it is."""
FILES = (
    "README.md",
    "config.json",
    "model.safetensors",
    "options.json",
    "provenance.json",
    "vocab.txt",
    "weights.hdf5",
)
"""What every bundle has."""
OPTIONAL = (SIGNATURE, "sentencepiece.model", "softmax.safetensors", "training.svg")
"""What a bundle may have besides."""
ABOUT = ("provenance.json", SIGNATURE)
"""Files that say when and by whom, not what: the same model may come with others."""
SETTLED_NS = 2_000_000_000
"""Nanoseconds after which a file's time of change differs from that of any later change, also on
file systems with coarse times."""
_computed: dict[tuple[int, ...], str] = {}
"""Digests of files that have not changed since, by what the operating system says of the file."""


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS: from now on the bundle is complete."""
    names = [name for name in sorted((*FILES, *OPTIONAL)) if (folder / name).exists()]
    sums = {name: _sha256(folder / name) for name in names}
    at(folder / SUMS).write_bytes(_text(sums).encode())


def read_sums(folder: Path) -> dict[str, str]:
    """File name → sha256, as SHA256SUMS says."""
    if not (folder / SUMS).is_file():
        raise UserError(
            "file-damaged", f"{folder / SUMS} is missing or damaged (No such file or directory)"
        )
    data = read_small(folder / SUMS, SUMS_BYTES)
    return parse_sums(data, str(folder / SUMS))


def parse_sums(data: bytes, where: str) -> dict[str, str]:
    """The content of a SHA256SUMS: names that belong to a bundle, each once, and all it needs."""
    sums = {}
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line)
        if not match or match[2] not in (*FILES, *OPTIONAL):
            raise UserError("file-damaged", f"{where} is damaged: {line[:100]!r}")
        sums[match[2]] = match[1]
    if data != _text(sums).encode():
        raise UserError("file-damaged", f"{where} is damaged: it is not as it was written")
    missing = sorted(set(FILES) - set(sums))
    if missing:
        raise UserError("file-damaged", f"{where} does not list {missing[0]}")
    return sums


def _text(sums: dict[str, str]) -> str:
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def is_whole(folder: Path) -> bool:
    """Is every file there that SHA256SUMS lists? A quick look: `verify_bundle` reads them."""
    try:
        return all((folder / name).is_file() for name in read_sums(folder))
    except UserError:
        return False


def bundle_bytes(folder: Path) -> int:
    """The size of what SHA256SUMS lists: what `verify_bundle` reads."""
    paths = [folder / name for name in read_sums(folder)]
    return sum(path.stat().st_size for path in paths if path.is_file())


def verify_bundle(folder: Path) -> None:
    """Compare every file with its digest; the error names the first that differs.

    The weights in bilm format are also looked into: other people's loaders follow whatever links
    an HDF5 file holds.
    """
    sums = read_sums(folder)
    for path in folder.iterdir():
        if path.name not in (*sums, SUMS):
            raise UserError("file-damaged", f"{path} does not belong to the bundle")
    for name, digest in sums.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise UserError("file-damaged", f"{path} is missing or not a plain file")
        if path.suffix in SMALL and path.stat().st_size > JSON_BYTES:  # before it is hashed
            raise UserError(
                "file-damaged", f"{path} has {path.stat().st_size:,} bytes, too many for what it is"
            )
        if _sha256(path) != digest:
            raise UserError("file-damaged", f"{path} does not match its digest in {SUMS}")
    from elmwright.model.formats.bilm_format import check_members, read_options

    check_members(folder / "weights.hdf5", read_options(folder / "options.json"))


def _sha256(path: Path) -> str:
    """The sha256 of a file, computed once per process as long as the file stays as it is.

    A change, also one that puts back the size and the time of modification, gives a file another
    inode or time of change. A copy is another file, and is read.
    """
    begun, identity = time.time_ns(), _identity(path)
    if identity in _computed:
        count_bytes(path.stat().st_size)
        return _computed[identity]
    found = at(path).sha256()
    if path.stat().st_ctime_ns + SETTLED_NS < begun and _identity(path) == identity:
        _computed[identity] = found
    return found


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def digest(folder: Path) -> str:
    """One digest of the model itself: when and by whom it was exported does not count."""
    return digest_of(read_sums(folder))


def digest_of(sums: dict[str, str]) -> str:
    """The digest of the model that a SHA256SUMS describes."""
    model = {name: sha256 for name, sha256 in sums.items() if name not in ABOUT}
    return hashlib.sha256(_text(model).encode()).hexdigest()
