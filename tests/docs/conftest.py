"""A finished run called `demo`, small enough for a test, in a folder that a user could be in."""

import shutil
import sys
from pathlib import Path

import pytest

from elmwright.jobs.config.toml_file import RECIPES
from tests.support.docs.shell import Shell
from tests.support.docs.texts import write_texts
from tests.support.tiny import write_config

COMMAND = """\
#!{python}
import sys
from pathlib import Path

from elmwright.jobs.config import toml_file as config_file

config_file.RECIPES = Path({recipes!r})

from elmwright.jobs.cli.command import main

sys.exit(main())
"""


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `elmwright` command; the one difference is the size of its recipe `demo`.

    So no line of a page has to be changed to be run in a test.
    """
    home = tmp_path_factory.mktemp("command")
    recipes = home / "recipes"
    shutil.copytree(RECIPES, recipes)
    config = write_config(
        home,
        Path("text"),
        run_name="demo",
        run_dir="runs/{name}",
        train_processes=1,
        train_max_steps=40,
        eval_every_steps=20,
        checkpoint_every_steps=10,
        cluster_cpus=1,
    )
    config.replace(recipes / "demo.toml")
    script = home / "bin" / "elmwright"
    script.parent.mkdir()
    script.write_text(COMMAND.format(python=sys.executable, recipes=str(recipes)))
    script.chmod(0o755)
    return script.parent


@pytest.fixture(scope="session")
def finished_demo(command: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after `elmwright run demo`, and beside it a copy that nobody works in."""
    folder = tmp_path_factory.mktemp("user") / "project"
    folder.mkdir()
    write_texts(folder / "text")
    Shell(folder, home=folder.parent, first=command).run("elmwright run demo", "the demo")
    shutil.copytree(folder, folder.with_name("untouched"), symlinks=True)
    return folder


@pytest.fixture
def demo(finished_demo: Path, command: Path, tmp_path: Path) -> Shell:
    """A shell in the folder of a fresh demo: what a test before this one did is undone."""
    shutil.rmtree(finished_demo)
    shutil.copytree(finished_demo.with_name("untouched"), finished_demo, symlinks=True)
    return Shell(finished_demo, home=tmp_path, first=command)
