"""Training beside a tracking server that dies and comes back, or takes five seconds to answer."""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch.multiprocessing as mp
from mlflow import MlflowClient

from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.tracking import tracker as tracking
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.tracker import Tracker
from elmwright.pipeline.format.manifest import Manifest
from tests.support.mistakes import mistake
from tests.support.servers import free_port, mlflow_server
from tests.support.tiny_runs.training import prepare, process

STEPS = 300
REALISTIC = {
    "model_dim": 512,
    "model_projection_dim": 128,
    "train_lanes": 32,
    "train_window": 20,
    "train_max_steps": STEPS,
    "eval_every_steps": 50,
    "checkpoint_every_steps": 50,
}
"""Every step is logged, ten times as often as by default; so steps must not be toys, which would
take less time than it takes to write them down."""
DELAY = 5.0


@contextmanager
def serving(answer: object) -> Iterator[str]:
    """A web server that answers every request by calling `answer(handler)`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            answer(self)  # type: ignore[operator]

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def slow_proxy(target: str) -> object:
    """Passes everything on, five seconds later."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        time.sleep(DELAY)
        request = Request(target + handler.path, body or None, method=handler.command)  # noqa: S310
        if handler.headers.get("Content-Type"):
            request.add_header("Content-Type", handler.headers["Content-Type"])
        try:
            with urlopen(request, timeout=60) as response:  # noqa: S310
                status, content = response.status, response.read()
        except HTTPError as error:
            status, content = error.code, error.read()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def check_all_arrived(uri: str, run: RunFolder) -> None:
    """Every number of the journal is in MLflow exactly once, with its time."""
    client = MlflowClient(uri, uri)
    (found,) = client.search_runs([client.get_experiment_by_name("elmwright").experiment_id])
    expected: dict[str, list[tuple[int, int, float]]] = {}
    for record, _ in read_journal(run.journal, 0):
        for name, value in getattr(record, "values", {}).items():
            expected.setdefault(name, []).append((record.step, record.time, float(value)))
    assert len(expected["train/loss"]) == STEPS
    for name in (
        "train/loss",
        "heldout/fresh_perplexity",
        "train/tokens_per_s",
        "time/track_share",
    ):
        shown = name.replace("time/", "under_the_hood/time_")
        history = client.get_metric_history(found.info.run_id, shown)
        assert sorted((m.step, m.timestamp, m.value) for m in history) == sorted(expected[name])
    models = client.search_logged_models([found.info.experiment_id])
    assert {model.name for model in models} >= {f"tiny-step-{STEPS}"}
    assert len({model.name for model in models}) == len(models)


def blocked_share(run: RunFolder) -> float:
    """The share of all time that the loop itself says it spent on tracking."""
    records = [r for r, _ in read_journal(run.journal, 0) if r.kind == "metrics"]
    seconds = [(after.time - before.time) / 1000 for before, after in pairwise(records)]
    shares = [record.values["time/track_share"] for record in records[1:]]
    print(f"{1000 * median(seconds):.0f} ms a step")
    return sum(a * b for a, b in zip(shares, seconds, strict=True)) / sum(seconds)


@pytest.mark.heavy
@pytest.mark.parametrize("trouble", ["killed", "slow"])
def test_the_loop_does_not_notice_and_nothing_is_missing_or_doubled(
    trouble: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    config, run = prepare(tmp_path, corpus, **REALISTIC)
    with ExitStack() as stack:
        port = free_port()
        server = ExitStack()
        uri = server.enter_context(mlflow_server(tmp_path, port=port))
        stack.push(server)
        if trouble == "slow":
            uri = stack.enter_context(serving(slow_proxy(uri)))
        monkeypatch.setattr(tracking, "tracking_uri", lambda *_: uri)
        tracker = Tracker(config, run, Manifest.load(corpus))
        tracker.start()

        def kill_for_a_third() -> None:
            wait_for_step(run, STEPS // 3)
            server.close()
            wait_for_step(run, 2 * STEPS // 3)
            server.enter_context(mlflow_server(tmp_path, port=port))

        killer = threading.Thread(target=kill_for_a_third)
        if trouble == "killed":
            killer.start()
        # The tracker lives in the driver, the loop in another process.
        begin_attempt(run.attempt)
        mp.spawn(process, (1, str(tmp_path / "tiny.toml"), free_port()), nprocs=1)
        if trouble == "killed":
            killer.join()
        problem = tracker.finish("FINISHED", seconds=240)
        while problem:  # as the next command would
            tracker = Tracker(config, run, Manifest.load(corpus))
            tracker.start()
            problem = tracker.finish("FINISHED", seconds=240)
        share = blocked_share(run)
        print(f"{trouble}: {100 * share:.4f} % of the loop's time went into tracking")
        assert share < 0.001
        check_all_arrived(uri, run)


def wait_for_step(run: RunFolder, step: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if max((record.step for record, _ in read_journal(run.journal, 0)), default=0) >= step:
            return
        time.sleep(0.2)
    raise AssertionError(f"step {step} was not reached")


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_server_that_refuses_us_is_told_before_training(code: int) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_error(code)

    advice = "tracking.uri" if code == 404 else "MLFLOW_TRACKING_USERNAME"
    with serving(answer) as uri, mistake("tracking-server", advice):
        check_server(uri)


def test_a_server_that_takes_our_password_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers.get("Authorization"))
        handler.send_response(200)
        handler.end_headers()

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "anna")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    with serving(answer) as uri:
        assert check_server(uri) is None
    assert seen == ["Basic YW5uYTpzZWNyZXQ="]


def test_a_server_that_is_away_is_a_warning_and_no_more() -> None:
    warning = check_server(f"http://127.0.0.1:{free_port()}")
    assert warning is not None
    assert "is sent when it does" in warning
    assert check_server("sqlite:///somewhere.db") is None
