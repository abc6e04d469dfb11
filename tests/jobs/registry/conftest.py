"""Both kinds of registry, empty: tests that take `registry` run once for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from elmwright.jobs.registry.contract import Registry
from elmwright.jobs.registry.plain_folder import FolderRegistry
from tests.support.tiny_runs.registries import sqlite


@pytest.fixture(params=["mlflow", "shelf"])
def registry(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Registry]:
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path / "cache"))
    if request.param == "shelf":
        yield FolderRegistry(str(tmp_path / "shelf"))
        return
    yield sqlite(tmp_path, empty_database, monkeypatch)
