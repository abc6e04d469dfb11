"""The last screen, the tables and the explanations: they fit, and they say what there is."""

import json
import sys
from pathlib import Path

import pytest

from elmwright.jobs.publishing.examples import Example, choose_example
from elmwright.jobs.stages.closing import closing_lines
from elmwright.jobs.terminal.wording import wrap
from elmwright.pipeline.cleaning.words import ptb
from tests.support.terminal.closing import outcome
from tests.support.terminal.screen import Terminal
from tests.support.tiny import command, write_config, write_text

pytestmark = pytest.mark.slow(3)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_last_screen_fits(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    text = wrap("\n".join(closing_lines(outcome(tmp_path), "demo", width)), width)
    assert max(map(len, text.split("\n"))) <= width
    joined = " ".join(text.replace("\\\n", " ").split())
    for part in (
        "model runs/demo/bundle",
        "models:/demo@candidate (version 1)",
        "Held-out perplexity 146.7",
        "a unigram model has 539.1",
        "open runs/demo/corpus/report.html in a browser",
        "elmwright ui runs/demo",
        'elmwright neighbours runs/demo --word file --in "open the file and read it" '
        "--corpus runs/demo",
    ):
        assert part in joined, part


def test_the_last_screen_at_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    text = wrap("\n".join(closing_lines(outcome(tmp_path), "demo", 80)), 80)
    assert (
        text
        == """\
  model       runs/demo/bundle
  registered  models:/demo@candidate (version 1)
  corpus      runs/demo/corpus (1,212,345 words)
  report      runs/demo/corpus/report.html

Held-out perplexity 146.7 (lower is better); a unigram model has 539.1.
  heldout: 24,310 tokens, 2.31% unknown, forward 150.2, backward 143.2
  with states carried over: 144.2

Next:
  open runs/demo/corpus/report.html in a browser
  elmwright neighbours runs/demo --word file --in "open the file and read it" \\
      --corpus runs/demo
  elmwright ui runs/demo"""
    )


def test_after_the_corpus_the_next_step_is_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    later = ("train", "bundle", "published", "checkpoint", "tracking_uri")
    only = outcome(tmp_path, **dict.fromkeys(later))
    text = "\n".join(closing_lines(only, "my.toml", 80))
    assert "elmwright train my.toml" in text
    assert "perplexity" not in text
    assert set(only.as_data()) == {"run", "dir", "config_sha256", "corpus"}


def test_the_outcome_as_data_has_every_key(tmp_path: Path) -> None:
    data = outcome(tmp_path).as_data()
    assert set(data) == {
        "run",
        "dir",
        "config_sha256",
        "corpus",
        "train",
        "checkpoint",
        "tracking_uri",
        "bundle",
        "published",
    }
    assert set(data["corpus"]) == {
        "path",
        "report",
        "fingerprint",
        "vocabulary",
        "train_tokens",
        "unigram_perplexity",
    }
    json.dumps(data)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_explanations_and_samples_fit(columns: int, tmp_path: Path) -> None:
    config = write_config(tmp_path, write_text(tmp_path / "text.txt", 60), corpus_min_words=30)
    terminal = Terminal(columns, folder=tmp_path)
    explained = terminal.run(command("config", "--explain"))
    assert "train.window" in explained.last or "train.window" in explained.output
    # A default that is one long word has its own line; nothing else is broken.
    words = [len(word) for word in explained.output.split()]
    assert len(explained.broken) <= sum(length > columns - 4 for length in words)
    sample = terminal.run(command("corpus", config.name, "--sample", "40"))
    assert sample.code == 0
    assert sample.broken == []
    assert max(map(len, sample.last.split("\n"))) <= columns
    assert "min_words" in sample.last
    assert "Kept, as sentences and words:" in sample.last


def test_a_mistake_fits_the_terminal(tmp_path: Path) -> None:
    seen = Terminal(60, folder=tmp_path).run(command("run", "no-such-config-anywhere"))
    assert seen.code == 2
    assert seen.broken == []
    assert seen.last.startswith("error: there is no config file")


def test_the_example_is_a_word_that_other_held_out_sentences_have() -> None:
    def choose(*texts: str) -> tuple[str, str] | None:
        return choose_example([Example(text, tuple(ptb(text).split())) for text in texts])

    texts = ("The river was wide .", "we crossed the river", "a river", "nobody came")
    assert choose(*texts) == ("river", "The river was wide .")
    assert choose("한국어 문장", "한국어", "한국어 글.") == ("한국어", "한국어 글.")
    assert choose(*texts[:2]) is None  # too few others have it
    assert choose(*["a `river`"] * 3) is None
    assert choose() is None


def test_no_neighbours_are_proposed_where_there_are_none(tmp_path: Path) -> None:
    found = outcome(tmp_path, example=None)
    assert not any(" --word " in line for line in closing_lines(found, "my.toml", 80))


def test_json_has_no_password(tmp_path: Path) -> None:
    with_password = outcome(tmp_path, tracking_uri="http://me:secret@mlflow:5000")
    assert "secret" not in str(with_password.as_data())
