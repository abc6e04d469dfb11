"""A lock file on a disk: `flock`, which the kernel drops when its holder dies."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright.jobs.rundir.lease import read_holder, this_process
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data


@contextmanager
def flock(path: Path) -> Iterator[None]:
    """Hold a lock file on a disk, or say who has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "busy",
                f"{path.parent} is in use by {read_holder(path)}; wait for it or stop it first",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(to_data(this_process())).encode(), 0)
        yield
    finally:
        os.close(descriptor)
