"""Records a run of the demo on a terminal of 80 columns, as text.

    python -m tests.terminal.record            # writes tests/terminal/frames/demo-80.txt

The run is made in a temporary folder. Of frames that differ only in their numbers the first is
kept. A recording is only written if the run ended well and nothing was too wide.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from tests.support.terminal.screen import Seen, Terminal

FRAMES = Path(__file__).parent / "frames" / "demo-80.txt"
COLUMNS = 80
RULE = "=" * COLUMNS


def main() -> int:
    """Record, thin out and write; 1 if there is something wrong with what was seen."""
    bin_folder = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        terminal = Terminal(COLUMNS, {"PATH": path}, Path(folder), timeout=7200)
        seen = terminal.run([bin_folder / "elmwright", "run", "demo"], _follow)
        text = f"\n{RULE}\n".join(thinned(seen.frames)).replace(folder, "~/elmwright") + "\n"
    problems = wrong_with(seen)
    if problems:
        print(f"{seen.last}\n\nnot recorded: {'; '.join(problems)}", file=sys.stderr)
        return 1
    FRAMES.parent.mkdir(exist_ok=True)
    FRAMES.write_text(text, encoding="utf-8")
    print(f"recorded {len(seen.frames)} frames, {seen.seconds:.0f} s, in {FRAMES}")
    return 0


def _follow(_terminal: Terminal, frame: str) -> None:
    print(frame.rpartition("\n")[2], flush=True)


def thinned(frames: list[str]) -> list[str]:
    """Without frames that differ from the one before in numbers and bars only."""
    kept: list[str] = []
    before = ""
    for frame in frames:
        shape = re.sub(r"\d[\d.,]*( h| min)?|[━─]+", "#", frame)
        shape = re.sub(r"(# ?)+", "#", shape)
        if shape != before:
            kept.append(frame)
        before = shape
    if frames and kept[-1] != frames[-1]:
        kept.append(frames[-1])
    return kept


def wrong_with(seen: Seen) -> list[str]:
    """What a recording must not show."""
    problems = []
    if seen.code:
        problems.append(f"exit code {seen.code}")
    if seen.broken:
        problems.append(f"lines that do not fit: {seen.broken[:3]}")
    if "Traceback" in seen.everything:
        problems.append("a traceback")
    return problems


if __name__ == "__main__":
    sys.exit(main())
