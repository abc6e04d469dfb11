"""What training reads is what was written, from a disk or a store, through a cache of any state."""

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.input.block_cache import BlockCache, block_cache
from elmwright.jobs.training.loop.input.blocks import FETCHES, Blocks
from elmwright.jobs.training.loop.input.stream import (
    Batch,
    Prefetch,
    Reading,
    make_batch,
    training_batch,
)
from elmwright.jobs.training.loop.train import train
from elmwright.model.chars import PAD
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.lanes import block_at, phase
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import read_tar
from elmwright.pipeline.storage import object_store
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import join
from elmwright.pipeline.storage.object_store import StoreLocation
from tests.support.mistakes import mistake
from tests.support.tiny_runs.training import losses, prepare, weights

pytestmark = pytest.mark.slow(4)

LANES, WINDOW, PER_BLOCK = 4, 10, 20
READING = Reading(5, LANES, WINDOW)


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    """A copy of the corpus that a test may damage."""
    return Path(shutil.copytree(corpus, tmp_path / "corpus"))


@pytest.fixture(scope="module")
def stored(corpus: Path, s3: Path) -> str:
    """The same corpus in an object store."""
    shutil.copytree(corpus, s3 / "bucket" / "corpus")
    return "s3://bucket/corpus"


def open_blocks(corpus: Path | str, cache: BlockCache | None = None) -> Blocks:
    return Blocks(corpus, Manifest.load(corpus), "train", 12, keep=2 * LANES, cache=cache)


def batch_at(blocks: Blocks, step: int) -> Batch:
    return training_batch(blocks, READING, step, range(LANES))


def turns(blocks: Blocks, epochs: float) -> Iterator[Batch]:
    """One batch for each block that the lanes read."""
    return (batch_at(blocks, n * PER_BLOCK) for n in range(int(epochs * len(blocks) / LANES)))


def same(one: Batch, other: Batch) -> bool:
    pairs = [(value, vars(other)[name]) for name, value in vars(one).items()]
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def kept(folder: Path) -> dict[str, int]:
    """Everything in a cache's folder but the file that it is locked by."""
    found = {}
    for entry in os.scandir(folder):
        try:
            found[entry.name] = entry.stat().st_size
        except FileNotFoundError:
            continue
    found.pop("size", None)
    return found


def test_a_flipped_bit_stops_training_with_the_shard_and_the_block(copy: Path) -> None:
    shard = Manifest.load(copy).splits["train"].shards[1]
    tar = copy / shard.tar
    offset, size = read_tar(tar)[2][4]
    with open(tar, "r+b") as file:
        file.seek(offset + size - 1)
        last = file.read(1)[0]
        file.seek(offset + size - 1)
        file.write(bytes([last ^ 1]))
    prefetch = Prefetch(partial(batch_at, blocks := open_blocks(copy)), 0, blocks)
    with pytest.raises(UserError) as error:
        deque(iter(prefetch.next, None), maxlen=0)  # an epoch would be over soon
    prefetch.close()
    assert f"{shard.tar}, block 2, is damaged" in str(error.value)
    assert f"elmwright verify {copy}" in str(error.value)


def test_a_damaged_index_stops_training_in_one_sentence(copy: Path) -> None:
    index = copy / Manifest.load(copy).splits["train"].shards[0].index
    index.write_bytes(index.read_bytes().replace(b"[", b"{", 1))
    blocks = open_blocks(copy)
    with mistake("file-damaged", index.name, "elmwright verify"):
        blocks.row(0)


