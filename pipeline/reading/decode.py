"""The text in the bytes of a file: decompressed, told apart from binary data, and decoded.

Bytes are read in blocks of at most `BLOCK`, so that no file is held whole. A damaged file raises
`Broken` with the place. An error of the disk or the network stays an `OSError`, because trying
again may help. `gzip.open` and the like raise `OSError` for both, so they are not used here.

Encodings are guessed only for documents that are not UTF-8. A document with more valid UTF-8
sequences than invalid ones is UTF-8 with bad bytes, which become U+FFFD. For the others uchardet
guesses. It is poor at texts with few accented letters, so its Western guesses count as cp1252.
"""

import bz2
import codecs
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from resiliparse.parse.encoding import detect_encoding

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading.record import DAMAGED, Broken

BLOCK = 1 << 18
"""Bytes in a block: large enough for speed, and smaller than any document limit."""
PACKED = 1 << 16
"""Compressed bytes read at a time. They are copied for every member, and web archives have many."""
HEAD = 8192
"""Bytes by which a file is judged to be text, and to be UTF-16."""
BOMB_RATIO = 250
BOMB_BYTES = 256_000_000
"""A compressed file that gave more than this, at more than `BOMB_RATIO` to one, is stopped."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
BOM = b"\xef\xbb\xbf"
WIDE_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The longer marks first, because the mark of UTF-32 begins with that of UTF-16."""
MAGIC = {
    b"%PDF-": "PDF",
    b"PK\x03\x04": "zip (or docx, xlsx, epub)",
    b"\x1f\x8b\x08": "gzip; its name must end in .gz",
    b"BZh91AY&SY": "bzip2; its name must end in .bz2",
    b"\xfd7zXZ\x00": "xz; its name must end in .xz",
    b"\x28\xb5\x2f\xfd": "zstd; its name must end in .zst",
    b"PAR1": "Parquet; its name must end in .parquet",
    b"\x7fELF": "a program",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a": "rar",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"SQLite format 3\x00": "SQLite",
    b"\xca\xfe\xba\xbe": "a program",
    b"\x00asm": "a program",
    b"OggS\x00": "Ogg",
    b"fLaC": "FLAC",
}
WESTERN = {*(f"iso8859-{n}" for n in (1, 2, 3, 4, 9, 10, 13, 14, 15, 16)), "cp1250", "cp1254"}
CONTROL = bytes({*range(32)} - {*b"\t\n\x0b\x0c\r\x1b"})


class Watched:
    """A file for a library: counts the bytes read, and remembers an error of the disk.

    Libraries replace such an error by their own (or crash, as FastWARC does). So the library sees
    the end of the file, and `check` raises the error afterwards.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.count = 0
        self.error: Exception | None = None
        self.closed = False

    def read(self, size: int = BLOCK) -> bytes:
        """The next bytes; none at the end and after an error."""
        try:
            data = self._read(size) if self.error is None else b""
        except Exception as error:  # raised by `check`
            self.error, data = error, b""
        self.count += len(data)
        return data

    def tell(self) -> int:
        """Bytes read so far."""
        return self.count

    def seek(self, offset: int, whence: int = 0) -> int:
        """Skip forward; going back is not possible."""
        target = offset if whence == 0 else self.count + offset
        while self.count < target and self.read(min(BLOCK, target - self.count)):
            pass
        return self.count

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the code that opened the file closes it."""

    def check(self) -> None:
        """Raise the error that was hidden from the library."""
        if self.error is not None:
            raise self.error


class WatchedFile(Watched):
    """A watched file in which the library can seek."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file.read)
        self.file = file

    def tell(self) -> int:
        return self.file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)


def blocks(file: BinaryIO, path: str, begin: int = 0, end: int = -1) -> Iterator[bytes]:
    """The uncompressed content of a file, or its bytes from `begin` to `end`."""
    kind = compression(path)
    if not kind:
        yield from _range(file, begin, end)
        return
    watched = Watched(file.read)
    out = 0
    for block in _zstd(watched) if kind == ".zst" else _members(watched, DECOMPRESSORS[kind]):
        out += len(block)
        if out > BOMB_BYTES and out > BOMB_RATIO * watched.count:
            raise Broken("expands suspiciously", f"{watched.count} bytes gave {out}", out)
        yield block


def compression(path: str) -> str:
    """The ending of a compressed file's name; "" for other files."""
    return next((ending for ending in COMPRESSED if path.lower().endswith(ending)), "")


def plain_name(path: str) -> str:
    """The name, in lower case, without the ending of a compression."""
    return path.lower().removesuffix(compression(path))


