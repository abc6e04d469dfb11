"""Wrong input is reported before torch, Ray or MLflow is loaded."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.cli.early import check_model, run_of
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.runbook.find_corpus import corpus_of
from tests.support.mistakes import mistake
from tests.support.random_model import write_random_model
from tests.support.tiny import write_config
from tests.support.tiny_runs.started_run import start

pytestmark = pytest.mark.slow(33)

HEAVY = ("torch", "ray", "mlflow", "pyarrow", "h5py", "sentencepiece", "pandas")
PROBE = f"""
import json, os, sys
from elmwright.jobs.cli import command
exit_code = command.exit_code
command.exit_code = lambda work, as_json: exit_code(work, as_json=True)  # with the error's code
for line in sys.stdin:
    arguments, out, err = json.loads(line)
    child = os.fork()  # one process per command, without starting Python again
    if child == 0:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
        try:
            code = command.main(arguments)
        except SystemExit as stop:
            code = stop.code
        print(code, *(name for name in {HEAVY!r} if name in sys.modules), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a model, a run without anything, and things in the way."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "text.txt").write_text("The cat sees the dog .\n")
    (folder / "empty.txt").write_text("")
    (folder / "taken.hdf5").write_text("precious")
    (folder / "bad.toml").write_text("[train]\nmax_stesp = 3\n")
    write_random_model(folder / "model")
    config = write_config(folder, folder / "nothere-*.txt", run_dir=f"{folder}/runs/tiny")
    start(config)
    (folder / "runs" / "tiny" / "bundle").mkdir()
    return folder


MISTAKES = [
    ("embed nothing text.txt -o out.hdf5", "model-missing", "'nothing'"),
    ("embed tinny text.txt -o out.hdf5", "model-missing", "'tiny'?"),
    ("embed runs text.txt -o out.hdf5", "model-missing", "runs"),
    ("embed tiny text.txt -o out.hdf5", "model-missing", "runs/tiny"),
    ("embed model missing.txt -o out.hdf5", "file-missing", "missing.txt"),
    ("embed model empty.txt -o out.hdf5", "no-text", "empty.txt"),
    ("embed model runs -o out.hdf5", "argument", "runs"),
    ("embed model text.txt -o taken.hdf5", "output", "taken.hdf5"),
    ("embed model text.txt -o no/where.hdf5", "file-missing", "where.hdf5"),
    ("embed model text.txt -o out.xyz", "argument", "out.xyz"),
    ("embed model text.txt -o out.npz --mix a,b", "argument", "--mix a,b"),
    ("embed model text.txt -o out.npz --cache nix", "file-missing", "nix"),
    ("embed models:/x@y text.txt -o out.npz", "run-missing", "MLFLOW_TRACKING_URI"),
    ("embed models:/x text.txt -o out.npz", "argument", "models:/NAME@ALIAS"),
    ("fill-cache nothing -o t", "model-missing", "'nothing'"),
    ("fill-cache model -o t --words nix", "file-missing", "nix"),
    ("score nothing text.txt", "model-missing", "'nothing'"),
    ("score model missing.txt", "file-missing", "missing.txt"),
    ("score model --pairs missing.tsv", "file-missing", "missing.tsv"),
    ("score model --pairs text.txt", "file-unreadable", "text.txt, line 1: it has no tab"),
    ("score model", "argument", "--pairs"),
    ("substitutes model --in word", "argument", "brackets"),
    ("substitutes nothing --in [word]", "model-missing", "'nothing'"),
    ("substitutes model --in [word] -k 0", "argument", "-k"),
    ("score model text.txt -o out.csv", "argument", "out.csv"),
    ("score model text.txt --require-signature nix.pub", "file-missing", "nix.pub"),
    ("neighbours model --word a --in b", "argument", "'a'"),
    ("neighbours model --word a --in a", "argument", "--corpus"),
    ("neighbors model --word a --in a --corpus nix", "run-missing", "'nix'"),
    ("eval nothing --corpus tiny", "model-missing", "'nothing'"),
    ("eval model", "argument", "--corpus"),
    ("eval model --corpus tiny", "corpus-missing", "runs/tiny"),
    ("eval model --corpus nix", "run-missing", "'nix'"),
    ("verify nix", "run-missing", "'nix'"),
    ("verify model --key nix.pub", "file-missing", "nix.pub"),
    ("export nix", "run-missing", "'nix'"),
    ("export tiny", "checkpoint-missing", "runs/tiny"),
    ("export bad.toml --step 3", "setting", "train.max_steps?"),
    ("export tiny -o model", "output", "model"),
    ("publish tiny", "model-missing", "runs/tiny"),
    ("publish nix", "run-missing", "'nix'"),
    ("versions demo", "run-missing", "MLFLOW_TRACKING_URI"),
    ("versions demo --to sqlite:///no/mlflow.db", "file-missing", "no/mlflow.db"),
    ("promote demo x --alias c", "argument", "'x'"),
    ("promote demo 1 --alias c --on nix.txt", "file-missing", "nix.txt"),
    ("rollback demo --alias v1", "argument", "'v1'"),
    ("checkpoints tiny", "checkpoint-missing", "runs/tiny"),
    ("status nix", "run-missing", "'nix'"),
    ("logs nix", "run-missing", "'nix'"),
    ("prune nix", "run-missing", "'nix'"),
    ("run dmeo", "file-missing", "'demo'?"),
    ("run tinny.toml", "file-missing", "'tiny.toml'?"),
    ("run bad.toml", "setting", "train.max_steps?"),
    ("run tiny.toml", "file-missing", "nothere-*.txt"),
    ("config --recipe smal", "file-missing", "'small'?"),
    ("submit nix.toml --to local", "file-missing", "'nix.toml'"),
]


@pytest.fixture(scope="module")
def prober(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the command imported, and runs each line of arguments in a fork."""
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    with subprocess.Popen(
        [sys.executable, "-c", PROBE],
        cwd=home,
        env={**environment, "XDG_STATE_HOME": str(home / "state")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(("line", "code", "name"), MISTAKES)
def test_a_mistake_is_reported_before_anything_is_loaded(
    prober: subprocess.Popen[str], tmp_path: Path, line: str, code: str, name: str
) -> None:
    assert prober.stdin is not None
    assert prober.stdout is not None
    out, err = tmp_path / "out", tmp_path / "err"
    prober.stdin.write(json.dumps([line.split(), str(out), str(err)]) + "\n")
    prober.stdin.flush()
    prober.stdout.readline()
    error = json.loads(err.read_text())["error"]
    assert error["code"] == code, error
    assert name in error["message"]
    number, *loaded = out.read_text().splitlines()[-1].split()
    # Finding the files of a run's sources is the readers' business, and they need it.
    allowed = {"pyarrow"} if line.startswith("run ") else set()
    assert (number, set(loaded) - allowed) == ("2", set())


def test_the_corpus_of_a_run_a_folder_or_a_name(
    trained: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").symlink_to(trained)
    assert corpus_of(str(corpus)) == str(corpus)
    for run in (str(trained), "x", "runs/x"):
        assert Path(corpus_of(run), "MANIFEST.json").is_file()
    with mistake("corpus-missing", str(tmp_path)):
        corpus_of(str(tmp_path))


def test_eval_of_a_run_needs_no_corpus(
    trained: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    newest = trained / "train" / "checkpoints" / "step-00000020"
    assert main(["eval", str(newest), "--corpus", str(corpus), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == alone
    assert main(["eval", str(trained), "--split", "nix"]) == 2
    assert "no held-out set 'nix'" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o500)
    command = ["score", str(home / "model"), str(home / "text.txt"), "-o", str(closed / "o.tsv")]
    assert main(command) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_folder_without_a_model_does_not_hide_a_run_of_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "tiny").mkdir()
    try:
        (home / "tiny" / "notes.txt").write_text("of the user")
        with mistake("model-missing", "runs/tiny"):
            check_model("tiny")
        with mistake("model-missing", "runs/tiny"):
            resolve("tiny")
        assert run_of("tiny") == str(home / "runs" / "tiny")
        write_random_model(home / "tiny" / "model")
        with mistake("model-missing", "tiny"):
            check_model("./tiny")
        for file in (home / "model").iterdir():
            shutil.copy(file, home / "tiny")
        check_model("tiny")
        assert resolve("tiny") == Path("tiny")
    finally:
        shutil.rmtree(home / "tiny")
