"""Registries for tests: one on SQLite, what is stored in one, and publishing that is killed.

A publish is killed in a process of its own (`publisher.py`), at seeded moments of the time that a
whole one takes.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.bundles.bundle import write_sums
from elmwright.jobs.publishing.promotion import publish_bundle
from elmwright.jobs.registry.contract import Registry
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.registry.plain_folder import FolderRegistry
from tests.support.places import ROOT

SENTENCE = ["The", "old", "cat", "sees", "the", "river", "."]


def sqlite(folder: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowRegistry:
    (folder / "mlflow").mkdir()
    shutil.copyfile(database, folder / "mlflow" / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return MlflowRegistry(uri)


def reference(registry: Registry, alias: str) -> str:
    """How a user names the model."""
    return (
        f"{registry.uri}/tiny@{alias}"
        if isinstance(registry, FolderRegistry)
        else f"models:/tiny@{alias}"
    )


def leftovers(registry: Registry) -> int:
    """Stored bundles, of which a version should know each."""
    if isinstance(registry, FolderRegistry):
        return len([path for path in Path(registry.uri).glob("*/*") if path.is_dir()])
    stored = Path(registry.uri.removeprefix("sqlite:///")).parent / "artifacts" / "models"
    return len(list(stored.glob("*/artifacts"))) if stored.exists() else 0


@contextmanager
def publisher(uri: str) -> Iterator["subprocess.Popen[str]"]:
    """The process of publisher.py, ready to publish."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.tiny_runs.publisher", uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert read(process).startswith("ready")
        yield process
    finally:
        process.kill()
        process.wait()


def read(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def publish_there(
    process: "subprocess.Popen[str]", bundle: Path, name: str, kill_after: float | None = None
) -> bool:
    """Publish in the other process, which may be killed meanwhile; whether it came to its end."""
    assert process.stdin is not None
    process.stdin.write(f"{name} {bundle}\n")
    process.stdin.flush()
    child = int(read(process))
    if kill_after is not None:
        time.sleep(kill_after)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    line = read(process)
    done = line.startswith("done")
    assert (read(process) if done else line) == "gone"
    return done


def kill_often(registry: Registry, uri: str, bundle: Path, times: int) -> None:
    """Publish under new names and be killed at seeded moments of what a publish takes: whatever is
    listed verifies, and the retry leaves one version."""
    draw = random.Random(11)
    ended = 0
    with publisher(uri) as process:
        assert publish_there(process, bundle, "first")
        start = time.monotonic()
        assert publish_there(process, bundle, "measured")
        longest = time.monotonic() - start
        for number in range(times):
            name = f"killed-{number}"
            after = longest * (number + draw.random()) / times
            ended += publish_there(process, bundle, name, after)
            for version in registry.versions(name):
                registry.fetch(name, version.version)
            publish_bundle(registry, bundle, name, "candidate")
            (version,) = registry.versions(name)
            assert version.aliases == ("candidate",)
            registry.fetch(name, version.version)
    print(f"{times} kills within {longest:.2f} s, {ended} came too late")
    assert ended < times


def another(bundle: Path, folder: Path, number: int = 0, **config: Any) -> Path:
    """A bundle that is whole and says something else."""
    shutil.copytree(bundle, folder)
    change(folder / "config.json", lambda saved: saved.update({"number": number, **config}))
    write_sums(folder)
    return folder


def change(path: Path, how: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    how(content)
    path.write_text(json.dumps(content))
