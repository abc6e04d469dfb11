"""The picture of the terminal: what a command really wrote, whole without a network."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.support.places import DOCS

pytest.importorskip("pyte")

SCRIPT = DOCS / "make_terminal_svg.py"
COMMAND = """
import os, sys, time
print("corpus \\x1b[32mdone\\x1b[0m, \\x1b[2mquiet\\x1b[0m, \\x1b[38;2;1;2;3mown\\x1b[0m")
assert os.get_terminal_size().columns == 80
for step in (0, 25, 60, 95):
    print(f"\\r\\x1b[2Ktrain {step}/100 steps", end="", flush=True)
    time.sleep(0.2)
print("\\r\\x1b[2Ktrain done\\nall " + sys.argv[1])
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_terminal_svg", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)  # noqa: S314 - ours
    found = (node.text for node in root.iter("{http://www.w3.org/2000/svg}text"))
    return [text.replace("\xa0", " ") for text in found if text]


def test_the_picture_shows_training_and_the_end_and_loads_nothing(
    script: ModuleType, tmp_path: Path
) -> None:
    target = tmp_path / "terminal.svg"
    (tmp_path / "run.py").write_text(COMMAND)
    script.main(
        ["-o", str(target), "--folder", str(tmp_path), "python", "run.py", "<made> & ready", "0"]
    )
    svg = target.read_text(encoding="utf-8")
    shown = texts(svg)
    assert "train 60/100 steps" in shown
    assert "train 95/100 steps" not in shown
    assert shown.index("train 60/100 steps") < shown.index("train done")
    assert "all <made> & ready" in shown
    assert sum("corpus" in text for text in shown) == 1  # not again in the second part
    rest = svg.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?i)https?:|@font-face|@import|<script|href", rest)
    assert set(re.findall(r"url\((.)", rest)) <= {"#"}


def test_colours_are_those_of_the_terminal(script: ModuleType, tmp_path: Path) -> None:
    middle, _ = script.record([sys.executable, "-c", COMMAND, "", "0"], tmp_path)
    (line,) = (line for line in middle.lines if line.plain.startswith("corpus"))
    found = {
        line.plain[span.start : span.end]: span.style.color.name
        for span in line.spans
        if span.style.color
    }
    assert found == {"done": "green", "quiet": "bright_black", "own": "#010203"}


def test_a_command_that_fails_makes_no_picture(script: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "terminal.svg"
    with pytest.raises(SystemExit, match="exit code 3"):
        script.main(["-o", str(target), "--", sys.executable, "-c", COMMAND, "bad", "3"])
    assert not target.exists()
