"""MLflow is fed from the journal: nothing missing, nothing doubled, and never in the way."""

import dataclasses
import json
import shutil
import socket
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import (
    CheckpointPruned,
    CheckpointSaved,
    Evaluation,
    FinalEvaluation,
    Metrics,
)
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.tracking import tracker as tracking
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.tracker import Tracker, connect
from elmwright.pipeline.errors import Code
from tests.support.mistakes import mistake
from tests.support.tiny import manifest, write_config, write_text


@pytest.fixture
def run(tmp_path: Path, empty_database: Path) -> tuple[RunConfig, RunFolder]:
    config = load_config(str(write_config(tmp_path, write_text(tmp_path / "t.txt", 2))))
    folder = RunFolder.of(config)
    Path(folder.corpus).mkdir(parents=True)
    manifest().save(folder.corpus)
    Path(folder.corpus, "report.html").write_text("<p>a report</p>")
    folder.mlflow.mkdir()
    shutil.copyfile(empty_database, folder.mlflow / "mlflow.db")
    return config, folder


def write_records(folder: RunFolder, steps: range) -> None:
    journal = Journal(folder.journal)
    for step in steps:
        journal.write(Metrics(step=step, values={"train/loss": 1.0 / step}))
        if step % 5 == 0:
            scores = {"heldout": 9.0}
            journal.write(
                CheckpointSaved(step=step, path="/x", sha256="ab" * 32, perplexity=scores)
            )
        if step > 5 and step % 5 == 0:
            journal.write(CheckpointPruned(step=step - 5))
    journal.close()


def feed(run: tuple[RunConfig, RunFolder]) -> str | None:
    tracker = Tracker(*run, manifest())
    tracker.start()
    return tracker.finish("FINISHED")


def look(folder: RunFolder) -> tuple[list[tuple[int, float]], list[str]]:
    """(step, loss) points and names of the logged models."""
    uri = f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name("elmwright")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    models = client.search_logged_models([experiment.experiment_id])
    return sorted((m.step, m.value) for m in history), sorted(m.name for m in models)


