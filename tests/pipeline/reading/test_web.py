"""Pages and archives of the web, honest ones and others."""

import gzip
import os
import random
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from elmwright.pipeline.config import CorpusConfig, Source
from elmwright.pipeline.reading import web
from elmwright.pipeline.reading.readers import Record, read
from elmwright.pipeline.reading.record import DAMAGED
from elmwright.pipeline.reading.sources import Piece
from tests.support.corpus.records import listed, problems, texts
from tests.support.places import SHARED

SAMPLES = SHARED / "data" / "warc"
PAGE = b"<html><body><h1>Title</h1><p>The text of a page.</p></body></html>"
TEXT = "Title\n\nThe text of a page."


def http(
    body: bytes = PAGE, status: int = 200, kind: bytes = b"text/html", more: bytes = b""
) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: %s\r\n%s\r\n%s" % (status, kind, more, body)


def warc(
    block: bytes, *, kind: bytes = b"response", length: int | None = None, more: bytes = b""
) -> bytes:
    size = len(block) if length is None else length
    if kind == b"response":
        more += b"Content-Type: application/http; msgtype=response\r\n"
    head = b"WARC/1.0\r\nWARC-Type: %s\r\n%sContent-Length: %d\r\n\r\n" % (kind, more, size)
    return head + block + b"\r\n\r\n"


def records(path: Path, content: bytes, limit: int = 32) -> list[Record]:
    path.write_bytes(content)
    config = CorpusConfig(max_document_mb=limit)
    return list(read(Piece(listed(path), 0, -1), config))


def html(tmp_path: Path, content: bytes) -> list[Record]:
    return records(tmp_path / "a.html", content)


def test_the_main_text_of_a_page(tmp_path: Path) -> None:
    page = b"""<html><head><title>T</title><style>p {}</style><script>var x = "no";</script></head>
      <body><nav><a href="/">Home</a><a href="/b">Shop</a></nav><main><h1>Title</h1>
      <p>The text <a href="x">of a</a> page.</p></main><footer>Imprint</footer></body></html>"""
    assert html(tmp_path, page) == [Record(0, TEXT)]
    assert html(tmp_path, b"<html><body><script>x()</script></body></html>") == []


@pytest.mark.parametrize(
    ("page", "repaired"),
    [
        ("<meta charset=utf-8><p>Das schöne Mädchen".encode(), False),
        ('<meta charset="iso-8859-1"><p>Das schöne Mädchen'.encode(), False),
        ('<meta charset="iso-8859-1"><p>Das schöne Mädchen'.encode("latin-1"), False),
        ('<meta charset="klingon"><p>Das schöne Mädchen'.encode("latin-1"), True),
        ("<p>Das schöne Mädchen".encode("latin-1"), True),
        ("<p>Das schöne Mädchen</p>".encode("utf-16"), False),
    ],
)
def test_the_encoding_of_a_page(tmp_path: Path, page: bytes, repaired: bool) -> None:
    assert html(tmp_path, page) == [
        Record(html(tmp_path, page)[0].offset, "Das schöne Mädchen", repaired=repaired)
    ]


def test_japanese_that_is_made_of_ascii_is_decoded_as_declared(tmp_path: Path) -> None:
    page = '<meta charset="iso-2022-jp"><p>今日は良い天気'.encode("iso-2022-jp")
    assert texts(html(tmp_path, page)) == ["今日は良い天気"]


