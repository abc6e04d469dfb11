"""If no registry is named, that of the runs here is used, and a message says which."""

import json
import shutil
import sqlite3
from pathlib import Path

import mlflow
import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.registry.find_registry import (
    models_here,
    registry_of,
    registry_of_run,
    run_of_bundle,
)
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.using.pretrained import Elmo
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake
from tests.support.tiny import write_config
from tests.support.tiny_runs.started_run import start


@pytest.fixture
def home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without runs."""
    mlflow.set_tracking_uri(None)  # what another test may have left
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(own_home)
    return own_home


def make_run(home: Path, name: str, *models: str, tracking: str = "", published: str = "") -> str:
    """A run whose MLflow has these models; the address of that."""
    config = write_config(home, home / "text.txt", run_dir="runs/{name}", tracking_uri=tracking)
    root = start(config, f"run.name={name}")
    if published:
        (root / "published.json").write_text(json.dumps({"name": published}))
    database = root / "mlflow" / "mlflow.db"
    if models:
        database.parent.mkdir()
        with sqlite3.connect(database) as base:
            base.execute("CREATE TABLE registered_models (name TEXT)")
            base.executemany("INSERT INTO registered_models VALUES (?)", [(m,) for m in models])
        base.close()
    return tracking or f"sqlite:///{database}"


def test_the_one_registry_that_knows_the_model_is_used_and_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(home, "a", "other")
    uri = make_run(home, "b", "mine")
    assert registry_of("mine") == uri
    assert "note: using the registry sqlite:///runs/b/mlflow/mlflow.db" in capsys.readouterr().err
    assert registry_of("mine", "http://named") == "http://named"
    assert registry_of("mine", quiet=True) == uri
    assert capsys.readouterr().err == ""


def test_the_environment_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(home, "b", "mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert registry_of("mine") == "http://elsewhere"


def test_several_are_named_and_none_is_chosen(home: Path) -> None:
    make_run(home, "a", "mine")
    make_run(home, "b", "mine")
    with mistake("argument", "runs/a/mlflow", "runs/b/mlflow", "--to"):
        registry_of("mine")


def test_runs_that_share_a_server_are_one_registry(home: Path) -> None:
    for name in ("a", "b"):
        make_run(home, name, tracking="http://server:5000", published="mine")
    assert registry_of("mine") == "http://server:5000"
    make_run(home, "c", "mine")
    with mistake("argument", "2 registries"):
        registry_of("mine")


def test_the_password_of_a_run_s_server_comes_from_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(home, "a", tracking="postgresql://me@db/mlflow", published="mine")
    run = str(home / "runs" / "a")
    whole = "postgresql://me:s3cret-pw@db/mlflow"
    for other in ("postgresql://me:s3cret-pw@other/mlflow", "postgresql://you:s3cret-pw@db/mlflow"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
        assert registry_of_run(run) == "postgresql://me@db/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", whole)
    assert registry_of_run(run) == whole
    assert registry_of("mine", "postgresql://db/mlflow") == whole
    assert registry_of("mine", "postgresql://db/another") == "postgresql://db/another"
    # A run whose config names none, begun with the variable: tracking.json remembers the place.
    make_run(home, "b", published="mine")
    folder = RunFolder.at(str(home / "runs" / "b"))
    at(folder.tracking).write_json({"uri": "postgresql://me@db/mlflow", "run_id": "1", "cursor": 0})
    assert registry_of_run(folder.root) == whole
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert registry_of_run(folder.root) == "postgresql://me@db/mlflow"


def test_a_run_and_a_bundle_inside_it_go_to_the_registry_of_that_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(home, "a", "mine")
    uri = make_run(home, "b")
    for name in ("a", "b"):
        (home / "runs" / name / "bundle").mkdir()
    run = run_of_bundle(Path("runs/b/bundle"))
    assert run == str(home / "runs" / "b")
    assert registry_of("mine", run=run) == uri, "although another run has a model of that name"
    assert run_of_bundle(home / "runs") == ""
    make_run(home, "c", tracking="sqlite:///lab/all.db")
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert registry_of("mine", run="../runs/c") == f"sqlite:///{home}/lab/all.db"
    assert registry_of("mine", "http://named", run) == "http://named"


def test_a_model_that_none_knows(home: Path) -> None:
    with mistake("run-missing", "MLFLOW_TRACKING_URI"):
        registry_of("mine")
    make_run(home, "a", "mine")
    with pytest.raises(UserError, match=r"\(they have: mine\).*; did you mean 'mine'\?$"):
        registry_of("mind")


def test_a_database_of_another_program_has_no_models(home: Path) -> None:
    make_run(home, "a", "mine")
    (home / "runs" / "a" / "mlflow" / "mlflow.db").write_text("not a database, just text" * 100)
    assert list(models_here().values()) == [set()]


def test_publish_versions_promote_rollback_and_models_without_naming_it(
    home: Path,
    bundle: Path,
    worse_bundle: Path,
    empty_database: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of it against a real MLflow database, found by itself."""
    uri = make_run(home, "tiny")
    database = home / "runs" / "tiny" / "mlflow" / "mlflow.db"
    database.parent.mkdir()
    shutil.copy(empty_database, database)
    shutil.copytree(worse_bundle, home / "runs" / "tiny" / "bundle")
    assert main(["publish", "tiny", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done == {"name": "tiny", "version": 1, "alias": "candidate", "uri": uri}
    assert main(["publish", str(bundle), "--name", "tiny"]) == 0
    for version in ("1", "2"):
        assert main(["promote", "tiny", version, "--alias", "champion"]) == 0
    assert main(["rollback", "tiny", "--alias", "champion"]) == 0
    capsys.readouterr()
    assert main(["versions", "tiny", "--json"]) == 0
    told = capsys.readouterr()
    assert [row["aliases"] for row in json.loads(told.out)] == [["champion"], ["candidate"]]
    assert told.err == "note: using the registry sqlite:///runs/tiny/mlflow/mlflow.db\n"
    Elmo.from_pretrained("models:/tiny@champion")
    text = home / "words.txt"
    text.write_text("The cat sees the dog .\n")
    assert main(["embed", "models:/tiny@champion", str(text), "-o", str(home / "o.npz")]) == 0
