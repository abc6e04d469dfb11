"""The warning for a text that is not tokenised as the model expects."""

from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.using.unknown_words import unknown_warning
from tests.support.random_model import VOCAB

RAW = "The dog. The cat. The bird. The house. The dog's cat's bird's house.\n" * 3


def test_warning_above_a_third_of_unknown_words() -> None:
    known, odd = ["the"], ["dog."]
    assert unknown_warning(known, ["the"] * 8 + odd * 4) == ""
    warning = unknown_warning(known, ["the"] * 7 + odd * 4)
    assert warning.startswith("36% of the words are unknown to the model ('dog.', …)")
    assert unknown_warning(known, odd * 9) == ""  # too few to tell


@pytest.mark.parametrize("command", ["score", "embed", "neighbours"])
def test_warning_for_raw_text_only(
    model: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, warned in ((RAW, True), (" ".join(VOCAB[3:]) + " " + VOCAB[3] + "\n", False)):
        text = tmp_path / "text.txt"
        text.write_text(content)
        arguments = {
            "score": ["score", str(model), str(text)],
            "embed": ["embed", str(model), str(text), "-o", str(tmp_path / f"{warned}.npz")],
            "neighbours": [
                "neighbours",
                str(model),
                "--word",
                "x",
                "--in",
                "x",
                "--any-word",
                "--corpus",
                str(text),
            ],
        }[command]
        assert main(arguments) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
        assert len(lines) == warned
        assert not warned or "unknown to the model" in lines[0]
