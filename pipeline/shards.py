"""Shards: blocks in a tar that `webdataset` reads, with an index for reading any block at once.

The tar is the same bytes every time (USTAR, time 0, owner 0, fixed names), so that a corpus built
twice has the same digests. Beside `train-00003.tar` lies `train-00003.index.json` with the offset
and size of every member of every block: `ShardReader.read` is one `pread` a block, no scan and no
lock. The index also holds the sha256 of the bytes that such a read gives, and the manifest holds
the sha256 of the index: a block is checked whenever it is read, in a chain from the manifest down.
`read_tar` derives the index from the tar itself, and `verify_shard` compares the two.
"""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from elmwright.pipeline import files
from elmwright.pipeline.block import MEMBERS, UNK_ID, Block, from_members, to_members
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.manifest import Shard
from elmwright.pipeline.progress import count_bytes
from elmwright.pipeline.storage import sha256_bytes

INDEX_FORMAT = 2
SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
"""Names of splits: a dot would end the key of a WebDataset sample."""

Spans = list[list[tuple[int, int]]]
"""For every block, (offset, size) of its members in the order of `MEMBERS`."""

Keeper = Callable[[str, Callable[[], bytes]], bytes]
"""Gives the bytes of a sha256: those it has kept, or what the function given reads and checks."""


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
    digests: list[str] = []
    sentences = words = unknown = padding = last_document = 0
    with files.writing(tar) as file:
        out = _Digest(file)
        for block in blocks:
            members, digest = _write_block(out, f"{name}-{len(spans):08d}", block)
            spans.append(members)
            digests.append(digest)
            sentences += block.lengths.size
            words += block.tokens.size
            unknown += int((block.ids[block.tokens] == UNK_ID).sum())
            padding += block.padding
            last_document = int(block.documents[-1]) + 1
        end = out.size + 2 * tarfile.BLOCKSIZE
        out.write(bytes(2 * tarfile.BLOCKSIZE + -end % tarfile.RECORDSIZE))
        index = _index_json(name, spans, digests)
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

    def write(self, data: bytes | bytearray) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def _write_block(file: _Digest, key: str, block: Block) -> tuple[list[tuple[int, int]], str]:
    """Where the members lie, and the sha256 from the first one's begin to the last one's end."""
    spans = []
    members = to_members(block)
    whole = bytearray()
    for member in MEMBERS:
        data = members[member]
        whole += tar_header(f"{key}.{member}", len(data))
        spans.append((file.size + len(whole), len(data)))
        whole += data
        whole += bytes(-len(data) % tarfile.BLOCKSIZE)
    begin, end = (offset - file.size for offset in _range(spans))
    digest = sha256_bytes(bytes(whole[begin:end]))
    file.write(whole)
    return spans, digest


def _range(spans: list[tuple[int, int]]) -> tuple[int, int]:
    """The bytes of the tar that a block is read from."""
    return spans[0][0], spans[-1][0] + spans[-1][1]


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


def _index_json(name: str, spans: Spans, digests: list[str]) -> bytes:
    index = {
        "format": INDEX_FORMAT,
        "shard": name,
        "members": MEMBERS,
        "blocks": spans,
        "sha256": digests,
    }
    return json.dumps(index, separators=(",", ":")).encode()


class ShardReader:
    """Random access to the blocks of one shard, each checked; safe to use from several threads."""

    def __init__(
        self, path: str | Path, shard: Shard | None = None, keep: Keeper | None = None
    ) -> None:
        """Open the tar at `path`, on a disk or in an object store, and the index beside it.

        With its manifest entry, the index is checked too. `keep` may keep what is read.
        """
        self.path = str(path)
        self._keep: Keeper = keep or (lambda _digest, read: read())
        self._descriptor = -1
        name = index_path(self.path)
        try:
            if shard is None:
                data = files.read_bytes(name)
            else:
                digest = shard.index_sha256
                data = self._keep(digest, lambda: self._checked(digest, name, self._read_index))
            if not files.is_url(self.path):
                self._descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} is missing; {self._advice()}") from None
        index = self._parse(data)
        self._spans = np.array(index["blocks"], np.int64)
        self.digests: list[str] = index["sha256"]
        """The sha256 of each block's bytes."""

    def __len__(self) -> int:
        """Blocks in the shard."""
        return len(self._spans)

    def read(self, number: int) -> Block:
        """Block `number` of the shard, in one read; UserError if it is not what was written."""
        spans, digest = self._spans[number].tolist(), self.digests[number]
        begin, end = _range(spans)
        what = f"{self.path}, block {number},"
        data = self._keep(
            digest, lambda: self._checked(digest, what, lambda: self._read_range(begin, end))
        )
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

    def _read_index(self) -> bytes:
        return files.read_bytes(index_path(self.path))

    def _read_range(self, begin: int, end: int) -> bytes:
        if self._descriptor >= 0:
            return os.pread(self._descriptor, end - begin, begin)
        return files.read_range(self.path, begin, end)

    def _checked(self, digest: str, what: str, read: Callable[[], bytes]) -> bytes:
        """What `read` gives, if it has that sha256. A transfer may be damaged: twice from a store.

        The same bytes would come from a disk again.
        """
        for _ in range(2 if files.is_url(self.path) else 1):
            data = read()
            if sha256_bytes(data) == digest:
                return data
        raise UserError(f"{what} is damaged: its sha256 is not what it was; {self._advice()}")

    def _parse(self, data: bytes) -> dict[str, Any]:
        name = index_path(self.path)
        try:
            index = json.loads(data)
        except ValueError as error:
            raise UserError(f"{name} is damaged ({error}); {self._advice()}") from error
        found = index.get("format") if isinstance(index, dict) else None
        if found != INDEX_FORMAT or tuple(index["members"]) != MEMBERS:
            raise UserError(
                f"{name} has format {found!r}, and this version of elmwright reads format "
                f"{INDEX_FORMAT}; build the corpus again"
            )
        return dict(index)

    def _advice(self) -> str:
        """How to find out what else is wrong, and how to put it right."""
        corpus = self.path.rpartition("/")[0].rpartition("/")[0] or "CORPUS"
        return (
            f"`elmwright verify {corpus}` tells what is wrong; copy the file again, or remove it "
            "and build the corpus again"
        )


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

    Deep also decodes every block and compares the index with the tar itself: its bytes are counted
    twice (`progress.count_bytes`), for the digest and for the blocks.
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
    reader = ShardReader(path)
    if _index_json(shard.name, spans, reader.digests) != index:
        raise ValueError(f"{index_path(path)} does not describe {path}")
    blocks = []
    try:
        for number in range(len(reader)):
            blocks.append(reader.read(number))
            before, behind = number * size // len(reader), (number + 1) * size // len(reader)
            count_bytes(behind - before)
    except UserError as error:
        raise ValueError(str(error)) from error
    counts = {
        "blocks": len(blocks),
        "sentences": sum(block.lengths.size for block in blocks),
        "words": sum(block.tokens.size for block in blocks),
        "padding": sum(block.padding for block in blocks),
    }
    for name, count in counts.items():
        if count != getattr(shard, name):
            raise ValueError(f"{path} has {count} {name}, the manifest says {getattr(shard, name)}")
