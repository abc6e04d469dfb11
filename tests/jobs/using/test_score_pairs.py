"""elmwright score --pairs: which of two sentences is more probable, and odd lines in the file."""

import json
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.using.score import Scorer
from elmwright.jobs.using.score_pairs import score_pairs
from elmwright.jobs.using.text.pairs_file import read_pairs
from elmwright.jobs.using.text.text_lines import Reading
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.cleaning.words import VERSION
from tests.support.mistakes import mistake
from tests.support.random_model import write_random_model

pytestmark = pytest.mark.slow(5)

PAIRS = [
    ("The cat sees the dog .", "The cat sees the river ."),
    ("the the cat", "The old cat forgets the old cat ."),
    ("bird", "The cat"),
    ("The old cat .", "The  old cat . "),  # a tie
    ("The xylophone .", "The dog ."),
    *((f"The {noun} sees the bird .", f"The sees {noun} the .") for noun in ("cat", "dog")),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    return path


def test_the_more_probable_sentence_is_the_one_with_the_higher_score(
    model: Path, file: Path
) -> None:
    out = file.with_name("out.jsonl")
    result = score_pairs(str(model), str(file), out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    scorer = Scorer(model)
    assert (result.pairs, result.unequal_unknown) == (len(PAIRS), 1)
    for direction in ("forward", "backward", "mean"):
        differences = []
        for first, second in PAIRS:
            pair = scorer.score([first.split(), second.split()])
            differences.append(
                float(sum((1, -1)[n] * getattr(s, direction).sum() for n, s in enumerate(pair)))
            )
        got = [row[direction] for row in rows]
        assert got == pytest.approx(differences, abs=1e-4)
        choice = getattr(result, direction)
        right = sum(difference > 0.001 for difference in differences)
        assert 0 < right < len(PAIRS) - 1, "a test that tells directions apart"
        assert (choice.right, choice.ties) == (right, 1)
        assert choice.accuracy == pytest.approx(right / len(PAIRS))
        assert choice.tie_share == pytest.approx(1 / len(PAIRS))
    assert [row["unknown_first"] for row in rows] == [0, 0, 0, 0, 1, 0, 0]
    assert rows[3]["first"] == rows[3]["second"] == ["The", "old", "cat", "."]
    assert rows[3]["mean"] == 0


def test_a_tie_is_wrong(model: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("The cat .\tThe cat .\n" * 600, encoding="utf-8")
    assert main(["score", str(model), "--pairs", str(file), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for direction in ("forward", "backward", "mean"):
        assert result[direction] == {"right": 0, "ties": 600, "accuracy": 0.0, "tie_share": 1.0}
    assert main(["score", str(model), "--pairs", str(file)]) == 0
    shown = capsys.readouterr().out
    for direction in ("forward", "backward", "mean"):
        (line,) = [line for line in shown.splitlines() if line.startswith(direction)]
        assert line.split()[1:] == ["0", "0.0%", "100.0%"]


def test_rows_are_written_as_a_table(
    model: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = file.with_name("out.tsv")
    assert main(["score", str(model), "--pairs", str(file), "-o", str(out)]) == 0
    head, *rows = (line.split("\t") for line in out.read_text(encoding="utf-8").splitlines())
    assert head[-2:] == ["first", "second"]
    assert [(row[-2], row[-1]) for row in rows] == [
        (" ".join(a.split()), " ".join(b.split())) for a, b in PAIRS
    ]
    assert main(["score", str(model), "--pairs", str(file), "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"only one sentence\n", "no tab"),
        (b"one\ttwo\tthree\n", "2 tabs"),
        (b"\n", "it is empty"),
        (b"\tThe cat\n", "first sentence is empty"),
        (b"The cat\t  \n", "second sentence is empty"),
        (b"\xff\xfe\tThe cat\n", "not UTF-8"),
        (b"a " * (1 << 19) + b"\tThe cat\n", "more than 1,048,576 bytes"),
    ],
)
def test_an_odd_line_is_named_by_its_number(
    model: Path, file: Path, line: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b"The cat\tA cat\n" * 2 + line + b"The cat\tA cat\n")
    assert main(["score", str(model), "--pairs", str(file)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"{file.name}, line 3: " in sentence
    assert why in sentence


def test_a_file_from_windows_and_one_without_a_last_newline_are_read(file: Path) -> None:
    file.write_bytes("\ufeffThe cat\tA cat\r\nThe dog\tA dog".encode())
    assert [(pair.first, pair.second) for pair in read_pairs(file)] == [
        ("The cat", "A cat"),
        ("The dog", "A dog"),
    ]
    file.write_bytes(b"")
    with mistake("no-text", file.name):
        read_pairs(file)


def test_a_warning_tells_of_unknown_words(
    model: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("what is all this\tthat is all this\n" * 3, encoding="utf-8")
    assert main(["score", str(model), "--pairs", str(file)]) == 0
    assert "100% of the words are unknown" in capsys.readouterr().err


def test_options_that_do_not_go_together_are_refused(
    model: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, why in (
        ([], "neither a text nor --pairs"),
        ([str(file), "--pairs", str(file)], "a text and --pairs"),
        (["--pairs", str(file), "--words"], "leave out --words"),
        ([str(file), "--json"], "--json"),
        (["--pairs", "nothing.tsv"], "nothing.tsv"),
        (["--pairs", str(file.parent)], "is a folder"),
    ):
        assert main(["score", str(model), *more]) == 2
        assert why in capsys.readouterr().err


def test_raw_sentences_are_tokenised_unless_they_are_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = Tokenisation("ptb", VERSION)
    folder = write_random_model(tmp_path / "bundle", tokenisation=how)
    file, out = tmp_path / "pairs.tsv", tmp_path / "out.jsonl"
    file.write_text("The cat sees the dog.\tThe cat sees the dog .\n", encoding="utf-8")
    assert score_pairs(str(folder), str(file), out).mean.ties == 1
    row = json.loads(out.read_text(encoding="utf-8"))
    assert row["first"] == row["second"] == ["The", "cat", "sees", "the", "dog", "."]
    result = score_pairs(str(folder), str(file), reading=Reading(tokenized=True))
    assert (result.mean.ties, result.unequal_unknown) == (0, 1)
    assert main(["score", str(folder), "--pairs", str(file), "--split"]) == 2
    assert "leave out --split" in capsys.readouterr().err
