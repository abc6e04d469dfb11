"""Our tars against those of `webdataset.TarWriter`: are they the same bytes, and at what cost?

    python tests/bench/bench_tar_writer.py [MEGABYTES [ROUNDS]]      (default: 8 MB, 9 rounds)

One shard is made by the last stage of a build (`pack.make_shard`: gather, sort, number the
words, pack, write) from the prose of the docstrings on this machine. Both sides give the same tar,
index, offsets and digests, and both write atomically; only the code that writes a block differs.
Rounds alternate in one process. CPU seconds are compared, because other load on the machine changes
wall time and hardly changes these. The rule of `pipeline/format/shards.py`: TarWriter writes the
shards if the bytes are equal and it costs at most 3 % of the stage.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import BinaryIO

import numpy as np
from bench_busy import processor
from webdataset import TarWriter

from elmwright.pipeline.build.stages import pack
from elmwright.pipeline.cleaning import repair
from elmwright.pipeline.config import ShardsConfig
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.format import shards, vocab
from elmwright.pipeline.format.block import MEMBERS, UNK_ID, Block, to_members
from elmwright.pipeline.format.lanes import hash64
from elmwright.pipeline.format.manifest import Shard
from elmwright.pipeline.reading import harvest
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join

AT_MOST = 0.03
STEPS = ShardsConfig().block_steps
HEADER = 512


class Tap(shards._Digest):
    """What TarWriter writes, with the bytes of blocks that it still holds back."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._kept, self._begin = bytearray(), 0
        self._waiting: list[tuple[int, int]] = []
        self.digests: list[str] = []

    def expect(self, begin: int, end: int) -> None:
        self._waiting.append((begin, end))

    def write(self, data: bytes | bytearray) -> None:
        super().write(data)
        self._kept += data
        while self._waiting and self._waiting[0][1] <= self.size:
            begin, end = self._waiting.pop(0)
            here = slice(begin - self._begin, end - self._begin)
            self.digests.append(sha256_bytes(bytes(self._kept[here])))
            del self._kept[: here.stop]
            self._begin = end


def write_with_tar_writer(
    folder: str | Path, split: str, number: int, blocks: Iterable[Block]
) -> Shard:
    """`shards.write_shard`, its tar written by webdataset."""
    name = shards.shard_name(split, number)
    tar = join(folder, f"{name}.tar")
    spans: shards.Spans = []
    sentences = words = unknown = padding = last_document = offset = 0
    with at(tar).writing() as file:
        out = Tap(file)
        with TarWriter(out, user="", group="", mode=0o644, mtime=0, encoder=False) as writer:
            for block in blocks:
                members = to_members(block)
                places = []
                for member in MEMBERS:
                    size = len(members[member])
                    places.append((offset + HEADER, size))
                    offset += HEADER + size + -size % HEADER
                out.expect(places[0][0], sum(places[-1]))
                writer.write({"__key__": f"{name}-{len(spans):08d}", **members})
                spans.append(places)
                sentences += block.lengths.size
                words += block.tokens.size
                unknown += int((block.ids[block.tokens] == UNK_ID).sum())
                padding += block.padding
                last_document = int(block.documents[-1]) + 1
        index = shards._index_json(name, spans, out.digests)
        at(shards.index_path(tar)).write_bytes(index)
    return Shard(
        name=name,
        sha256=out.hexdigest(),
        bytes=out.size,
        index_sha256=sha256_bytes(index),
        blocks=len(spans),
        documents=last_document,
        sentences=sentences,
        words=words,
        unknown=unknown,
        steps=words + sentences,
        padding=padding,
    )


def read_documents(size: int) -> list[str]:
    """Cleaned texts as the stage finds them: a sentence per line, words between single spaces."""
    texts: list[str] = []
    for _, path in harvest.list_modules():
        try:
            prose = harvest.module_prose(Path(path))
        except (SyntaxError, ValueError, OSError):
            continue
        lines = [
            " ".join(repair.normalise(line).split()) for one in prose for line in one.split("\n")
        ]
        text = "\n".join(line for line in lines if line)
        if text:
            texts.append(text)
            size -= len(text.encode())
        if size < 0:
            break
    return texts


