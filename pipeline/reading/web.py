"""The main text of web pages, in HTML files and in WARC and ARC archives.

WARC is read by FastWARC and HTML by Resiliparse. ARC, which FastWARC does not read, is parsed here,
and so are HTTP messages, because a body may claim to be chunked or compressed and be neither. Only
pages with status 200 and a content type of HTML or plain text become documents. A target URI is
never used as a path.

Resiliparse takes time that grows with the square of a page's depth (10,000 nested <div> take 3 s,
100,000 more than a minute), of its width (30,000 siblings: 1 to 2 s) and of the attributes of one
tag. Such pages are refused by counting tags before they are parsed. The limits are far above real
pages: browsers stop at a depth of about 500.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from fastwarc.stream_io import BrotliReader
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import map_encoding_to_html5

from elmwright.pipeline.reading.decode import BLOCK, HEAD, Watched, decode_whole, not_text, wide
from elmwright.pipeline.reading.record import DAMAGED, RAW, Broken, Record, too_large

MAX_ELEMENTS = 30_000
MAX_DEPTH = 1_000
MAX_WORK = 5_000_000
"""Most elements of a page, depth of their nesting, and elements times depth."""
MAX_ATTRIBUTES = 5_000
"""Most attributes of a tag; only tags of more than 50 KB (`LONG_TAG`) are checked."""
LONG_TAG = re.compile(r"<[a-zA-Z][^<>]{50000,}")
TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
FLAT = frozenset(
    "area base br col embed hr img input link meta param source track wbr "
    "p li dt dd td th tr tbody thead tfoot option optgroup colgroup html head body".split()
)
"""Elements whose end tag is absent or optional; they do not nest in themselves."""
HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("text/plain", "text/markdown")
CHARSET = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9_:.-]+)""", re.IGNORECASE)
META = re.compile(rb"""<meta[^>]*?charset\s*=\s*["']?([A-Za-z0-9_:.-]+)""", re.IGNORECASE)
STATUS = re.compile(rb"HTTP/\S+\s+(\d{3})(?!\d)")
HEAD_END = re.compile(rb"\r?\n\r?\n")
CHUNK = re.compile(rb"(?:\r?\n)?([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\n]{0,200})?\r?\n")
HTTP_HEAD = 1 << 16
"""Bytes within which the headers of an HTTP message must end."""


class Http(NamedTuple):
    """The head of an HTTP response."""

    status: int
    """Its status."""
    headers: dict[str, str]
    """Its headers; names in lower case."""
    size: int
    """Bytes of the head: the body begins there."""


def page(raw: bytes, offset: int, encoding: str, charset: str = "") -> Iterator[Record]:
    """The main text of an HTML page, if it has any."""
    html, repaired = _decode_html(raw, encoding, charset)
    if reason := _too_complex(html):
        yield Record(offset, None, "bad HTML", reason, raw[:RAW])
        return
    try:
        text = extract_plain_text(
            html, main_content=True, links=False, list_bullets=False, alt_texts=False
        )
    except (ValueError, RuntimeError) as error:
        yield Record(offset, None, "bad HTML", str(error)[:200], raw[:RAW])
        return
    if text.strip():
        yield Record(offset, text, repaired=repaired)


def _decode_html(raw: bytes, encoding: str, charset: str) -> tuple[str, bool]:
    """The text, and whether it had to be repaired.

    The encoding "auto" means UTF-8 if valid, else what the server or the page declares, else a
    guess.
    """
    meta = META.search(raw[:2048])
    declared = charset or (meta.group(1).decode("ascii") if meta else "")
    if encoding == "auto" and declared and not wide(raw[:HEAD], "auto"):
        name = map_encoding_to_html5(declared, fallback_utf8=True)
        # ISO-2022-JP has ASCII bytes only, so it would be valid UTF-8.
        for candidate in (name,) if b"\x1b" in raw else ("utf-8", name):
            with suppress(UnicodeDecodeError, LookupError):
                return raw.decode(candidate), False
    return decode_whole(raw, encoding)


