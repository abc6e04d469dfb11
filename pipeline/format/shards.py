"""Shards: blocks in a tar that `webdataset` reads, with an index for reading any block at once.

The tar is the same bytes every time (USTAR, time 0, owner 0, fixed names), so that a corpus built
twice has the same digests. `train-00003.index.json`, beside `train-00003.tar`, has the offset and
size of every member of every block: `ShardReader.read` reads one range per block, without a scan
or a lock. The index also has the sha256 of each of these ranges, and the manifest has the sha256 of
the index: a block is checked whenever it is read, in a chain from the manifest down.
`read_tar` derives the index from the tar itself, and `verify_shard` compares the two.

The tar is written here and not by `webdataset.TarWriter`, which gives the same bytes (`user=""`,
`group=""`, `mode=0o644`, `mtime=0`) and is too slow: the whole stage that packs a shard takes 32 to
35 % more CPU time (medians of two measurements of 15 rounds), where 3 % would be allowed. TarWriter
alone, with nothing stored and no digest taken, costs 20 % of the stage, 160 to 190 µs per block.
Measured by `tests/bench/bench_tar_writer.py` in CPU time, on 2 cores that had other work too.
"""

import hashlib
import json
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import MEMBERS, UNK_ID, Block, from_members, to_members
from elmwright.pipeline.format.manifest import Shard
from elmwright.pipeline.progress import count_bytes
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import is_digest, read_small

INDEX_FORMAT = 2
_FAR = 1 << 60
"""Behind the end of any file."""
INDEX_BYTES = 1 << 16
"""An index is larger than its tar by at most this."""
SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
"""Names of splits: a dot would end the key of a WebDataset sample."""

Spans = list[list[tuple[int, int]]]
"""For every block, (offset, size) of its members in the order of `MEMBERS`."""

Keeper = Callable[[str, Callable[[], bytes]], bytes]
"""Returns the bytes with a sha256: those it has kept, or what the function reads and checks."""


def shard_name(split: str, number: int) -> str:
    """Such as `train-00003`."""
    if not SPLIT_NAME.match(split):
        raise ValueError(f"{split!r} cannot name a split: letters, digits, - and _ only")
    return f"{split}-{number:05d}"


def index_path(tar: str | Path) -> str:
    """The path of a tar's index."""
    return f"{str(tar).removesuffix('.tar')}.index.json"


def write_shard(folder: str | Path, split: str, number: int, blocks: Iterable[Block]) -> Shard:
    """Write `blocks` as shard `number` of a split into `folder`, atomically, tar last."""
    name = shard_name(split, number)
    tar = join(folder, f"{name}.tar")
    spans: Spans = []
    digests: list[str] = []
    sentences = words = unknown = padding = last_document = 0
    with at(tar).writing() as file:
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
        at(index_path(tar)).write_bytes(index)
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
    """A file that is written from beginning to end, with its size and sha256 so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes | bytearray) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def _write_block(file: _Digest, key: str, block: Block) -> tuple[list[tuple[int, int]], str]:
    """The spans of the members, and the sha256 of the bytes from the first to the last."""
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
    """The header that `tarfile` writes for a file of time 0 and owner 0, ten times as fast."""
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
        """Read the index beside the tar at `path`, on a disk or in an object store.

        With its manifest entry, the index is checked too. `keep` may keep what is read.
        """
        self.path = str(path)
        self._keep: Keeper = keep or (lambda _digest, read: read())
        self._shard = shard
        self._index = index_path(self.path)
        if shard is None:
            data = self._read_index()
        else:
            digest = shard.index_sha256
            data = self._keep(digest, lambda: self._checked(digest, self._index, self._read_index))
        self._spans, self.digests = self._parse(data)
        """Places of each block's members, and the sha256 of its bytes."""

    def __len__(self) -> int:
        """Blocks in the shard."""
        return len(self._spans)

    def read(self, number: int) -> Block:
        """Block `number` of the shard, in one read; UserError if it is not what was written."""
        spans, digest = self._spans[number].tolist(), self.digests[number]
        begin, end = _range(spans)
        what = f"{self.path}, block {number},"
        read = partial(at(self.path).read_range, begin, end)
        data = self._keep(digest, lambda: self._checked(digest, what, read))
        members = {
            name: data[offset - begin : offset - begin + size]
            for name, (offset, size) in zip(MEMBERS, spans, strict=True)
        }
        try:
            block = from_members(members)
        except ValueError as error:
            raise self._damaged(f"{what} is damaged ({error})") from error
        if self._shard is not None and block.padding > self._shard.padding:
            raise self._damaged(
                f"{what} claims {block.steps} steps, and its shard has only {self._shard.padding} "
                "of padding"
            )
        return block

    def _read_index(self) -> bytes:
        """The index has fewer bytes than its tar: a block's members fill a kilobyte each."""
        index, tar = at(self._index).stat(), at(self.path).stat()
        if index is None or tar is None:
            raise self._damaged(f"{self.path if index else self._index} is missing")
        return read_small(self._index, tar.bytes + INDEX_BYTES)

    def _checked(self, digest: str, what: str, read: Callable[[], bytes]) -> bytes:
        """The result of `read`, if it has that sha256; read again once, as a transfer may fail."""
        for _ in range(2):
            try:
                data = read()
            except FileNotFoundError:
                raise self._damaged(f"{self.path} is missing") from None
            if sha256_bytes(data) == digest:
                return data
        raise self._damaged(f"{what} is damaged: its sha256 is not what it was")

    def _parse(self, data: bytes) -> tuple[NDArray[np.int64], list[str]]:
        try:
            index = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"{self._index} is damaged ({error})") from error
        version = index.get("format") if isinstance(index, dict) else None
        if version != INDEX_FORMAT or index.get("members") != list(MEMBERS):
            raise UserError(
                "format",
                f"{self._index} has format {version!r:.50}, and this version of elmwright reads "
                f"format {INDEX_FORMAT}; build the corpus again",
            )
        try:
            spans = _spans(index["blocks"])
            digests = list(index["sha256"])
            problem = _problem(spans, digests)
        except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
            problem = f"{error!r:.100}"
        if self._shard is not None and not problem and len(spans) != self._shard.blocks:
            problem = f"{len(spans)} blocks, and the manifest says {self._shard.blocks}"
        if problem:
            raise self._damaged(f"{self._index} is damaged ({problem})")
        return spans, digests

    def _damaged(self, what: str) -> UserError:
        """The error to raise: what is damaged, and how to find out what else is."""
        corpus = self.path.rpartition("/")[0].rpartition("/")[0] or "CORPUS"
        return UserError(
            "file-damaged",
            f"{what}; `elmwright verify {corpus}` shows what is wrong; copy the file again, or "
            "remove it and build the corpus again",
        )


