"""Small corpora for tests: made-up text, a build, and what came out of it."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, VocabConfig
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader

SHARDS = ShardsConfig(block_steps=320, blocks_per_shard=100)
VOCAB = VocabConfig(max_size=400, min_count=2)
TIMED = ("report.html", "statistics.json")
"""Files that contain durations."""


def some_text(documents: int, seed: int = 0) -> str:
    """Documents of random sentences, some of them copies, separated by empty lines."""
    draw = random.Random(seed)
    words = [
        f"{a}{b}ldirinopasteru" for a in ("ka", "lo", "mi", "nu", "pre") for b in ("ta", "ri", "x")
    ]
    made: list[str] = []
    for _ in range(documents):
        if made and draw.random() < 0.1:
            made.append(draw.choice(made))
            continue
        sentences = [
            " ".join(draw.choice(words) for _ in range(draw.randint(1, 14))).capitalize() + "."
            for _ in range(draw.randint(1, 8))
        ]
        made.append("\n".join(sentences))
    return "\n\n".join(made)


def random_document(draw: random.Random, words: int) -> list[str]:
    """Words of a document that shares next to nothing with another."""
    return [f"w{draw.randrange(5000)}" for _ in range(words)]


def make(folder: Path | str, corpus: CorpusConfig, **options) -> Manifest:
    settings = {"vocab": VOCAB, "shards": SHARDS, "seed": 7, **options}
    return build_corpus(corpus, folder=folder, **settings)


def digests(folder: Path) -> dict[str, str]:
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / "work") and path.name not in TIMED
    ]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def sentences(folder: Path | str, split: str) -> list[str]:
    found = []
    for shard in Manifest.load(folder).splits[split].shards:
        reader = ShardReader(f"{folder}/{shard.tar}")
        for block in map(reader.read, range(len(reader))):
            words = [block.types[token] for token in block.tokens]
            for end, length in zip(np.cumsum(block.lengths), block.lengths, strict=True):
                found.append(" ".join(words[end - length : end]))
    return found


def dropped(manifest: Manifest) -> dict[str, int]:
    """Documents each rule dropped."""
    return {step.rule: step.documents for step in manifest.funnel}


def write_documents(path: Path, documents: list[list[str]]) -> Path:
    """Documents, given as words, as JSON Lines."""
    path.write_text("".join(json.dumps({"text": " ".join(d) + "."}) + "\n" for d in documents))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON Lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
