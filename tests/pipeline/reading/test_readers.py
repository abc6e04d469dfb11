"""Documents of every format, and what is put aside in their place."""

import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet
import pytest

from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.errors import Code
from elmwright.pipeline.reading import decode, readers
from elmwright.pipeline.reading.readers import Record
from elmwright.pipeline.reading.record import DAMAGED
from elmwright.pipeline.reading.sources import Piece
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.corpus.packed import PACKERS, Cut
from tests.support.corpus.records import listed, problems, texts
from tests.support.mistakes import mistake


def read(path: Path, content: bytes | None = None, **settings: Any) -> list[Record]:
    if content is not None:
        path.write_bytes(content)
    config = CorpusConfig(**settings)
    return list(readers.read(Piece(listed(path, config), 0, -1), config))


def test_plain_text_in_its_three_ways(tmp_path: Path) -> None:
    content = b"\n one\ntwo\n \t\r\n\nthree\r\n\r\nfour"
    path = tmp_path / "a.txt"
    assert [r[:2] for r in read(path, content)] == [(1, " one\ntwo"), (15, "three\r"), (24, "four")]
    found = read(path, content, documents="line")
    assert [r[:2] for r in found] == [(1, " one"), (6, "two"), (15, "three\r"), (24, "four")]
    assert [r[:2] for r in read(path, content, documents="file")] == [(0, content.decode())]


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t", b"\xef\xbb\xbf", b"\xff\xfe"])
@pytest.mark.parametrize("documents", ["line", "blank-line", "file"])
def test_a_file_without_text_has_no_documents(
    tmp_path: Path, content: bytes, documents: str
) -> None:
    assert read(tmp_path / "a.txt", content, documents=documents) == []


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.html"])
def test_every_format_is_read_from_every_compression(
    tmp_path: Path, name: str, ending: str
) -> None:
    content = {
        "a.txt": b"A short text.",
        "a.jsonl": b'{"text": "A short text."}',
        "a.html": b"<html><body><p>A short text.</p></body></html>",
    }[name]
    found = read(tmp_path / (name + ending), PACKERS[ending](content))
    assert found == [Record(0, "A short text.")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.html"])
def test_marks_and_wide_encodings_are_found(tmp_path: Path, name: str, encoding: str) -> None:
    content = {
        "a.txt": "Eine schöne Zeile.\n\nNoch eine ਊ Zeile.\n",
        "a.jsonl": '{"text": "Eine schöne Zeile."}\n{"text": "Noch eine ਊ Zeile."}\n',
        "a.html": "<p>Eine schöne Zeile.</p><p>Noch eine ਊ Zeile.</p>",
    }[name]
    found = read(tmp_path / name, content.encode(encoding))
    assert "\n".join(text or "" for text in texts(found)).split("\n") in (
        ["Eine schöne Zeile.", "Noch eine ਊ Zeile."],
        ["Eine schöne Zeile.", "", "Noch eine ਊ Zeile."],
    )
    assert not any(record.repaired for record in found)


def test_a_document_in_another_encoding_is_repaired_alone(tmp_path: Path) -> None:
    found = read(tmp_path / "a.txt", "Grüße".encode() + b"\n\nEl se\xf1or come.\n\nplain")
    assert texts(found) == ["Grüße", "El señor come.", "plain"]
    assert [record.repaired for record in found] == [False, True, False]


def test_a_given_encoding_that_does_not_fit_is_repaired(tmp_path: Path) -> None:
    found = read(tmp_path / "a.txt", b"gut\n\nsch\xf6n", encoding="utf-8")
    assert found == [Record(0, "gut"), Record(5, "sch\ufffdn", repaired=True)]
    odd = "gut\n\nschön".encode("utf-16-le") + b"x"
    found = read(tmp_path / "b.txt", odd, encoding="utf-16-le")
    assert [record[1::4] for record in found] == [("gut", False), ("schön\ufffd", True)]


def test_zeros_in_text_break_nothing(tmp_path: Path) -> None:
    content = b"a text with \x00 in it\n" * 9
    assert len(read(tmp_path / "a.txt", content, documents="line")) == 9
    line = b'{"text": "a raw \x00 and a tab \t in it"}\n'
    assert texts(read(tmp_path / "a.jsonl", line)) == ["a raw \x00 and a tab \t in it"]


def test_broken_json_records_are_put_aside_one_by_one(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}',
        b"{not json}",
        b'{"title": "no text", "body": 1}',
        b'{"text": null}',
        b'["text"]',
        b'"text"',
        b"[" * 200_000,
        b'{"text": ' + b"1" * 5000 + b"}",
        b'{"text": "two"} {"text": "objects"}',
        b"",
        b' {"text": "good too"} \r',
    ]
    found = read(tmp_path / "a.jsonl", b"\n".join(lines))
    assert [t for t in texts(found) if t] == ["good", "good too"]
    assert [record.problem for record in found[1:-1]] == [
        "broken JSON",
        "no text field",
        "no text field",
        "no text field",
        "no text field",
        "broken JSON",
        "broken JSON",
        "broken JSON",
    ]
    assert found[1].offset == 17
    assert found[1].raw == b"{not json}"
    assert found[2].detail == "the fields are title, body"
    assert len(found[6].raw) == 500


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    content = rb'{"text": "\ud83d\ude00 \ud83d x"}' + b"\n" + rb'{"text": "\ud83d\ude00 \\ud"}'
    found = read(tmp_path / "a.jsonl", content)
    assert [r[1::4] for r in found] == [("😀 \ufffd x", True), ("😀 \\ud", False)]
    for text in texts(found):
        (text or "").encode()


