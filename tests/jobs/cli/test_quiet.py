"""`-q` prints warnings, errors and the result, and nothing else; the log has everything."""

from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.cli import publish
from elmwright.jobs.cli.command import main
from elmwright.jobs.publishing import export
from elmwright.jobs.stages import workflow
from elmwright.jobs.terminal.console import console_for_run
from elmwright.pipeline.progress import Progress
from tests.support.random_model import write_random_model
from tests.support.terminal.closing import outcome
from tests.support.tiny import write_config, write_text
from tests.support.tiny_runs.shown_run import write_run


def test_a_quiet_console_prints_only_warnings_and_results(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with console_for_run(log, quiet=True) as console:
        console.say("a sentence")
        console.warn("look out")
        with console.progress("work", 3, "things") as advance:
            advance(3)
        console.result("it is done")
    assert capfd.readouterr() == ("warning: look out\nit is done\n", "")
    assert "a sentence" in log.read_text()


@pytest.mark.parametrize("command", ["run", "corpus", "train", "export", "publish"])
def test_commands_that_run_stages_pass_quiet_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(workflow, "run", lambda _config, **options: asked.append(options))
    config = str(write_config(tmp_path, tmp_path / "text.txt"))
    for more, brief in (([], False), (["-q"], True), (["--quiet"], True)):
        assert main([command, config, *more]) == 0
        assert asked.pop()["brief"] is brief


def test_a_quiet_run_prints_only_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for stage in workflow.ALL_STAGES:
        monkeypatch.setattr(type(stage), "is_done", lambda *_: True)
        monkeypatch.setattr(type(stage), "check", lambda *_: None)
    monkeypatch.setattr(workflow, "find_outcome", lambda *_: outcome(tmp_path))
    config = str(write_config(tmp_path, write_text(tmp_path / "text.txt", 2)))
    assert main(["run", config]) == 0
    whole = capfd.readouterr().out
    start = "Everything is up to date in "
    assert whole.startswith(start)
    assert main(["run", config, "-q"]) == 0
    output = capfd.readouterr()
    assert "Held-out perplexity 146.7" in output.out
    assert (output.out, output.err) == (whole.partition("\n\n")[2], "")


def test_a_quiet_export_prints_only_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def export_run(*_: object, progress: Progress, **__: object) -> tuple[str, str]:
        with progress("writing bundle", 3, "bytes") as advance:
            advance(3)
        return "the/bundle", "as good as the trainer's"

    monkeypatch.setattr(export, "export_run", export_run)
    monkeypatch.setattr(publish, "check_export", lambda *_: None)
    run = write_run(tmp_path)[1].root
    sentence = "wrote the/bundle: as good as the trainer's\n"
    assert main(["export", run, "-q"]) == 0
    assert capfd.readouterr() == (sentence, "")
    assert main(["export", run]) == 0
    output = capfd.readouterr()
    assert output.out == sentence
    assert "writing bundle" in output.err


def test_a_quiet_embed_prints_only_its_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_random_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The cat sees the dog .\n")
    words = ["--tokenized", str(model), str(tmp_path / "text.txt")]
    command = ["embed", *words, "-o", str(tmp_path / "o.npz")]
    assert main([*command, "-q"]) == 0
    output = capfd.readouterr()
    assert output.out.endswith("o.npz: 1 sentence, 6 words\n")
    assert output.err == ""
    assert main([*command, "--force"]) == 0
    assert "embedding" in capfd.readouterr().err
