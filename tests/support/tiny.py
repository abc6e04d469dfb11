"""A run so small that a test can do all of it: made-up English, a toy model, a minute at most."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from elmwright.pipeline.format.manifest import Manifest, Shard, Split, Vocab

NOUNS = "cat dog bird house river stone tree book letter song garden city train winter lamp".split()
VERBS = "sees finds paints follows carries forgets reads hears leaves opens".split()
ADJECTIVES = "old small quiet green heavy bright distant broken".split()


def write_text(path: Path, documents: int = 400, seed: int = 0) -> Path:
    """Documents of a few sentences each, separated by blank lines, with plenty to learn."""
    draw = random.Random(seed)
    lines = []
    for number in range(documents):
        for _ in range(draw.randint(3, 7)):
            noun, other = draw.sample(NOUNS, 2)
            adjective = draw.choice(ADJECTIVES)
            lines.append(f"The {adjective} {noun} {draw.choice(VERBS)} the {other}.")
        lines.append(f"This was story number {number}.\n")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_config(folder: Path, text: Path, **changes: Any) -> Path:
    """A config file for that text; `changes` are section_key=value, such as train_max_steps=3."""
    settings: dict[str, dict[str, Any]] = {
        "run": {"name": "tiny", "dir": str(folder / "run"), "seed": 5},
        "corpus": {"sources": [str(text)], "heldout": {"heldout": 0.05}},
        "vocab": {"max_size": 200, "min_count": 1},
        "shards": {"block_steps": 200, "blocks_per_shard": 8},
        "model": {
            "dim": 16,
            "projection_dim": 8,
            "char_dim": 4,
            "filters": [[1, 4], [2, 4], [3, 8]],
            "n_highway": 1,
            "max_chars": 12,
        },
        "train": {
            "processes": 2,
            "lanes": 4,
            "window": 10,
            "max_steps": 12,
            "negatives": 20,
            "dropout": 0.1,
        },
        "eval": {"every_steps": 6, "max_tokens": 400, "lanes": 4},
        "checkpoint": {"every_steps": 3},
        "tracking": {"every_steps": 2},
    }
    for key, value in changes.items():
        section, _, name = key.partition("_")
        settings.setdefault(section, {})[name] = value
    lines = ["version = 1"]
    for section, values in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {as_toml(value)}" for name, value in values.items()]
    path = folder / "tiny.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def as_toml(value: Any) -> str:
    """A value as a config file has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)


def manifest() -> Manifest:
    """What a corpus of one block would say of itself."""
    shard = Shard("train-00000", "0" * 64, 1, "0" * 64, 1, 1, 1, 1, 0, 2, 0)
    return Manifest(
        created_by="test",
        key="k",
        block_steps=200,
        splits={"train": Split("train", (shard,))},
        vocab=Vocab("vocab.txt", "0" * 64, 3, "counts.npy", "0" * 64),
        funnel=(),
        inputs=(),
        long_words=0.0,
        unigram_perplexity={},
        config={},
    )


def damage(file: Path, how: str) -> None:
    """Truncate a file, flip one of its bits, or delete it."""
    data = bytearray(file.read_bytes())
    if how == "truncate":
        file.write_bytes(data[: len(data) // 2])
    elif how == "delete":
        file.unlink()
    else:
        data[len(data) // 2] ^= 0x10
        file.write_bytes(data)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "elmwright.jobs.cli", *map(str, arguments)]


def elmwright(
    *arguments: object, timeout: float = 240, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, in a process of its own."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )


def imported(profile: str) -> set[str]:
    """The packages that a process imported, from what it says with PYTHONPROFILEIMPORTTIME=1."""
    lines = (line for line in profile.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