def _too_complex(html: str) -> str:
    """Why Resiliparse would take seconds to hours for a page; "" for real pages."""
    elements = html.count("<") - html.count("</")
    if elements > MAX_ELEMENTS:
        return f"{elements} elements"
    if elements > MAX_DEPTH or len(html) > 150_000:
        if any(len(tag.group().split()) > MAX_ATTRIBUTES for tag in LONG_TAG.finditer(html)):
            return "a tag with thousands of attributes"
        depth = _depth(html)
        if depth > MAX_DEPTH or depth * elements > MAX_WORK:
            return f"{elements} elements, {depth} deep"
    return ""


def _depth(html: str) -> int:
    depth = deepest = 0
    for close, name in TAG.findall(html):
        if name.lower() not in FLAT:
            depth = max(0, depth - 1) if close else depth + 1
            deepest = max(deepest, depth)
    return deepest


def warc(source: Iterator[bytes], encoding: str, limit: int) -> Iterator[Record]:
    """The documents of a WARC file."""
    stream = Watched(_Stream(source).read)
    record_types = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
    place = 0
    try:
        for record in ArchiveIterator(stream, record_types, parse_http=False, stream_detect=False):
            place = record.stream_pos
            headers = record.headers
            content_type = headers.get("Content-Type") or ""
            is_http = content_type.lower().startswith("application/http")
            if is_http:
                content_type = headers.get("WARC-Identified-Payload-Type") or ""
            if is_http or not _is_about_crawl(headers.get("WARC-Target-URI") or ""):
                entry = Entry(place, record.content_length, is_http, content_type)
                yield from _documents(entry, record.reader.read, encoding, limit)
    except (OSError, Broken) as error:
        stream.check()
        raise error if isinstance(error, Broken) else Broken(DAMAGED, str(error), place) from error
    # An error of the disk looks like the end of the file to FastWARC.
    stream.check()


def _is_about_crawl(uri: str) -> bool:
    """Whether a resource is about the crawl, such as Wget's log, and not from the web."""
    return uri.strip("<>").lower().startswith(("metadata:", "urn:", "dns:", "whois:"))


def arc(source: Iterator[bytes], encoding: str, limit: int) -> Iterator[Record]:
    """The documents of an ARC file, version 1 or 2."""
    stream = _Stream(source)
    fields = 0  # of a header; the first record of the file tells
    while line := stream.line(HTTP_HEAD):
        place = stream.position - len(line)
        if not line.strip():
            continue
        # Some URLs hold spaces, so fields are counted from the right.
        parts = line.decode("latin-1").split(" ")
        length = parts[-1].strip()
        if not (length.isascii() and length.isdigit() and len(parts) >= (fields or 5)):
            raise Broken(DAMAGED, "not the header of an ARC record", place, line[:RAW])
        end = stream.position + int(length)
        if not fields:
            version = _read_fully(stream.read, min(int(length), HTTP_HEAD))
            fields = 10 if version.startswith(b"2") else 5
        elif line.lower().startswith((b"http:", b"https:")):
            content_type = parts[3 - fields]  # the fourth field
            entry = Entry(place, int(length), True, content_type)
            yield from _documents(entry, stream.read, encoding, limit)
        stream.skip(end - stream.position)
        if stream.position < end:
            raise Broken(DAMAGED, "the record ends too early", place)


class Entry(NamedTuple):
    """A record of an archive that may be a document."""

    place: int
    """Where the record begins."""
    length: int
    """How many bytes it claims to have."""
    is_http: bool
    """Whether these are an HTTP message, and not only its body."""
    content_type: str
    """Its content type, unless an HTTP header gives one."""


def _documents(
    entry: Entry, read: Callable[[int], bytes], encoding: str, limit: int
) -> Iterator[Record]:
    """The document of an entry, or what is wrong with it; nothing if it is no text."""
    head = _read_fully(read, min(entry.length, HTTP_HEAD))
    http = _parse_http(head) if entry.is_http else Http(200, {}, 0)
    if http is None:
        _check_length(entry, len(head), min(entry.length, HTTP_HEAD))
        yield Record(entry.place, None, "bad HTTP", "no status line and headers", head[:RAW])
        return
    kind, _, parameters = (http.headers.get("content-type") or entry.content_type).partition(";")
    kind = kind.strip().lower()
    if http.status != 200 or kind not in HTML_TYPES + TEXT_TYPES:
        return
    size = entry.length - http.size
    raw = head[http.size :]
    if size <= limit:
        raw += _read_fully(read, size - len(raw))
        _check_length(entry, http.size + len(raw), entry.length)
        raw = _decode_body(raw, http.headers, limit)
        size = len(raw)
    if size > limit:
        yield too_large(entry.place, raw, size)
    elif what := not_text(raw[:HEAD], "auto"):
        yield Record(entry.place, None, "not text", what, raw[:RAW])
    elif kind in HTML_TYPES:
        yield from page(raw, entry.place, encoding, _charset(parameters))
    elif raw.strip():
        text, repaired = decode_whole(raw, encoding)
        yield Record(entry.place, text, repaired=repaired)


