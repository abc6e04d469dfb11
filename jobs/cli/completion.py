"""Completion in a shell: commands and options, recipes, runs, files.

argcomplete (the optional extra `completion`) calls the program itself on every Tab, so what is
offered here must be known within a fraction of a second: names from folders, nothing from models.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Complete = Callable[..., list[str]]


def offer(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end, if it was the shell that called; argcomplete knows."""
    try:
        import argcomplete
    except ImportError:  # the shell was told to ask, and then the package was removed
        return
    argcomplete.autocomplete(parser)


def completes(action: argparse.Action, complete: Complete) -> None:
    """Let an argument be completed by a function."""
    action.completer = complete  # type: ignore[attr-defined]


def recipes(prefix: str, **_parsed: Any) -> list[str]:
    """Names of shipped recipes."""
    from elmwright.jobs.config.toml_file import RECIPES

    return _starting(prefix, sorted(path.stem for path in RECIPES.glob("*.toml")))


def configs(prefix: str, **_parsed: Any) -> list[str]:
    """Recipes and config files."""
    return recipes(prefix) + files(prefix)


def runs(prefix: str, **_parsed: Any) -> list[str]:
    """Names of runs, here and submitted, and files and folders."""
    from elmwright.jobs.runbook.find_run import run_names

    return _starting(prefix, run_names()) + files(prefix)


def files(prefix: str) -> list[str]:
    """Files and folders that begin so; a folder ends in a slash."""
    folder, _, start = prefix.rpartition("/")
    home = Path(folder or ("/" if prefix.startswith("/") else "."))
    if not home.is_dir():
        return []
    lead = prefix[: len(prefix) - len(start)]
    return sorted(
        f"{lead}{path.name}{'/' if path.is_dir() else ''}"
        for path in home.iterdir()
        if path.name.startswith(start) and (start or not path.name.startswith("."))
    )


def _starting(prefix: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(prefix)]
