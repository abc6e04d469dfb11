"""`elmwright ui [RUN]`: the charts of a run in a browser, in one command.

MLflow opens on a page about something else. The link printed here leads to the run's own charts.
For a run that reports to a SQLite file, an MLflow server is started on this machine only. It reads
while training writes, and ends with the command. For a run that reports to a server, nothing is
started.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO
from urllib.parse import quote

from elmwright.jobs.publishing.publish import read_published
from elmwright.jobs.registry.find_registry import registry_of_run
from elmwright.jobs.runbook.find_run import RUNS, find_run
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.moved_run import correct_database
from elmwright.jobs.secrets.hiding import for_others, without_secret
from elmwright.jobs.secrets.in_configs import advise
from elmwright.jobs.terminal.wording import nearby
from elmwright.jobs.tracking.store import artifact_folder, sqlite_file
from elmwright.jobs.tracking.tracking_state import TrackingState, read_tracking
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.files import at, join

HOST = "127.0.0.1"
PORT = 5000
"""The first port that is tried; MLflow's own."""
PORTS = 100
"""How many ports are tried if none was given."""
START_SECONDS = 180.0
"""How long MLflow may take to start; a few seconds on a quiet machine."""
STOP_SECONDS = 10.0
FLAG_SECONDS = 0.1
"""How often the request to stop is checked."""


