"""How a command ends: an exit code, a sentence for people, a code for programs."""

import errno
import json

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.terminal.exit_codes import exit_code
from elmwright.pipeline.errors import Failed, Interrupted, UserError

ENDINGS = [
    (UserError("busy", "it is in use; wait"), 2, "busy", "error: it is in use; wait"),
    (Failed("it broke; see the log"), 1, "failed", "failed: it broke; see the log"),
    (Interrupted("at step 3"), 75, "interrupted", "stopped: at step 3"),
    (KeyboardInterrupt(), 75, "interrupted", "stopped: interrupted; nothing is lost"),
    (
        OSError(errno.ENOSPC, "full", "/x/y"),
        2,
        "disk-full",
        "error: no space left on the disk of /x",
    ),
    (
        OSError("AWS Error NETWORK_CONNECTION"),
        1,
        "store-failed",
        "failed: the object store does not",
    ),
]


def work(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(("error", "number", "_code", "sentence"), ENDINGS)
def test_a_user_reads_one_sentence(
    error: BaseException, number: int, _code: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: work(error)) == number
    output = capfd.readouterr()
    assert " ".join(output.err.split()).startswith(sentence)
    assert output.out == ""


@pytest.mark.parametrize(("error", "number", "code", "sentence"), ENDINGS)
def test_a_program_reads_one_object(
    error: BaseException, number: int, code: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: work(error), as_json=True) == number
    output = capfd.readouterr()
    ending = json.loads(output.err)["error"]
    assert (ending["exit"], ending["code"]) == (number, code)
    assert ending["message"].startswith(sentence.partition(": ")[2])
    assert output.out == ""


def test_a_defect_has_the_code_unexpected(
    capfd: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert exit_code(lambda: work(KeyError("x")), as_json=True) == 1
    ending = json.loads(capfd.readouterr().err)["error"]
    assert ending["code"] == "unexpected"
    assert "the details are in" in ending["message"]


@pytest.mark.parametrize("as_json", [False, True])
def test_no_secret_is_printed(capfd: pytest.CaptureFixture[str], as_json: bool) -> None:
    error = UserError("tracking-server", "nothing at http://me:planted-word@host")
    assert exit_code(lambda: work(error), as_json=as_json) == 2
    output = capfd.readouterr().err
    assert "http://me:***@host" in output
    assert "planted-word" not in output


def test_json_of_a_command_that_fails_is_on_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "nowhere.toml", "--json"]) == 2
    output = capfd.readouterr()
    assert json.loads(output.err)["error"]["code"] == "file-missing"
    assert output.out == ""


def test_after_two_dashes_json_is_a_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--", "--json"]) == 2
    assert capfd.readouterr().err.startswith("error: there is no config file '--json'")
