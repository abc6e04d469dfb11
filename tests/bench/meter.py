"""CPU seconds of everything that a bench started."""

import contextlib
import ctypes
import os
import threading
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def keep_orphans() -> None:
    """Let processes whose parent ended stay below this one, where a `Meter` sees them."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


class Meter(threading.Thread):
    """Adds up the CPU time of all processes below this one, also of those that have ended.

    Not from `getrusage`: Ray's daemon does not wait for its workers, so their time is lost there.
    """

    def __init__(self, every: float = 0.1) -> None:
        """Measure every `every` seconds; use after the last measurement is missed."""
        super().__init__(daemon=True)
        self.every = every
        self.used: dict[tuple[int, str], float] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(self.every):
            self.look()

    def look(self) -> None:
        stats = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    text = Path("/proc", entry, "stat").read_text()
                    stats[int(entry)] = text.rpartition(")")[2].split()
        below = {os.getpid()}
        while more := {pid for pid, f in stats.items() if int(f[1]) in below} - below:
            below |= more
        for pid in below - {os.getpid()}:
            fields = stats[pid]
            self.used[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / TICKS

    def seconds(self) -> float:
        self.done.set()
        self.join()
        return sum(self.used.values())
