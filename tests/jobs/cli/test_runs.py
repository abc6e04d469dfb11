"""The command `elmwright checkpoints`."""

from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main


def test_checkpoints_are_listed_and_verified(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", str(trained), "--verify"]) == 0
    header, *rows, where = capsys.readouterr().out.splitlines()
    assert header.split() == "step size sha256 held-out perplexity folder checked".split()
    assert rows[-1].split()[0] == "20"
    assert rows[-1].split()[-2:] == ["step-00000020", "verified"]
    assert where.startswith("in ")
