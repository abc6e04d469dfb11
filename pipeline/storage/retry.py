"""Calling again what failed for a reason that may pass."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def retry(
    call: Callable[[], T], pauses: Iterable[float], may_pass: Callable[[Exception], bool]
) -> T:
    """The result of `call`, called again after each pause while its error may pass."""
    for pause in pauses:
        try:
            return call()
        except Exception as error:
            if not may_pass(error):
                raise
        time.sleep(pause)
    return call()