def _check_length(entry: Entry, found: int, expected: int) -> None:
    if found < expected:
        raise Broken(DAMAGED, "the record ends too early", entry.place)


def _read_fully(read: Callable[[int], bytes], size: int) -> bytes:
    """The next `size` bytes, or all that are left."""
    parts: list[bytes] = []
    while size > 0 and (part := read(min(size, BLOCK))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parse_http(head: bytes) -> Http | None:
    """The head of a message, or None if it is invalid."""
    end = HEAD_END.search(head)
    first, *lines = head[: end.start() if end else 0].split(b"\n")
    status = STATUS.match(first)
    if not (end and status):
        return None
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Http(int(status.group(1)), headers, end.end())


def _charset(parameters: str) -> str:
    found = CHARSET.search(parameters.encode("latin-1", "replace"))
    return found.group(1).decode("ascii") if found else ""


def _decode_body(raw: bytes, headers: dict[str, str], limit: int) -> bytes:
    """The decoded body; unchanged if it does not have the encoding that it claims."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        raw = _unchunk(raw)
    codings = headers.get("content-encoding", "").lower().split(",")
    for coding in reversed(codings):
        if coding.strip() in ("gzip", "x-gzip", "deflate"):
            raw = _inflate(raw, limit) or raw
        elif coding.strip() == "br":
            raw = _brotli(raw, limit) or raw
    return raw


def _unchunk(raw: bytes) -> bytes:
    parts: list[bytes] = []
    position = 0
    while chunk := CHUNK.match(raw, position):
        size = int(chunk.group(1), 16)
        if size == 0:
            return b"".join(parts)
        parts.append(raw[chunk.end() : chunk.end() + size])
        position = chunk.end() + size
    # Not chunked at all, or badly from here on.
    return b"".join([*parts, raw[position:]])


def _inflate(raw: bytes, limit: int) -> bytes:
    """The content of a gzip or deflate stream up to any damage, at most one byte over the limit."""
    window = zlib.MAX_WBITS | 32 if raw[:2] == b"\x1f\x8b" or raw[:1] == b"x" else -zlib.MAX_WBITS
    inner = zlib.decompressobj(window)
    parts: list[bytes] = []
    size = 0
    try:
        for begin in range(0, len(raw), 4096):
            parts.append(inner.decompress(raw[begin : begin + 4096], limit + 1 - size))
            size += len(parts[-1])
            if size > limit or inner.eof:
                break
    except zlib.error:
        pass  # the part before the damage is kept
    return b"".join(parts)


def _brotli(raw: bytes, limit: int) -> bytes:
    try:
        return _read_fully(BrotliReader(io.BytesIO(raw)).read, limit + 1)
    except OSError:
        return b""


class _Stream:
    """Blocks of bytes, read like a file."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self.source, self.buffer, self.position = source, b"", 0

    def read(self, size: int) -> bytes:
        """Some of the next `size` bytes; none at the end."""
        self.buffer = self.buffer or next(self.source, b"")
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        self.position += len(data)
        return data

    def skip(self, size: int) -> None:
        """Skip bytes."""
        while size > 0 and (part := self.read(min(size, BLOCK))):
            size -= len(part)

    def line(self, limit: int) -> bytes:
        """The next line, or as much of it as the limit allows."""
        while b"\n" not in self.buffer and len(self.buffer) < limit:
            if not (block := next(self.source, b"")):
                break
            self.buffer += block
        return self.read(min(self.buffer.find(b"\n") + 1 or limit, limit)) if self.buffer else b""
