"""Shards: blocks in a tar that `webdataset` reads, with an index for reading any block at once.

The tar is the same bytes every time (USTAR, time 0, owner 0, fixed names), so that a corpus built
twice has the same digests. Beside `train-00003.tar` lies `train-00003.index.json` with the offset
and size of every member of every block: `ShardReader.read` is one `pread` a block, no scan and no
lock. The index only saves time; `read_tar` derives it from the tar itself, and `verify_shard`
compares the two.
"""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from elmwright.pipeline import files
from elmwright.pipeline.block import MEMBERS, UNK_ID, Block, from_members, to_members
from elmwright.pipeline.manifest import Shard
from elmwright.pipeline.storage import sha256_bytes

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


def index_path(tar: str | Path) -> str:
    """Where the index of a tar lies."""
    return f"{str(tar).removesuffix('.tar')}.index.json"


def write_shard(folder: str | Path, split: str, number: int, blocks: Iterable[Block]) -> Shard:
    """Write `blocks` as shard `number` of a split into `folder`, atomically, tar last."""
    name = shard_name(split, number)
    tar = files.join(folder, f"{name}.tar")
    spans: Spans = []
    sentences = words = unknown = padding = last_document = 0
    with files.writing(tar) as file:
        out = _Digest(file)
        for block in blocks:
            spans.append(_write_block(out, f"{name}-{len(spans):08d}", block))
            sentences += block.lengths.size
            words += block.tokens.size
            unknown += int((block.ids[block.tokens] == UNK_ID).sum())
            padding += block.padding
            last_document = int(block.documents[-1]) + 1
        end = out.size + 2 * tarfile.BLOCKSIZE
        out.write(bytes(2 * tarfile.BLOCKSIZE + -end % tarfile.RECORDSIZE))
        index = _index_json(name, spans)
        files.write_bytes(index_path(tar), index)
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


class _Digest:
    """A file that is written from beginning to end, its size and sha256 at hand."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def _write_block(file: _Digest, key: str, block: Block) -> list[tuple[int, int]]:
    spans = []
    members = to_members(block)
    for member in MEMBERS:
        data = members[member]
        file.write(tar_header(f"{key}.{member}", len(data)))
        spans.append((file.size, len(data)))
        file.write(data)
        file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return spans


def tar_header(name: str, size: int) -> bytes:
    """What `tarfile` writes for a plain file of time 0 and owner 0, ten times as fast."""
    field = name.encode("ascii")
    if len(field) > 100:
        raise ValueError(f"{name} is too long a name for a tar")
    head = b"%s0000644\x000000000\x000000000\x00%011o\x0000000000000\x00" % (
        field.ljust(100, b"\x00"),
        size,
    )
    rest = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    total = sum(head) + 8 * 0x20 + sum(rest)
    return b"%s%06o\x00 %s" % (head, total, rest)


def _index_json(name: str, spans: Spans) -> bytes:
    index = {"format": INDEX_FORMAT, "shard": name, "members": MEMBERS, "blocks": spans}
    return json.dumps(index, separators=(",", ":")).encode()


class ShardReader:
    """Random access to the blocks of one shard; safe to use from several threads."""

    def __init__(self, path: str | Path) -> None:
        """Open the tar at `path`, on a disk or in an object store, and the index beside it."""
        self.path = str(path)
        index = json.loads(files.read_bytes(index_path(self.path)))
        if index.get("format") != INDEX_FORMAT or tuple(index["members"]) != MEMBERS:
            raise ValueError(f"{index_path(self.path)} is not an index of format {INDEX_FORMAT}")
        self._spans: Spans = index["blocks"]
        self._descriptor = -1
        if not files.is_url(self.path):
            self._descriptor = os.open(self.path, os.O_RDONLY)

    def __len__(self) -> int:
        """Blocks in the shard."""
        return len(self._spans)

    def read(self, number: int) -> Block:
        """Block `number` of the shard, in one read."""
        spans = self._spans[number]
        begin = spans[0][0]
        length = spans[-1][0] + spans[-1][1] - begin
        if self._descriptor >= 0:
            data = os.pread(self._descriptor, length, begin)
        else:
            data = files.read_range(self.path, begin, begin + length)
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


def read_tar(path: str | Path) -> Spans:
    """The index as the tar itself tells it, by scanning all headers: the slow way, to verify."""
    spans: Spans = []
    try:
        with files.reading(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for number, member in enumerate(tar):
                block, position = divmod(number, len(MEMBERS))
                expected = f"{Path(path).stem}-{block:08d}.{MEMBERS[position]}"
                if member.name != expected:
                    raise ValueError(f"{path} holds {member.name} where {expected} should be")
                if position == 0:
                    spans.append([])
                spans[-1].append((member.offset_data, member.size))
    except tarfile.TarError as error:
        raise ValueError(f"{path} is not a readable tar: {error}") from error
    return spans


def verify_shard(path: str | Path, shard: Shard, *, deep: bool = True) -> None:
    """Check a shard against its manifest entry; ValueError names the file and what is wrong.

    Deep also decodes every block and compares the index with the tar's own headers.
    """
    found = files.stat(path)
    size = found.bytes if found else 0
    if size != shard.bytes:
        raise ValueError(f"{path} has {size} bytes, the manifest says {shard.bytes}")
    if files.sha256(path) != shard.sha256:
        raise ValueError(f"{path} was changed: its sha256 is not the manifest's")
    index = files.read_bytes(index_path(path))
    if sha256_bytes(index) != shard.index_sha256:
        raise ValueError(f"{index_path(path)} was changed: its sha256 is not the manifest's")
    if not deep:
        return
    spans = read_tar(path)
    if _index_json(shard.name, spans) != index:
        raise ValueError(f"{index_path(path)} does not describe {path}")
    reader = ShardReader(path)
    blocks = [reader.read(number) for number in range(len(reader))]
    counts = {
        "blocks": len(blocks),
        "sentences": sum(block.lengths.size for block in blocks),
        "words": sum(block.tokens.size for block in blocks),
        "padding": sum(block.padding for block in blocks),
    }
    for name, count in counts.items():
        if count != getattr(shard, name):
            raise ValueError(f"{path} has {count} {name}, the manifest says {getattr(shard, name)}")
