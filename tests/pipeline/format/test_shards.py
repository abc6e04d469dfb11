"""Shards are the same bytes every time, readable by others, and their damage is found."""

import errno
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import webdataset

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import to_members
from elmwright.pipeline.format.shards import (
    ShardReader,
    index_path,
    read_tar,
    verify_shard,
    write_shard,
)
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at
from tests.support.corpus.blocks import some_blocks
from tests.support.mistakes import mistake


def test_any_block_is_read_by_its_number(tmp_path):
    blocks = some_blocks()
    write_shard(tmp_path, "train", 3, blocks)
    reader = ShardReader(tmp_path / "train-00003.tar")
    assert len(reader) == len(blocks)
    for number in reversed(range(len(blocks))):
        assert to_members(reader.read(number)) == to_members(blocks[number])


def test_webdataset_reads_a_shard_with_no_code_of_ours(tmp_path):
    blocks = some_blocks()
    write_shard(tmp_path, "train", 3, blocks)
    samples = list(webdataset.WebDataset(str(tmp_path / "train-00003.tar"), shardshuffle=False))
    assert [s["__key__"] for s in samples] == [f"train-00003-{n:08d}" for n in range(len(blocks))]
    for sample, block in zip(samples, blocks, strict=True):
        assert sample["types.txt"].decode().split("\n") == list(block.types)
        assert json.loads(sample["block.json"])["steps"] == block.steps
        for name in ("ids", "tokens", "lengths", "documents"):
            array = np.load(io.BytesIO(sample[f"{name}.npy"]))
            assert array.tolist() == getattr(block, name).tolist()


def test_the_same_blocks_are_the_same_bytes(tmp_path):
    one = write_shard(tmp_path / "one", "valid", 0, some_blocks())
    two = write_shard(tmp_path / "two", "valid", 0, some_blocks())
    assert one == two


def test_shard_entry_counts_its_blocks(tmp_path):
    blocks = some_blocks()
    shard = write_shard(tmp_path, "train", 0, blocks)
    assert shard.steps == shard.words + shard.sentences
    assert shard.steps + shard.padding == len(blocks) * 24
    assert shard.documents == 10
    assert 0 < shard.unknown < shard.words
    verify_shard(tmp_path / "train-00000.tar", shard)
    assert len(read_tar(tmp_path / "train-00000.tar")) == shard.blocks


@pytest.mark.parametrize("suffix", [".tar", ".index.json"])
def test_verification_finds_one_flipped_bit(tmp_path, suffix):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    path = tmp_path / f"train-00000{suffix}"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with mistake("file-damaged", f"train-00000{suffix}"):
        verify_shard(tmp_path / "train-00000.tar", shard)


def test_truncated_shard_is_refused(tmp_path):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    path = tmp_path / "train-00000.tar"
    path.write_bytes(path.read_bytes()[:5000])
    with mistake("file-damaged", "train-00000.tar", "5000", str(shard.bytes)):
        verify_shard(path, shard)
    with mistake("file-damaged", f"train-00000.tar, block {shard.blocks - 1},"):
        ShardReader(path).read(shard.blocks - 1)


@pytest.mark.parametrize("count", ["sentences", "words", "padding"])
def test_shard_without_blocks_may_claim_nothing(tmp_path, count):
    shard = write_shard(tmp_path, "train", 0, [])
    path = tmp_path / "train-00000.tar"
    verify_shard(path, shard)
    with mistake("file-damaged", "train-00000.tar", f"0 {count}", "7"):
        verify_shard(path, replace(shard, **{count: 7}))


def test_shard_that_is_missing_or_forbidden_when_a_block_is_read_is_refused(tmp_path, monkeypatch):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    path = tmp_path / "train-00000.tar"
    reader = ShardReader(path, shard)

    def forbid(*_arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("elmwright.pipeline.storage.disk.open", forbid, raising=False)
    with mistake("permission", str(path)):
        reader.read(0)
    monkeypatch.undo()
    path.unlink()
    with mistake("file-damaged", f"{path} is missing", "elmwright verify"):
        reader.read(0)


def test_flipped_bit_is_found_when_its_block_is_read(tmp_path):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    path = tmp_path / "train-00000.tar"
    spans = read_tar(path)
    whole = path.read_bytes()
    (begin, _), (last, size) = spans[1][0], spans[1][-1]
    for place in (begin, begin + 600, last, last + size - 1):
        data = bytearray(whole)
        data[place] ^= 0x10
        path.write_bytes(data)
        reader = ShardReader(path, shard)
        reader.read(0)
        reader.read(2)
        with pytest.raises(UserError, match=r"train-00000\.tar, block 1, .*elmwright verify"):
            reader.read(1)


def test_index_that_is_damaged_missing_or_of_another_format_is_refused(tmp_path):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    path, index = tmp_path / "train-00000.tar", tmp_path / "train-00000.index.json"
    whole = index.read_bytes()
    index.write_bytes(whole.replace(b"0", b"1", 1))
    with mistake("file-damaged", "train-00000.index.json", "sha256"):
        ShardReader(path, shard)
    index.write_bytes(whole[:100])
    with mistake("file-damaged", "train-00000.index.json"):
        ShardReader(path)
    index.write_bytes(b'{"format":1,"shard":"train-00000","blocks":[]}')
    with mistake("format", "format 1,"):
        ShardReader(path)
    index.unlink()
    with mistake("file-damaged", "train-00000.index.json is missing"):
        ShardReader(path, shard)


def test_deep_verification_finds_wrong_block_digest_in_index(tmp_path):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    index = tmp_path / "train-00000.index.json"
    content = json.loads(index.read_bytes())
    content["sha256"][1] = content["sha256"][0]
    data = json.dumps(content, separators=(",", ":")).encode()
    index.write_bytes(data)
    forged = replace(shard, index_sha256=sha256_bytes(data))
    verify_shard(tmp_path / "train-00000.tar", forged, deep=False)
    with mistake("file-damaged", "train-00000.tar, block 1,"):
        verify_shard(tmp_path / "train-00000.tar", forged)


def test_failed_write_leaves_no_shard(tmp_path):
    def blocks():
        yield from some_blocks()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write_shard(tmp_path, "train", 0, blocks())
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with at(path).writing() as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert index_path("x/a-00001.tar") == "x/a-00001.index.json"
