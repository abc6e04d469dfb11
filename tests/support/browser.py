"""A real browser for tests: Debian's Chromium without a window, spoken to over a pipe.

Chromium takes its DevTools commands as JSON on file descriptor 3 and answers on 4, each ended by a
zero byte, so no driver and no package is needed. A page's console and its failed requests are kept,
because a page that looks right may still be broken.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --remote-debugging-pipe"
).split()


def chromium() -> str | None:
    """The browser, where there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


needs_chromium = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")


def ask(page: Path, script: str, *, width: int = 1280, dark: bool = False) -> Any:
    """What an expression is in a page that is a file, in a window of this width."""
    with Browser(width, 900, dark=dark) as browser:
        browser.show(page)
        return browser.evaluate(script)


def complaints(page: Path) -> list[str]:
    """What a page that is a file has its browser say when it is opened."""
    with Browser() as browser:
        browser.show(page)
        browser.pause(0.5)
        return browser.problems


class Browser:
    """One page in one browser; a context manager that ends it."""

    def __init__(self, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        self.problems: list[str] = []
        """What the page wrote to its console as an error or warning, and requests that failed."""
        self._size, self._dark = (width, height), dark
        self._number, self._buffer = 0, b""

    def __enter__(self) -> "Browser":
        program = chromium()
        assert program is not None
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        here_read, there_write = os.pipe()
        there_read, self._write = os.pipe()
        self._read = here_read
        command = [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        # Chromium wants the descriptors 3 and 4, whatever numbers the pipes have here.
        shell = f'exec 3<&{there_read} 4>&{there_write}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *command],
            pass_fds=(there_read, there_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there_read)
        os.close(there_write)
        self._session = ""
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        width, height = self._size
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        if self._dark:
            feature = {"name": "prefers-color-scheme", "value": "dark"}
            self._ask("Emulation.setEmulatedMedia", features=[feature])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address: str) -> None:
        """Go to a page."""
        self._ask("Page.navigate", url=address)

    def show(self, page: Path) -> None:
        """Open a page that is a file, and wait until all of it is there."""
        self.open(page.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def evaluate(self, expression: str) -> Any:
        """What an expression is in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> Any:
        """Until an expression is true in the page; what it then is."""
        end = time.monotonic() + seconds
        while not (found := self.evaluate(expression)):
            if time.monotonic() > end:
                text = str(self.evaluate("document.body.innerText"))[:2000]
                raise AssertionError(f"{expression} did not come true; the page says: {text}")
            self.pause(0.2)
        return found

    def pause(self, seconds: float) -> None:
        """Let the page work, and keep what it says."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._event(left)

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.evaluate("document.body.innerText"))

    def picture(self, path: Path) -> None:
        """A PNG of what is seen."""
        data = self._ask("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self._event(end - time.monotonic())
            if answer is None and time.monotonic() > end:
                raise AssertionError(f"chromium did not answer {method}")
            if answer and answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _event(self, seconds: float) -> dict[str, Any] | None:
        """The next message, if one comes in time; a page's complaints are kept."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, seconds))
            if not ready:
                return None
            data = os.read(self._read, 1 << 20)
            if not data:
                raise AssertionError("chromium has ended")
            self._buffer += data
        one, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        self._keep(message.get("method", ""), message.get("params", {}))
        return message

    def _keep(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            words = [str(a.get("value", a.get("description", ""))) for a in told["args"]]
            self.problems.append(f"console {told['type']}: {' '.join(words)}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {told['exceptionDetails']}")
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            entry = told["entry"]
            self.problems.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Network.responseReceived" and told["response"]["status"] >= 400:
            self.problems.append(f"{told['response']['status']} {told['response']['url']}")