def _spans(blocks: Any) -> NDArray[np.int64]:
    """The places in an index; ValueError where they are not pairs of whole numbers.

    Checked before numpy sees them: it would store every text at the length of the longest.
    """
    numbers = [blocks]
    for length in (None, len(MEMBERS), 2):
        if not all(type(one) is list and len(one) == (length or len(one)) for one in numbers):
            raise ValueError("no places of blocks")
        numbers = list(chain.from_iterable(numbers))
    if not set(map(type, numbers)) <= {int} or max(numbers, default=0) > _FAR:
        raise ValueError("no places of blocks")
    return np.array(numbers, np.int64).reshape(-1, len(MEMBERS), 2)


def _problem(spans: NDArray[np.int64], digests: list[Any]) -> str:
    """What is wrong with the content of an index; empty if nothing is."""
    if len(digests) != len(spans) or not all(map(is_digest, digests)):
        return f"{len(digests)} digests of {len(spans)} blocks"
    begins, sizes = spans[:, :, 0].ravel(), spans[:, :, 1].ravel()
    if min(begins.min(initial=0), sizes.min(initial=0)) < 0 or spans.max(initial=0) > _FAR:
        return "a place that no tar has"
    if (begins[1:] < (begins + sizes)[:-1]).any():
        return "places that overlap"
    return ""


def read_tar(path: str | Path) -> Spans:
    """The spans of a tar's members by its own headers: slow, to verify the index.

    Every header must be the very bytes that `tar_header` writes. So no extension of the format is
    followed, and a size is compared with the file's before anything is read.
    """
    spans: Spans = []
    stat = at(path).stat()
    size = stat.bytes if stat else 0
    number = offset = 0
    with at(path).reading() as file:
        while (head := file.read(tarfile.BLOCKSIZE)).strip(b"\x00"):
            block, position = divmod(number, len(MEMBERS))
            expected = f"{Path(path).stem}-{block:08d}.{MEMBERS[position]}"
            digits = head[124:135]
            length = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else -1
            begin = offset + tarfile.BLOCKSIZE
            if length < 0 or head != tar_header(expected, length):
                there = head[:100].rstrip(b"\x00").decode("ascii", "replace")
                raise _damaged(f"{path} holds {there!r} where {expected} should be")
            offset = begin + length + -length % tarfile.BLOCKSIZE
            if offset > size:
                raise _damaged(f"{path} claims {length} bytes of {expected}, and ends before")
            if position == 0:
                spans.append([])
            spans[-1].append((begin, length))
            number += 1
            file.seek(offset)
    end = offset + 2 * tarfile.BLOCKSIZE
    if number % len(MEMBERS) or size != end + -end % tarfile.RECORDSIZE:
        raise _damaged(f"{path} is not a whole tar: {number} members in {size} bytes")
    return spans


def verify_shard(path: str | Path, shard: Shard, *, deep: bool = True) -> None:
    """Check a shard against its manifest entry; UserError names the file and what is wrong.

    Deep also decodes every block and compares the index with the tar itself: its bytes are counted
    twice (`progress.count_bytes`), for the digest and for the blocks.
    """
    stat = at(path).stat()
    size = stat.bytes if stat else 0
    if size != shard.bytes:
        raise _damaged(f"{path} has {size} bytes, the manifest says {shard.bytes}")
    if at(path).sha256() != shard.sha256:
        raise _damaged(f"{path} was changed: its sha256 is not the manifest's")
    index = read_small(index_path(path), size + INDEX_BYTES)
    if sha256_bytes(index) != shard.index_sha256:
        raise _damaged(f"{index_path(path)} was changed: its sha256 is not the manifest's")
    if not deep:
        return
    try:
        spans = read_tar(path)
    except ValueError as error:  # `tar_header` refuses the name, which is the manifest's
        raise _damaged(f"{path} has a name that no shard has ({error})") from error
    reader = ShardReader(path, shard)
    if _index_json(shard.name, spans, reader.digests) != index:
        raise _damaged(f"{index_path(path)} does not describe {path}")
    counts = Counter(blocks=len(reader), sentences=0, words=0, padding=0)
    for number in range(len(reader)):
        block = reader.read(number)
        counts["sentences"] += block.lengths.size
        counts["words"] += block.tokens.size
        counts["padding"] += block.padding
        count_bytes((number + 1) * size // len(reader) - number * size // len(reader))
    for name, count in counts.items():
        if count != getattr(shard, name):
            raise _damaged(f"{path} has {count} {name}, the manifest says {getattr(shard, name)}")


def _damaged(sentence: str) -> UserError:
    return UserError("file-damaged", sentence)
