"""The bundle: the folder that is published, and how its files are checked.

bundle/
  model.safetensors     the biLM, as the checkpoint had it
  softmax.safetensors   the tied softmax: only scoring and further training need it
  weights.hdf5          the biLM again, in bilm format, with
  options.json          its options: what AllenNLP and bilm-tf users load
  vocab.txt             one word a line, in the order of the softmax
  config.json           the model's shape and what it was measured at
  README.md             the model card
  provenance.json       what made it: code, config, corpus, checkpoint, packages
  SHA256SUMS            digests of all of the above, written last
"""

import hashlib
import re
from pathlib import Path

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage import sha256_file, write_atomic

SUMS = "SHA256SUMS"
FILES = (
    "README.md",
    "config.json",
    "model.safetensors",
    "options.json",
    "provenance.json",
    "softmax.safetensors",
    "vocab.txt",
    "weights.hdf5",
)
REGISTRY_FILES = ("registered_model_meta",)
"""Files that MLflow adds to a version it has downloaded."""


def write_sums(folder: Path) -> None:
    lines = [f"{sha256_file(folder / name)}  {name}\n" for name in FILES]
    write_atomic(folder / SUMS, "".join(lines).encode())


def read_sums(folder: Path) -> dict[str, str]:
    """File name → sha256, as SHA256SUMS says."""
    sums = {}
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder / SUMS} is missing or damaged ({error})") from error
    for line in text.splitlines():
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line)
        if not match or match[2] not in FILES:
            raise UserError(f"{folder / SUMS} is damaged: {line[:100]!r}")
        sums[match[2]] = match[1]
    return sums


def verify_bundle(folder: Path) -> None:
    """Compare every file with its digest; the error names the first that differs."""
    sums = read_sums(folder)
    missing = sorted(set(FILES) - set(sums))
    if missing:
        raise UserError(f"{folder / SUMS} does not list {missing[0]}")
    for name, digest in sums.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path} is missing or not a plain file")
        if sha256_file(path) != digest:
            raise UserError(f"{path} does not match its digest in {SUMS}")
    for path in folder.iterdir():
        if path.name not in (*FILES, SUMS, *REGISTRY_FILES):
            raise UserError(f"{path} does not belong to the bundle")


def digest(folder: Path) -> str:
    """One digest of the model itself: provenance, which holds the time, does not count."""
    sums = read_sums(folder)
    text = "".join(f"{sums[name]}  {name}\n" for name in FILES if name != "provenance.json")
    return hashlib.sha256(text.encode()).hexdigest()