def prepare(work: Path, texts: list[str]) -> Callable[[str], shards.Shard]:
    """The input of the stage in `work`; what is returned runs it into a folder."""
    numbers = np.arange(len(texts), dtype=np.uint64)
    order = hash64(numbers, 1)
    sorting = np.argsort(order)
    ties = ("hi", "lo", "file", "offset", "sentence", "copy")
    columns = {"order": order[sorting], **dict.fromkeys(ties, numbers[sorting])}
    tables.save_texts(str(work / "part"), columns, texts, sorting, "order")
    counts = Counter(word for text in texts for word in text.split())
    chosen = vocab.choose(counts, 100_000, 3)
    by_id = vocab.counts_by_id(chosen, counts, 0, counts.total())
    digest, _ = vocab.save_vocab(str(work / "v"), chosen, by_id)

    def run(out: str) -> Shard:
        packed = pack.make_shard(
            str(work),
            out,
            ["part"],
            "train",
            0,
            1,
            steps=STEPS,
            vocab_name="v",
            vocab_sha256=digest,
        )
        assert packed.shard is not None
        return packed.shard

    return run


class Nowhere:
    """A sink that costs nothing, for the lower bound."""

    def write(self, data: bytes) -> None:
        pass


def bare(some: list[dict[str, bytes]]) -> float:
    """CPU seconds of TarWriter alone: nothing is stored, no digest is taken."""
    begin = time.process_time()
    writer = TarWriter(Nowhere(), user="", group="", mode=0o644, mtime=0, encoder=False)
    for number, members in enumerate(some):
        writer.write({"__key__": f"train-00000-{number:08d}", **members})
    writer.close()
    return time.process_time() - begin


def main() -> int:
    numbers = [float(argument) for argument in sys.argv[1:]]
    megabytes, rounds = [*numbers, *(8, 9)[len(numbers) :]]
    sides = {"ours": shards.write_shard, "TarWriter": write_with_tar_writer}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="elmwright-bench-") as name:
        work = Path(name)
        run = prepare(work, read_documents(int(megabytes * 1e6)))
        entries = {}
        for turn in range(-1, int(rounds)):  # the round before the first warms up
            for side, write in sides.items():
                pack.write_shard = write
                begin = time.process_time()
                entries[side] = run(side)
                if turn >= 0:
                    seconds[side].append(time.process_time() - begin)
        suffixes = (".tar", ".index.json")
        found = {
            side: [(work / side / f"train-00000{suffix}").read_bytes() for suffix in suffixes]
            for side in sides
        }
        reader = shards.ShardReader(work / "ours" / "train-00000.tar")
        members = [to_members(reader.read(number)) for number in range(len(reader))]
        alone = median(bare(members) for _ in range(int(rounds)))
    shard = entries["ours"]
    print(
        f"{processor()}; load {os.getloadavg()[0]:.1f}; {shard.blocks} blocks of {STEPS} steps, "
        f"{shard.words:,} words, {shard.bytes / 1e6:.1f} MB; {rounds:.0f} rounds"
    )
    same = found["ours"] == found["TarWriter"] and shard == entries["TarWriter"]
    print(f"  tar and index are {'the same bytes' if same else 'DIFFERENT'}")
    for side, times in seconds.items():
        each = median(times) / shard.blocks * 1e6
        print(
            f"  {side:<10} {median(times):.3f} CPU s the stage, median; {min(times):.3f} best; "
            f"{each:.0f} µs per block"
        )
    ratios = [b / a - 1 for a, b in zip(*seconds.values(), strict=True)]
    cost = median(ratios)
    best = min(seconds["TarWriter"]) / min(seconds["ours"]) - 1
    print(
        f"  TarWriter costs {cost:+.1%} of the stage (median of rounds), {best:+.1%} (best); at "
        f"most {AT_MOST:.0%} is allowed"
    )
    share = alone / median(seconds["ours"])
    print(
        f"  TarWriter alone, into nothing and without digests: {share:.1%} of the stage, "
        f"{alone / shard.blocks * 1e6:.0f} µs per block"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
