"""The program `elmwright`: ready for Ctrl-C before anything of the command is imported.

Importing the command takes a tenth of a second. Until its own handlers are in place (signals.py)
nothing is open that could be lost, so a signal ends the process on the spot.
"""

import os
import signal
from types import FrameType

RESUMABLE = 75


def main() -> int:
    """Import the command, and run it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    from elmwright.jobs.cli.command import main as command

    return command()


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\rstopped: before anything was done\n")
    os._exit(RESUMABLE)