@pytest.mark.parametrize(
    "page",
    [
        b"<div>" * 100_000,
        b"<div>" * 2_000_000,
        b"<div>" * 5_000 + b"text" + b"</div>" * 5_000,
        b"<a><div>" * 3_000,
        b"<p>text</p>" * 300_000,
        b"<div>" * 900 + b"<p>text</p>" * 20_000,
        b"<p " + b" ".join(b"a%d=1" % n for n in range(100_000)) + b">text",
    ],
)
def test_a_page_that_would_take_hours_is_refused_at_once(tmp_path: Path, page: bytes) -> None:
    begin = time.process_time()
    assert problems(html(tmp_path, page)) == [(0, "bad HTML")]
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    "page",
    [
        b"<div>" * 400 + b"<p>The text of a page.",
        b"<p>The text of a page." + b"<p>More of it, and more." * 4_000,
        b"<table>" + b"<tr><td>The text of a page.<td>And more of it.<td>More." * 2_000,
        b"<p>The text of a page.<p>" + b"<" * 20_000,
        b'<p>The text of a page.<img src="data:' + b"A" * 400_000 + b'">',
        b"<p>The text of a page.\x00 <b" + b"&amp;" * 20_000,
        b"<p>The text of a page.<!--" * 10_000,
    ],
)
def test_odd_pages_that_are_harmless_are_read(tmp_path: Path, page: bytes) -> None:
    (found,) = html(tmp_path, page)
    assert "The text of a page." in (found.text or "")


def test_only_pages_that_were_found_become_documents(tmp_path: Path) -> None:
    plain = b"Content-Type: text/plain\r\n"
    content = b"".join(
        [
            warc(b"software: x\r\n", kind=b"warcinfo"),
            warc(b"GET / HTTP/1.1\r\n\r\n", kind=b"request"),
            warc(http()),
            warc(http(status=404)),
            warc(http(status=301)),
            warc(http(kind=b"image/png")),
            warc(http(kind=b"application/json")),
            warc(http(b"Plain text.", kind=b"text/plain; charset=utf-8")),
            warc(PAGE, kind=b"resource", more=b"Content-Type: text/html\r\n"),
            warc(b"\x89PNG", kind=b"resource", more=b"Content-Type: image/png\r\n"),
            warc(b"Converted text.", kind=b"conversion", more=plain),
            warc(http(), kind=b"revisit", more=b"Content-Type: application/http\r\n"),
            warc(b"log", kind=b"resource", more=plain + b"WARC-Target-URI: metadata://wget\r\n"),
            warc(
                b"HTTP/1.0 200 OK\n\n" + PAGE,
                more=b"WARC-Identified-Payload-Type: text/html\r\n"
                b"WARC-Target-URI: file:///etc/passwd\r\n",
            ),
        ]
    )
    found = records(tmp_path / "a.warc", content)
    assert texts(found) == [TEXT, "Plain text.", TEXT, "Converted text.", TEXT]
    assert found[0].offset == content.index(b"WARC-Type: response") - 10
    packed = b"".join(gzip.compress(part) for part in (content[:500], content[500:]))
    assert records(tmp_path / "a.warc.gz", packed) == found


def chunked(body: bytes) -> bytes:
    half = len(body) // 2
    return (
        b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
        + b"\r\n"
    )


def deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


CHUNKED = b"Transfer-Encoding: chunked\r\n"
GZIP = b"Content-Encoding: gzip\r\n"


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (chunked(PAGE), CHUNKED),
        (chunked(PAGE)[:-7], CHUNKED),
        (PAGE, CHUNKED),
        (gzip.compress(PAGE, mtime=0), GZIP),
        (PAGE, GZIP),
        (chunked(gzip.compress(PAGE, mtime=0)), CHUNKED + GZIP),
        (zlib.compress(PAGE), b"Content-Encoding: deflate\r\n"),
        (deflate(PAGE), b"Content-Encoding: deflate\r\n"),
        (PAGE, b"Content-Encoding: deflate\r\n"),
        (PAGE, b"Content-Encoding: br\r\n"),
        (PAGE, b"Content-Encoding: martian\r\n"),
        (PAGE, b"Content-Length: 99999\r\nno colon here\r\n"),
    ],
)
def test_bodies_that_are_encoded_and_those_that_only_say_so(
    tmp_path: Path, body: bytes, more: bytes
) -> None:
    content = warc(http(body, more=more)) + warc(http())
    assert texts(records(tmp_path / "a.warc", content)) == [TEXT, TEXT]


