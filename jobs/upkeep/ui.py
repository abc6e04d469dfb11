"""`elmwright ui [RUN]`: the charts of a run in a browser, in one command.

MLflow opens on a page about something else; the link printed here leads to the run's own charts. A
run that keeps its records in a SQLite file gets an MLflow server of this environment, on this
machine only, which reads while training writes and ends with the command. Where the run reports to
a server that is already there, nothing is started.
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
from typing import IO, Any
from urllib.parse import quote

from elmwright.jobs.runbook.find_run import RUNS, find_run
from elmwright.jobs.rundir.layout import RunFolder, from_project
from elmwright.jobs.rundir.moved_run import at_home
from elmwright.jobs.secrets.hiding import for_others, without_secret
from elmwright.jobs.secrets.in_configs import advise
from elmwright.jobs.terminal.wording import nearby
from elmwright.jobs.tracking.store import artifact_folder, elsewhere, sqlite_file, with_login
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.storage.files import at, join

HOST = "127.0.0.1"
PORT = 5000
"""The first port that is tried; MLflow's own."""
PORTS = 100
"""So many are tried, if none was asked for."""
START_SECONDS = 180.0
"""How long MLflow may take to start; a few seconds on a quiet machine."""
STOP_SECONDS = 10.0
FLAG_SECONDS = 0.1
"""How soon a wish to stop is seen."""


class Flag:
    """What a signal handler may set at any time.

    Not a `threading.Event`: the main thread waits for it, and may hold its lock just then.
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
    state = at(folder.tracking).read_json() or {}
    if not (state.get("run_id") and state.get("experiment_id")):
        raise UserError(
            "run-missing",
            f"{nearby(folder.root)} has no charts yet: they begin with training"
            + (f"; the corpus report is {report}" if (report := _report(folder)) else ""),
        )
    uri = _store(folder, str(saved["tracking"].get("uri") or ""))
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


def _store(folder: RunFolder, uri: str) -> str:
    """The MLflow of a run, as a URI that holds in every folder; a moved file is put right."""
    scheme = "sqlite:///"
    if not uri:
        uri = elsewhere(folder) or f"{scheme}{folder.mlflow / 'mlflow.db'}"
    elif uri.startswith(scheme):
        home = (at(folder.config).read_json() or {}).get("run", {}).get("dir", "")
        place = from_project(folder.root, str(home), uri.removeprefix(scheme))
        uri = f"{scheme}{Path(place).absolute()}"
    database = sqlite_file(uri)
    if database is not None:
        if not database.is_file():
            raise UserError("file-missing", f"there is no MLflow database {database}; train first")
        at_home(database)
    return with_login(uri)


def _links(folder: RunFolder, state: dict[str, Any], address: str) -> dict[str, str]:
    """What to open: the charts of this very run, its version if it is published, the report."""
    run = f"experiments/{quote(state['experiment_id'])}/runs/{quote(state['run_id'])}"
    # Without this word MLflow shows the page inside its menus for language-model applications.
    charts = f"{address}/#/{run}/model-metrics?workflowType=machine_learning"
    found = {"charts": charts}
    published = at(folder.published).read_json()
    if published:
        found["model"] = f"{address}/#/models/{quote(published['name'])}/versions/" + str(
            published["version"]
        )
    report = _report(folder)
    if report:
        found["report"] = report
    return found


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
