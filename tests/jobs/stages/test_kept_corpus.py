"""A run that was trained on a corpus of earlier rules keeps it; only a run without checkpoints, or
`corpus --force`, builds it again."""

import shutil
from pathlib import Path

import pytest

from elmwright.jobs.cli.program import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.layout import open_run_folder
from elmwright.jobs.stages import workflow
from elmwright.jobs.stages.corpus import Corpus, current_corpus, kept_sentence
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run, find_run
from elmwright.pipeline.errors import UserError
from tests.support.places import ROOT


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a run that version 0.1 trained."""
    home = tmp_path / "home"
    shutil.copytree(ROOT / "tests" / "fixtures" / "compat" / "0.1", home)
    monkeypatch.chdir(home)
    return home


def run_of(*overrides: str) -> Run:
    config = load_config("tiny.toml", list(overrides))
    return find_run(config, open_run_folder(config))


def test_a_run_with_checkpoints_keeps_the_corpus_of_earlier_rules_and_says_so(begun: Path) -> None:
    run = run_of()
    manifest = current_corpus(run)
    assert manifest is not None
    assert manifest.rules == 1
    assert Corpus().is_done(run)
    assert "keeps the corpus" in kept_sentence(run)
    assert "--force" in kept_sentence(run)


def test_a_run_without_checkpoints_builds_its_corpus_again(begun: Path) -> None:
    shutil.rmtree(begun / "finished" / "train" / "checkpoints")
    run = run_of()
    assert current_corpus(run) is None
    assert not Corpus().is_done(run)
    assert kept_sentence(run) == ""


def test_a_run_with_checkpoints_does_not_keep_a_corpus_of_other_settings(begun: Path) -> None:
    run = run_of("corpus.min_words=3")
    assert current_corpus(run) is None
    problems = Problems()
    Corpus().check(run, ["corpus"], problems)
    assert any("give the run another run.name" in str(problem) for problem in problems)


def test_force_builds_the_corpus_again_although_it_was_trained_on(begun: Path) -> None:
    run = run_of()
    stage = Corpus(force=True)
    assert not stage.is_done(run)
    problems = Problems()
    stage.check(run, ["corpus"], problems)
    assert not any("give the run another" in str(problem) for problem in problems)


@pytest.mark.parametrize(("command", "is_forced"), [("corpus", True), ("export", False)])
def test_only_the_command_corpus_forces_a_corpus(
    command: str, is_forced: bool, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`export --force` replaces a bundle; a corpus that was built again is lost for the run."""
    given: dict[str, object] = {}

    def run(*_: object, **options: object) -> None:
        given.update(options)
        raise UserError("argument", "enough is known")

    monkeypatch.setattr(workflow, "run", run)
    monkeypatch.setattr("sys.argv", ["elmwright", command, "tiny.toml", "--force"])
    assert main() == 2
    assert given["force"] is is_forced
