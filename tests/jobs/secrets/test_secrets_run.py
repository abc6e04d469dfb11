"""Secrets of the environment are used and stored nowhere."""

import base64
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elmwright.jobs.cli.command import main
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.secrets.in_configs import take_out_secrets
from elmwright.jobs.tracking.store import same_store
from elmwright.jobs.tracking.tracker import Tracker, tracking_uri
from elmwright.pipeline.storage.files import at
from tests.support.servers import mlflow_server, wait_for
from tests.support.tiny import command, manifest, write_config, write_text
from tests.support.tiny_runs.shown_run import write_run

pytestmark = pytest.mark.slow(9)

PASSWORD = "Pl4nted-p@ss/77aa"  # noqa: S105 - planted, to be looked for
ESCAPED = "Pl4nted-p%40ss%2F77aa"
PLANTED = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED000000000",
    "AWS_SECRET_ACCESS_KEY": "PlantedSecretKey0123456789abcdefghijklmn",
    "HTTP_PROXY": "http://me:planted-proxy-9a@127.0.0.1:9",
    "https_proxy": "http://planted-proxy-9b@127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "HF_TOKEN": "planted-token-31c",
}
SECRETS = (
    "Pl4nted-p",
    "AKIAPLANTED000000000",
    "PlantedSecretKey",
    "planted-proxy",
    "planted-token",
    base64.b64encode(f"me:{PASSWORD}".encode()).decode(),
)


def found_in(*folders: Path) -> list[str]:
    """Files that hold one of the planted secrets."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                found += [f"{path}: {text}" for text in SECRETS if text.encode() in data]
    return found


def found_in_commands() -> list[str]:
    """Command lines of this machine's processes that hold one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        found += [line for text in SECRETS if text in line]
    return found


