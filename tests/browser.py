"""Opens a page in a headless Chromium, without any driver: what it is, how wide, what it says.

Chromium prints the page's DOM and, on its error stream, what the page's console got. Questions
about the layout are answered by a script that is put into a copy of the page, whose policy is
loosened for it. The copy is shown in a frame, because a window is never narrower than 500 pixels,
and leaves its answer in the title of the page around the frame.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars"
).split()


def console(page: Path, home: Path) -> list[str]:
    """What a page writes to the console when it is opened: refused resources, errors."""
    _, errors = _open(page, home, 1280, dark=False)
    return [line for line in errors.splitlines() if "CONSOLE" in line]


def ask(page: Path, home: Path, script: str, *, width: int, dark: bool = False) -> Any:
    """The JSON value of a script's expression in a copy of the page, `width` pixels wide."""
    text = page.read_text(encoding="utf-8")
    answer = f"top.document.title = 'answer ' + JSON.stringify({script})"
    loosened = text.replace("default-src 'none'", "script-src 'unsafe-inline'", 1)
    home.mkdir(exist_ok=True)
    copy = home / "asked.html"
    inner = html.escape(f"{loosened}<script>{answer}</script>")
    frame = f'<iframe srcdoc="{inner}" style="width: {width}px; height: 900px; border: 0">'
    scheme = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    copy.write_text(f"<title>none</title>{scheme}{frame}</iframe>", encoding="utf-8")
    dom, errors = _open(copy, home, width + 100, dark=dark)
    found = re.search("<title>answer (.*?)</title>", dom, re.DOTALL)
    assert found, f"the page gave no answer: {errors}"
    return json.loads(html.unescape(found[1]))


def _open(page: Path, home: Path, width: int, *, dark: bool) -> tuple[str, str]:
    assert CHROMIUM
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *scheme, "--enable-logging=stderr",
         f"--user-data-dir={home / 'profile'}", f"--window-size={width},900",
         "--virtual-time-budget=1000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
