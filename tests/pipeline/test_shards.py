"""Shards are the same bytes every time, readable by others, and their damage is found."""

import io
import json

import numpy as np
import pytest
import webdataset

from elmwright.pipeline.block import Block, pack, to_members
from elmwright.pipeline.shards import ShardReader, index_path, read_tar, verify_shard, write_shard
from elmwright.pipeline.storage import atomic_file


def some_blocks(count: int = 30) -> list[Block]:
    sentences = [(n // 3, [f"w{n * k % 41}" for k in range(1, n % 9 + 2)]) for n in range(count)]
    return list(pack(sentences, {f"w{n}": n + 3 for n in range(30)}, 24))


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


def test_the_manifest_entry_counts_what_is_there(tmp_path):
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
    with pytest.raises(ValueError, match=f"train-00000{suffix}.*changed"):
        verify_shard(tmp_path / "train-00000.tar", shard)


def test_a_shard_cut_short_is_named(tmp_path):
    shard = write_shard(tmp_path, "train", 0, some_blocks())
    path = tmp_path / "train-00000.tar"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="the manifest says"):
        verify_shard(path, shard)
    with pytest.raises(ValueError, match="ends within block"):
        ShardReader(path).read(shard.blocks - 1)


def test_a_shard_that_fails_midway_leaves_nothing(tmp_path):
    def blocks():
        yield from some_blocks()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write_shard(tmp_path, "train", 0, blocks())
    assert list(tmp_path.iterdir()) == []


def test_an_atomic_file_keeps_the_old_content_on_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_file(path) as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert index_path("x/a-00001.tar") == "x/a-00001.index.json"
