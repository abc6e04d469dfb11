"""`elmwright corpus --sample`: the rules on a few documents, in seconds, nothing written."""

import json
from pathlib import Path

from elmwright.jobs.cli.command import main
from tests.support.tiny import write_config, write_text


def test_a_sample_shows_the_funnel_with_examples_and_writes_nothing(tmp_path: Path, capsys) -> None:
    text = write_text(tmp_path / "text.txt", 60)
    config = write_config(tmp_path, text, corpus_min_words=30)
    assert main(["corpus", str(config), "--sample", "40"]) == 0
    output = capsys.readouterr().out
    header, first, *rest = output.splitlines()
    assert header.split() == ["documents", "sentences", "words"]
    assert first.split()[:2] == ["read", "40"]
    rule = next(line for line in rest if "min_words" in line)
    assert 0 < int(rule.split()[2]) < 40
    assert "story number" in output
    assert "without --sample" in output
    assert not (tmp_path / "run").exists()


def test_a_sample_as_json_adds_up(tmp_path: Path, capsys) -> None:
    broken = tmp_path / "in.jsonl"
    broken.write_text('{"text": "A good sentence."}\nnonsense\n{"text": ""}\n')
    config = write_config(tmp_path, broken)
    assert main(["corpus", str(config), "--sample", "1000", "--json"]) == 0
    funnel = json.loads(capsys.readouterr().out)["funnel"]
    assert funnel["read"][0] == 3
    assert funnel["broken"][0] == funnel["empty"][0] == funnel["kept"][0] == 1


def test_a_sample_takes_documents_from_many_files(tmp_path: Path, capsys) -> None:
    (tmp_path / "in").mkdir()
    for number in range(10):
        write_text(tmp_path / "in" / f"{number}.txt", 20, number)
    config = write_config(tmp_path, tmp_path / "in")
    assert main(["corpus", str(config), "--sample", "20", "--json"]) == 0
    sample = json.loads(capsys.readouterr().out)
    assert sample["funnel"]["read"][0] == 20
    assert len({example["source"] for example in sample["kept"]}) > 1


def test_a_sample_of_no_documents_is_refused(tmp_path: Path, capsys) -> None:
    config = write_config(tmp_path, write_text(tmp_path / "text.txt", 3))
    assert main(["corpus", str(config), "--sample", "0"]) == 2
    assert "give a number of documents" in capsys.readouterr().err
