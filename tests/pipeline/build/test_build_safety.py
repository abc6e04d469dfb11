"""What a build must never do: lose files of others, use stale or damaged files, or silently ignore
a setting."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from elmwright.pipeline.build import driver, ray_tasks
from elmwright.pipeline.build.ray_tasks import Runner, task
from elmwright.pipeline.build.sample import try_rules
from elmwright.pipeline.build.up_to_date import vocab_file
from elmwright.pipeline.config import CorpusConfig, Pieces, Source, VocabConfig
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.verify_corpus import verify_corpus
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.corpus.corpora import (
    digests,
    dropped,
    make,
    random_document,
    sentences,
    some_text,
)
from tests.support.mistakes import mistake

pytestmark = pytest.mark.usefixtures("ray_here")


@pytest.fixture
def config(tmp_path: Path) -> CorpusConfig:
    (tmp_path / "in.txt").write_text(some_text(150))
    return CorpusConfig(sources=(str(tmp_path / "in.txt"),))


def test_folder_with_foreign_files_is_refused_and_left_alone(tmp_path, config):
    foreign = tmp_path / "data/documents/my_only_copy.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("precious")
    with mistake("output", str(tmp_path / "data")):
        make(tmp_path / "data", config)
    assert foreign.read_text() == "precious"


def test_files_of_the_run_are_not_sources(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.lock").touch()
    (tmp_path / "run/elmwright.log").write_text("a log that grows")
    (tmp_path / "run/text.txt").write_text("One fine day.")
    (tmp_path / "text.txt").write_text("Another fine day.")
    config = CorpusConfig(sources=(str(tmp_path),), heldout={})
    manifest = make(tmp_path / "run/corpus", config)
    assert [item.path for item in manifest.inputs] == [str(tmp_path / "text.txt")]
    only = CorpusConfig(sources=(str(tmp_path / "run/text.txt"),), heldout={})
    with mistake("setting", "corpus.sources", str(tmp_path / "run/text.txt")):
        make(tmp_path / "run/corpus", only)


EVALUATION = {
    "another field": ("eval.jsonl", b'{"question": "What is it then?"}\n', "no-text", "eval.jsonl"),
    "not text": ("eval.txt", b"%PDF-1.4\n" + bytes(range(256)) * 40, "source", "eval.txt"),
    "too short": ("eval.txt", b"Only a few words.", "no-text", "corpus.decontaminate_ngram"),
}


@pytest.mark.parametrize("case", EVALUATION)
def test_unusable_evaluation_file_stops_the_build(tmp_path, config, case):
    name, data, code, detail = EVALUATION[case]
    (tmp_path / name).write_bytes(data)
    with mistake(code, detail):
        make(tmp_path / "out", replace(config, decontaminate=(str(tmp_path / name),)))


@pytest.mark.parametrize(
    ("data", "code"), [(b"", "no-text"), (b"%PDF-1.4\n" + bytes(range(256)) * 40, "source")]
)
def test_unusable_held_out_file_stops_the_build(tmp_path, config, data, code):
    (tmp_path / "valid.txt").write_bytes(data)
    heldout = {"valid": (str(tmp_path / "valid.txt"),)}
    with mistake(code, "valid"):
        make(tmp_path / "out", replace(config, heldout=heldout))


def test_a_changed_evaluation_file_or_vocabulary_is_noticed(tmp_path):
    draw = random.Random(1)
    documents = [random_document(draw, 40) for _ in range(10)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": " ".join(d)}) + "\n" for d in documents))
    other, vocab = tmp_path / "eval.txt", tmp_path / "vocab.txt"
    other.write_text(" ".join(random_document(draw, 40)))
    vocab.write_text("<S>\n</S>\n<UNK>\n" + documents[0][0] + "\n")
    config = CorpusConfig(sources=(str(source),), heldout={}, decontaminate=(str(other),))
    given = VocabConfig(file=str(vocab))
    first = make(tmp_path / "out", config, vocab=given)
    assert dropped(first)["decontaminate"] == 0
    other.write_text(" ".join(documents[3]))
    second = make(tmp_path / "out", config, vocab=given)
    assert dropped(second)["decontaminate"] == 1
    vocab.write_text(vocab.read_text() + documents[1][1] + "\n")
    third = make(tmp_path / "out", config, vocab=given)
    assert third.vocab.size == second.vocab.size + 1
    vocab.unlink()
    with mistake("file-missing", "vocab.file", str(vocab)):
        vocab_file(str(vocab))


@pytest.mark.parametrize("odd", ["\ufffd", "\u2581", "\ufffd\ufffd \ufffd"])
def test_sentence_of_which_sentencepiece_keeps_nothing_stays_a_sentence(tmp_path, odd):
    (tmp_path / "in.txt").write_text(f"{some_text(100)}\n\n{odd}\n")
    pieces = Pieces(size=60)
    config = CorpusConfig(
        sources=(str(tmp_path / "in.txt"),), tokenizer="sentencepiece", sentencepiece=pieces
    )
    assert make(tmp_path / "out", config).splits["train"].words > 0


def test_sentencepiece_model_that_cannot_be_trained_is_a_mistake(tmp_path, config):
    tiny = replace(config, tokenizer="sentencepiece", sentencepiece=Pieces(size=2))
    with mistake("no-text", "[corpus.sentencepiece]", "size") as error:
        make(tmp_path / "out", tiny)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("allowed", [0, 3, 9, 17, 23, 30])
def test_interrupted_sweep_leaves_no_mark_without_its_output(
    tmp_path, config, allowed, monkeypatch
):
    make(tmp_path / "out", config)
    before = digests(tmp_path / "out")
    removed = []

    def remove(self):
        if "work" in Path(self.path).parts:
            removed.append(self.path)
            if len(removed) > allowed:
                raise KeyboardInterrupt
        Path(self.path).unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(DiskLocation, "remove", remove)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "out", replace(config, min_words=8))
    make(tmp_path / "out", config)
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize("damage", ["gone", "short", "mark"])
def test_damaged_outputs_are_made_again(tmp_path, config, damage):
    make(tmp_path / "out", config)
    before = digests(tmp_path / "out")
    work = tmp_path / "out/work"
    for path in [*work.glob("clean/*.arrow"), *work.glob("shards/*/*.tar")]:
        if damage == "gone":
            path.unlink()
        elif damage == "short":
            os.truncate(path, 100)
    for mark in work.glob("*/*.done.json") if damage == "mark" else ():
        mark.write_bytes(b"")
    (tmp_path / "out/MANIFEST.json").unlink()
    make(tmp_path / "out", config)
    assert digests(tmp_path / "out") == before


def test_damaged_shard_is_noticed_and_written_again(tmp_path, config):
    manifest = make(tmp_path / "out", config)
    before = digests(tmp_path / "out")
    tar = tmp_path / "out" / manifest.splits["train"].shards[0].tar
    with open(tar, "r+b") as file:
        file.seek(600)
        file.write(b"damage")
    (tmp_path / "out/MANIFEST.json").unlink()
    with mistake("file-damaged", tar.name):
        make(tmp_path / "out", config)
    make(tmp_path / "out", config)
    assert digests(tmp_path / "out") == before
    os.truncate(tar, 512)
    make(tmp_path / "out", config)
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize("table", ["clean/*.arrow", "counts/*.npy"])
def test_damaged_table_is_noticed_and_written_again(tmp_path, config, table):
    make(tmp_path / "out", config)
    before = digests(tmp_path / "out")
    work = tmp_path / "out/work"
    damaged = next(work.glob(table))
    data = bytearray(damaged.read_bytes())
    data[6] ^= 1
    damaged.write_bytes(data)
    for mark in work.glob("*/*.done.json"):
        if mark.parent.name not in ("clean", "counts"):
            mark.unlink()
    (tmp_path / "out/MANIFEST.json").unlink()
    with mistake("file-damaged", str(damaged)):
        make(tmp_path / "out", config)
    make(tmp_path / "out", config)
    assert digests(tmp_path / "out") == before


def test_resumed_build_needs_less_disk(tmp_path, config, monkeypatch):
    size = (tmp_path / "in.txt").stat().st_size
    make(tmp_path / "out", config)
    (tmp_path / "out/MANIFEST.json").unlink()
    monkeypatch.setattr(DiskLocation, "free_bytes", lambda _self: 2 * size)
    make(tmp_path / "out", config)
    with mistake("disk-full", str(tmp_path / "other")):
        make(tmp_path / "other", config)


def test_of_two_copies_the_one_that_is_taken_wins(tmp_path):
    draw = random.Random(3)
    lines = [json.dumps({"text": " ".join(random_document(draw, 30))}) for _ in range(50)]
    for name in ("rare", "all"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    sources = (
        Source(str(tmp_path / "rare.jsonl"), weight=0.1),
        Source(str(tmp_path / "all.jsonl")),
    )
    manifest = make(tmp_path / "out", CorpusConfig(sources=sources, heldout={}))
    assert manifest.splits["train"].documents == 50
    assert len(set(sentences(tmp_path / "out", "train"))) == 50


def test_file_name_that_is_not_utf8_is_a_mistake(tmp_path, config):
    with open(os.fsencode(tmp_path / "in") + b"\xff.txt", "wb") as file:
        file.write(b"text")
    with mistake("file-unreadable", "corpus.sources") as error:
        make(tmp_path / "out", replace(config, sources=(Source(str(tmp_path / "*.txt")),)))
    str(error.value).encode()


def test_sample_reads_further_pieces_where_files_are_documents(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(120):
        (folder / f"{number}.txt").write_text(f"Document number {number} is here.")
    config = CorpusConfig(sources=(str(folder),), documents="file")
    assert try_rules(config, str(tmp_path / "out"), 100, 1).funnel["read"][0] == 100


def test_many_broken_records_are_counted_but_not_all_listed(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "A good one."}\n' + "broken\n" * 12_000)
    manifest = make(
        tmp_path / "out", CorpusConfig(sources=(str(tmp_path / "in.jsonl"),), heldout={})
    )
    assert dropped(manifest)["broken"] == 12_000
    assert (tmp_path / "out/quarantine.jsonl").read_bytes().count(b"\n") == 10_000


def test_worker_that_always_dies_is_a_mistake(tmp_path):
    def die(_work: str, _out: str) -> dict[str, int]:
        os._exit(1)

    runner = Runner(str(tmp_path / "work"), driver.silent, None, lambda: False)
    with mistake("memory", "'test'", "corpus.chunk_mb"):
        runner.run("test", [task("one", die)])


def test_task_digest_depends_on_the_versions_of_the_tools(monkeypatch):
    first = task("clean", make, 1)
    monkeypatch.setattr(ray_tasks, "_tools", lambda: ["sentencex 99"])
    assert task("clean", make, 1).digest != first.digest


def test_task_digest_depends_on_the_format_of_the_work_folder(monkeypatch):
    first = task("clean", make, 1)
    monkeypatch.setattr(ray_tasks, "WORK_FORMAT", ray_tasks.WORK_FORMAT + 1)
    assert task("clean", make, 1).digest != first.digest


def test_folder_behind_a_link_is_the_one_that_the_system_finds(tmp_path, config):
    (tmp_path / "disk/project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/project")
    make(tmp_path / "link/../corpus", config)
    assert (tmp_path / "disk/corpus/MANIFEST.json").exists()
    assert not (tmp_path / "corpus").exists()


def test_url_of_a_hostile_record_is_never_used_as_a_path(tmp_path):
    body = b"<html><body><p>" + b"A paragraph about nothing in particular, but long. " * 8 + b"</p>"
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + body
    record = (
        (
            b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: file:///../../../../escaped.html\r\n"
            b"WARC-Date: 2020-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:../../x>\r\n"
            b"Content-Type: application/http; msgtype=response\r\n"
            b"Content-Length: %d\r\n\r\n" % len(http)
        )
        + http
        + b"\r\n\r\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / "in.warc").write_bytes(record)
    manifest = make(home / "out", CorpusConfig(sources=(str(home / "in.warc"),), heldout={}))
    assert dropped(manifest)["kept"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
    assert sorted(path.name for path in home.iterdir()) == ["in.warc", "out"]
    assert verify_corpus(Manifest.load(home / "out"), home / "out") == []
