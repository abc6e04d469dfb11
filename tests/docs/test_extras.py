"""The blocks of the pages that need spaCy or flair."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs.blocks import Block, all_blocks
from tests.support.guests.extras import extra
from tests.support.random_model import write_random_model


@pytest.mark.slow(30)
@pytest.mark.parametrize("block", all_blocks("python extra"), ids=str)
def test_what_a_page_shows_of_an_extra_works(block: Block, tmp_path: Path) -> None:
    extra("spacy" if "import spacy" in block.code else "flair")
    write_random_model(tmp_path / "runs" / "demo" / "bundle")
    done = subprocess.run(
        [sys.executable, "-c", block.code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