def test_everything_arrives_once_also_when_it_is_sent_again(
    run: tuple[RunConfig, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = run
    monkeypatch.setattr(tracking, "BATCH", 7)
    write_records(folder, range(1, 21))
    assert feed(run) is None
    points, models = look(folder)
    assert points == [(step, 1.0 / step) for step in range(1, 21)]
    assert models == ["tiny-step-20"]

    # A kill after sending and before remembering it: everything is sent again.
    state = Path(folder.tracking)
    saved = json.loads(state.read_text())
    state.write_text(json.dumps({**saved, "cursor": 0}))
    write_records(folder, range(21, 26))
    assert feed(run) is None
    points, models = look(folder)
    assert points == [(step, 1.0 / step) for step in range(1, 26)]
    assert models == ["tiny-step-25"]


def test_a_run_stays_with_the_database_it_began_with(
    run: tuple[RunConfig, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that is set later must not move its record, or publish it elsewhere."""
    config, folder = run
    own = f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert tracking.tracking_uri(config, folder) == own
    new = RunFolder(str(tmp_path / "new"), tmp_path / "new")
    assert tracking.tracking_uri(config, new) == "http://mlflow:5000"


@pytest.mark.parametrize("began", ["http://mlflow:5000", "postgresql://me@db/x"])
def test_a_run_stays_with_the_server_it_began_with(
    run: tuple[RunConfig, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    """Resumed in another shell, it must not get a new SQLite file, or another server."""
    config, _ = run
    folder = RunFolder(str(tmp_path / "new"), tmp_path / "new")
    Path(folder.root).mkdir()
    Path(folder.tracking).write_text(json.dumps({"uri": began, "run_id": "1", "cursor": 0}))
    for uri in ("", "http://other:5000", f"sqlite:///{tmp_path}/x.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert tracking.tracking_uri(config, folder) == began
    with_password = began.replace("me@", "").replace("://", "://me:pw@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", with_password)
    assert tracking.tracking_uri(config, folder) == with_password


def test_the_last_checkpoint_gets_its_perplexity_when_the_last_evaluation_is_done(
    run: tuple[RunConfig, RunFolder],
) -> None:
    """It is written first, so that a kill in the evaluation costs no step."""
    _, folder = run
    score = {"heldout/fresh_perplexity": 42.5, "heldout/perplexity": 44.0}
    journal = Journal(folder.journal)
    journal.write(
        CheckpointSaved(step=9, path="train/checkpoints/9", sha256="a" * 64, perplexity={})
    )
    journal.write(Evaluation(step=9, values=score))
    journal.write(
        FinalEvaluation(step=9, values={f"final/{name}": value for name, value in score.items()})
    )
    journal.close()
    assert feed(run) is None
    uri = f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name("elmwright")
    assert experiment is not None
    (model,) = client.search_logged_models([experiment.experiment_id])
    assert [(one.key, one.value, one.step) for one in model.metrics or []] == [
        ("heldout/fresh_perplexity", 42.5, 9)
    ]
    history = client.get_metric_history(model.source_run_id or "", "heldout/fresh_perplexity")
    assert len(history) == 1, "no second point of the same evaluation"


def test_a_failing_server_loses_nothing_and_the_next_attempt_sends_the_rest(
    run: tuple[RunConfig, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = run
    write_records(folder, range(1, 11))
    real, calls = MlflowClient.log_batch, []

    def failing(self: MlflowClient, *arguments: object, **named: object) -> object:
        calls.append(1)
        if named.get("metrics"):
            raise ConnectionError("the server is restarted on a Friday night")
        return real(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(MlflowClient, "log_batch", failing)
    problem = feed(run)
    assert problem is not None
    assert "Friday night" in problem
    assert calls
    monkeypatch.undo()
    assert feed(run) is None
    points, models = look(folder)
    assert points == [(step, 1.0 / step) for step in range(1, 11)]
    assert models == ["tiny-step-10"]


def test_a_server_that_never_answers_costs_no_more_than_the_time_allowed(
    run: tuple[RunConfig, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = run
    write_records(folder, range(1, 3))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(tracking, "tracking_uri", lambda *_: uri)
        tracker = Tracker(config, folder, manifest())
        start = time.monotonic()
        tracker.start()
        problem = tracker.finish("FINISHED", seconds=1.0)
        # 1.1 s on a quiet machine; MLflow itself waits for minutes.
        assert time.monotonic() - start < 20
    assert problem is not None
    assert "the journal has it" in problem


def test_artifacts_lie_beside_a_database_that_the_config_names(
    run: tuple[RunConfig, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in whatever folder the command was run in."""
    config, folder = run
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    database = tmp_path / "lab" / "mlflow.db"
    database.parent.mkdir()
    shutil.copyfile(folder.mlflow / "mlflow.db", database)
    section = dataclasses.replace(config.tracking, uri=f"sqlite:///{database}")
    write_records(folder, range(1, 6))
    assert feed((dataclasses.replace(config, tracking=section), folder)) is None
    assert list((tmp_path / "lab" / "artifacts").rglob("report.html"))
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("uri", "code", "name"),
    [
        ("mssql+nodriver://me:planted-9c@h/x", "tracking-server", "mssql+nodriver://"),
        ("mysql+pymysql://me:planted-9c@h/x", "environment", "pymysql"),
        ("postgresql://me:planted-9c@h:abc/x", "tracking-server", "postgresql://"),
    ],
)
def test_a_database_without_its_driver_is_told_before_anything_starts(
    uri: str, code: Code, name: str
) -> None:
    for check in (check_server, connect):
        with mistake(code, name) as caught:
            check(uri)
        assert "planted-9c" not in str(caught.value)


def test_a_password_is_not_sent_to_mlflow_nor_written_nor_said(
    run: tuple[RunConfig, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = run
    uri = "http://me:planted-9c@127.0.0.1:9/"
    config = dataclasses.replace(config, tracking=dataclasses.replace(config.tracking, uri=uri))
    own = f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "tracking_uri", lambda *_: own)
        write_records(folder, range(1, 3))
        tracker = Tracker(config, folder, manifest())
        tracker.start()
        assert tracker.finish("FINISHED") is None
    client = MlflowClient(own)
    assert "//127.0.0.1" in client.get_run(tracker.run_id).data.params["tracking.uri"]
    assert "planted" not in str(client.get_run(tracker.run_id).to_dictionary())
    copy = client.download_artifacts(tracker.run_id, "config.json")
    assert "//127.0.0.1" in Path(copy).read_text()
    assert "planted" not in Path(copy).read_text()

    monkeypatch.setattr(tracking, "connect", broken)
    tracker = Tracker(config, folder, manifest())
    tracker._note()
    tracker.start()
    problem = tracker.finish("FINISHED")
    assert problem is not None
    assert "MLflow at http://127.0.0.1:9/ has not taken everything" in problem
    assert "planted" not in problem + Path(folder.tracking).read_text()
    assert Tracker(config, folder, manifest())._state.uri == "http://127.0.0.1:9/"


def broken(uri: str) -> None:
    raise OSError(f"no way to {uri}")


def test_a_password_in_the_address_is_used_and_never_shown() -> None:
    given = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given.append(self.headers["Authorization"])
            self.send_response(200 if len(given) == 1 else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://me:planted%209c@127.0.0.1:{server.server_port}"
        assert check_server(uri) is None
        with mistake("tracking-server") as refused:
            check_server(uri)
        server.shutdown()
    assert given == ["Basic " + b64encode(b"me:planted 9c").decode()] * 2
    with mistake("tracking-server", "tracking.uri") as wrong:
        check_server("http://me:planted-9c@host:abc")
    assert "http://[::1]:9 does not answer" in (check_server("http://[::1]:9") or "")
    silent = check_server("http://me:planted-9c@127.0.0.1:9") or ""
    assert "127.0.0.1:9 does not answer" in silent
    assert "planted" not in f"{refused.value}{wrong.value}{silent}"