def test_a_body_in_brotli(tmp_path: Path) -> None:
    packed = bytes(pa.compress(PAGE, codec="brotli", asbytes=True))
    content = warc(http(packed, more=b"Content-Encoding: br\r\n"))
    assert texts(records(tmp_path / "a.warc", content)) == [TEXT]


def test_badly_chunked_bodies_give_what_they_can(tmp_path: Path) -> None:
    body = b"20\r\n" + PAGE[:32] + b"\r\nzz\r\n" + PAGE[32:]
    (found,) = records(tmp_path / "a.warc", warc(http(body, more=CHUNKED)))
    assert (found.text or "").endswith("text of a page.")


def test_invalid_archive_records_are_quarantined(tmp_path: Path) -> None:
    parts = [
        warc(b"no HTTP at all"),
        warc(http(b"\x89PNG\r\n" + os.urandom(500))),
        warc(http(gzip.compress(bytes(3_000_000)), more=GZIP)),
        warc(http(b"<p>text" + b" " * 2_000_000)),
        warc(http(b"<div>" * 40_000)),
        warc(b""),
        warc(http()),
    ]
    found = records(tmp_path / "a.warc", b"".join(parts), limit=1)
    wrong = ["bad HTTP", "not text", "too large", "too large", "bad HTML", "bad HTTP", ""]
    assert [record.problem for record in found] == wrong
    assert found[-1].text == TEXT


@pytest.mark.parametrize("length", [10, 400, 10**6, 10**15])
def test_a_record_that_lies_about_its_length_ends_the_file_at_worst(
    tmp_path: Path, length: int
) -> None:
    content = warc(http()) + warc(http(), length=length) + warc(http()) * 3
    found = records(tmp_path / "a.warc", content)
    assert found[0].text == TEXT
    assert found[-1].problem in (DAMAGED, "too large")


