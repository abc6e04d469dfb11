"""The recipe `wikitext2` follows its protocol: a line is a sentence, and nothing else happens."""

import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray

from elmwright.jobs.config.toml_file import load_config
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.format.block import Block
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.format.vocab import load_counts, load_vocab
from tests.support.places import SHARED

pytestmark = pytest.mark.slow(5)

TEXT = SHARED / "data" / "wikitext2"

HEADING, SENTENCE = " = A heading = \n \n", " The <unk> sat . It 's here , isn 't it ? \n"
ODD = " once \ufeff \u00c3\u00a9 e\u0301\n a@b.com \u201c 10 @,@ 000 \u201d \n"
"""An invisible word, what looks like a wrong decoding, an accent of its own, an address."""
TRAIN = f" \n{HEADING}{SENTENCE}{ODD}{HEADING}{SENTENCE}"
VALID = f"{HEADING}{SENTENCE} never seen \n{HEADING}"


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def build(folder: Path, train: bytes, valid: bytes) -> Manifest:
    """The recipe's corpus, made of these texts."""
    for name, data in (("train", train), ("valid", valid)):
        (folder / f"wiki.{name}.tokens").write_bytes(data)
    config = load_config(
        "wikitext2",
        [
            f"corpus.sources=['{folder}/wiki.train.tokens']",
            f"corpus.heldout={{valid = ['{folder}/wiki.valid.tokens']}}",
        ],
    )
    corpus = replace(config.corpus, keep_work=False)
    return build_corpus(corpus, config.vocab, config.shards, seed=1, folder=folder / "corpus")


def blocks(folder: Path, split: str) -> Iterator[Block]:
    for shard in Manifest.load(folder).splits[split].shards:
        reader = ShardReader(f"{folder}/{shard.tar}")
        yield from map(reader.read, range(len(reader)))


def lines_of(folder: Path, split: str) -> list[list[str]]:
    """The sentences of a split, in the order in which the model reads them."""
    found = []
    for block in blocks(folder, split):
        words = np.array(block.types, object)[block.tokens]
        found += [list(part) for part in np.split(words, np.cumsum(block.lengths)[:-1])]
    return found


def expected(text: str) -> list[list[str]]:
    return [words for line in text.split("\n") if (words := [w for w in line.split(" ") if w])]


def test_every_line_keeps_its_order_and_words(ray_here, tmp_path):
    manifest = build(tmp_path, TRAIN.encode(), VALID.encode())
    corpus = tmp_path / "corpus"
    assert lines_of(corpus, "train") == expected(TRAIN)
    assert lines_of(corpus, "valid") == expected(VALID)
    assert manifest.splits["train"].steps == sum(len(line) + 1 for line in expected(TRAIN))
    assert load_vocab(corpus / "vocab.txt")[:3] == ["<S>", "</S>", "<UNK>"]
    words = {word for line in expected(TRAIN) for word in line}
    assert set(load_vocab(corpus / "vocab.txt")[3:]) == words
    unknown = [b.types[i] for b in blocks(corpus, "valid") for i in np.flatnonzero(b.ids == 2)]
    assert unknown == ["never", "seen"]


@pytest.mark.heavy
@pytest.mark.skipif(not TEXT.is_dir(), reason=f"{TEXT} is not there (ELMWRIGHT_SHARED)")
def test_the_whole_text_is_kept_word_for_word(ray_here, tmp_path):
    texts = {
        split: lzma.decompress((TEXT / f"wiki.{split}.tokens.xz").read_bytes())
        for split in ("train", "valid")
    }
    manifest = build(tmp_path, **texts)
    corpus = tmp_path / "corpus"
    for split, data in texts.items():
        lines = expected(data.decode())
        assert lines_of(corpus, split) == lines, "a line was cut, changed, dropped or moved"
        assert manifest.splits[split].steps == sum(map(len, lines)) + len(lines)
    train, valid = manifest.splits["train"], manifest.splits["valid"]
    assert (train.words, train.sentences) == (2_051_910, 23_767)
    assert (valid.words, valid.sentences) == (213_886, 2_461)
    assert manifest.vocab.size == 33_277 + 3
    counts = load_counts(corpus / "counts.npy")
    assert counts[2] == 0
    assert counts[3:].min() >= 1
    padding = 1 - train.steps / (train.blocks * manifest.block_steps)
    assert padding < 0.01
