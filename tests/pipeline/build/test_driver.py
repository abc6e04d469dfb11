"""A corpus build: the same bytes whatever happens, and every dropped word accounted for."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import webdataset

from elmwright.pipeline.build import driver
from elmwright.pipeline.build.ray_tasks import Runner, Task
from elmwright.pipeline.build.stages.repeats import count_progress_pieces
from elmwright.pipeline.build.up_to_date import corpus_key, current_manifest
from elmwright.pipeline.config import CorpusConfig, Pieces, ShardsConfig
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.verify_corpus import verify_corpus
from elmwright.pipeline.format.vocab import load_counts, load_vocab
from elmwright.pipeline.progress import Advance
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.corpus.corpora import SHARDS, VOCAB, digests, make, sentences, some_text
from tests.support.mistakes import mistake

pytestmark = pytest.mark.usefixtures("ray_here")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three text files of about 3 MB in all, so that tasks of 1 MB cut them up."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text(some_text(5500, 1))
    (folder / "b.txt").write_text(some_text(700, 2))
    records = [json.dumps({"text": doc}) for doc in some_text(700, 3).split("\n\n")]
    (folder / "c.jsonl").write_text("\n".join(records))
    return folder


@pytest.fixture(scope="module")
def corpus(text: Path) -> CorpusConfig:
    return CorpusConfig(sources=(str(text),), heldout={"heldout": 0.05}, chunk_mb=16)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: CorpusConfig) -> Path:
    """The corpus as it should be, built without disturbance."""
    folder = tmp_path_factory.mktemp("whole")
    make(folder, corpus)
    return folder


def test_other_chunks_and_one_worker_give_the_same_bytes(tmp_path, corpus, whole):
    make(tmp_path, replace(corpus, chunk_mb=1), in_flight=1)
    assert digests(tmp_path) == digests(whole)


def build_elsewhere(folder: Path, corpus: CorpusConfig, workers: int) -> subprocess.Popen[bytes]:
    """A build in a process of its own, with a Ray of its own."""
    program = (
        "import ray, logging\n"
        "from pathlib import Path\n"
        "from elmwright.pipeline.build.driver import build_corpus\n"
        "from elmwright.pipeline.config import *\n"
        f"ray.init(address='local', num_cpus={workers}, include_dashboard=False)\n"
        f"build_corpus({corpus!r}, {VOCAB!r}, {SHARDS!r}, seed=7,\n"
        f"    folder=Path({str(folder)!r}), in_flight={workers})\n"
    )
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True)


def test_several_workers_give_the_same_bytes(tmp_path, corpus, whole):
    assert build_elsewhere(tmp_path, replace(corpus, chunk_mb=1), 3).wait(120) == 0
    assert digests(tmp_path) == digests(whole)


def test_killed_build_resumes_and_gives_the_same_bytes(tmp_path, corpus, whole):
    small = replace(corpus, chunk_mb=1)
    process = build_elsewhere(tmp_path, small, 1)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("work/clean/*.done.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    marks = sorted(tmp_path.glob("work/clean/*.done.json"))
    assert marks
    assert not (tmp_path / "MANIFEST.json").exists()
    before = {mark: mark.stat().st_mtime_ns for mark in marks}
    seen: list[int] = []

    def progress(name, total, unit):
        if name == "finding copies":
            seen.extend(before[mark] == mark.stat().st_mtime_ns for mark in marks)
        return driver.silent(name, total, unit)

    make(tmp_path, small, progress=progress)
    assert seen
    assert all(seen), "what was done before the kill was done again"
    assert digests(tmp_path) == digests(whole)


def test_stopped_build_resumes_and_gives_the_same_bytes(tmp_path, corpus, whole):
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 6

    with pytest.raises(Interrupted):
        make(tmp_path, corpus, stop=stop)
    assert not (tmp_path / "MANIFEST.json").exists()
    make(tmp_path, corpus)
    assert digests(tmp_path) == digests(whole)


def test_no_document_comes_twice_and_no_heldout_sentence_is_in_train(whole):
    train, heldout = sentences(whole, "train"), sentences(whole, "heldout")
    assert heldout
    assert not set(train) & set(heldout)
    manifest = Manifest.load(whole)
    dropped = {step.rule: step for step in manifest.funnel}
    assert dropped["dedup_document"].documents > 200
    assert dropped["heldout_overlap"].sentences > 0
    share = manifest.splits["heldout"].documents / dropped["kept"].documents
    assert 0.03 < share < 0.07


def test_the_funnel_accounts_for_every_word(whole):
    read, *rules, kept = Manifest.load(whole).funnel
    assert (read.rule, kept.rule) == ("read", "kept")
    for unit in ("documents", "sentences", "words"):
        lost = sum(getattr(step, unit) for step in rules)
        assert getattr(read, unit) == lost + getattr(kept, unit)
    assert kept.words == sum(split.words for split in Manifest.load(whole).splits.values())


def test_every_sentence_of_the_input_is_in_the_corpus_once(tmp_path):
    source = tmp_path / "in.txt"
    lines = [f"line {n % 70} of the text" for n in range(100)]
    source.write_text("\n".join(lines))
    config = CorpusConfig(
        sources=(str(source),),
        documents="line",
        sentences="line",
        tokenizer="whitespace",
        dedup_lines="sentence",
        heldout={"heldout": 0.1},
    )
    make(tmp_path / "out", config)
    found = sentences(tmp_path / "out", "train") + sentences(tmp_path / "out", "heldout")
    assert sorted(found) == sorted(set(lines))
    assert found != sorted(found), "not shuffled"


@pytest.mark.parametrize("shuffle", ["document", "sentence"])
def test_without_dedup_copies_stay_and_are_spread(tmp_path, shuffle):
    source = tmp_path / "in.txt"
    source.write_text("\n".join([f"word{n % 5} and more" for n in range(200)]))
    config = CorpusConfig(sources=(str(source),), documents="line", dedup="none", heldout={})
    make(tmp_path / "out", config, shards=ShardsConfig(64, 40, shuffle))
    found = sentences(tmp_path / "out", "train")
    assert len(found) == 200
    assert sum(a == b for a, b in pairwise(found)) < 80


def test_given_heldout_files_stay_whole_and_train_loses_shared_sentences(tmp_path):
    (tmp_path / "train.txt").write_text("Shared words here.\n\nOnly in train. Ok.")
    (tmp_path / "valid.txt").write_text("Shared words here. Ok.\n\nShared words here. Ok.")
    config = CorpusConfig(
        sources=(str(tmp_path / "train.txt"),),
        heldout={"valid": (str(tmp_path / "valid.txt"),)},
        min_sentence_words=3,
        dedup_lines="sentence",
    )
    manifest = make(tmp_path / "out", config)
    assert sentences(tmp_path / "out", "train") == ["Only in train ."]
    assert sentences(tmp_path / "out", "valid") == ["Shared words here .", "Ok ."] * 2
    assert list(manifest.splits) == ["train", "valid"]


def test_vocabulary_and_counts_come_from_train_alone(whole):
    manifest = Manifest.load(whole)
    words, counts = load_vocab(whole / "vocab.txt"), load_counts(whole / "counts.npy")
    assert words[:3] == ["<S>", "</S>", "<UNK>"]
    train = " ".join(sentences(whole, "train")).split()
    assert counts[0] == counts[1] == manifest.splits["train"].sentences
    assert counts[words.index(train[0])] == train.count(train[0])
    assert counts[1:].sum() == manifest.splits["train"].steps
    assert counts[3:].tolist() == sorted(counts[3:].tolist(), reverse=True)
    assert 3 < manifest.unigram_perplexity["heldout"] < 60
    assert manifest.unk_share["train"] == counts[2] / manifest.splits["train"].steps


def test_webdataset_reads_the_whole_split(whole):
    tars = [str(whole / shard.tar) for shard in Manifest.load(whole).splits["train"].shards]
    assert len(tars) > 1
    samples = list(webdataset.WebDataset(tars, shardshuffle=False))
    assert len(samples) == Manifest.load(whole).splits["train"].blocks


def test_sentencepiece_pieces_become_the_words_and_are_the_same_for_other_chunks(tmp_path):
    for number in range(3):
        (tmp_path / f"in{number}.txt").write_text(some_text(1200, number))
    config = {
        "sources": (str(tmp_path / "in*.txt"),),
        "tokenizer": "sentencepiece",
        "sentencepiece": Pieces(size=60),
    }
    one = make(tmp_path / "one", CorpusConfig(**config, chunk_mb=16))
    two = make(tmp_path / "two", CorpusConfig(**config, chunk_mb=1))
    assert one.fingerprint == two.fingerprint
    assert "sentencepiece.model" in one.extra_files
    pieces = sentences(tmp_path / "one", "train")[0].split()
    assert pieces[0].startswith("▁")
    assert verify_corpus(one, tmp_path / "one") == []


def test_a_finished_corpus_is_current_until_its_input_or_settings_change(tmp_path):
    source = tmp_path / "in" / "a.txt"
    source.parent.mkdir()
    source.write_text(some_text(30))
    config = CorpusConfig(sources=(str(source.parent),))
    key = corpus_key(config, VOCAB, SHARDS, 7)
    out = tmp_path / "out"
    assert current_manifest(out, key, config) is None
    manifest = make(out, config)
    assert current_manifest(out, key, config) == manifest
    os.utime(source)
    assert current_manifest(out, key, config) == manifest, "same bytes, another time"
    assert current_manifest(out, corpus_key(config, VOCAB, SHARDS, 8), config) is None
    source.with_name("b.txt").write_text("One more.")
    assert current_manifest(out, key, config) is None
    shutil.rmtree(source.parent)
    assert current_manifest(out, key, config) == manifest, "raw text may be taken away"


@pytest.mark.parametrize("damage", ["tar", "vocab", "missing"])
def test_verification_names_the_damaged_file(tmp_path, damage):
    (tmp_path / "in.txt").write_text(some_text(60))
    manifest = make(tmp_path / "out", CorpusConfig(sources=(str(tmp_path / "in.txt"),)))
    assert verify_corpus(manifest, tmp_path / "out") == []
    file = "vocab.txt" if damage == "vocab" else manifest.splits["train"].shards[0].tar
    path = tmp_path / "out" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if damage == "missing":
        path.unlink()
    (problem,) = verify_corpus(manifest, tmp_path / "out")
    assert str(path) in problem


def test_too_little_disk_stops_the_build_at_its_start(tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text(some_text(30))
    monkeypatch.setattr(DiskLocation, "free_bytes", lambda _self: 10)
    with mistake("disk-full", str(tmp_path / "out")):
        make(tmp_path / "out", CorpusConfig(sources=(str(tmp_path / "in.txt"),)))


def test_a_manifest_of_another_format_is_refused(tmp_path):
    (tmp_path / "MANIFEST.json").write_text('{"format": 99, "created_by": "elmwright 9"}')
    with mistake("format", "99", "elmwright 9"):
        Manifest.load(tmp_path)


def test_progress_shows_one_full_bar_per_stage(tmp_path, corpus):
    """Every bar opens once, never moves back, is full in the end, and says what came out."""
    shown: dict[str, list[tuple[int, str]]] = {}

    @contextmanager
    def progress(name: str, total: int, unit: str) -> Iterator[Advance]:
        assert name not in shown
        moves = shown[name] = []
        yield lambda n, detail="": moves.append((n, detail))
        assert unit == ""
        assert sum(n for n, _ in moves) == total
        assert all(n >= 0 for n, _ in moves)

    manifest = make(tmp_path, replace(corpus, dedup="near", dedup_lines="line"), progress=progress)
    assert list(shown) == [
        "reading",
        "cleaning",
        "finding copies",
        "shuffling",
        "counting words",
        "writing shards",
        "writing report",
    ]
    results = [moves[-1][1] for moves in shown.values()]
    assert results[0] == "3 files"
    assert results[1] == f"{manifest.funnel[0].documents:,} documents"
    assert results[4] == f"vocabulary of {manifest.vocab.size:,}"
    assert results[5] == f"{sum(len(s.shards) for s in manifest.splits.values())} shards"


def test_count_progress_pieces_is_the_number_of_task_runs(tmp_path, corpus, monkeypatch):
    """`count_progress_pieces` is how often tasks are run."""
    counted: list[int] = []
    run = Runner.run

    def counting(self: Runner, name: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        counted.append(len(tasks))
        return run(self, name, tasks)

    monkeypatch.setattr(Runner, "run", counting)
    before: list[int] = []
    find = driver.find_repeats

    def finding(*args: Any) -> Any:
        before.append(len(counted))
        found = find(*args)
        before.append(len(counted))
        return found

    monkeypatch.setattr(driver, "find_repeats", finding)
    for dedup, lines in (("near", "line"), ("document", "sentence"), ("none", "none")):
        before.clear()
        counted.clear()
        settings = replace(corpus, dedup=dedup, dedup_lines=lines)
        make(tmp_path / dedup, settings)
        assert before[1] - before[0] == count_progress_pieces(settings, True) - 1, dedup
