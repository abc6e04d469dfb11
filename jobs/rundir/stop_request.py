"""The file by which the driver asks rank 0 to stop training.

On a disk rank 0 looks for it at every step. In a store that would cost a request per step, so a
thread looks every few seconds.
"""

import logging
import threading

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at

log = logging.getLogger("elmwright")

LOOK_SECONDS = 2.0


def ask_to_stop(path: str) -> None:
    at(path).write_bytes(b"stop\n")


def withdraw_stop(path: str) -> None:
    at(path).clear()


class StopNote:
    """Looks for the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_url = at(path).is_url
        self._found, self._closed = threading.Event(), threading.Event()
        if self._is_url:
            threading.Thread(target=self._watch, name="stop-note", daemon=True).start()

    def found(self) -> bool:
        return self._found.is_set() if self._is_url else at(self._path).exists()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                note = at(self._path).stat()
                if note and note.bytes:  # a withdrawn request is empty
                    self._found.set()
                    return
            except (OSError, UserError) as error:
                log.warning("cannot look for %s: %s", self._path, error)
            self._closed.wait(LOOK_SECONDS)
