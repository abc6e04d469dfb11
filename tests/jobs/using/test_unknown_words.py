"""The warnings about a text that a model cannot read well."""

from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.model.text.unknown_words import unknown_warning
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.cleaning.words import VERSION
from tests.support.random_model import VOCAB, write_random_model

RAW = "The dog. The cat. The bird. The house. The dog's cat's bird's house.\n" * 3
KNOWN = " ".join(VOCAB[3:]) + " " + VOCAB[3] + "\n"


def test_warning_above_a_third_of_unknown_words() -> None:
    assert unknown_warning(12, ["dog."] * 4, "so") == ""
    warning = unknown_warning(11, ["dog."] * 4, "so")
    assert warning == "36% of the words are unknown to the model ('dog.', …); so"
    assert unknown_warning(9, ["dog."] * 9, "so") == ""  # too few to tell


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that carries its tokeniser."""
    folder = tmp_path_factory.mktemp("reader") / "bundle"
    return write_random_model(folder, tokenisation=Tokenisation("ptb", VERSION))


def warnings_of(
    model: Path, text: Path, command: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    arguments = {
        "score": ["score", str(model), str(text)],
        "embed": ["embed", str(model), str(text), "-o", str(text.with_suffix(".npz")), "--force"],
        "neighbours": ["neighbours", str(model), "--word", "x", "--in", "x", "--any-word"],
    }[command]
    arguments += ["--corpus", str(text)] if command == "neighbours" else []
    assert main([*arguments, *options]) == 0
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


@pytest.mark.parametrize("command", ["score", "embed", "neighbours"])
def test_words_that_are_not_the_models_own_are_told(
    reader: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    for content, options, advice in (
        (RAW, [], ""),
        (RAW, ["--tokenized"], "it expects words as 'elmwright tokenize' gives them"),
        ("Der Hund. Die Katze. " * 9, [], "perhaps in another language"),
        (KNOWN, ["--tokenized"], ""),
    ):
        text.write_text(content)
        told = warnings_of(reader, text, command, options, capsys)
        assert len(told) == bool(advice)
        assert not told or ("unknown to the model" in told[0] and advice in told[0])


@pytest.mark.parametrize("command", ["score", "embed", "neighbours"])
def test_a_model_without_its_tokeniser_says_that_it_splits_at_spaces(
    model: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    for content, options, expected in (
        (KNOWN, [], ["only split at spaces"]),
        (KNOWN, ["--tokenized"], []),
        (RAW, [], ["only split at spaces", "such as 'The dog barks .'"]),
    ):
        text.write_text(content)
        told = warnings_of(model, text, command, options, capsys)
        assert len(told) == len(expected)
        assert all(part in line for part, line in zip(expected, told, strict=True))
