"""What a build reads: compressed, broken, repeated or missing files, and harvested docstrings."""

import bz2
import gzip
import lzma

import pyarrow
import pytest

from elmwright.pipeline.config import EMBEDDED, CorpusConfig
from elmwright.pipeline.reading import harvest
from tests.support.corpus.corpora import make, sentences, some_text
from tests.support.mistakes import mistake

pytestmark = pytest.mark.usefixtures("ray_here")


COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_are_read_like_plain_ones(tmp_path, ending):
    path = tmp_path / f"in.txt{ending}"
    path.write_bytes(COMPRESS[ending](b"\xef\xbb\xbfOne fine day.\n\nAnother fine day."))
    make(tmp_path / "out", CorpusConfig(sources=(str(path),), heldout={}))
    assert sorted(sentences(tmp_path / "out", "train")) == ["Another fine day .", "One fine day ."]


SOME = some_text(60).encode()
BAD = [
    ("none.txt", None, {}, "file-missing", "none.txt"),
    ("*.nothing", None, {}, "file-missing", "*.nothing"),
    ("in.txt", b"", {}, "no-text", "corpus.sources"),
    ("in.txt", b"Hi.", {"min_words": 9}, "no-text", "'min_words'"),
    ("in.txt", b"abc", {"encoding": "utf-99"}, "setting", "utf-99"),
    ("in.jsonl", b'{"body": "x"}\n', {}, "no-text", "corpus.text_field"),
    ("in.txt.gz", gzip.compress(SOME)[:900], {"strict": True}, "source", "in.txt.gz"),
    ("in.txt.zst", COMPRESS[".zst"](SOME)[:900], {"strict": True}, "source", "in.txt.zst"),
    ("in.txt", b"abc", {"heldout": {"a.b": ("in.txt",)}}, "setting", '"a.b"'),
]


@pytest.mark.parametrize(("name", "data", "settings", "code", "detail"), BAD)
def test_bad_input_is_a_mistake_in_one_line(tmp_path, name, data, settings, code, detail):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with mistake(code, detail) as error:
        make(tmp_path / "out", CorpusConfig(sources=(str(path),), **settings))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "MANIFEST.json").exists()


def test_the_same_file_named_twice_is_read_once(tmp_path):
    (tmp_path / "in.txt").write_text("One fine day.")
    config = CorpusConfig(
        sources=(str(tmp_path), str(tmp_path / "in.txt"), str(tmp_path / "*.txt")),
        heldout={},
        dedup="none",
    )
    assert make(tmp_path / "out", config).splits["train"].documents == 1


def test_the_harvest_is_frozen_once(tmp_path, monkeypatch):
    modules = [(name, path) for name, path in harvest.list_modules() if name.startswith("json/")]
    assert len(modules) >= 4
    monkeypatch.setattr(harvest, "list_modules", lambda: modules)
    config = CorpusConfig(sources=(EMBEDDED,), heldout={"heldout": 0.2})
    first = make(tmp_path, config)
    assert any("JSON" in sentence for sentence in sentences(tmp_path, "train"))
    monkeypatch.setattr(harvest, "list_modules", lambda: modules[:1])
    again = make(tmp_path, config, seed=8)
    assert again.inputs == first.inputs
