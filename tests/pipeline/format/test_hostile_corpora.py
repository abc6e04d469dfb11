"""Corpora whose files claim what they do not hold: refused in a sentence, in no time and memory."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmwright.pipeline.cleaning import words
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import MEMBERS, from_members, to_members
from elmwright.pipeline.format.manifest import Manifest, Shard, Split, Vocab, canonical
from elmwright.pipeline.format.shards import (
    ShardReader,
    index_path,
    read_tar,
    tar_header,
    write_shard,
)
from elmwright.pipeline.format.verify_corpus import verify_corpus
from elmwright.pipeline.format.vocab import load_counts, load_vocab
from elmwright.pipeline.reading import harvest
from elmwright.pipeline.storage.disk import DiskLocation, sha256_bytes
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import JSON_BYTES, Stat
from elmwright.pipeline.storage.untrusted import read_row, read_small
from tests.support.corpus.blocks import some_blocks
from tests.support.hostile import VALUES, bounded, refusals, texts, waiting_at_most
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus of one shard."""
    shard = write_shard(tmp_path / "shards", "train", 0, some_blocks()[:3])
    manifest(shard).save(tmp_path)
    return tmp_path


def manifest(shard: Shard) -> Manifest:
    steps = (shard.steps + shard.padding) // shard.blocks
    vocab = Vocab("vocab.txt", "0" * 64, 3, "counts.npy", "0" * 64)
    return Manifest(
        created_by="test",
        key="k",
        block_steps=steps,
        splits={"train": Split("train", (shard,))},
        vocab=vocab,
        funnel=(),
        inputs=(),
        long_words=0.0,
        unigram_perplexity={},
        config={},
        extra_files={"sentencepiece.model": "0" * 64},
    )


def put(path: Path) -> Callable[[bytes], None]:
    return lambda data: path.write_bytes(data) and None


def test_no_field_of_a_manifest_can_hang_a_reader(corpus: Path) -> None:
    path = corpus / "MANIFEST.json"
    content = json.loads(path.read_text())

    def use() -> None:
        found = Manifest.load(corpus)
        problems = verify_corpus(found, corpus)
        if found.splits["train"].blocks > 3:
            assert any("train-00000" in problem for problem in problems)
            raise UserError("file-damaged", f"{path}: {problems[0]}")

    def sealed(data: bytes) -> None:
        """With the fingerprint that such a manifest would have."""
        path.write_bytes(data)
        try:
            changed = json.loads(data)
            seal = sha256_bytes(canonical(fingerprinted(changed)))
            path.write_text(json.dumps(changed | {"fingerprint": seal}))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass

    cases = list(texts(content))
    wrong, refused = refusals(cases, sealed, use, str(path))
    assert wrong == []
    assert refused > len(cases) / 3


def fingerprinted(content: dict) -> dict:
    return {
        "format": content["format"],
        "block_steps": content["block_steps"],
        "vocab": content["vocab"]["sha256"],
        "splits": {
            n: [shard["sha256"] for shard in s["shards"]] for n, s in content["splits"].items()
        },
    }


def test_no_field_of_an_index_can_hang_a_reader(corpus: Path) -> None:
    tar = corpus / "shards" / "train-00000.tar"
    path = Path(index_path(tar))
    kept: list[str] = []

    def keep(digest: str, read: Callable[[], bytes]) -> bytes:
        kept.append(digest)
        return read()

    def use() -> None:
        reader = ShardReader(tar, keep=keep)
        for number in range(len(reader)):
            reader.read(number)

    cases = list(texts(json.loads(path.read_text())))
    wrong, refused = refusals(cases, put(path), use, str(corpus))
    assert wrong == []
    assert refused > 0.8 * len(cases)
    assert all(set(digest) <= set("0123456789abcdef") for digest in kept), "a name in the cache"


