"""Every page that has commands for a finished demo is followed from top to bottom by a real shell.

The recipe `demo` is a tiny one here (conftest.py); the lines of the pages are not changed.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import clone
from tests.support.docs.blocks import PAGES, Block, all_blocks, blocks_of
from tests.support.docs.shell import Shell, is_free
from tests.support.docs.texts import write_texts

pytestmark = pytest.mark.slow(138)

HERE = ("sh demo", "sh serve", "python demo")
PRINTED = {
    "README.md": [r"@candidate", r"\(3, 4, 16\)"],
    "docs/corpus.md": [r"\n\['\w+', "],
    "docs/publishing.md": [r"\n *1 [^\n]*@champion"],
    "docs/training.md": [
        r"\n +40 [^\n]*step-00000040\n",
        r"ok: steps 31 to 40 of [^\n]*bit for bit",
        r"perplexity +\d",
    ],
    "docs/using.md": [r"\(3, 4, 16\)", r'"predictions": \[\[\[\['],
}
"""What must be printed, in this order, where an exit code alone says little."""


@pytest.fixture
def user(demo: Shell) -> Iterator[Shell]:
    yield demo
    demo.close()


TYPED = [page for page in PAGES if any(block.kind in HERE for block in blocks_of(page))]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[] if p == "README.md" else [pytest.mark.heavy]) for p in TYPED],
)
def test_a_page_can_be_followed_line_by_line(page: str, user: Shell) -> None:
    printed = ""
    for block in blocks_of(page):
        if block.kind == "sh demo":
            printed += user.run(block.code, str(block))
        elif block.kind == "python demo":
            printed += user.python(block.code, str(block))
        elif block.kind == "sh serve":
            for port in re.findall(r"(?:-p|--port) (\d+)", block.code):
                if not is_free(int(port)):
                    pytest.skip(f"port {port}, which the page uses, is taken on this machine")
            user.serve(block.code, str(block))
    assert re.search(".*".join(PRINTED.get(page, [])), printed, re.DOTALL), printed


@pytest.mark.timeout(900)
def test_ones_own_text_becomes_vectors(tmp_path: Path) -> None:
    """The README's way with nothing but text files; so little text takes no hour."""
    folder = tmp_path / "project"
    folder.mkdir()
    write_texts(folder / "text")
    user = Shell(folder, home=tmp_path)
    for block in blocks_of("README.md"):
        if "my.toml" in block.code and block.kind in ("sh demo", "sh long"):
            user.run(block.code, str(block), timeout=800)
    user.run("echo 'The old cat' | elmwright embed runs/my/bundle - -o cat.hdf5", "embedding")
    assert (folder / "cat.hdf5").is_file()


@pytest.mark.parametrize("block", all_blocks("sh clone"), ids=str)
def test_what_is_typed_in_a_fresh_clone_works(block: Block, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    output = Shell(clone(tmp_path / "clone"), home=tmp_path).run(block.code, str(block))
    assert re.search(r"^elmwright \d", output, re.MULTILINE)
