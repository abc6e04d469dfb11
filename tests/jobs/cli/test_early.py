"""Wrong input is said before torch, Ray or MLflow is loaded."""

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
from elmwright.pipeline.errors import UserError
from tests.support.random_model import write_random_model
from tests.support.tiny import write_config
from tests.support.tiny_runs.started_run import start

pytestmark = pytest.mark.slow(33)

HEAVY = ("torch", "ray", "mlflow", "pyarrow", "h5py", "sentencepiece", "pandas")
PROBE = f"""
import json, os, sys
from elmwright.jobs.cli.command import main
for line in sys.stdin:
    arguments, out, err = json.loads(line)
    child = os.fork()  # a process of its own for each command, without starting Python again
    if child == 0:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
        try:
            code = main(arguments)
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
    (["embed", "nothing", "text.txt", "-o", "out.hdf5"], "no model folder 'nothing'"),
    (["embed", "tinny", "text.txt", "-o", "out.hdf5"], "did you mean 'tiny'?"),
    (["embed", "runs", "text.txt", "-o", "out.hdf5"], "holds no model"),
    (["embed", "tiny", "text.txt", "-o", "out.hdf5"], "has no bundle and no checkpoint yet"),
    (["embed", "model", "missing.txt", "-o", "out.hdf5"], "missing.txt cannot be read"),
    (["embed", "model", "empty.txt", "-o", "out.hdf5"], "empty.txt is empty"),
    (["embed", "model", "runs", "-o", "out.hdf5"], "runs is a folder"),
    (["embed", "model", "text.txt", "-o", "taken.hdf5"], "exists already"),
    (["embed", "model", "text.txt", "-o", "no/where.hdf5"], "no folder"),
    (["embed", "model", "text.txt", "-o", "out.xyz"], "ends in none of"),
    (["embed", "model", "text.txt", "-o", "out.npz", "--mix", "a,b"], "not a list of numbers"),
    (["embed", "model", "text.txt", "-o", "out.npz", "--cache", "nix"], "no table"),
    (["embed", "models:/x@y", "text.txt", "-o", "out.npz"], "which registry?"),
    (["embed", "models:/x", "text.txt", "-o", "out.npz"], "is not models:/NAME@ALIAS"),
    (["fill-cache", "nothing", "-o", "t"], "no model folder"),
    (["fill-cache", "model", "-o", "t", "--words", "nix"], "no word list nix"),
    (["score", "nothing", "text.txt"], "no model folder"),
    (["score", "model", "missing.txt"], "cannot be read"),
    (["score", "model", "text.txt", "-o", "out.csv"], "ends neither in .tsv nor in .jsonl"),
    (["score", "model", "text.txt", "--require-signature", "nix.pub"], "no public key nix.pub"),
    (["neighbours", "model", "--word", "a", "--in", "b"], "'a' is not a word of the sentence"),
    (["neighbours", "model", "--word", "a", "--in", "a"], "--corpus must name the corpus"),
    (["neighbors", "model", "--word", "a", "--in", "a", "--corpus", "nix"], "no run 'nix'"),
    (["eval", "nothing", "--corpus", "tiny"], "no model folder"),
    (["eval", "model"], "--corpus must name the corpus"),
    (["eval", "model", "--corpus", "tiny"], "has no finished corpus yet"),
    (["eval", "model", "--corpus", "nix"], "no run 'nix'"),
    (["verify", "nix"], "no run 'nix'"),
    (["verify", "model", "--key", "nix.pub"], "no public key"),
    (["export", "nix"], "no run 'nix'"),
    (["export", "tiny"], "has no checkpoints"),
    (["export", "bad.toml", "--step", "3"], "did you mean train.max_steps?"),
    (["export", "tiny", "-o", "model"], "exists already"),
    (["publish", "tiny"], "has no bundle yet"),
    (["publish", "nix"], "no run 'nix'"),
    (["versions", "demo"], "which registry?"),
    (["versions", "demo", "--to", "sqlite:///no/mlflow.db"], "no MLflow database"),
    (["promote", "demo", "x", "--alias", "c"], "not the number of a version"),
    (["promote", "demo", "1", "--alias", "c", "--on", "nix.txt"], "nix.txt cannot be read"),
    (["rollback", "demo", "--alias", "v1"], "looks like a version"),
    (["checkpoints", "tiny"], "has no checkpoints"),
    (["status", "nix"], "no run 'nix'"),
    (["logs", "nix"], "no run 'nix'"),
    (["prune", "nix"], "no run 'nix'"),
    (["run", "dmeo"], "did you mean 'demo'?"),
    (["run", "tinny.toml"], "did you mean 'tiny.toml'?"),
    (["run", "bad.toml"], "did you mean train.max_steps?"),
    (["run", "tiny.toml"], "nothere-*.txt"),
    (["config", "--recipe", "smal"], "did you mean 'small'?"),
    (["submit", "nix.toml", "--to", "local"], "no config file 'nix.toml'"),
    (["trian", "demo"], "did you mean 'train'?"),
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


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_said_before_anything_is_loaded(
    prober: subprocess.Popen[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    assert prober.stdin is not None
    assert prober.stdout is not None
    out, err = tmp_path / "out", tmp_path / "err"
    prober.stdin.write(json.dumps([arguments, str(out), str(err)]) + "\n")
    prober.stdin.flush()
    prober.stdout.readline()
    assert words in err.read_text()
    (line,) = err.read_text().splitlines()
    assert line.startswith("error: ")
    code, *loaded = out.read_text().splitlines()[-1].split()
    # Finding the files of a run's sources is the readers' business, and they need it.
    allowed = {"pyarrow"} if arguments[0] == "run" else set()
    assert (code, set(loaded) - allowed) == ("2", set())


def test_the_corpus_of_a_run_a_folder_or_a_name(
    trained: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").symlink_to(trained)
    assert corpus_of(str(corpus)) == str(corpus)
    for said in (str(trained), "x", "runs/x"):
        assert Path(corpus_of(said), "MANIFEST.json").is_file()
    with pytest.raises(UserError, match="no finished corpus"):
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


def test_a_folder_that_holds_nothing_does_not_hide_a_run_of_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "tiny").mkdir()
    try:
        (home / "tiny" / "notes.txt").write_text("of the user")
        with pytest.raises(UserError, match=r"run .*runs/tiny has no bundle and no checkpoint yet"):
            check_model("tiny")
        with pytest.raises(UserError, match="run runs/tiny has no bundle and no checkpoint yet"):
            resolve("tiny")
        assert run_of("tiny") == str(home / "runs" / "tiny")
        write_random_model(home / "tiny" / "model")
        with pytest.raises(UserError, match="holds no model"):
            check_model("./tiny")
        for file in (home / "model").iterdir():
            shutil.copy(file, home / "tiny")
        check_model("tiny")
        assert resolve("tiny") == Path("tiny")
    finally:
        shutil.rmtree(home / "tiny")