@pytest.mark.parametrize(
    "blocks",
    [
        ["A" * 2**20] + [""] * 6000,
        [[["A" * 2**20, 0], *[[0, 0]] * (len(MEMBERS) - 1)], *[[[0, 0]] * len(MEMBERS)] * 1000],
        [[[0, 0]] * (len(MEMBERS) - 1)] * len(MEMBERS),
        [[[0]] * len(MEMBERS)] * 2,
        [[[2**63, 0]] * len(MEMBERS)],
        [[[True, 0]] * len(MEMBERS)],
        [{str(n): [0, 0] for n in range(len(MEMBERS))}],
        {"a": 1},
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_an_index_whose_places_are_no_pairs_of_numbers_takes_no_memory(
    corpus: Path, blocks: object
) -> None:
    tar = corpus / "shards" / "train-00000.tar"
    path = Path(index_path(tar))
    with tar.open("r+b") as file:
        file.truncate(256 << 20)  # so that the index is small beside it
    path.write_text(json.dumps(json.loads(path.read_text()) | {"blocks": blocks}))
    with bounded(), mistake("file-damaged", "train-00000.index.json", "no places"):
        ShardReader(tar)


def test_an_index_larger_than_its_tar_is_not_read(corpus: Path) -> None:
    tar = corpus / "shards" / "train-00000.tar"
    with open(index_path(tar), "r+b") as file:
        file.truncate(4 << 30)
    with bounded(), mistake("file-damaged", "train-00000.index.json", "4,294,967,296"):
        ShardReader(tar)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


ROW = "{'descr': '<i4', 'fortran_order': False, 'shape': (%r,)}"
NPY = (
    {f"shape {value!r:.20}": npy(ROW % (value,)) for value in VALUES}
    | {
        f"type {kind}": npy(
            f"{{'descr': {kind}, 'fortran_order': False, 'shape': (1,)}}", bytes(64)
        )
        for kind in (
            "'|O'",
            "'<f4'",
            "'V1000000000'",
            "('<i4', (1000000000,))",
            "[('a', '<i4')]",
            "7",
        )
    }
    | {
        "minus signs": npy("-" * 9000 + "1"),
        "nested": npy("(" * 9000),
        "a zip": b"PK\x03\x04" + bytes(100),
        "pickle": b"\x80\x04K\x01.",
        "version 9": b"\x93NUMPY\x09\x00" + bytes(100),
        "nothing": b"",
    }
)


@pytest.mark.parametrize("member", [name for name in MEMBERS if name.endswith(".npy")])
def test_no_header_of_an_array_in_a_block_can_hang_a_reader(member: str) -> None:
    members = dict(to_members(some_blocks()[0]))

    def change(data: bytes) -> None:
        members[member] = data

    wrong, refused = refusals(NPY.items(), change, lambda: from_members(members), "", (ValueError,))
    assert wrong == []
    assert refused == len(NPY)


def test_no_field_of_a_block_can_hang_a_reader() -> None:
    members = dict(to_members(some_blocks()[0]))
    cases = list(texts(json.loads(members["block.json"])))

    def change(data: bytes) -> None:
        members["block.json"] = data

    wrong, refused = refusals(cases, change, lambda: from_members(members), "", (ValueError,))
    assert wrong == []
    assert refused > 0.8 * len(cases)


def test_a_block_of_other_steps_than_its_shard_has_is_refused(tmp_path: Path) -> None:
    blocks = some_blocks()
    shard = write_shard(tmp_path, "train", 0, [blocks[0], replace(blocks[1], steps=4_000_000)])
    entry = replace(shard, padding=blocks[0].padding + blocks[1].padding)
    reader = ShardReader(tmp_path / "train-00000.tar", entry)
    with mistake("file-damaged", "block 1,", "4000000"):
        reader.read(1)


def test_a_tar_that_is_not_as_written_is_named_without_being_unpacked(tmp_path: Path) -> None:
    write_shard(tmp_path, "train", 0, some_blocks()[:2])
    path = tmp_path / "train-00000.tar"
    good = path.read_bytes()
    assert len(read_tar(path)) == 2
    name = "train-00000-00000000.block.json"
    pax = bytearray(tar_header(name, 0o77777777777))
    pax[156] = ord("x")
    pax[148:156] = b"%06o\0 " % (sum(pax[:148]) + 8 * 32 + sum(pax[156:]))
    cases = [
        ("claims 8 GB", tar_header(name, 0o77777777777) + good[512:]),
        ("claims 8 GB of pax header", bytes(pax) + good[512:]),
        ("cut", good[:700]),
        ("empty", b""),
        ("zeros", bytes(10240)),
        ("noise", bytes(range(256)) * 40),
        ("more behind it", good + b"more"),
        ("another name", tar_header("x" * 40, 10) + good[512:]),
    ]
    wrong, refused = refusals(cases, put(path), lambda: read_tar(path), str(path))
    assert wrong == []
    assert refused >= len(cases) - 2, "an empty one and zeros may be shards of nothing"


def test_an_index_of_parts_that_claims_more_rows_than_it_has_takes_no_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index.npy"
    tables.save_npy(str(path), np.zeros(3, [("a", "<i4")]))
    assert len(tables.load_npy(str(path))) == 3
    cases = [(name, data) for name, data in NPY.items() if "shape" in name]
    wrong, refused = refusals(
        cases, put(path), lambda: tables.load_npy(str(path)), str(path), (ValueError,)
    )
    assert wrong == []
    assert refused == len(cases)


def test_damaged_counts_and_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "counts.npy"
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    path.write_bytes(buffer.getvalue())
    assert load_counts(path).tolist() == [0, 1, 2]
    wrong, refused = refusals(NPY.items(), put(path), lambda: load_counts(path), str(path))
    assert wrong == []
    assert refused == len(NPY) - 1, "a row of nothing is a row"
    with (tmp_path / "vocab.txt").open("wb") as file:
        file.truncate(900 << 20)
    with bounded(), mistake("file-damaged", "vocab.txt", "megabyte"):
        load_vocab(tmp_path / "vocab.txt")


def test_a_range_behind_the_end_of_a_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with bounded():
        assert at(path).read_range(4, 2**62) == b"456789"
        assert at(path).read_range(40, 2**62) == b""


def test_json_of_ours_that_is_nested_or_huge_counts_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": ' + b"[" * 100_000)
    assert at(path).read_json() is None
    with path.open("r+b") as file:
        file.truncate(4 << 30)
    with bounded():
        assert at(path).read_json() is None


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "MANIFEST.json"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with waiting_at_most(5), bounded():
        with mistake("file-unreadable", "MANIFEST.json"):
            read_small(path)
        assert at(path).read_json() is None


def test_reading_stops_at_the_limit_if_the_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"{" + b" " * JSON_BYTES + b"}")
    monkeypatch.setattr(DiskLocation, "stat", lambda self: Stat(self.path, 1, 0))
    with mistake("file-damaged", "x.json", "16,777,216"):
        read_small(path)
    assert at(path).read_json() is None


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"\x0a\xff\xff\xff\xff\x0f", b"no model"])
def test_a_sentencepiece_model_that_is_none_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.model"
    path.write_bytes(data)
    with bounded(), mistake("file-damaged", "sentencepiece.model"):
        words.sentencepiece(path)("a word")


