"""Waiting for something that another process or thread does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.2) -> bool:
    """Whether a condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True