@pytest.mark.parametrize(
    ("name", "documents"),
    [("a.txt", "line"), ("a.txt", "blank-line"), ("a.txt", "file"), ("a.jsonl", "line")],
)
def test_a_document_over_the_limit_is_passed_over(
    tmp_path: Path, name: str, documents: str
) -> None:
    line = b'{"text": "' + b"x" * 300_000 + b'"}'
    large = b"\n".join([line] * 4) if documents == "blank-line" else line * 4
    small = b'{"text": "small"}'
    content = b"\n\n".join([small, large, small, b"y" * 5_000_000])
    found = read(tmp_path / name, content, documents=documents, max_document_mb=1)
    if documents == "file":
        assert problems(found) == [(0, "too large")]
        return
    assert [record.problem for record in found] == ["", "too large", "", "too large"]
    assert [record.offset for record in found] == [0, 19, 21 + len(large), 40 + len(large)]
    assert found[1].raw == line[:500]


@pytest.mark.parametrize("documents", ["line", "blank-line", "file"])
def test_a_huge_line_is_never_in_memory(tmp_path: Path, documents: str) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.write(b"text " * 2000)
        file.truncate(150_000_000)  # a hole: zeros that take no disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n\nlast")
    tracemalloc.start()
    found = read(path, documents=documents, max_document_mb=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert problems(found) == [(0, "too large")]
    assert texts(found[1:]) == ([] if documents == "file" else ["last"])
    assert peak < 10_000_000


def test_the_largest_document_allowed_is_read(tmp_path: Path) -> None:
    for documents in ("line", "blank-line", "file"):
        found = read(tmp_path / "a.txt", b"x" * 1_000_000, documents=documents, max_document_mb=1)
        assert problems(found) == []
    content = b"x" * 1_000_000 + b"\n\n" + b"x" * 1_000_001 + b"\n\n"
    for documents in ("line", "blank-line"):
        found = read(tmp_path / "a.txt", content, documents=documents, max_document_mb=1)
        assert problems(found) == [(1_000_002, "too large")]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.html", "a.txt.gz", "a.docx"])
def test_a_file_that_is_no_text_is_one_broken_record(tmp_path: Path, name: str) -> None:
    content = b"PK\x03\x04" + os.urandom(50_000)
    found = read(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    assert [(r.offset, r.text, r.problem) for r in found] == [(0, None, "not text")]
    assert found[0].detail.startswith("zip")
    assert found[0].raw == content[:500]


def test_a_truncated_file_gives_its_whole_documents_then_the_break(tmp_path: Path) -> None:
    rng = [os.urandom(20).hex() for _ in range(5000)]
    packed = gzip.compress("\n".join(rng).encode())
    for name, documents in (("a.txt.gz", "line"), ("b.jsonl.gz", "line")):
        if "jsonl" in name:
            packed = gzip.compress("\n".join(json.dumps({"text": x}) for x in rng).encode())
        found = read(tmp_path / name, packed[: len(packed) // 2], documents=documents)
        assert found[-1].problem == DAMAGED
        assert found[-1].offset > found[-2].offset
        good = texts(found)[:-1]
        assert 1000 < len(good) < 4000
        assert good == rng[: len(good)]
    assert texts(read(tmp_path / "c.txt.gz", packed[:3000], documents="file")) == [None]


def test_a_bomb_gives_what_came_before_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "BOMB_BYTES", 3_000_000)
    monkeypatch.setattr(decode, "BOMB_RATIO", 20)
    found = read(tmp_path / "a.txt.gz", gzip.compress((b"x" * 998 + b"\n\n") * 20_000))
    assert found[0].text == "x" * 998
    assert found[-1].problem == "expands suspiciously"
    assert 3_000_000 < found[-1].offset < 4_000_000


@pytest.mark.parametrize(
    ("name", "content", "code", "place"),
    [
        ("a.jsonl", b'{"text": "a"}\n{', "source", "byte 14"),
        ("a.jsonl", b'{"body": "a"}', "no-text", "byte 0"),
        ("a.txt.gz", gzip.compress(b"text", mtime=0)[:-9], "source", "byte "),
        ("a.txt", b"PK\x03\x04", "source", "byte 0"),
        ("a.html", b"<div>" * 40_000, "source", "byte 0"),
    ],
)
def test_a_strict_build_stops_and_names_the_place(
    tmp_path: Path, name: str, content: bytes, code: Code, place: str
) -> None:
    assert problems(read(tmp_path / name, content))
    with mistake(code, name, place, "corpus.strict"):
        read(tmp_path / name, content, strict=True)


def test_a_file_that_changed_since_it_was_listed_stops_the_build(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    piece = Piece(listed(path), 0, -1)
    assert len(list(readers.read(piece, CorpusConfig()))) == 1
    path.write_text("other text")
    with mistake("source", "a.txt"):
        list(readers.read(piece, CorpusConfig()))
    path.unlink()
    with mistake("source", "a.txt"):
        list(readers.read(piece, CorpusConfig()))


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_rows_are_documents(tmp_path: Path, kind: Any) -> None:
    values = ["one", None, "schön", "x" * 1_000_001, "five"] + ["more"] * 495
    raw = pa.array([v.encode() if v else None for v in values], pa.binary())
    column = raw if kind == pa.binary() else pa.array(values, pa.string()).cast(kind)
    columns = {"path": pa.array(["/etc/passwd"] * len(values)), "text": column}
    path = write_parquet(tmp_path / "a.parquet", columns, row_group_size=130)
    found = read(path, max_document_mb=1)
    assert [record.offset for record in found] == list(range(500))
    assert texts(found)[:5] == ["one", None, "schön", None, "five"]
    assert [record.problem for record in found[:5]] == ["", "no text field", "", "too large", ""]


def test_parquet_does_not_promise_valid_text(tmp_path: Path) -> None:
    bad = pa.array([b"El se\xf1or come.", b"good"], pa.binary()).view(pa.string())
    found = read(write_parquet(tmp_path / "a.parquet", {"text": bad}))
    assert [r[1::4] for r in found] == [("El señor come.", True), ("good", False)]


def test_parquet_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"id": [1], "body": ["a"]})
    with mistake("source", '"text"', "corpus.text_field", "id, body"):
        read(path)
    with mistake("source", '"id"', "int64", "corpus.text_field"):
        read(path, text_field="id")
    assert texts(read(path, text_field="body")) == ["a"]


def test_a_damaged_parquet_file_gives_what_came_before(tmp_path: Path) -> None:
    values = [os.urandom(300).hex() for _ in range(900)]
    path = write_parquet(tmp_path / "a.parquet", {"text": values}, row_group_size=300)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle - 3000 : middle + 3000] = os.urandom(6000)
    found = read(path, bytes(content))
    # Where a page's header survives, its text is only changed; so damage the header as well.
    assert len(found) >= 300
    assert texts(found)[:300] == values[:300]
    truncated = read(path, path.read_bytes()[:-5])
    assert [r.problem for r in truncated] == [DAMAGED]


def test_a_parquet_bomb_is_refused_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "BOMB_BYTES", 1_000_000)
    values = ["x" * 1000] * 5000
    path = write_parquet(
        tmp_path / "a.parquet", {"text": values}, compression="zstd", use_dictionary=False
    )
    assert [r.problem for r in read(path)] == ["expands suspiciously"]


