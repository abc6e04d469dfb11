"""Files are found as the user means them, and cut where it changes nothing."""

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from elmwright.pipeline.config import CorpusConfig, Source
from elmwright.pipeline.errors import Code, UserError
from elmwright.pipeline.reading import decode, readers, sources
from elmwright.pipeline.reading.sources import Piece, SourceFile
from elmwright.pipeline.storage.location import Stat
from elmwright.pipeline.storage.object_store import StoreLocation
from tests.support.corpus.records import listed
from tests.support.mistakes import mistake

LINES = [
    "",
    "",
    "",
    " \t",
    "\r",
    "a",
    "éb\r",
    "\x0b c",
    "a longer line of text",
    "x" * 50,
    " " * 90,
]
LETTERS = st.lists(st.sampled_from(LINES), min_size=5, max_size=40).map("\n".join)


def names(source: Path | str) -> list[str]:
    return [Path(stat.path).name for stat in sources.expand(str(source))]


def test_a_folder_gives_its_files_sorted_and_leaves_hidden_ones_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden", ".git/config", "sub/.x/y.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    assert names(tmp_path) == ["a.txt", "b.txt", "c.txt"]


def test_a_hidden_folder_above_the_source_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/a.txt").write_text("text")
    assert names(tmp_path / ".cache") == ["a.txt"]


def test_a_glob_and_a_file_whose_name_looks_like_one(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c[1].txt"):
        (tmp_path / name).write_text("text")
    assert names(tmp_path / "[ab].txt") == ["a.txt", "b.txt"]
    assert names(tmp_path / "c[1].txt") == ["c[1].txt"]


def test_paths_are_absolute_so_that_workers_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.expand("a.txt")[0].path == str(tmp_path / "a.txt")
    assert sources.expand("~/a.txt")[0].path == str(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("none.txt", "file-missing"),
        ("*.md", "file-missing"),
        ("empty", "no-text"),
        ("pipe", "file-unreadable"),
    ],
)
def test_a_missing_source_is_named(tmp_path: Path, source: str, code: Code) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/.hidden").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    with mistake(code, str(tmp_path / source), "corpus.sources"):
        sources.expand(str(tmp_path / source))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://box/a.txt", ["s3://box/a.txt"]),
        ("s3://box", ["s3://box/a.txt", "s3://box/sub/b.txt"]),
        ("s3://box/sub/", ["s3://box/sub/b.txt"]),
        ("s3://box/*.txt", ["s3://box/a.txt"]),
    ],
)
def test_urls_name_files_folders_and_globs(
    monkeypatch: pytest.MonkeyPatch, url: str, found: list[str]
) -> None:
    store = [Stat(f"s3://box/{name}", 1, 1) for name in ("a.txt", "sub/.x", "sub/", "sub/b.txt")]
    monkeypatch.setattr(
        StoreLocation, "stat", lambda self: next((s for s in store if s.path == self.path), None)
    )
    monkeypatch.setattr(
        StoreLocation,
        "list_files",
        lambda self: [s for s in store if s.path.startswith(self.path + "/")],
    )
    assert [stat.path for stat in sources.expand(url)] == found
    with mistake("file-missing", "s3://other", "corpus.sources"):
        sources.expand("s3://other")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("a.txt", "auto", "text"),
        ("a", "auto", "text"),
        ("a.JSONL.GZ", "auto", "jsonl"),
        ("a.ndjson", "auto", "jsonl"),
        ("a.parquet", "auto", "parquet"),
        ("a.warc.gz", "auto", "warc"),
        ("a.warc.wet.gz", "auto", "warc"),
        ("a.arc.gz", "auto", "arc"),
        ("a.arc", "warc", "arc"),
        ("a.htm.xz", "auto", "html"),
        ("a.txt", "jsonl", "jsonl"),
        ("a.jsonl", "text", "text"),
    ],
)
def test_the_format_goes_by_the_ending_unless_it_is_given(
    name: str, given: Any, expected: str
) -> None:
    stat = Stat(name, 1, 1)
    file = sources.source_file(stat, 0, "train", CorpusConfig(), Source(format=given))
    assert file.format == expected


def test_a_source_overrides_the_corpus() -> None:
    config = CorpusConfig(documents="line", text_field="body", encoding="latin-1")
    stat = Stat("a.txt", 7, 9)
    own = Source(documents="file", text_field="content", encoding="cp1252")
    assert sources.source_file(stat, 3, "train", config, own, 2) == SourceFile(
        "a.txt", 3, 7, 9, "train", 2, "text", "file", "content", "cp1252", name="a.txt"
    )
    assert sources.source_file(stat, 3, "valid", config) == SourceFile(
        "a.txt", 3, 7, 9, "valid", 0, "text", "line", "body", "latin-1", name="a.txt"
    )


def test_parquet_inside_a_compression_is_refused() -> None:
    with mistake("file-unreadable", "a.parquet.gz"):
        sources.source_file(Stat("a.parquet.gz", 1, 1), 0, "train", CorpusConfig())


@pytest.mark.parametrize("encoding", ["klingon", "hex", "a\x00b"])
def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    with mistake("setting", "corpus.encoding", repr(encoding)):
        sources.source_file(Stat("a", 1, 1), 0, "train", CorpusConfig(encoding=encoding))


def test_a_file_that_cannot_be_opened_is_named_before_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    file = listed(tmp_path / "a.txt")
    sources.check_readable([file])

    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(UserError, match="no permission to use"):
            sources.check_readable([file])
    (tmp_path / "a.txt").unlink()
    with mistake("file-unreadable", "a.txt"):
        sources.check_readable([file])