class Flag:
    """A flag that a signal handler may set at any time.

    Not a `threading.Event`: the main thread waits for it, and may hold its lock at that moment.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float = math.inf) -> None:
        """Until it is set, or for so long."""
        end = time.monotonic() + seconds
        while not self._is_set and time.monotonic() < end:
            time.sleep(FLAG_SECONDS)


def find_folder(text: str) -> RunFolder:
    """The run that is meant; without a word, the newest one in runs/."""
    if text:
        return find_run(text)
    found = [path.parent for path in Path(RUNS).glob("*/config.json")]
    if not found:
        raise UserError(
            "run-missing", f"there is no run in {RUNS}/ here; name one: elmwright ui RUN"
        )
    return RunFolder.at(max(found, key=_age))


def _age(run: Path) -> float:
    """When something last happened in a run."""
    files = [run / "config.json", run / "tracking.json", run / "train" / "journal.jsonl"]
    return max(path.stat().st_mtime for path in files if path.is_file())


def show(folder: RunFolder, port: int, opened: Callable[[str], object]) -> None:
    """Print the links, and serve what they lead to until somebody stops it."""
    saved = at(folder.config).read_json()
    if saved is None or "tracking" not in saved:
        raise UserError(
            "run-missing", f"{folder.root} is not a run's folder (it has no config.json of a run)"
        )
    advise(saved, nearby(folder.config))
    state = read_tracking(folder.tracking)
    if state is None or not (state.run_id and state.experiment_id):
        raise UserError(
            "run-missing",
            f"{nearby(folder.root)} has no charts yet: they begin with training"
            + (f"; the corpus report is {report}" if (report := _report(folder)) else ""),
        )
    uri = _store(folder)
    if uri.startswith(("http://", "https://")):
        links = _links(folder, state, without_secret(uri).rstrip("/"))
        _print("Open one of these in a browser:", links)
        opened(links["charts"])
        return
    port = _free_port(port)
    with _stoppable() as stop:
        print(f"Starting MLflow for {nearby(folder.root)}, which takes some seconds.", flush=True)
        with _server(uri, port, stop) as address:
            if address:
                links = _links(folder, state, address)
                _print("Ready. Open one of these in a browser:", links)
                print("Ctrl-C ends it.", flush=True)
                opened(links["charts"])
                stop.wait()
    # Behind the ^C that a terminal shows.
    print("\nMLflow has ended." if sys.stdout.isatty() else "MLflow has ended.", flush=True)


def _store(folder: RunFolder) -> str:
    """The MLflow of a run, with an absolute path; a database that was moved is updated."""
    uri = registry_of_run(folder.root)
    database = sqlite_file(uri)
    if database is None:
        return uri
    if not database.is_file():
        raise UserError("file-missing", f"there is no MLflow database {database}; train first")
    correct_database(database)
    return f"sqlite:///{database}"


def _links(folder: RunFolder, state: TrackingState, address: str) -> dict[str, str]:
    """The links to the charts of this run, its version if it is published, and the report."""
    run = f"experiments/{quote(state.experiment_id or '')}/runs/{quote(state.run_id)}"
    # Without this parameter MLflow shows the page inside its menus for language-model applications.
    charts = f"{address}/#/{run}/model-metrics?workflowType=machine_learning"
    links = {"charts": charts}
    published = read_published(folder.published)
    if published:
        model = f"{quote(published.name)}/versions/{published.version}"
        links["model"] = f"{address}/#/models/{model}"
    report = _report(folder)
    if report:
        links["report"] = report
    return links


def _report(folder: RunFolder) -> str:
    """The corpus report, if there is one."""
    path = join(folder.corpus, "report.html")
    return nearby(path) if at(path).exists() else ""


def _print(title: str, links: dict[str, str]) -> None:
    print(title)
    for name, link in links.items():
        print(f"  {name:<8} {link}", flush=True)


def open_link(link: str) -> None:
    """Open a link in the browser, or say that there is none."""
    if not webbrowser.open(link):
        print("No browser could be opened here: copy the link.", flush=True)


@contextmanager
def _server(uri: str, port: int, stop: Flag) -> Iterator[str]:
    """An MLflow server for a database; its address, or nothing if it was stopped before that."""
    address = f"http://{HOST}:{port}"
    with tempfile.TemporaryDirectory(prefix="elmwright-ui-") as folder:
        log = Path(folder) / "mlflow.log"
        with log.open("wb") as output:
            process = _start(uri, port, Path(folder), output)
        try:
            _wait_ready(process, address, stop, log)
            yield "" if stop.is_set() else address
        finally:
            _end(process)


def _start(uri: str, port: int, folder: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
        "--no-serve-artifacts",
        "--default-artifact-root",
        artifact_folder(uri) or str(folder),
    ]
    environment = {
        **os.environ,
        # It starts uvicorn from PATH.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        # Not an argument, which everybody on the machine could read: it may hold a password.
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    # A session of its own: Ctrl-C reaches us alone, and we end all of it.
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=output,
        stderr=output,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_ready(process: subprocess.Popen[bytes], address: str, stop: Flag, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not stop.is_set() and not _answers(f"{address}/health"):
        if process.poll() is not None or time.monotonic() > end:
            text = log.read_text(errors="replace").strip().splitlines()
            said = for_others(" ".join(text[-1].split()))[:300] if text else ""
            reason = said or f"exit {process.returncode}"
            raise Failed(f"MLflow did not start ({reason}); 'mlflow doctor' may know why")
        stop.wait(0.2)


def _answers(address: str) -> bool:
    try:
        # A proxy of the environment has no business between us and this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it has started, and wait until they are gone.

    The server's own process may end before those that hold the port.
    """
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(process.pid, signal_number)
        end = time.monotonic() + STOP_SECONDS
        while _signal_group(process.pid, 0) and time.monotonic() < end:
            process.poll()
            time.sleep(FLAG_SECONDS)
    process.wait()


def _signal_group(group: int, signal_number: int) -> bool:
    """Send a signal to all processes of a group; whether there are any."""
    try:
        os.killpg(group, signal_number)
    except ProcessLookupError:
        return False
    return True


def _free_port(asked: int) -> int:
    for port in [asked] if asked else range(PORT, PORT + PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except PermissionError:
                raise UserError(
                    "port", f"port {port} needs more rights; choose one above 1023"
                ) from None
            except OSError:
                continue
            return port
    if asked:
        raise UserError("port", f"port {asked} is in use; choose another, or leave --port out")
    raise UserError(
        "port", f"no port from {PORT} to {PORT + PORTS - 1} is free; choose one with --port"
    )


@contextmanager
def _stoppable() -> Iterator[Flag]:
    """A flag that Ctrl-C and SIGTERM set: stopping is how this command ends well."""
    flag = Flag()

    def handler(_number: int, _frame: FrameType | None) -> None:
        flag.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, old in before.items():
            signal.signal(number, old)
