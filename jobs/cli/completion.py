"""Completion in a shell: commands and options, recipes, runs, files.

argcomplete (the optional extra `completion`) calls the program itself on every Tab, so what is
offered here must be known within a fraction of a second: names from folders, nothing from models.
"""

import argparse
from collections.abc import Callable
from typing import Any

Complete = Callable[..., list[str]]


def offer_completions(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and exit, if the shell called; argcomplete knows."""
    try:
        import argcomplete
    except ImportError:  # the shell still has the completion, but the package was removed
        return
    argcomplete.autocomplete(parser)


def recipes(prefix: str, **_parsed: Any) -> list[str]:
    """Names of shipped recipes."""
    from elmwright.jobs.config.toml_file import recipe_names

    return _starting(prefix, recipe_names())


def configs(prefix: str, **_parsed: Any) -> list[str]:
    """Recipes and config files."""
    return recipes(prefix) + files(prefix)


def runs(prefix: str, **_parsed: Any) -> list[str]:
    """Names of runs, here and submitted, and files and folders."""
    from elmwright.jobs.runbook.find_run import run_names

    return _starting(prefix, run_names()) + files(prefix)


def files(prefix: str) -> list[str]:
    """Files and folders that begin with `prefix`; a folder ends in a slash."""
    from argcomplete.completers import FilesCompleter

    start = prefix.rpartition("/")[2]
    names = {path: path.rstrip("/").rpartition("/")[2] for path in FilesCompleter()(prefix)}
    return sorted(
        path
        for path, name in names.items()
        if name not in (".", "..") and (start or not name.startswith("."))
    )


def _starting(prefix: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(prefix)]
