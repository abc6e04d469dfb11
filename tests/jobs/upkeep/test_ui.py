"""`elmwright ui`: one command to a page that shows what a person wants to see."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.publishing.promotion import publish_bundle
from elmwright.jobs.publishing.publish import Published
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.tracking.tracker import Tracker
from elmwright.jobs.upkeep import ui
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at
from tests.support.browser import Browser, chromium
from tests.support.servers import free_port
from tests.support.tiny import command, manifest
from tests.support.tiny_runs.shown_run import write_journal, write_run

pytestmark = pytest.mark.slow(7)

NOT_OURS = ("mlflow/users/current", "ResizeObserver loop", "AG Grid:")
"""What MLflow's pages always write to the console: a question for a login that is not configured,
and remarks of the libraries that it draws with."""


def feed(config: RunConfig, folder: RunFolder) -> None:
    tracker = Tracker(config, folder, manifest())
    tracker.start()
    assert tracker.finish("FINISHED") is None


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, empty_database: Path
) -> tuple[RunConfig, RunFolder]:
    """A run that MLflow has heard of, in a folder that was moved since."""
    before = tmp_path_factory.mktemp("before")
    config, folder = write_run(before)
    folder.mlflow.mkdir()
    shutil.copyfile(empty_database, folder.mlflow / "mlflow.db")
    feed(config, folder)
    home = tmp_path_factory.mktemp("shown") / "runs" / "tiny"
    home.parent.mkdir()
    Path(folder.root).rename(home)
    return config, RunFolder(str(home), home / "scratch")


@contextmanager
def serving(run: str, *options: str, cwd: Path) -> Iterator[dict[str, str]]:
    """`elmwright ui`, until it is stopped as Ctrl-C does; the links that it prints."""
    process = subprocess.Popen(
        command("ui", run, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
    )
    assert process.stdout is not None
    lines, links = [], {}
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("  "):
                name, link = line.split()
                links[name] = link
            if line.startswith("Ctrl-C"):
                break
        assert links, "".join(lines)
        yield links
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0, rest
        assert "MLflow has ended" in rest


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310
        return str(answer.read().decode())


def test_it_serves_the_run_while_training_writes_and_ends_with_ctrl_c(
    shown: tuple[RunConfig, RunFolder],
) -> None:
    config, folder = shown
    run_id = json.loads(Path(folder.tracking).read_text())["run_id"]
    here = Path(folder.root).parents[1]
    # A port of its own: other tests run beside it, and type `elmwright ui` as users do.
    with serving("runs/tiny", "--port", str(free_port()), cwd=here) as links:
        address, _, page = links["charts"].partition("/#/")
        assert page == f"experiments/1/runs/{run_id}/model-metrics?workflowType=machine_learning"
        assert links["report"] == "runs/tiny/corpus/report.html"
        api = f"{address}/api/2.0/mlflow"
        found = json.loads(get(f"{api}/runs/get?run_id={run_id}"))["run"]
        assert found["info"]["artifact_uri"].startswith(f"file://{folder.root}/"), "it was moved"
        listed = json.loads(get(f"{api}/artifacts/list?run_id={run_id}&path=corpus"))
        assert {file["path"] for file in listed["files"]} >= {"corpus/report.html"}
        write_journal(folder, range(102, 123, 2))
        feed(config, folder)
        history = get(f"{api}/metrics/get-history?run_id={run_id}&metric_key=train/loss")
        assert max(point["step"] for point in json.loads(history)["metrics"]) == 122
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0, "the server has ended, too"


def test_a_port_that_is_taken_is_told_before_anything_starts(
    shown: tuple[RunConfig, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", shown[1].root, "--port", str(port)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"error: port {port} is in use; choose another, or leave --port out\n"
    assert main(["ui", shown[1].root, "--port", "99999"]) == 2
    assert "99999" in capsys.readouterr().err


def test_a_server_that_is_there_is_linked_to_and_none_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = write_run(tmp_path, tracking_uri="http://mlflow.lab:5000/")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@mlflow.lab:5000")
    at(folder.tracking).write_json({"uri": "x", "run_id": "abc", "experiment_id": "7", "cursor": 0})
    at(folder.published).write_json(to_data(Published("my model", 3, "candidate", "0", "x")))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda link: bool(opened.append(link)) or True)
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.chdir(tmp_path)
    assert main(["ui", "run", "--open"]) == 0
    out = capsys.readouterr().out
    charts = "mlflow.lab:5000/#/experiments/7/runs/abc/model-metrics"
    assert f"charts   http://{charts}?workflowType=machine_learning\n" in out
    assert "mlflow.lab:5000/#/models/my%20model/versions/3\n" in out
    assert "report   run/corpus/report.html\n" in out
    assert "secret" not in out
    assert opened == [f"http://{charts}?workflowType=machine_learning"]


def test_without_a_word_it_is_the_newest_run_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ui"]) == 2
    assert "there is no run in runs/ here" in capsys.readouterr().err
    for number, name in enumerate(("old", "new", "middle")):
        (tmp_path / name).mkdir()
        _, folder = write_run(tmp_path / name, tracking_uri=f"http://{name}.lab")
        at(folder.tracking).write_json(
            {"uri": "", "run_id": name, "experiment_id": "1", "cursor": 0}
        )
        target = tmp_path / "runs" / name
        target.parent.mkdir(exist_ok=True)
        Path(folder.root).rename(target)
        for file in (target / "config.json", target / "train" / "journal.jsonl"):
            os.utime(file, (1e9 + number, 1e9 + number))
        when = time.time() + (100 if name == "new" else -100)
        os.utime(target / "tracking.json", (when, when))
    assert main(["ui"]) == 0
    assert "http://new.lab/#/" in capsys.readouterr().out


@pytest.mark.parametrize("state", [None, {"uri": "", "run_id": "", "cursor": 0}])
def test_a_run_without_charts_says_when_there_will_be_some(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    state: dict[str, object] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, folder = write_run(tmp_path)
    if state:
        at(folder.tracking).write_json(state)
    monkeypatch.chdir(tmp_path)
    assert main(["ui", "run"]) == 2
    told = "run has no charts yet: they begin with training; the corpus report is "
    assert capsys.readouterr().err == f"error: {told}run/corpus/report.html\n"
    assert main(["ui", "nowhere"]) == 2
    assert "there is no run 'nowhere'" in capsys.readouterr().err
    assert main(["ui", str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.skipif(chromium() is None, reason="chromium is not installed")
def test_a_browser_shows_charts_in_order_and_a_clean_console(
    shown: tuple[RunConfig, RunFolder], bundle: Path
) -> None:
    folder = shown[1]
    registry = MlflowRegistry(f"sqlite:///{folder.mlflow / 'mlflow.db'}")
    version = publish_bundle(registry, bundle, "tiny", "candidate")
    published = Published("tiny", version, "candidate", "0", registry.uri)
    at(folder.published).write_json(to_data(published))
    here, port = Path(folder.root).parents[1], str(free_port())
    with serving("runs/tiny", "--port", port, cwd=here) as links, Browser() as browser:
        browser.open(links["charts"])
        browser.wait("document.querySelectorAll('.js-plotly-plot').length >= 4", 120)
        text = browser.text()
        order = [
            text.index(f"tiny ({name})") for name in ("heldout/fresh_perplexity", "train/loss")
        ]
        assert order == sorted(order)
        assert max(order) < text.index("under_the_hood")
        for word in ("final/", "checkpoint/", "bundle/", "Evaluation runs"):
            assert word not in text
        curves = browser.evaluate(
            "[...document.querySelectorAll('.js-plotly-plot .scatterlayer .trace path')].length"
        )
        assert curves >= 4, "something is drawn"

        browser.open(links["model"])
        browser.wait("document.body.innerText.includes('How to load it')", 120)
        text = browser.text()
        assert "Held-out perplexity" in text
        assert "vocabulary" in text
        assert "elmwright.about" not in text
        assert "sha256" not in text
        ours = [one for one in browser.problems if not any(word in one for word in NOT_OURS)]
        assert ours == []


def test_a_signal_while_it_waits_never_meets_a_lock() -> None:
    """`Event.set` in a handler can wait for ever for the lock that the waiting thread holds."""
    with ui._stoppable() as stop:
        stop.wait(0.05)
        assert not stop.is_set()
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        stop.wait()
        assert stop.is_set()
        assert not isinstance(stop, threading.Event)