@pytest.mark.parametrize("content", [PAGE, bytes(1000), b"WARC/1.0\r\n" + b"x" * 100_000])
def test_a_file_that_is_not_an_archive_is_one_broken_record(tmp_path: Path, content: bytes) -> None:
    for name in ("a.warc", "a.arc"):
        found = records(tmp_path / name, content)
        assert problems(found) == [(0, DAMAGED)]
    assert records(tmp_path / "b.warc", b"") == records(tmp_path / "b.arc", b"") == []


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc", "a.arc"])
def test_a_truncated_archive_gives_its_whole_records(tmp_path: Path, name: str) -> None:
    pages = [http(b"<p>Page %d says %s." % (n, os.urandom(50).hex().encode())) for n in range(99)]
    if name == "a.arc":
        content = b"".join([VERSION_1, *(arc_record(page) for page in pages)])
    else:
        content = b"".join(warc(page) for page in pages)
    content = gzip.compress(content) if name.endswith("gz") else content
    found = records(tmp_path / name, content[: len(content) // 2 - 20])
    assert found[-1].problem == DAMAGED
    assert 20 < len(found) < 60
    assert all((text or "").startswith("Page") for text in texts(found)[:-1])


def test_random_damage_never_does_more_than_break_records(tmp_path: Path) -> None:
    rng = random.Random(7)
    sound = warc(http(chunked(PAGE), more=CHUNKED)) + warc(http(gzip.compress(PAGE), more=GZIP))
    old = VERSION_1 + arc_record(http()) * 3
    for turn in range(300):
        content = bytearray(rng.choice([sound * 2, old]))
        for _ in range(rng.randint(1, 5)):
            place = rng.randrange(len(content))
            content[place : place + rng.randint(0, 9)] = rng.randbytes(rng.randint(0, 9))
        name = "a.arc" if content.startswith(b"filedesc") or turn % 2 else "a.warc"
        for record in records(tmp_path / name, bytes(content)):
            assert (record.text is None) == bool(record.problem)


VERSION_1 = (
    b"filedesc://a.arc 0.0.0.0 20140216050221 text/plain 75\n1 0 LiveWeb Capture\n"
    b"URL IP-address Archive-date Content-type Archive-length\n\n"
)[: 54 + 75] + b"\n"


def arc_record(block: bytes, url: bytes = b"http://example.com/") -> bytes:
    return b"%s 1.2.3.4 20140216050221 text/html %d\n%s\n" % (url, len(block), block)


def test_arc_of_both_versions_is_read(tmp_path: Path) -> None:
    spaces = arc_record(http(), b"http://example.com/a b  c")
    other = arc_record(b"1.2.3.4", b"dns:example.com") + arc_record(http(status=404))
    content = (
        VERSION_1 + arc_record(http()) + other + spaces + arc_record(b"HTTP/1.0 200\n\n" + PAGE)
    )
    found = records(tmp_path / "a.arc", content)
    assert texts(found) == [TEXT] * 3
    assert found[0].offset == len(VERSION_1)
    second = b"2 0 Capture\n" + b"x" * 63
    first = b"filedesc://a.arc 0.0.0.0 20140216050221 text/plain 200 - - 0 a.arc 75\n" + second
    block = http()
    line = b"http://e.org/a b 1.2.3.4 20140216050221 text/html 200 - - 9 a.arc %d\n" % len(block)
    assert texts(records(tmp_path / "b.arc", first + b"\n" + line + block + b"\n")) == [TEXT]


def test_a_bomb_inside_a_record_is_bounded(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(200_000_000), 1)
    begin = time.process_time()
    found = records(tmp_path / "a.warc", warc(http(packed, more=GZIP)), limit=1)
    assert problems(found) == [(0, "too large")]
    assert time.process_time() - begin < 2


EXAMPLE = "Example Domain\n\nThis domain is established"
EXPECTED: dict[str, tuple[list[str], list[str]]] = {
    "bad.arc": ([], [DAMAGED]),
    "example-bad-non-chunked.warc.gz": ([EXAMPLE], []),
    "example-bad.warc.gz.bad": ([EXAMPLE], []),
    "example-digest.warc": ([], []),
    "example-iana.org-chunked.warc": (["Internet Assigned Numbers Authority"], []),
    "example-resource.warc.gz": ([EXAMPLE], []),
    "example-space-in-target-uri.warc.gz": ([], []),
    "example-space-in-url.arc": ([], [DAMAGED]),
    "example-trunc.warc": ([EXAMPLE], [DAMAGED]),
    "example-wget-bad-target-uri.warc.gz": ([EXAMPLE], []),
    "example-wrong-chunks.warc.gz": ([EXAMPLE], []),
    "example.arc": ([EXAMPLE], []),
    "example.arc.gz": ([EXAMPLE], []),
    "example.warc": ([EXAMPLE], []),
    "example.warc.gz": ([EXAMPLE], []),
    "post-test.warc.gz": ([], []),
}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared WARC samples are not here")
@pytest.mark.parametrize("name", EXPECTED)
def test_the_samples_of_warcio(tmp_path: Path, name: str) -> None:
    path = tmp_path / name.removesuffix(".bad")
    found = records(path, (SAMPLES / name).read_bytes())
    begins, wrong = EXPECTED[name]
    good = [record.text for record in found if record.text]
    assert len(good) == len(begins)
    assert all(text.startswith(begin) for text, begin in zip(good, begins, strict=True))
    assert [record.problem for record in found if record.text is None] == wrong


def test_the_limits_on_pages_stay_far_above_real_ones() -> None:
    assert web.MAX_DEPTH >= 512  # where browsers stop
    assert web.MAX_WORK / web.MAX_ELEMENTS > 100


def test_a_source_may_say_that_a_file_is_html(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(PAGE)
    file = listed(tmp_path / "page", format=Source(format="html").format)
    assert texts(list(read(Piece(file, 0, -1), CorpusConfig()))) == [TEXT]
