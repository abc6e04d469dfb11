"""Long documents in pieces: nothing lost, the same cuts every time, and off unless asked for."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from elmwright.jobs.config.toml_file import config_hash, load_config
from elmwright.pipeline.build.ray_tasks import task
from elmwright.pipeline.build.stages import clean
from elmwright.pipeline.build.up_to_date import corpus_key
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, VocabConfig, as_settings
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.cutting import cut
from elmwright.pipeline.reading.readers import Record, read
from elmwright.pipeline.storage.files import at

KEY = "6332be818805cb1471931cfcdf2aef3f642424be5d4b4bbe178c4a44c04ad5a5"
PARAGRAPH = "The river was high that spring. “We must cross,” she said.\n"


@given(st.text(st.sampled_from("ab .\n\r。!”"), max_size=400), st.integers(5, 60))
def test_the_pieces_are_the_text_and_none_is_too_long(text: str, limit: int) -> None:
    pieces = cut(text, limit)
    assert all(len(piece) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    if text.strip():
        assert not any(piece.isspace() for piece in pieces)


def test_pieces_end_at_paragraphs_and_are_of_about_the_same_size() -> None:
    novel = "\n".join([PARAGRAPH] * 100)
    pieces = cut(novel, 1000)
    assert all(piece.endswith((".\n\n", "said.\n")) for piece in pieces)
    assert min(map(len, pieces)) > 500
    assert cut(novel, len(novel)) == [novel]


def test_without_blank_lines_they_end_with_a_sentence() -> None:
    wrapped = ("Wrapped by hand in the middle\nof a sentence, as old mails are.\n") * 40
    assert all(piece.endswith("are.\n") for piece in cut(wrapped, 500))
    chinese = "我们必须过河。" * 200
    assert all(piece.endswith("。") for piece in cut(chinese, 100))


def records(path: Path, limit: int, **settings: str) -> list[Record]:
    config = CorpusConfig(sources=(str(path),), cut_documents=limit, **settings)  # type: ignore[arg-type]
    stat = at(path).stat()
    assert stat is not None
    [[piece]] = sources.cut([sources.source_file(stat, 0, "train", config)], config)
    return list(read(piece, config))


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_every_piece_has_a_place_of_its_own(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"novels.{kind}"
    novels = [PARAGRAPH * 40, "Short.", PARAGRAPH * 30]
    if kind == "txt":
        path.write_text("\n\n".join(novels))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in novels))
    else:
        parquet.write_table(pyarrow.table({"text": novels}), path)
    found = records(path, 600)
    assert len({record.offset for record in found}) == len(found) > 5
    assert [record.piece for record in found].count(1) == 2
    assert [record.text.strip() for record in found if not record.piece] == ["Short."]  # type: ignore[union-attr]
    whole = records(path, 0)
    assert [record.piece for record in whole] == [0, 0, 0]
    assert " ".join(r.text or "" for r in found).split() == " ".join(novels).split()


def test_cut_documents_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text(PARAGRAPH * 40)
    config = CorpusConfig(sources=(str(path),), cut_documents=600)
    stat = at(path).stat()
    assert stat is not None
    [chunk] = sources.cut([sources.source_file(stat, 0, "train", config)], config)
    (tmp_path / "work" / "clean").mkdir(parents=True)
    cleaned = clean.clean_chunk(
        str(tmp_path / "work"),
        "clean/a",
        chunk,
        config,
        given=False,
        model=None,
        known=None,
        signatures=False,
        save_dropped=False,
    )
    assert cleaned.repaired["cut"] == 1
    assert cleaned.funnel["read"][0] == sum(part.documents for part in cleaned.parts) > 3


def stage(_work: str, _out: str, _config: CorpusConfig) -> None:
    pass


def test_what_was_made_before_the_setting_existed_is_still_recognised() -> None:
    corpus = CorpusConfig(sources=("a.txt",))
    assert not {"cut_documents", "paragraphs"} & as_settings(corpus).keys()
    rest = VocabConfig(), ShardsConfig(), 1
    # As computed by the code before there was such a setting.
    assert corpus_key(corpus, *rest, recipe=3) == KEY
    cutting = replace(corpus, cut_documents=5000)
    assert corpus_key(cutting, *rest, recipe=3) != KEY
    assert task("clean", stage, corpus).digest != task("clean", stage, cutting).digest
    changed = load_config("demo", ["corpus.cut_documents=5000"])
    assert config_hash(changed) != config_hash(load_config("demo"))