def test_no_field_of_a_frozen_harvest_can_name_a_file_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / harvest.FOLDER / harvest.NAME
    path.parent.mkdir()
    content = {"format": 1, "parts": {"part-00000.jsonl": "0" * 64}}
    cases = [*texts(content), ("outside", b'{"parts": {"../../x": ""}}')]

    def use() -> None:
        for part in harvest.frozen_parts(str(tmp_path)) or []:
            assert Path(part).parent == path.parent

    wrong, refused = refusals(cases, put(path), use, str(path))
    assert wrong == []
    assert refused > len(cases) / 2


@pytest.mark.parametrize("kind", ["i1", "u2", "i4", "i8"])
def test_plain_rows_are_read_without_the_python_parser(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11 raises a SystemError now and then when several threads parse at once."""
    for rows in (0, 1, 100_000):
        row = np.arange(rows).astype(kind)
        file = io.BytesIO()
        np.save(file, row)
        with monkeypatch.context() as now:
            now.setattr("ast.literal_eval", pytest.fail)
            assert (read_row(file.getvalue()) == row).all()
        with pytest.raises(ValueError, match="bytes for"):
            read_row(file.getvalue() + b"x")


@pytest.mark.parametrize("name", ["träin-00000", "x" * 150])
def test_shard_whose_name_no_tar_can_have_is_damaged(corpus: Path, name: str) -> None:
    (shard,) = Manifest.load(corpus).splits["train"].shards
    for path in (corpus / "shards").iterdir():
        path.rename(path.with_name(path.name.replace("train-00000", name)))
    manifest(replace(shard, name=name)).save(corpus)
    assert f"{name}.tar" in verify_corpus(Manifest.load(corpus), corpus)[-1]


def test_refused_access_is_not_reported_as_damage(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: DiskLocation) -> str:
        raise UserError("permission", "no permission")

    monkeypatch.setattr(DiskLocation, "sha256", refuse)
    with mistake("permission"):
        verify_corpus(Manifest.load(corpus), corpus)
