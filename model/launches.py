"""Where starting an operation takes longer than computing a small one: on GPUs.

There the code prefers few large operations: one group of words in the encoder, large pieces of the
softmax, one update of all parameters. On a CPU small ones find their data in the cache.
`like_a_gpu` makes CPU tensors take the first way, so that its operations can be counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_is_forced: ContextVar[bool] = ContextVar("like_a_gpu", default=False)


def wants_few(device: torch.device) -> bool:
    """Whether few large operations are better on this device."""
    return device.type != "cpu" or _is_forced.get()


@contextmanager
def like_a_gpu() -> Iterator[None]:
    """Compute on CPU tensors as on those of a GPU, in this thread, without the kernels in C."""
    token = _is_forced.set(True)
    try:
        yield
    finally:
        _is_forced.reset(token)
