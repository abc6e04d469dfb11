"""A dashboard of a Ray cluster, played by a small HTTP server, and submissions to it."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.send import prepare
from tests.support.tiny import write_config, write_text

Answer = tuple[int, Any]


class Dashboard:
    """A dashboard that answers as it is told and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[], Answer]] = {
            "GET /api/version": (200, {"ray_version": "2.60.0"}),
            "GET /api/v0/nodes": (200, nodes({"CPU": 4.0})),
            "GET /api/jobs/": (200, []),
            "GET /api/packages": (404, "no such package"),
            "PUT /api/packages": (200, ""),
            "POST /api/jobs/": (200, {"submission_id": "x"}),
        }
        self.asked: list[tuple[str, str, bytes]] = []
        self.token = ""
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                key = f"{self.command} {self.path}"
                given = self.headers.get("Authorization", "")
                dashboard.asked.append((key, given, body))
                if dashboard.token and given != f"Bearer {dashboard.token}":
                    status, content = (403, "Forbidden") if given else (401, "Unauthorized")
                else:
                    matching = [k for k in dashboard.answers if key.startswith(k)]
                    found = dashboard.answers[max(matching, key=len)] if matching else (404, "")
                    status, content = found() if callable(found) else found
                if status == 0:
                    self.connection.close()  # gone in the middle
                    return
                data = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """The cluster is gone; once is enough."""
        if self.server.socket.fileno() >= 0:
            self.server.shutdown()
            self.server.server_close()


def nodes(*resources: dict[str, float]) -> dict[str, Any]:
    rows = [{"state": "ALIVE", "node_ip": "10.0.0.1", "resources_total": one} for one in resources]
    return {"result": True, "msg": "", "data": {"result": {"result": rows}}}


def submission_to(dashboard: Dashboard, folder: Path, **changes: Any) -> Submission:
    text = folder / "text.txt"
    write_text(text, 3)
    file = write_config(folder, text, tracking_uri="http://127.0.0.1:9", **changes)
    config = load_config(str(file), ["cluster.address=auto"])
    return prepare(config, Target("ray", address=dashboard.address), "corpus")


def play_job(dashboard: Dashboard, submission: Submission, status: str = "RUNNING") -> None:
    """The dashboard has this job."""
    info = {
        "submission_id": submission.id,
        "status": status,
        "metadata": {"elmwright.run": submission.run},
    }
    dashboard.answers["GET /api/jobs/"] = (200, [info])
    dashboard.answers[f"GET /api/jobs/{submission.id}"] = (200, info)