def test_an_error_of_the_disk_is_left_to_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may pass; were it taken for damage, the corpus would silently lose the file's rest."""
    lines = "\n".join(os.urandom(20).hex() for _ in range(10_000)).encode()
    write_parquet(tmp_path / "a.parquet", {"text": lines.decode().split("\n")})
    (tmp_path / "a.txt").write_bytes(lines)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.txt.zst").write_bytes(PACKERS[".zst"](lines))
    body = b"HTTP/1.1 200 OK\r\n\r\n" + lines
    head = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    (tmp_path / "a.warc").write_bytes((head + body + b"\r\n\r\n") * 2)

    class CutEnd(Cut):
        def read(self, size: int | None = -1, /) -> bytes:
            # The footer of Parquet, at the end, can still be read.
            near_end = self.tell() > len(self.getvalue()) - 20_000
            return io.BytesIO.read(self, size) if near_end else super().read(size)

    @contextmanager
    def reading(self: DiskLocation) -> Iterator[BinaryIO]:
        yield CutEnd(Path(self.path).read_bytes())

    monkeypatch.setattr(DiskLocation, "reading", reading)
    for name in ("a.txt", "a.txt.gz", "a.txt.zst", "a.warc", "a.parquet"):
        with pytest.raises(OSError, match="Input/output error"):
            read(tmp_path / name)