def _range(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    if begin:
        file.seek(begin)
    remaining = end - begin if end >= 0 else sys.maxsize
    while block := file.read(min(BLOCK, remaining)):
        remaining -= len(block)
        yield block


class _Gzip:
    """zlib's decompressor with the interface of those of bz2 and lzma."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(31)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self.inner.decompress(self.inner.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self.inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": _Gzip,
    ".bz2": bz2.BZ2Decompressor,
    # A header may ask for a dictionary of 4 GB; `xz -9` needs 65 MB.
    ".xz": lambda: lzma.LZMADecompressor(memlimit=1 << 28),
}


def _members(source: Watched, new: Callable[[], Any]) -> Iterator[bytes]:
    """The content of the members of a file, which zeros may separate."""
    data, out = source.read(PACKED), 0
    while data := data.lstrip(b"\x00") or source.read(PACKED):
        if not data.strip(b"\x00"):
            continue
        member = new()
        while not member.eof:
            try:
                block = member.decompress(data, BLOCK)
            except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
                raise Broken(DAMAGED, str(error), out) from error
            out += len(block)
            if block:
                yield block
            data = source.read(PACKED) if member.needs_input and not member.eof else b""
            source.check()
            if not (data or block or member.eof):
                raise Broken(DAMAGED, "it ends too early", out)
        data = member.unused_data
    source.check()


def _zstd(source: Watched) -> Iterator[bytes]:
    import pyarrow as pa

    out = 0
    stream = pa.input_stream(pa.PythonFile(source, "r"), compression="zstd")
    while True:
        try:
            block = stream.read(BLOCK)
        except OSError as error:
            source.check()
            raise Broken(DAMAGED, str(error), out) from error
        source.check()
        if not block:
            return
        out += len(block)
        yield block


def peek(source: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first `HEAD` bytes, and all blocks from the beginning."""
    first: list[bytes] = []
    failure: Broken | None = None
    try:
        while sum(map(len, first)) < HEAD and (block := next(source, b"")):
            first.append(block)
    except Broken as broken:
        failure = broken

    def again() -> Iterator[bytes]:
        yield from first
        if failure:
            raise failure
        yield from source

    return b"".join(first)[:HEAD], again()


def check_encoding(encoding: str) -> None:
    """Raise a `UserError` for an encoding that Python does not know."""
    try:
        if encoding != "auto":
            b"a".decode(encoding)
    except UnicodeError:
        pass
    except (LookupError, ValueError):
        raise UserError(
            "setting",
            f"corpus.encoding = {encoding!r} is not an encoding Python knows; use one such as "
            "utf-8, latin-1 or cp1252",
        ) from None


def wide(head: bytes, encoding: str) -> str:
    """The encoding of a file whose lines cannot be found as bytes; "" for other files."""
    if encoding != "auto":
        name = codecs.lookup(encoding).name
        plain = ("utf-8", "utf-8-sig", "ascii")
        return "" if name in plain or name.startswith(("iso8859-", "cp125", "koi8")) else encoding
    for bom, name in WIDE_BOMS.items():
        if head.startswith(bom):
            return name
    zeros = [head[first::2].count(0) / max(1, len(head) // 2) for first in (0, 1)]
    if len(head) >= 16 and max(zeros) > 0.4 and min(zeros) < 0.02:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return ""


def not_text(head: bytes, encoding: str) -> str:
    """What kind of file this is, if it is clearly not text; "" if it may be text."""
    if wide(head, "auto"):
        return ""
    for magic, name in MAGIC.items():
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "tar"
    # EBCDIC and similar encodings have other control characters.
    controls = len(head) - len(head.translate(None, CONTROL))
    if not wide(head, encoding) and controls > 0.05 * len(head) and controls > 3:
        return f"{controls} of the first {len(head)} bytes are control characters"
    return ""


def recoded(source: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The text in UTF-8, with U+FFFD for bytes that do not fit the encoding."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in source:
        yield decoder.decode(block).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def decode(raw: bytes, encoding: str) -> tuple[str, bool]:
    """The text of a document, and whether it had to be repaired."""
    try:
        return raw.decode("utf-8" if encoding == "auto" else encoding), False
    except UnicodeDecodeError:
        text = _guess(raw) if encoding == "auto" else raw.decode(encoding, "replace")
        return text, True


def decode_whole(raw: bytes, encoding: str) -> tuple[str, bool]:
    """The text of a whole file or message, which may begin with a byte-order mark."""
    actual = wide(raw[:HEAD], encoding)
    if not actual:
        return decode(raw.removeprefix(BOM), encoding)
    text = raw.decode(actual, "replace").encode("utf-8", "replace").decode()
    return text.removeprefix("\ufeff"), "\ufffd" in text


def _guess(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    good = len(text) - len(text.encode("ascii", "ignore")) - bad
    is_stray = not re.search(rb"[\x80-\xfd]", raw)
    if bad * 100 < len(raw) and (good >= bad or is_stray):
        return text
    name = detect_encoding(raw)
    has_few = sum(byte >= 0x80 for byte in raw[:1024]) < 50
    if not name or name in ("utf-8", "ascii") or (has_few and name in WESTERN):
        name = "cp1252"
    try:
        return raw.decode(name, "replace")
    except LookupError:
        return raw.decode("cp1252", "replace")


def without_surrogates(text: str) -> tuple[str, bool]:
    """The text with U+FFFD for lone surrogates, and whether it had any."""
    clean = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return clean, clean != text
