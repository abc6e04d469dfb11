"""A terminal of any width for a command, and what was to be seen on it, as text.

The command gets a pseudo-terminal of its own (its controlling terminal, so that Ctrl-C is a key and
not a signal we send), and what it writes is drawn by pyte. A frame is the text on the screen
whenever the command has paused for a moment; equal frames in a row are one. Lines that did not fit
and were broken by the terminal itself are noted: nothing we print may do that.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyte

PAUSE = 0.03
"""Seconds without output after which the screen counts as drawn."""
HEIGHT = 200
"""Lines: enough for everything to stay in sight."""
LOOKED = "ELMWRIGHT_TEST_LOOKED"
"""Two file descriptors, question and answer: a scene asks whether its screen was looked at."""


class _Screen(pyte.Screen):
    """Notes the lines that it has to break."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines)
        self.broken: list[str] = []
        self._drawing = False

    def draw(self, data: str) -> None:
        self._drawing = True
        try:
            super().draw(data)
        finally:
            self._drawing = False

    def carriage_return(self) -> None:
        if self._drawing:
            self.broken.append(self.display[self.cursor.y])
        super().carriage_return()


@dataclass
class Seen:
    """What a command has shown."""

    code: int
    """Its exit code."""
    frames: list[str]
    """What was on the screen, one moment after the other."""
    broken: list[str]
    """Lines that the terminal broke because they did not fit."""
    output: str
    """All that was written, escape codes included."""
    seconds: float
    """How long it took."""

    @property
    def last(self) -> str:
        """What stays on the screen."""
        return self.frames[-1] if self.frames else ""

    @property
    def everything(self) -> str:
        """All frames together."""
        return "\n".join(self.frames)

    def frame(self, *parts: str) -> str:
        """The first frame that holds all of these."""
        for frame in self.frames:
            if all(part in frame for part in parts):
                return frame
        raise AssertionError(f"no frame has {parts}; the last one:\n{self.last}")


@dataclass
class Terminal:
    """Where a command runs."""

    columns: int = 80
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    timeout: float = 120
    _main: int = -1
    _questions: int = -1
    _answers: int = -1

    def press(self, keys: bytes) -> None:
        """Type something; `b"\\x03"` is Ctrl-C."""
        os.write(self._main, keys)

    def run(
        self, command: Sequence[object], act: "Callable[[Terminal, str], None]" = lambda *_: None
    ) -> Seen:
        """Run a command to its end; `act` is called with every new frame and may press keys."""
        self._main, end = pty.openpty()
        self._questions, ask = os.pipe()
        hear, self._answers = os.pipe()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, self.columns, 0, 0))
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=end,
            stdout=end,
            stderr=end,
            cwd=self.folder,
            env={**self._environment(), LOOKED: f"{ask} {hear}"},
            pass_fds=(ask, hear),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        for descriptor in (end, ask, hear):
            os.close(descriptor)
        try:
            return self._watch(process, act)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for descriptor in (self._main, self._questions, self._answers):
                os.close(descriptor)

    def _environment(self) -> dict[str, str]:
        dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "ELMWRIGHT_DEBUG")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, "TERM": "xterm-256color", **self.environment}

    def _watch(
        self, process: "subprocess.Popen[bytes]", act: "Callable[[Terminal, str], None]"
    ) -> Seen:
        screen = _Screen(self.columns, HEIGHT)
        stream = pyte.ByteStream(screen)
        frames: list[str] = []
        output = b""
        began = time.monotonic()
        open_, drawn = True, True
        questions = [self._questions]
        while open_:
            assert time.monotonic() - began < self.timeout, "\n".join(screen.display)
            watched = [self._main, *questions] if drawn else [self._main]
            ready, _, _ = select.select(watched, [], [], 1.0 if drawn else PAUSE)
            if self._main in ready:
                try:
                    data = os.read(self._main, 1 << 16)
                except OSError:  # the last one who had it open has gone
                    data = b""
                open_ = bool(data)
                output += data
                stream.feed(data)
                drawn = False
                if open_:
                    continue
            elif ready:  # everything written before the question was drawn
                asked = os.read(self._questions, 1)
                if asked:
                    os.write(self._answers, asked)
                else:  # nobody is left to ask
                    questions = []
            if not drawn:
                drawn = True
                frame = _text(screen)
                if frame and (not frames or frame != frames[-1]):
                    frames.append(frame)
                    act(self, frame)
        code = process.wait(timeout=30)
        seconds = time.monotonic() - began
        return Seen(code, frames, screen.broken, output.decode(errors="replace"), seconds)


def _text(screen: pyte.Screen) -> str:
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


def script(text: str, *arguments: object) -> list[object]:
    """A command that runs a piece of Python."""
    return [sys.executable, "-c", text, *arguments]
