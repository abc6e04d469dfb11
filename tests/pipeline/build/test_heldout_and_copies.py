"""Held-out sets, and what train must not share with them; near-copies within train."""

import random
from dataclasses import replace

import pytest

from elmwright.pipeline.config import (
    CorpusConfig,
    ShardsConfig,
)
from tests.support.corpus.corpora import (
    dropped,
    make,
    random_document,
    read_lines,
    sentences,
    write_documents,
)
from tests.support.corpus.read_statistics import statistics_of

pytestmark = pytest.mark.usefixtures("ray_here")


def test_held_out_shares_are_disjoint_and_about_as_large_as_configured(tmp_path):
    draw = random.Random(1)
    source = write_documents(tmp_path / "in.jsonl", [random_document(draw, 30) for _ in range(800)])
    config = CorpusConfig(sources=(str(source),), heldout={"valid": 0.1, "test": 0.2})
    manifest = make(tmp_path / "out", config)
    found = {name: set(sentences(tmp_path / "out", name)) for name in ("train", "valid", "test")}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 800
    assert 0.06 < len(found["valid"]) / 800 < 0.14
    assert 0.15 < len(found["test"]) / 800 < 0.25
    assert set(manifest.unigram_perplexity) == {"valid", "test"}


def test_small_corpus_gets_every_held_out_set(tmp_path):
    draw = random.Random(2)
    source = write_documents(tmp_path / "in.jsonl", [random_document(draw, 30) for _ in range(9)])
    config = CorpusConfig(sources=(str(source),), heldout={"valid": 0.001, "test": 0.001})
    manifest = make(tmp_path / "out", config)
    assert manifest.splits["valid"].documents == manifest.splits["test"].documents == 1


def planted(draw: random.Random, count: int) -> tuple[list[list[str]], list[list[str]]]:
    """Documents, and of each a near-copy whose 5-word shingles have a Jaccard of 0.9 or more."""
    originals = [random_document(draw, 400) for _ in range(count)]
    copies = []
    for words in originals:
        copy = list(words)
        for _ in range(3):
            copy[draw.randrange(400)] = "changed"
        copies.append(copy)
    for one, two in zip(originals, copies, strict=True):
        a, b = ({tuple(d[n : n + 5]) for n in range(396)} for d in (one, two))
        assert len(a & b) / len(a | b) >= 0.9
    return originals, copies


@pytest.mark.parametrize("dedup", ["near", "document"])
def test_near_copies_of_held_out_documents_stay_out_of_train(tmp_path, dedup):
    draw = random.Random(3)
    originals, copies = planted(draw, 400)
    source = write_documents(tmp_path / "in.jsonl", originals + copies)
    config = CorpusConfig(sources=(str(source),), heldout={"heldout": 0.3}, dedup=dedup)
    make(tmp_path / "out", config, shards=ShardsConfig(640, 100))
    owner = {}
    for number, (one, two) in enumerate(zip(originals, copies, strict=True)):
        owner[" ".join(one)] = owner[" ".join(two)] = number
    train, heldout = (
        {owner[s.removesuffix(" .")] for s in sentences(tmp_path / "out", split)}
        for split in ("train", "heldout")
    )
    assert len(heldout) > 20
    assert len(train & heldout) <= 0.01 * len(heldout)


def test_near_copies_of_given_held_out_files_stay_out_of_train(tmp_path):
    draw = random.Random(4)
    originals, copies = planted(draw, 200)
    config = CorpusConfig(
        sources=(str(write_documents(tmp_path / "in.jsonl", copies)),),
        heldout={"valid": (str(write_documents(tmp_path / "valid.jsonl", originals[:100])),)},
        decontaminate_ngram=0,
        dedup="none",
    )
    manifest = make(tmp_path / "out", config)
    assert manifest.splits["valid"].documents == 100
    assert dropped(manifest)["heldout_overlap"] >= 99
    assert manifest.splits["train"].documents <= 101


@pytest.mark.parametrize("dedup", ["none", "near"])
def test_overlap_with_a_given_held_out_file_is_kept_on_demand(tmp_path, dedup):
    draw = random.Random(8)
    documents = [random_document(draw, 40) for _ in range(30)]
    config = CorpusConfig(
        sources=(str(write_documents(tmp_path / "in.jsonl", documents)),),
        heldout={"valid": (str(write_documents(tmp_path / "valid.jsonl", documents[:10])),)},
        dedup=dedup,
    )
    assert make(tmp_path / "dropped", config).splits["train"].documents == 20
    kept = make(tmp_path / "kept", replace(config, heldout_overlap="keep"))
    assert kept.splits["train"].documents == 30
    assert kept.splits["valid"].documents == 10


def test_near_copies_are_dropped_and_the_longest_stays(tmp_path):
    draw = random.Random(5)
    base = random_document(draw, 300)
    family = [base, [*base, "more"], base[:-1], [*base[:100], "x", *base[100:]]]
    others = [random_document(draw, 300) for _ in range(20)]
    source = write_documents(tmp_path / "in.jsonl", family + others)
    config = CorpusConfig(sources=(str(source),), heldout={})
    manifest = make(tmp_path / "out", config)
    assert dropped(manifest)["dedup_near"] == 3
    assert statistics_of(tmp_path / "out").clusters == {4: 1}
    texts = sentences(tmp_path / "out", "train")
    left = [text for text in texts if base[0] in text and base[50] in text]
    assert left == [" ".join([*base, "more", "."])] or left == [" ".join([*family[3], "."])]


def test_documents_that_share_ngrams_with_evaluation_files_are_removed_and_listed(tmp_path):
    draw = random.Random(6)
    documents = [random_document(draw, 100) for _ in range(30)]
    quoted = documents[7][40:60]
    (tmp_path / "eval.txt").write_text("An exam question: " + " ".join(quoted).upper() + "!")
    source = write_documents(tmp_path / "in.jsonl", documents)
    config = CorpusConfig(
        sources=(str(source),), heldout={}, decontaminate=(str(tmp_path / "eval.txt"),)
    )
    manifest = make(tmp_path / "out", config)
    assert dropped(manifest)["decontaminate"] == 1
    (listed,) = read_lines(tmp_path / "out/decontaminated.jsonl")
    assert listed["file"] == str(source)
    assert listed["ngram"].startswith(" ".join(quoted[:13]))
    assert listed["offset"] == sum(map(len, source.read_bytes().splitlines(True)[:7]))
    fewer = replace(config, decontaminate_ngram=22)
    assert dropped(make(tmp_path / "other", fewer))["decontaminate"] == 0
