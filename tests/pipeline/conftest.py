"""Ray, started once for the tests of a module that ask for it."""

import logging
from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
