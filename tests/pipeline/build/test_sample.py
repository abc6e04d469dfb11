"""`elmwright corpus CONFIG --sample`: what is kept is shown in the words that the config gives."""

from pathlib import Path

import pytest

from elmwright.jobs.cli import command
from elmwright.pipeline.build.sample import try_rules
from elmwright.pipeline.cleaning.pieces import SPACE, text_of
from elmwright.pipeline.config import CorpusConfig, Pieces
from tests.support.tiny import write_config, write_text

SMALL = Pieces(size=60)


def config_of(text: Path, pieces: Pieces = SMALL) -> CorpusConfig:
    return CorpusConfig(sources=(str(text),), tokenizer="sentencepiece", sentencepiece=pieces)


def test_a_sample_shows_pieces_where_the_config_gives_pieces(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 40)
    sample = try_rules(config_of(text), str(tmp_path / "out"), 40, 1)
    assert sample.pieces_of == "sample"
    for example in sample.kept:
        for sentence in example.text.split("\n"):
            assert sentence.startswith(SPACE)
            assert text_of(sentence.split()) in text.read_text(encoding="utf-8")


def test_words_are_shown_as_before(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 40)
    sample = try_rules(CorpusConfig(sources=(str(text),)), str(tmp_path / "out"), 40, 1)
    assert not sample.pieces_of
    assert sample.kept[0].text.endswith(" .")


def test_the_command_says_whose_pieces_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_text(tmp_path / "text.txt", 40)
    config = write_config(
        tmp_path, text, corpus_tokenizer="sentencepiece", corpus_sentencepiece={"size": 60}
    )
    assert command.main(["corpus", str(config), "--sample", "40"]) == 0
    shown = capsys.readouterr().out
    assert "pieces of a model trained on this sample:\n    ▁" in shown
