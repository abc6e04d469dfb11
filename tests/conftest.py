"""For all tests: an environment of their own, an S3 server for a module that asks for it, and
patience for hypothesis."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.s3_server import environment, rclone, s3_server

# Does not take a slow moment of the machine for a failure.
settings.register_profile("elmwright", deadline=None)
settings.load_profile("elmwright")


LEFT_BEHIND = ("ELMWRIGHT_DEBUG", "MLFLOW_TRACKING_URI")
"""Variables that our own code or MLflow sets for the rest of a process."""
for name in LEFT_BEHIND:
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files, so that no worker is left alone with one at the end."""
    for item in items:
        if STARTS_RAY & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow(1))
    items.sort(key=lambda item: -_seconds(item))


def _seconds(item: pytest.Item) -> int:
    """How long the file of a test takes, as its mark `slow` says."""
    mark = item.get_closest_marker("slow")
    return int(mark.args[0]) if mark else 0


STARTS_RAY = {"corpus", "ray_here"}
"""Fixtures that start Ray; a test that needs one through another has it in its list, too."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No test sees what another one has put into the environment."""
    yield
    for name in LEFT_BEHIND:
        os.environ.pop(name, None)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that an S3 server shows as its buckets; `AWS_…` variables point to the server."""
    if rclone() is None:
        pytest.skip("rclone is not installed: no S3 server to test with")
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "bucket").mkdir()
    with s3_server(folder) as settings, environment(settings):
        yield folder
