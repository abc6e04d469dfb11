"""Settings of a corpus: weights, rules, a given vocabulary, lists of what was dropped, a report.
Building again runs only what is affected."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow
import pytest

from elmwright.pipeline.config import (
    C4,
    CorpusConfig,
    GopherQuality,
    ShardsConfig,
    Source,
    VocabConfig,
)
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.format.manifest import Manifest
from tests.support.corpus.corpora import (
    digests,
    dropped,
    make,
    random_document,
    read_lines,
    sentences,
    some_text,
    write_documents,
)
from tests.support.corpus.read_statistics import statistics_of
from tests.support.mistakes import mistake

pytestmark = pytest.mark.usefixtures("ray_here")


def ran(folder: Path) -> dict[str, int]:
    """Tasks the newest build had to run, by stage."""
    return {stage.name: stage.ran for stage in statistics_of(folder).stages}


def test_only_what_a_change_affects_is_run_again(tmp_path):
    text = tmp_path / "in"
    text.mkdir()
    for number in range(3):
        (text / f"{number}.txt").write_text(some_text(300, number))
    config = CorpusConfig(sources=(Source(str(text)),), chunk_mb=1)
    out = tmp_path / "out"
    make(out, config)
    assert ran(out)["clean"] == 1

    make(out, config, vocab=VocabConfig(max_size=50, min_count=1))
    assert {name for name, count in ran(out).items() if count} == {
        "vocabulary",
        "shards",
        "unigram",
    }

    (tmp_path / "more.txt").write_text(some_text(100, 9))
    added = replace(config, sources=(Source(str(tmp_path / "more.txt")), *config.sources))
    make(out, added)
    assert ran(out)["clean"] == 1, "the text that was there before is not cleaned again"
    assert ran(out)["shards"] > 0
    fresh = tmp_path / "fresh"
    make(fresh, added)
    assert digests(fresh) == digests(out)

    stricter = replace(added, heldout={"valid": 0.02, "test": 0.05})
    make(out, stricter)
    assert ran(out)["clean"] == 0, "held-out shares do not matter when text is cleaned"
    assert set(Manifest.load(out).splits) == {"train", "valid", "test"}

    make(out, replace(stricter, min_words=5))
    assert ran(out)["clean"] == 2


def test_going_back_to_earlier_settings_after_an_interruption_gives_the_earlier_corpus(tmp_path):
    """The shards of the interrupted build must not be used for the first corpus."""
    (tmp_path / "in.txt").write_text(some_text(300))
    config = CorpusConfig(sources=(str(tmp_path / "in.txt"),))
    make(tmp_path / "out", config)
    before = digests(tmp_path / "out")

    def stop() -> bool:
        return len(set((tmp_path / "out/work/vocab").glob("*.txt"))) > 1

    with pytest.raises(Interrupted):
        make(tmp_path / "out", replace(config, min_words=20), stop=stop)
    make(tmp_path / "out", config)
    assert digests(tmp_path / "out") == before


def test_without_the_work_folder_the_corpus_is_the_same(tmp_path):
    (tmp_path / "in.txt").write_text(some_text(200))
    config = CorpusConfig(sources=(str(tmp_path / "in.txt"),))
    make(tmp_path / "with", config)
    make(tmp_path / "without", replace(config, keep_work=False))
    assert not (tmp_path / "without/work").exists()
    assert digests(tmp_path / "with") == digests(tmp_path / "without")


def test_weights_take_documents_less_or_more_often(tmp_path):
    draw = random.Random(7)
    for name in ("rare", "often", "plain"):
        documents = [[name, *random_document(draw, 20)] for _ in range(400)]
        write_documents(tmp_path / f"{name}.jsonl", documents)
    config = CorpusConfig(
        sources=(
            Source(str(tmp_path / "rare.jsonl"), weight=0.25),
            Source(str(tmp_path / "often.jsonl"), weight=2.5),
            Source(str(tmp_path / "plain.jsonl"), licence="CC0"),
        ),
        heldout={"heldout": 0.05},
    )
    manifest = make(tmp_path / "out", config)
    train = [text.split()[0] for text in sentences(tmp_path / "out", "train")]
    held = [text.split()[0] for text in sentences(tmp_path / "out", "heldout")]
    assert len(set(sentences(tmp_path / "out", "heldout"))) == len(held)
    assert 60 < train.count("rare") < 135
    assert 860 < train.count("often") < 1050
    assert train.count("plain") + held.count("plain") == 400
    texts = sentences(tmp_path / "out", "train")
    assert sum(a == b for a, b in pairwise(texts)) < 20, "copies are spread"
    rare, often, plain = statistics_of(tmp_path / "out").sources
    assert (rare.weight, often.weight, plain.licence) == (0.25, 2.5, "CC0")
    assert dropped(manifest)["weight"] == 400 - rare.kept_documents


def test_a_given_vocabulary_is_used_as_it_is(tmp_path):
    (tmp_path / "in.txt").write_text("the cat saw the dog.\n\nthe dog ran.")
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ndog\nunicorn\nthe\n")
    config = CorpusConfig(sources=(str(tmp_path / "in.txt"),), heldout={}, dedup="document")
    manifest = make(tmp_path / "out", config, vocab=VocabConfig(str(tmp_path / "vocab.txt")))
    assert (tmp_path / "out/vocab.txt").read_text() == (tmp_path / "vocab.txt").read_text()
    assert manifest.vocab.size == 6
    import numpy as np

    assert np.load(tmp_path / "out/counts.npy").tolist() == [2, 2, 5, 2, 0, 3]


def test_repeated_lines_are_dropped_but_their_neighbours_stay(tmp_path):
    long = (
        "This line is a paragraph of its own, " + "for it is long " * 8 + ". It has two sentences."
    )
    (tmp_path / "in.txt").write_text(f"{long}\nFirst of all.\n\n{long}\nSecond of all.\n")
    config = CorpusConfig(
        sources=(str(tmp_path / "in.txt"),), heldout={}, dedup="document", dedup_lines="line"
    )
    manifest = make(tmp_path / "out", config)
    found = sentences(tmp_path / "out", "train")
    assert len(found) == 4
    assert sum(text.startswith("It has two") for text in found) == 1
    assert {s.rule: s.sentences for s in manifest.funnel}["dedup_line"] == 2


def test_broken_records_are_in_the_quarantine_with_their_reasons(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "Good one here."}\n{"text": 3}\nnonsense\n')
    manifest = make(tmp_path / "out", CorpusConfig(sources=(str(path),), heldout={}))
    rows = read_lines(tmp_path / "out/quarantine.jsonl")
    assert [row["offset"] for row in rows] == [27, 39]
    assert all(row["file"] == str(path) and row["problem"] for row in rows)
    assert rows[1]["beginning"].startswith("nonsense")
    assert dropped(manifest)["broken"] == 2
    assert manifest.splits["train"].documents == 1
    path.write_text('{"text": "Good one here."}\n')
    make(tmp_path / "out", CorpusConfig(sources=(str(path),), heldout={}))
    assert not (tmp_path / "out/quarantine.jsonl").exists()


def test_strict_stops_at_the_first_broken_record(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Good one here."}\nnonsense\n')
    config = CorpusConfig(sources=(str(tmp_path / "in.jsonl"),), heldout={}, strict=True)
    with mistake("source", "in.jsonl"):
        make(tmp_path / "out", config)
    assert not (tmp_path / "out/MANIFEST.json").exists()


def saved_documents(folder: Path) -> list[dict[str, str]]:
    rows = []
    for path in sorted((folder / "documents").iterdir()):
        with pyarrow.input_stream(str(path), compression="zstd") as stream:
            rows += [json.loads(line) for line in stream.read().decode().splitlines()]
    return rows


def test_dropped_documents_are_saved_on_demand(tmp_path):
    draw = random.Random(8)
    documents = [random_document(draw, 60) for _ in range(20)]
    short, twice = ["too", "short"], documents[3]
    source = write_documents(tmp_path / "in.jsonl", [*documents, short, twice])
    config = CorpusConfig(
        sources=(str(source),), heldout={}, min_words=10, save_documents="dropped"
    )
    make(tmp_path / "out", config)
    found = saved_documents(tmp_path / "out")
    assert sorted(row["rule"] for row in found) == ["dedup_document", "min_words"]
    assert any(row["text"] == "too short." for row in found)
    make(tmp_path / "out", replace(config, save_documents="all"))
    rules = [row["rule"] for row in saved_documents(tmp_path / "out")]
    assert (rules.count("kept"), len(rules)) == (20, 22)
    make(tmp_path / "out", replace(config, save_documents="none"))
    assert not list((tmp_path / "out").glob("documents/*"))


def test_published_rules_act_where_they_are_named_and_can_be_tuned(tmp_path):
    prose = "The cat sat on the mat and looked at the dog with great care. " * 12
    (tmp_path / "in.txt").write_text(f"{prose}\n\nshort one\n\n{prose} With {{code}}.")
    config = CorpusConfig(
        sources=(str(tmp_path / "in.txt"),), heldout={}, rules=("gopher-quality", "c4")
    )
    manifest = make(tmp_path / "out", config)
    assert dropped(manifest)["gopher_quality.min_words"] == 1
    assert dropped(manifest)["c4.curly_bracket"] == 1
    tuned = replace(
        config,
        gopher_quality=GopherQuality(min_words=1, min_stop_words=0, min_word_length=1.0),
        c4=C4(curly_bracket=False, min_sentences=0, terminal_punctuation=False, min_line_words=0),
    )
    assert make(tmp_path / "out", tuned).splits["train"].documents >= 2


def test_report_of_a_build_names_the_rule_and_escapes_hostile_text(tmp_path):
    hostile = "<script>alert(1)</script> and more of the same hostile text"
    (tmp_path / "in.txt").write_text(f"{hostile}\n\n{some_text(100)}")
    config = CorpusConfig(sources=(str(tmp_path / "in.txt"),), max_words=9, min_words=9)
    make(tmp_path / "out", replace(config, min_words=1, max_words=12))
    page = (tmp_path / "out/report.html").read_text()
    assert "<script" not in page.lower()
    assert "max_words" in page
    statistics = statistics_of(tmp_path / "out")
    assert statistics.examples["max_words"]
    assert sum(statistics.sentence_words.values()) == sum(
        split.sentences for split in Manifest.load(tmp_path / "out").splits.values()
    )
    assert statistics.coverage[-1][1] == pytest.approx(1.0)


def test_a_killed_worker_does_not_change_the_result(tmp_path):
    """Workers are killed over and over while the corpus is built."""
    for number in range(4):
        (tmp_path / f"in{number}.txt").write_text(some_text(900, number))
    config = CorpusConfig(sources=(str(tmp_path / "in*.txt"),), chunk_mb=1)
    make(tmp_path / "whole", config)
    program = (
        "import os, signal, subprocess, time, random\n"
        "draw = random.Random(1)\n"
        "while True:\n"
        "    search = ['pgrep', '-f', 'ray::run_once']\n"
        "    out = subprocess.run(search, capture_output=True, text=True)\n"
        "    pids = [int(x) for x in out.stdout.split()]\n"
        "    if pids and draw.random() < 0.5: os.kill(draw.choice(pids), signal.SIGKILL)\n"
        "    time.sleep(0.7)\n"
    )
    killer = subprocess.Popen([sys.executable, "-c", program])
    try:
        make(tmp_path / "out", config)
    finally:
        killer.kill()
        killer.wait()
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_sentences_of_a_document_stay_together_and_in_order(tmp_path):
    lines = [[f"d{d} s{s} word" for s in range(6)] for d in range(50)]
    (tmp_path / "in.txt").write_text("\n\n".join("\n".join(document) for document in lines))
    config = CorpusConfig(sources=(str(tmp_path / "in.txt"),), sentences="line", heldout={})
    make(tmp_path / "out", config, shards=ShardsConfig(64, 4))
    found = sentences(tmp_path / "out", "train")
    documents = [found[n : n + 6] for n in range(0, 300, 6)]
    assert sorted(documents) == sorted(lines)
    assert documents != lines