@contextmanager
def guarded(server: str) -> Iterator[str]:
    """In front of an MLflow server: lets through whoever has the password; its address."""
    wanted = f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"

    class Guard(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Authorization") != wanted:
                self._answer(401, b"who are you?")
                return
            headers = {name: self.headers[name] for name in self.headers if name != "Host"}
            request = urllib.request.Request(  # noqa: S310 - our own server
                f"{server}{self.path}", body or None, headers, method=self.command
            )
            try:
                with urllib.request.urlopen(request) as answer:  # noqa: S310
                    self._answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    guard = ThreadingHTTPServer(("127.0.0.1", 0), Guard)
    threading.Thread(target=guard.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{guard.server_port}"
    finally:
        guard.shutdown()
        guard.server_close()


def with_password(address: str) -> str:
    return address.replace("http://", f"http://me:{ESCAPED}@")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as uri, guarded(uri) as address:
        yield address


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment full of secrets; the folder to work in."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "false")
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("in_config", [True, False])
def test_mlflow_password_is_used_from_the_environment_and_stored_nowhere(
    planted: Path,
    server: str,
    bundle: Path,
    in_config: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config, folder = write_run(planted, tracking_uri=server if in_config else "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", with_password(server))
    assert tracking_uri(config, folder) == with_password(server)
    tracker = Tracker(config, folder, manifest())
    tracker.start()
    assert tracker.finish("FINISHED", 120) is None
    assert (at(folder.tracking).read_json() or {})["uri"] == server
    assert os.environ["MLFLOW_TRACKING_URI"] == with_password(server)
    seen = MlflowClient(with_password(server)).get_run(tracker.run_id)
    assert not [text for text in SECRETS if text in str(seen.to_dictionary())]
    name = f"tiny-{in_config}"
    assert main(["publish", str(bundle), "--name", name]) == 0
    assert main(["versions", name, "--to", server]) == 0
    assert main(["ui", folder.root]) == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", with_password(server).replace("77aa", "wrong"))
    assert main(["versions", name]) == 2
    output = capfd.readouterr()
    assert f"charts   {server}/#/experiments" in output.out
    assert f"MLflow at {server} did not let us" in output.err
    assert not [text for text in SECRETS if text in output.out + output.err]
    assert not found_in(planted)
    assert not found_in_commands()


@pytest.mark.parametrize(
    ("setting", "variable", "used"),
    [
        ("", "sqlite:////elsewhere/mlflow.db", "own"),
        ("", "http://me:pw@h:5000", "http://me:pw@h:5000"),
        ("", "postgresql://me:pw@db/x", "postgresql://me:pw@db/x"),
        ("", "", "own"),
        ("http://h:5000/", "http://me:pw@h:5000", "http://me:pw@h:5000"),
        ("http://other:5000", "http://me:pw@h:5000", "http://other:5000"),
        ("postgresql://db/x", "postgresql://me:pw@db/x", "postgresql://me:pw@db/x"),
        ("postgresql://me@db/x", "postgresql://me:pw@db/x?a=b", "postgresql://me@db/x"),
        ("postgresql://you@db/x", "postgresql://me:pw@db/x", "postgresql://you@db/x"),
    ],
)
def test_which_mlflow_a_run_reports_to(
    planted: Path, setting: str, variable: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = write_run(planted, tracking_uri=setting)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    own = f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    assert tracking_uri(config, folder) == (own if used == "own" else used)


def test_mlflow_server_is_recognised_with_any_login() -> None:
    assert same_store("http://me@h:5000", "http://me:pw@h:5000/")  # as written up to 0.3
    assert same_store("http://h:5000", "http://h:5000")
    assert same_store("HTTP://MLflow.Lab:80/a", "http://mlflow.lab/a")
    assert same_store("https://h:443", "https://me:pw@h")
    assert same_store("postgresql://me@DB:5432/x", "postgresql://me:pw@db/x")
    assert same_store("mysql+pymysql://db:3306/x", "mysql+pymysql://db/x")
    assert not same_store("http://h:443", "http://h")
    assert not same_store("postgresql://a/x?user=me@s", "postgresql://b/x?user=me@s")
    assert not same_store("http://h/A", "http://h/a")
    assert not same_store("sqlite:////A/x.db", "sqlite:////a/x.db")
    assert not same_store("http://h:5000", "http://h:5001")
    assert not same_store("postgresql://a@db/x", "postgresql://b:pw@db/x")


def old_run(home: Path) -> RunFolder:
    """A run whose files hold a password, as earlier versions let users do."""
    _, folder = write_run(home, tracking_uri="http://mlflow.lab:5000")
    saved = at(folder.config).read_json() or {}
    saved["tracking"]["uri"] = f"http://me:{PASSWORD}@mlflow.lab:5000"
    at(folder.config).write_json(saved)
    state = {"uri": f"http://me:{PASSWORD}@mlflow.lab:5000", "run_id": "a", "experiment_id": "7"}
    at(folder.tracking).write_json({**state, "cursor": 0})
    return folder


def test_saved_config_with_a_password_is_read_with_a_warning(
    planted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = old_run(planted)
    before = Path(folder.config).read_bytes()
    assert main(["ui", folder.root]) == 0
    output = capfd.readouterr()
    assert "tracking.uri holds a password (saved by an earlier version)" in output.err
    assert "MLFLOW_TRACKING_PASSWORD" in output.err
    assert "http://mlflow.lab:5000/#/experiments/7" in output.out
    main(["status", folder.root])
    main(["prune", folder.root])
    main(["export", folder.root, "-o", str(planted / "out")])
    output = capfd.readouterr()
    assert not [text for text in SECRETS if text in output.out + output.err]
    assert "unexpected" not in output.err
    assert Path(folder.config).read_bytes() == before  # only a run that holds the lock may write


def test_password_is_removed_from_files_of_an_old_run(planted: Path) -> None:
    folder = old_run(planted)
    files = [folder.config, folder.tracking, folder.published]
    before = {file: at(file).read_json() for file in files}
    assert take_out_secrets(files) == [folder.config, folder.tracking]
    assert not found_in(Path(folder.root))
    saved, was = at(folder.config).read_json() or {}, before[folder.config] or {}
    assert saved["tracking"].pop("uri") == "http://mlflow.lab:5000"
    del was["tracking"]["uri"]
    assert saved == was
    assert (at(folder.tracking).read_json() or {})["uri"] == "http://mlflow.lab:5000"
    assert take_out_secrets(files) == []


def test_the_server_of_ui_has_no_password_on_its_command_line(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "postgresql+psycopg2://me@127.0.0.1:9/x"
    _, folder = write_run(planted, tracking_uri=address)
    at(folder.tracking).write_json(
        {"uri": address, "run_id": "a", "experiment_id": "7", "cursor": 0}
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("me@", f"me:{ESCAPED}@"))
    output = planted / "output.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(command("ui", folder.root), stdout=stream, stderr=stream)
    try:
        wait_for(lambda: bool(_servers_of(process.pid)) or process.poll() is not None)
        started = _servers_of(process.pid)
        assert started
        environment = Path(f"/proc/{started[0]}/environ").read_text()
        assert f"MLFLOW_BACKEND_STORE_URI={os.environ['MLFLOW_TRACKING_URI']}\0" in environment
        assert "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false\0" in environment
        end = time.monotonic() + 4
        while process.poll() is None and time.monotonic() < end:
            assert not found_in_commands()
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert not found_in(planted)


def _servers_of(parent: int) -> list[int]:
    """Children that run an MLflow server."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        line = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"\0mlflow\0server\0" in line:
            found.append(int(child))
    return found


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for temporary files whose path leaves room for the names of Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="elm-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.heavy
def test_whole_run_has_no_secret_in_files_output_or_command_lines(
    planted: Path, short: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planted / "home").mkdir()
    monkeypatch.setenv("HOME", str(planted / "home"))
    monkeypatch.setenv("TMPDIR", str(short))  # Ray's logs are looked through as well
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # so that it says what went wrong
    config = write_config(planted, write_text(planted / "text.txt", 200))
    output = ""
    dead = "http://127.0.0.1:9"
    for address, until in ((dead, "train"), (server, "publish")):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", with_password(address))
        with (planted / f"{until}.txt").open("wb") as stream:
            words = command("run", config, "--until", until)
            process = subprocess.Popen(words, stdout=stream, stderr=stream)
            while process.poll() is None:
                assert not found_in_commands()
                time.sleep(0.2)
        output += (planted / f"{until}.txt").read_text()
        assert process.returncode == 0, output
    assert "MLflow at http://127.0.0.1:9 does not answer" in output
    assert "Registered tiny version" in output
    run = planted / "run"
    assert "Max retries exceeded" in (run / "elmwright.log").read_text()
    assert next(short.rglob("*.log"))
    assert not found_in(planted, short)

    # A run that was finished by an earlier version, with a password in its files.
    for name in ("config.json", "tracking.json", "published.json"):
        data = json.loads((run / name).read_text())
        place = data["tracking"] if name == "config.json" else data
        place["uri"] = f"http://me:{PASSWORD}@{server.removeprefix('http://')}"
        (run / name).write_text(json.dumps(data))
    assert main(["run", str(config), "--set", f"tracking.uri={server}"]) == 0
    assert not found_in(planted, short)
    assert json.loads((run / "tracking.json").read_text())["uri"] == server
