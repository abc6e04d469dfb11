"""A user's shell: what is typed is run by bash, in one folder, with an environment that is kept.

The environment is the one that `source .venv/bin/activate` gives, of a user without a history:
home, caches and run book are empty, and no variable of this machine points to a server.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

FOREIGN = ("MLFLOW_", "RAY_", "AWS_", "ELMWRIGHT_", "XDG_", "PYTHON", "MAKE")
SHOWN = 4000
"""Characters of output shown when something fails."""


class Shell:
    """One terminal."""

    def __init__(self, folder: Path, home: Path, first: Path | None = None) -> None:
        """`first` is a folder with commands that are found before all others."""
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        places = [*([str(first)] if first else []), str(Path(sys.executable).parent), kept["PATH"]]
        self.environment = {**kept, "PATH": os.pathsep.join(places), "HOME": str(home)}
        self.services: list[Service] = []

    def run(self, script: str, what: str, timeout: float = 300) -> str:
        """Run the lines of a script, stop at the first that fails; what they printed."""
        saved = self.folder / ".environment"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{script}\nenv -0 > {saved}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{what}, exit {done.returncode}:\n{done.stdout[-SHOWN:]}"
        pairs = saved.read_text().split("\0")[:-1]
        saved.unlink()
        self.environment = dict(pair.split("=", 1) for pair in pairs)
        return done.stdout

    def python(self, code: str, what: str, timeout: float = 300) -> str:
        """Run a script."""
        done = subprocess.run(
            ["python", "-c", code],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{what}, exit {done.returncode}:\n{done.stdout[-SHOWN:]}"
        return done.stdout

    def serve(self, script: str, what: str) -> None:
        """Start a service, in a terminal of its own, and wait until it answers."""
        service = Service(script, self, what)
        self.services.append(service)
        service.wait_until_it_answers()

    def close(self) -> None:
        """Ctrl-C in every terminal with a service; each must end soon."""
        while self.services:
            self.services.pop().stop()


class Service:
    """A command that runs until Ctrl-C."""

    def __init__(self, script: str, shell: Shell, what: str) -> None:
        self.what = what
        self.log = shell.folder / f".service-{len(shell.services)}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=shell.folder,
                env=shell.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_it_answers(self, seconds: float = 120) -> None:
        """Until an address that it has printed answers a request."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.process.poll() is None, f"{self.what} ended:\n{self.output()}"
            for url in re.findall(
                r"http://(?:127\.0\.0\.1|localhost|0\.0\.0\.0):\d+", self.output()
            ):
                if answers(url):
                    return
            time.sleep(0.2)
        self.stop()
        raise AssertionError(f"{self.what} does not answer:\n{self.output()}")

    def stop(self, seconds: float = 20) -> None:
        """Ctrl-C, if it still runs."""
        if self.process.poll() is not None:
            return
        group = self.process.pid
        os.killpg(group, signal.SIGINT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(group, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"{self.what} ignores Ctrl-C:\n{self.output()}") from None

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-SHOWN:]


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=10).close()  # noqa: S310 - our own service
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    with socket.socket() as taken:
        return taken.connect_ex(("127.0.0.1", port)) != 0
