"""`-q` prints warnings and nothing else; the log has everything."""

from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs import workflow
from elmwright.jobs.cli import main
from elmwright.jobs.console import console_for_run
from tests.jobs.random_model import write_random_model
from tests.jobs.tiny import write_config


def test_a_quiet_console_says_only_warnings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with console_for_run(log, quiet=True) as console:
        console.say("a sentence")
        console.warn("look out")
        with console.progress("work", 3, "things") as advance:
            advance(3)
    said = capfd.readouterr()
    assert said.out == "warning: look out\n"
    assert said.err == ""
    assert "a sentence" in log.read_text()


@pytest.mark.parametrize("command", ["run", "corpus", "train", "export", "publish"])
def test_commands_that_do_stages_hand_it_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(workflow, "run", lambda _config, **options: asked.append(options))
    config = str(write_config(tmp_path, tmp_path / "text.txt"))
    for more, brief in (([], False), (["-q"], True), (["--quiet"], True)):
        assert main([command, config, *more]) == 0
        assert asked.pop()["brief"] is brief


def test_embed_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = write_random_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The cat sees the dog .\n")
    command = ["embed", str(model), str(tmp_path / "text.txt"), "-o", str(tmp_path / "o.npz")]
    assert main([*command, "-q"]) == 0
    assert capfd.readouterr() == ("", "")
    assert main([*command, "--force"]) == 0
    assert "1 sentence, 6 words" in capfd.readouterr().out
