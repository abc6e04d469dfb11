"""The progress of a run is read from its folder, whatever state that is in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from elmwright.jobs.checkpoints.contents import SavedScore, TrainingResult
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import State, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.upkeep.status import as_lines, read_progress
from elmwright.pipeline.records import to_data
from tests.support.tiny import write_config
from tests.support.tiny_runs.started_run import write


@pytest.fixture
def sent(tmp_path: Path) -> Submission:
    return prepare(
        load_config(str(write_config(tmp_path, tmp_path / "text.txt"))), Target("local"), "export"
    )


def test_a_folder_that_is_not_here_tells_nothing(sent: Submission) -> None:
    assert read_progress(sent) is None
    assert any("cannot be seen" in line for line in as_lines(sent, State("running"), None))


def test_an_empty_folder_is_at_its_corpus(sent: Submission) -> None:
    Path(sent.dir).mkdir()
    progress = read_progress(sent)
    assert progress is not None
    assert (progress.stage, progress.step, progress.checkpoint_step) == ("corpus", 0, -1)


def test_a_training_run_tells_how_far_it_is(sent: Submission) -> None:
    root = Path(sent.dir)
    write(root / "corpus" / "MANIFEST.json", {})
    write(root / "train" / "attempt.json", {"attempt": 3})
    records = [
        {"kind": "metrics", "step": 2, "values": {"train/loss": 5.0, "train/tokens_per_s": 900.0}},
        {"kind": "eval", "step": 6, "values": FRESH},
        {"kind": "metrics", "step": 8, "values": {"train/loss": 4.0, "train/tokens_per_s": 1000.0}},
    ]
    half_a_line = '{"kind": "metrics", "st'
    write(
        root / "train" / "journal.jsonl",
        "".join(json.dumps({**r, "time": 1}) + "\n" for r in records) + half_a_line,
    )
    for step in (3, 6):
        write(root / "train" / "checkpoints" / f"step-{step:08d}" / "MANIFEST.json", {})
    write(root / "train" / "checkpoints" / "step-00000009" / "model.safetensors", "unfinished")
    progress = read_progress(sent)
    assert progress is not None
    assert progress.stage == "train"
    assert (progress.step, progress.max_steps) == (8, 12)
    assert (progress.perplexity, progress.perplexity_states) == ({"heldout": 50.5}, "fresh")
    assert progress.tokens_per_s == 1000.0
    assert progress.restarts == 2
    assert progress.checkpoint_step == 6
    assert progress.checkpoint.endswith("train/checkpoints/step-00000006")
    text = "\n".join(as_lines(sent, State("running"), progress))
    for part in (
        "8 of 12",
        "heldout 50.50",
        "1,000 tokens/s",
        "restarts     2",
        "step 6",
        "mlflow",
    ):
        assert part in text
    assert "carried" not in text


FRESH = {"heldout/fresh_perplexity": 50.5, "heldout/perplexity": 49.0, "heldout/tokens": 9}


def test_the_perplexity_of_an_earlier_version_is_named_by_its_states(sent: Submission) -> None:
    record = {"kind": "eval", "step": 6, "time": 1, "values": {"heldout/perplexity": 49.0}}
    write(Path(sent.dir) / "train" / "journal.jsonl", json.dumps(record) + "\n")
    progress = read_progress(sent)
    assert progress is not None
    assert (progress.perplexity, progress.perplexity_states) == ({"heldout": 49.0}, "carried")
    text = "\n".join(as_lines(sent, State("running"), progress))
    assert "heldout 49.00 (states carried over)" in text


def test_a_trained_run_has_its_final_perplexity_and_the_next_stage(sent: Submission) -> None:
    root = Path(sent.dir)
    write(root / "corpus" / "MANIFEST.json", {})
    result = TrainingResult(
        step=12,
        checkpoint="step-00000012",
        checkpoint_sha256="0" * 64,
        evaluation={"test": SavedScore(perplexity=7.5, tokens=1, states="fresh")},
    )
    write(root / "train" / "result.json", to_data(result))
    progress = read_progress(sent)
    assert progress is not None
    assert progress.stage == "export"
    assert (progress.perplexity, progress.perplexity_states) == ({"test": 7.5}, "fresh")
    write(root / "bundle" / "SHA256SUMS", "")
    done = read_progress(sent)
    assert done is not None
    assert done.stage == "done"


def test_a_relative_corpus_is_looked_for_where_the_run_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(home)
    file = write_config(tmp_path, tmp_path / "text.txt", corpus_dir="shared/corpus")
    sent = prepare(load_config(str(file)), Target("local"), "export")
    Path(sent.dir).mkdir()
    write(home / "shared" / "corpus" / "MANIFEST.json", {})
    monkeypatch.chdir(elsewhere)
    progress = read_progress(sent)
    assert progress is not None
    assert progress.stage == "train"


def test_a_relative_corpus_of_a_run_by_hand_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_config(tmp_path, tmp_path / "text.txt", corpus_dir="shared/corpus")
    sent = replace(prepare(load_config(str(file)), Target("local"), "export"), cwd="")
    Path(sent.dir).mkdir()
    write(tmp_path / "shared" / "corpus" / "MANIFEST.json", {})
    progress = read_progress(sent)
    assert progress is not None
    assert progress.stage == "train"