@pytest.mark.parametrize("is_staggered", [True, False], ids=["staggered", "together"])
def test_blocks_are_fetched_together_and_before_their_step(
    corpus: Path, is_staggered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = open_blocks(corpus)
    load, together = blocks._load, threading.Barrier(LANES)
    loaded: list[int] = []

    def slow(number: int) -> object:
        loaded.append(number)
        if number in loaded[:LANES]:
            together.wait(20)  # passes only when the lanes' blocks are fetched at the same time
        return load(number)

    monkeypatch.setattr(blocks, "_load", slow)
    assert LANES <= FETCHES
    early = Reading(5, LANES, WINDOW, is_staggered=False)
    reading = READING if is_staggered else early
    for step in range(PER_BLOCK):
        training_batch(blocks, reading, step, range(LANES))
    for future in list(blocks._loading.values()):
        future.result()
    last = PER_BLOCK - 1
    wanted = {
        block_at(5, step + moved, lane, LANES, len(blocks), PER_BLOCK)[1]
        for step in (0, last, last + PER_BLOCK)
        for lane in range(LANES)
        for moved in [phase(lane, LANES, PER_BLOCK) if is_staggered else 0]
    }
    assert sorted(loaded) == sorted(wanted), "each once: this step's blocks and the next ones"
    training_batch(blocks, early, PER_BLOCK, range(LANES))
    assert is_staggered or len(loaded) == 2 * LANES


def test_a_store_gives_the_batches_of_a_disk_with_and_without_a_cache(
    corpus: Path, stored: str, tmp_path: Path
) -> None:
    here, there = open_blocks(corpus), open_blocks(stored)
    through = open_blocks(stored, BlockCache(tmp_path, 10**7))
    again = open_blocks(stored, BlockCache(tmp_path, 10**7))
    for step in (0, 3, 19, 20, 45, 1000):
        expected = batch_at(here, step)
        assert same(batch_at(there, step), expected)
        assert same(batch_at(through, step), expected)
        assert same(batch_at(again, step), expected)
    assert block_cache(str(corpus), tmp_path, 10) is None, "a disk needs no cache"
    assert block_cache(stored, tmp_path, 0) is None


def test_training_from_a_store_through_the_cache_ends_in_the_same_bytes(
    corpus: Path, stored: str, tmp_path: Path
) -> None:
    runs = []
    for name, place in (("here", ""), ("there", stored)):
        (tmp_path / name).mkdir()
        config, _ = prepare(tmp_path / name, corpus)
        config = replace(config, corpus=replace(config.corpus, dir=place))
        run = RunFolder.of(config)
        train(config, run, begin_attempt(run.attempt), Ranks())
        runs.append(run)
    assert runs[1].corpus == stored
    assert weights(runs[0]) == weights(runs[1])
    assert losses(runs[0]) == losses(runs[1])
    assert len(kept(runs[1].scratch / "blocks")) >= LANES
    assert not (runs[0].scratch / "blocks").exists()


def test_held_out_blocks_of_a_store_are_downloaded_once_for_all_evaluations(
    corpus: Path, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[str, int, int]] = []
    real = StoreLocation.read_range

    def note(self: StoreLocation, begin: int, end: int) -> bytes:
        ranges.append((self.path, begin, end))
        return real(self, begin, end)

    monkeypatch.setattr(StoreLocation, "read_range", note)
    config, _ = prepare(tmp_path, corpus)
    config = replace(
        config,
        corpus=replace(config.corpus, dir=stored),
        eval=replace(config.eval, every_steps=4),
    )
    run = RunFolder.of(config)
    train(config, run, begin_attempt(run.attempt), Ranks())
    shards = {join(stored, shard.tar) for shard in Manifest.load(corpus).splits["heldout"].shards}
    heldout = [one for one in ranges if one[0] in shards]
    assert heldout
    assert len(heldout) == len(set(heldout)), "five evaluations"


class Counted(np.ndarray[Any, Any]):
    """Character rows that know how many of them were copied."""

    copied: ClassVar[list[int]] = []

    def __getitem__(self, index: Any) -> Any:
        rows = super().__getitem__(index)
        self.copied.append(rows.size // self.shape[-1])
        return rows.view(np.ndarray)


def test_a_batch_copies_the_characters_of_each_distinct_word_once(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of rows of different widths, and with a lane that has no data."""
    monkeypatch.setattr(Counted, "copied", [])
    plain = [open_blocks(corpus).row(number) for number in range(3)]
    wide = np.pad(plain[1].chars, ((0, 0), (0, 4)), constant_values=PAD)
    plain[1] = replace(plain[1], chars=wide)
    counted = [replace(row, chars=row.chars.view(Counted)) for row in plain]
    batch = make_batch([None, *((row, 20) for row in counted)], WINDOW)
    assert sum(Counted.copied) == len(batch.chars)
    assert batch.chars.dtype == torch.int64
    assert len(np.unique(batch.chars.numpy(), axis=0)) == len(batch.chars)
    for lane, row in enumerate(plain, start=1):
        inputs = row.inputs[:, 20 : 20 + WINDOW]
        for way, index in enumerate((batch.forward_index, batch.backward_index)):
            expected = row.chars[inputs[way]]
            chars = batch.chars[index[lane]].numpy()
            assert (chars[:, : expected.shape[1]] == expected).all()
            assert (chars[:, expected.shape[1] :] == PAD).all()
    padding = batch.chars[torch.stack([batch.forward_index[0], batch.backward_index[0]])].numpy()
    assert (padding[..., : plain[0].chars.shape[1]] == plain[0].chars[0]).all()
    assert batch.weights[0].sum() == 0


def test_a_cache_smaller_than_the_corpus_never_exceeds_its_limit(
    corpus: Path, stored: str, tmp_path: Path
) -> None:
    limit = sum(shard.bytes for shard in Manifest.load(corpus).splits["train"].shards) // 4
    here, there = open_blocks(corpus), open_blocks(stored, BlockCache(tmp_path, limit))
    sizes = []
    for one, other in zip(turns(here, 2), turns(there, 2), strict=True):
        assert same(one, other)
        sizes.append(sum(kept(tmp_path).values()))
    there.cancel_loading()
    there._pool.shutdown()  # a load that has begun may still write
    assert limit * 0.6 < max(sizes) <= limit
    BlockCache(tmp_path, limit // 2)  # a new start with a lower limit
    assert sum(kept(tmp_path).values()) <= limit // 2


def test_the_least_recently_used_block_is_removed_first(tmp_path: Path) -> None:
    contents = {sha256_bytes(bytes([n]) * 100): bytes([n]) * 100 for n in range(12)}
    cache = BlockCache(tmp_path, 1000)
    digests = list(contents)
    for moment, digest in enumerate(digests[:10]):
        cache.get_or_read(digest, lambda digest=digest: contents[digest])  # type: ignore[misc]
        os.utime(tmp_path / digest, (moment, moment))
    cache.get_or_read(digests[0], lambda: pytest.fail("it is kept"))
    cache.get_or_read(digests[10], lambda: contents[digests[10]])
    assert kept(tmp_path).keys() == {digests[0], *digests[2:11]}


def test_the_cache_counts_and_removes_only_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 5000)
    stale, fresh = (tmp_path / f".tmp-{sha256_bytes(name)}.17" for name in (b"a", b"b"))
    for path in (stale, fresh):
        path.write_bytes(b"y" * 300)
    os.utime(stale, (0, 0))
    cache = BlockCache(tmp_path, 1000)
    for content in (b"1" * 400, b"2" * 400):
        cache.get_or_read(sha256_bytes(content), lambda content=content: content)  # type: ignore[misc]
    left = kept(tmp_path)
    assert left.pop("notes.txt") == 5000
    assert stale.name not in left, "a killed process left it"
    assert left.pop(fresh.name) == 300, "another process may be writing it"
    assert sum(left.values()) == 400


def whole_batch(blocks: Blocks) -> Batch:
    """The first batch, when the blocks that follow have been fetched, too."""
    batch = batch_at(blocks, 0)
    for future in list(blocks._loading.values()):
        future.result()
    return batch


def test_a_damaged_file_in_the_cache_is_fetched_again(
    corpus: Path, stored: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = batch_at(open_blocks(corpus), 0)
    whole_batch(open_blocks(stored, BlockCache(tmp_path, 10**7)))
    good = {name: (tmp_path / name).read_bytes() for name in kept(tmp_path)}
    for number, (name, data) in enumerate(good.items()):
        cut, flipped = data[: len(data) // 2], bytes([data[0] ^ 1]) + data[1:]
        (tmp_path / name).write_bytes((cut, flipped, b"")[number % 3])
    assert same(whole_batch(open_blocks(stored, BlockCache(tmp_path, 10**7))), expected)
    assert {name: (tmp_path / name).read_bytes() for name in good} == good
    assert caplog.text.count("was damaged and is fetched again") == len(good)


HAMMER = """
import random, sys
from pathlib import Path
from elmwright.jobs.training.loop.input.block_cache import BlockCache
from elmwright.pipeline.storage.disk import sha256_bytes
contents = [bytes([n]) * (500 + 10 * n) for n in range(60)]
cache, draw = BlockCache(Path(sys.argv[1]), 10_000), random.Random(sys.argv[2])
for _ in range(400):
    content = draw.choice(contents)
    assert cache.get_or_read(sha256_bytes(content), lambda: content) == content
assert not cache._warned
"""


def test_processes_share_a_cache_and_its_limit(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path), str(number)])
        for number in range(3)
    ]
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, sum(kept(tmp_path).values()))
    assert [process.returncode for process in processes] == [0, 0, 0]
    # A file that is renamed while the folder is listed may be seen under both names.
    assert 5_000 < most <= 10_000 + 3 * 1_100
    assert sum(kept(tmp_path).values()) <= 10_000


def test_training_continues_without_the_cache_on_a_full_disk(
    corpus: Path, stored: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        here, there = open_blocks(corpus), open_blocks(stored, BlockCache(tmp_path, 10**9))
        with caplog.at_level(logging.WARNING, "elmwright"):
            for one, other in zip(turns(here, 1), turns(there, 1), strict=True):
                assert same(one, other)
        there.cancel_loading()
        there._pool.shutdown()
        assert caplog.text.count("blocks cannot be kept") == 1
        assert f"no space left on the disk of {tmp_path}" in caplog.text
        assert not [name for name in kept(tmp_path) if name.startswith(".tmp-")]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_damaged_transfer_is_repeated_once_and_then_reported(
    stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = StoreLocation.read_range, []

    def noisy(self: StoreLocation, begin: int, end: int) -> bytes:
        calls.append(self.path)
        data = real(self, begin, end)
        return data if len(calls) == 2 else data[:-1]

    monkeypatch.setattr(StoreLocation, "read_range", noisy)
    blocks = open_blocks(stored)
    blocks.row(0)
    assert len(calls) == 2
    with mistake("file-damaged", "s3://bucket/corpus/", ".tar", "block 1"):
        blocks.row(1)
    assert len(calls) == 4


def test_dropped_connections_are_retried_and_then_reported(
    stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PAUSE", 0.001)
    real, calls = StoreLocation.read_range, []

    def shaky(self: StoreLocation, begin: int, end: int) -> bytes:
        calls.append(self.path)
        if len(calls) != 4:
            raise OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject")
        return real(self, begin, end)

    monkeypatch.setattr(StoreLocation, "read_range", shaky)
    blocks = open_blocks(stored)
    blocks.row(0)
    with mistake("store-failed", "8 times", "NETWORK_CONNECTION"):
        blocks.row(1)
