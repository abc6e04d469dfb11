"""What a build reads: compressed, broken, repeated or missing files, and harvested docstrings."""

import bz2
import gzip
import lzma

import pyarrow
import pytest

from elmwright.pipeline.config import EMBEDDED, CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import harvest
from tests.support.corpus.corpora import make, sentences, some_text

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


def test_broken_records_are_counted_and_skipped(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "Good one."}\n{"text": 3}\nnonsense\n{"text": "Good two."}\n')
    manifest = make(tmp_path / "out", CorpusConfig(sources=(str(path),), heldout={}))
    assert {s.rule: s.documents for s in manifest.funnel}["broken"] == 2
    assert manifest.splits["train"].documents == 2


SOME = some_text(60).encode()
BAD = [
    ("none.txt", None, {}, "does not exist"),
    ("*.nothing", None, {}, "matches no file"),
    ("in.txt", b"", {}, "hold no text"),
    ("in.txt", b"Hi.", {"min_words": 9}, "'min_words' dropped"),
    ("in.txt", b"abc", {"encoding": "utf-99"}, "not an encoding"),
    ("in.jsonl", b'{"body": "x"}\n', {}, "no text field"),
    ("in.txt.gz", gzip.compress(SOME)[:900], {"strict": True}, "truncated or damaged"),
    ("in.txt.zst", COMPRESS[".zst"](SOME)[:900], {"strict": True}, "damaged"),
    ("in.txt", b"abc", {"heldout": {"a.b": ("in.txt",)}}, "cannot name a held-out set"),
]


@pytest.mark.parametrize(("name", "data", "settings", "sentence"), BAD)
def test_bad_input_is_told_in_one_sentence(tmp_path, name, data, settings, sentence):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UserError) as error:
        make(tmp_path / "out", CorpusConfig(sources=(str(path),), **settings))
    assert sentence in str(error.value)
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
