"""`neighbours` reads the held-out sentences of a run or a corpus as well as a text."""

import json
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.using import neighbours
from elmwright.jobs.using.neighbours import find_neighbours, heldout_sentences
from elmwright.pipeline.format.manifest import Manifest
from tests.support.tiny import command

QUERY = ("The", "old", "cat", "sees", "the", "dog", ".")


def test_held_out_sentences_are_those_of_the_manifest(corpus: Path) -> None:
    split = Manifest.load(corpus).splits["heldout"]
    sentences = list(heldout_sentences(str(corpus)))
    assert len(sentences) == split.sentences
    assert sum(map(len, sentences)) == split.words
    assert all(sentence[0][0].isupper() and sentence[-1] == "." for sentence in sentences)


def test_corpus_gives_the_same_neighbours_as_its_text(
    trained: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(s) + "\n" for s in heldout_sentences(str(corpus))))
    asked = ["neighbours", str(trained), "--word", "dog", "--in", " ".join(QUERY), "--json"]
    found = []
    for more in (
        [],
        ["--corpus", str(corpus)],
        ["--corpus", str(trained)],
        ["--corpus", str(text)],
    ):
        assert main([*asked, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["neighbours"]
    assert all(one == found[0] for one in found)


def test_a_text_from_a_pipe(trained: Path, corpus: Path) -> None:
    text = "".join(" ".join(s) + "\n" for s in heldout_sentences(str(corpus)))
    arguments = ["neighbours", trained, "--word", "dog", "--in", " ".join(QUERY), "--corpus", "-"]
    done = subprocess.run(
        command(*arguments), input=text, capture_output=True, text=True, check=True
    )
    assert "nearest of" in done.stdout


def test_number_of_heldout_sentences_is_limited(
    trained: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "HELDOUT_SENTENCES", 40)
    found = find_neighbours(str(trained), "dog", " ".join(QUERY), str(corpus), any_word=True)
    assert found.compared == sum(map(len, islice(heldout_sentences(str(corpus)), 40)))
