"""`elmwright tokenize`, and raw, tokenised and running text in the other commands."""

import io
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.using import text_lines
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.cleaning.words import VERSION
from tests.support.random_model import write_random_model
from tests.support.tiny import command, imported

TEXT = "The cat sees\nthe dog's house. It's old.\n\n'The bird!' \n"
SENTENCES = ["The cat sees the dog 's house .", "It 's old .", "' The bird ! '"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "bundle"
    return write_random_model(folder, tokenisation=Tokenisation("ptb", VERSION))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def test_every_line_becomes_a_line_of_words(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenize", str(model), str(text)]) == 0
    lines = ["The cat sees", "the dog 's house . It 's old .", "", "' The bird ! '"]
    assert capsys.readouterr().out.split("\n") == [*lines, ""]
    assert main(["tokenise", str(model), str(text), "--split"]) == 0
    assert capsys.readouterr().out.splitlines() == SENTENCES


@pytest.mark.parametrize("at_once", [1, 1 << 16])
def test_words_have_their_places_in_the_text(
    model: Path,
    text: Path,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(text_lines, "PARAGRAPHS", at_once)
    assert main(["tokenize", str(model), str(text), "--split", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["line"] for row in rows] == [0, 1, 2]
    assert [" ".join(row["tokens"]) for row in rows] == SENTENCES
    for row in rows:
        assert [TEXT[start:end] for start, end in row["offsets"]] == row["tokens"]


def test_raw_tokenised_and_running_text_give_the_same(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, tokenised = text.with_name("raw.txt"), text.with_name("tokenised.txt")
    raw.write_text("The cat sees the dog's house.\nIt's old.\n'The bird!'\n")
    tokenised.write_text("\n".join(SENTENCES) + "\n")
    given = [(raw, []), (tokenised, ["--tokenized"]), (text, ["--split"])]
    scores, vectors, found = [], [], []
    for number, (path, options) in enumerate(given):
        assert main(["score", str(model), str(path), *options]) == 0
        scores.append(capsys.readouterr().out)
        out = text.with_name(f"{number}.npz")
        assert main(["embed", str(model), str(path), "-o", str(out), *options]) == 0
        with np.load(out) as file:
            vectors.append([file[str(line)] for line in range(3)])
            assert len(file.files) == 3
        sentence = "the dog 's" if "--tokenized" in options else "the dog's"
        query = ["--word", "dog", "--in", sentence, "--corpus", str(path), "--json"]
        capsys.readouterr()
        assert main(["neighbours", str(model), *query, *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert scores[0] == scores[1] == scores[2]
    assert [line.rpartition("\t")[2] for line in scores[0].splitlines()[1:]] == SENTENCES
    assert found[0] == found[1] == found[2]
    assert found[0]["neighbours"][0]["position"] == 4
    for other in vectors[1:]:
        for got, wanted in zip(other, vectors[0], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_running_text_from_a_pipe(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = type("Pipe", (), {"buffer": io.BytesIO(TEXT.encode())})()
    monkeypatch.setattr("sys.stdin", pipe)
    assert main(["tokenize", str(model), "-", "--split"]) == 0
    assert capsys.readouterr().out.splitlines() == SENTENCES


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["embed", "-o", "x.npz", "--pool", "first"], "add --tokenized"),
        (["score", "--split", "--tokenized"], "not allowed with"),
        (["tokenize", "--tokenized"], "--tokenized"),
    ],
)
def test_options_that_contradict_each_other(
    model: Path,
    text: Path,
    arguments: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(text.parent)
    name, *options = arguments
    with_text = [name, str(model), str(text), *options]
    try:
        code = main(with_text)
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    assert why in capsys.readouterr().err


def test_running_text_needs_a_model_that_carries_its_tokeniser(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write_random_model(tmp_path / "old")
    assert main(["score", str(old), str(text), "--split"]) == 2
    assert "does not say how it splits text into sentences" in capsys.readouterr().err


def test_tokenize_does_not_load_torch(model: Path, text: Path) -> None:
    done = subprocess.run(
        command("tokenize", model, text),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert not {"torch", "ray", "mlflow"} & imported(done.stderr)
