"""Shards: blocks in a tar that `webdataset` reads, with an index for reading any block at once.

The tar is the same bytes every time (USTAR, time 0, owner 0, fixed names), so that a corpus built
twice has the same digests. Beside `train-00003.tar` lies `train-00003.index.json` with the offset
and size of every member of every block: `ShardReader.read` is one `pread` a block, no scan and no
lock. The index only saves time; `read_tar` derives it from the tar itself, and `verify_shard`
compares the two.
"""

import json
import os
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from elmwright.pipeline.block import MEMBERS, UNK_ID, Block, from_members, to_members
from elmwright.pipeline.manifest import Shard
from elmwright.pipeline.storage import atomic_file, sha256_file, write_atomic

INDEX_FORMAT = 1
SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
"""Names of splits: a dot would end the key of a WebDataset sample."""

Spans = list[list[tuple[int, int]]]
"""For every block, (offset, size) of its members in the order of `MEMBERS`."""


def shard_name(split: str, number: int) -> str:
    """Such as `train-00003`."""
    if not SPLIT_NAME.match(split):
        raise ValueError(f"{split!r} cannot name a split: letters, digits, - and _ only")
    return f"{split}-{number:05d}"


def index_path(tar: Path) -> Path:
    """Where the index of a tar lies."""
    return tar.with_name(f"{tar.stem}.index.json")


def write_shard(folder: Path, split: str, number: int, blocks: Iterable[Block]) -> Shard:
    """Write `blocks` as shard `number` of a split into `folder`, atomically, tar last."""
    name = shard_name(split, number)
    tar = folder / f"{name}.tar"
    spans: Spans = []
    sentences = words = unknown = padding = last_document = 0
    with atomic_file(tar) as file:
        for block in blocks:
            spans.append(_write_block(file, f"{name}-{len(spans):08d}", block))
            sentences += block.lengths.size
            words += block.tokens.size
            unknown += int((block.ids[block.tokens] == UNK_ID).sum())
            padding += block.padding
            last_document = int(block.documents[-1]) + 1
        size = file.tell() + 2 * tarfile.BLOCKSIZE
        file.write(bytes(2 * tarfile.BLOCKSIZE + -size % tarfile.RECORDSIZE))
        size = file.tell()
        write_atomic(index_path(tar), _index_json(name, spans))
    return Shard(
        name=name,
        sha256=sha256_file(tar),
        bytes=size,
        index_sha256=sha256_file(index_path(tar)),
        blocks=len(spans),
        documents=last_document,
        sentences=sentences,
        words=words,
        unknown=unknown,
        steps=words + sentences,
        padding=padding,
    )


def _write_block(file: BinaryIO, key: str, block: Block) -> list[tuple[int, int]]:
    spans = []
    members = to_members(block)
    for member in MEMBERS:
        data = members[member]
        header = tarfile.TarInfo(f"{key}.{member}")
        header.size = len(data)
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        spans.append((file.tell(), len(data)))
        file.write(data)
        file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return spans


def _index_json(name: str, spans: Spans) -> bytes:
    index = {"format": INDEX_FORMAT, "shard": name, "members": MEMBERS, "blocks": spans}
    return json.dumps(index, separators=(",", ":")).encode()


class ShardReader:
    """Random access to the blocks of one shard; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open the tar at `path` and the index beside it."""
        self.path = Path(path)
        index = json.loads(index_path(self.path).read_bytes())
        if index.get("format") != INDEX_FORMAT or tuple(index["members"]) != MEMBERS:
            raise ValueError(f"{index_path(self.path)} is not an index of format {INDEX_FORMAT}")
        self._spans: Spans = index["blocks"]
        self._descriptor = os.open(self.path, os.O_RDONLY)

    def __len__(self) -> int:
        """Blocks in the shard."""
        return len(self._spans)

    def read(self, number: int) -> Block:
        """Block `number` of the shard, in one read."""
        spans = self._spans[number]
        begin = spans[0][0]
        length = spans[-1][0] + spans[-1][1] - begin
        data = os.pread(self._descriptor, length, begin)
        if len(data) != length:
            raise ValueError(f"{self.path} ends within block {number}")
        members = {
            name: data[offset - begin : offset - begin + size]
            for name, (offset, size) in zip(MEMBERS, spans, strict=True)
        }
        try:
            return from_members(members)
        except ValueError as error:
            raise ValueError(f"{self.path}, block {number}: {error}") from error

    def close(self) -> None:
        """Let go of the file; also happens when the reader is dropped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def read_tar(path: Path) -> Spans:
    """The index as the tar itself tells it, by scanning all headers: the slow way, to verify."""
    spans: Spans = []
    try:
        with tarfile.open(path, "r:") as tar:
            for number, member in enumerate(tar):
                block, position = divmod(number, len(MEMBERS))
                expected = f"{path.stem}-{block:08d}.{MEMBERS[position]}"
                if member.name != expected:
                    raise ValueError(f"{path} holds {member.name} where {expected} should be")
                if position == 0:
                    spans.append([])
                spans[-1].append((member.offset_data, member.size))
    except tarfile.TarError as error:
        raise ValueError(f"{path} is not a readable tar: {error}") from error
    return spans


def verify_shard(path: Path, shard: Shard, *, deep: bool = True) -> None:
    """Check a shard against its manifest entry; ValueError names the file and what is wrong.

    Deep also decodes every block and compares the index with the tar's own headers.
    """
    path = Path(path)
    if path.stat().st_size != shard.bytes:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, the manifest says {shard.bytes}")
    if sha256_file(path) != shard.sha256:
        raise ValueError(f"{path} was changed: its sha256 is not the manifest's")
    if sha256_file(index_path(path)) != shard.index_sha256:
        raise ValueError(f"{index_path(path)} was changed: its sha256 is not the manifest's")
    if not deep:
        return
    spans = read_tar(path)
    if _index_json(shard.name, spans) != index_path(path).read_bytes():
        raise ValueError(f"{index_path(path)} does not describe {path}")
    reader = ShardReader(path)
    blocks = [reader.read(number) for number in range(len(reader))]
    found = {
        "blocks": len(blocks),
        "sentences": sum(block.lengths.size for block in blocks),
        "words": sum(block.tokens.size for block in blocks),
        "padding": sum(block.padding for block in blocks),
    }
    for name, count in found.items():
        if count != getattr(shard, name):
            raise ValueError(f"{path} has {count} {name}, the manifest says {getattr(shard, name)}")
