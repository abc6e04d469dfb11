"""A finished run called `demo`, small enough for a test, in a folder that a user could be in."""

import shutil
from pathlib import Path

import pytest

from tests.docs.shell import Shell
from tests.docs.texts import write_texts
from tests.jobs.tiny import write_config


@pytest.fixture(scope="session")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after `elmwright run demo`; tests get a copy.

    The config is a file called `demo`, which is found before the recipe of that name, so that no
    command of a page has to be changed.
    """
    home = tmp_path_factory.mktemp("user")
    write_texts(home / "text")
    config = write_config(
        home, Path("text"), run_name="demo", run_dir="runs/{name}", train_processes=1,
        train_max_steps=40, eval_every_steps=20, checkpoint_every_steps=10, cluster_cpus=1,
    )  # fmt: skip
    config.rename(home / "demo")
    Shell(home).run("elmwright run demo", "the demo")
    return home


@pytest.fixture
def demo(finished_demo: Path, tmp_path: Path) -> Shell:
    """A shell in the folder of a fresh demo: what a test before this one did is undone."""
    pristine = finished_demo.with_name("pristine")
    if not pristine.exists():
        shutil.copytree(finished_demo, pristine, symlinks=True)
    shutil.rmtree(finished_demo)
    shutil.copytree(pristine, finished_demo, symlinks=True)
    return Shell(finished_demo, home=tmp_path)