def test_tasks_mix_neither_splits_nor_sources(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    kinds = [("train", 0), ("train", 0), ("train", 1), ("valid", 0), ("valid", 0)]
    given = [
        listed(tmp_path / "a.txt", split=split, index=index, number=n)
        for n, (split, index) in enumerate(kinds)
    ]
    chunks = sources.cut(given, CorpusConfig())
    assert [[piece.file.number for piece in chunk] for chunk in chunks] == [[0, 1], [2], [3, 4]]


def test_small_files_share_a_task_up_to_its_size_and_compressed_ones_count_as_text(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\n" * 150_000)
    (tmp_path / "b.txt.gz").write_bytes(b"x" * 150_000)
    plain, packed = listed(tmp_path / "a.txt"), listed(tmp_path / "b.txt.gz")
    config = CorpusConfig(chunk_mb=1)
    assert [len(chunk) for chunk in sources.cut([plain] * 7, config)] == [3, 3, 1]
    assert [len(chunk) for chunk in sources.cut([packed] * 3, config)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.txt.gz", gzip.compress(b"a b\n" * 500, mtime=0), {"documents": "line"}),
        ("a.txt", b"a b\n" * 500, {"documents": "file"}),
        ("a.html", b"a b\n" * 500, {}),
        ("a.warc", b"a b\n" * 500, {}),
        ("a.txt", ("a b\n" * 500).encode("utf-16"), {"documents": "line"}),
        ("a.txt", ("a b\n" * 500).encode("utf-32"), {"documents": "line"}),
        ("a.txt", ("a b\n" * 500).encode("utf-16-le"), {"documents": "line"}),
        ("a.txt", ("a b\n" * 500).encode("cp037"), {"documents": "line", "encoding": "cp037"}),
        ("a.tar", b"PK\x03\x04" + b"\n" * 500, {"documents": "line"}),
        ("a.parquet", b"PAR1" + b"\x00" * 500, {}),
    ],
)
def test_files_that_cannot_be_cut_stay_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    fields: dict[str, Any],
) -> None:
    monkeypatch.setattr(sources, "MEGABYTE", 1)
    (tmp_path / name).write_bytes(content)
    file = listed(tmp_path / name, **fields)
    assert sources.cut([file], CorpusConfig(chunk_mb=10)) == [(Piece(file, 0, -1),)]


def test_parquet_is_cut_at_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MEGABYTE", 1)
    table = pa.table({"id": range(100), "text": [f"document {n} " * 20 for n in range(100)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    config = CorpusConfig(chunk_mb=800)
    chunks = sources.cut([listed(tmp_path / "a.parquet")], config)
    edges = [(piece.begin, piece.end) for chunk in chunks for piece in chunk]
    assert len(edges) > 2
    assert edges[0][0] == 0
    assert edges[-1][1] == 10
    assert [end for _, end in edges[:-1]] == [begin for begin, _ in edges[1:]]
    read = [r for chunk in chunks for piece in chunk for r in readers.read(piece, config)]
    assert [r.offset for r in read] == list(range(100))
    assert [r.text for r in read] == table["text"].to_pylist()


@settings(max_examples=150, deadline=None)
@given(
    content=LETTERS,
    how=st.sampled_from(["line", "blank-line", "jsonl"]),
    chunk=st.integers(1, 30),
    block=st.integers(1, 40),
    largest=st.integers(40, 80),
)
def test_the_documents_do_not_depend_on_the_cuts(
    tmp_path_factory: pytest.TempPathFactory,
    content: str,
    how: Any,
    chunk: int,
    block: int,
    largest: int,
) -> None:
    path = tmp_path_factory.mktemp("cut") / ("a.jsonl" if how == "jsonl" else "a.txt")
    if how == "jsonl":
        content = "\n".join(f'{{"text": "{line}"}}' for line in content.split("\n"))
    path.write_bytes(content.encode())
    file = listed(path, documents="" if how == "jsonl" else how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "MEGABYTE", 1)
        patch.setattr(decode, "BLOCK", 40)  # never more than the largest document
        whole = CorpusConfig(max_document_mb=largest)
        expected = list(readers.read(Piece(file, 0, -1), whole))
        patch.setattr(sources, "MEGABYTE", 1)
        patch.setattr(sources, "LINE", 40)
        patch.setattr(decode, "BLOCK", block)
        config = CorpusConfig(chunk_mb=chunk, max_document_mb=largest)
        chunks = sources.cut([file], config)
        pieces = [piece for chunk_ in chunks for piece in chunk_]
        found = [record for piece in pieces for record in readers.read(piece, config)]
    assert [record[:3] for record in found] == [record[:3] for record in expected]
    event(f"{how}: {min(len(pieces), 3)} pieces or more")
    if how != "blank-line" and len(content) > 200 + 2 * chunk:
        assert len(pieces) > 1


@settings(max_examples=150, deadline=None)
@given(content=LETTERS, how=st.sampled_from(["line", "blank-line"]))
def test_documents_are_what_line_by_line_reading_finds(
    tmp_path_factory: pytest.TempPathFactory, content: str, how: Any
) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.txt"
    path.write_bytes(content.encode())
    expected: list[tuple[int, str]] = []
    offset, fresh = 0, True
    for line in content.encode().split(b"\n"):
        if not line.strip():
            fresh = True
        elif fresh or how == "line":
            expected.append((offset, line.decode()))
            fresh = False
        else:
            expected[-1] = (expected[-1][0], expected[-1][1] + "\n" + line.decode())
        offset += len(line) + 1
    file = listed(path, documents=how)
    found = list(readers.read(Piece(file, 0, -1), CorpusConfig()))
    if how == "blank-line":  # a blank rest without a line end stays with the last document
        assert [(o, (t or "").rstrip()) for o, t, *_ in found] == [
            (o, t.rstrip()) for o, t in expected
        ]
    else:
        assert [(o, t) for o, t, *_ in found] == expected
