"""The checkout that this code runs from: its folder, its pyproject, its commit.

Installed code, and code that was sent to a cluster, has none.
"""

import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elmwright.jobs


def checkout() -> Path | None:
    """The folder with pyproject.toml beside jobs/; None if the package is installed."""
    folder = Path(elmwright.jobs.__path__[0]).resolve().parent
    return folder if (folder / "pyproject.toml").is_file() else None


def read_pyproject(folder: Path) -> dict[str, Any]:
    """pyproject.toml of a checkout, parsed."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def git_state(folder: Path | None) -> str:
    """The commit of a checkout, followed by "+changes" if files differ from it.

    Empty without a checkout or without git.
    """
    if folder is None:
        return ""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "HEAD")
        # A copy of the files inside another repository is not at that repository's commit.
        if not commit or not git("ls-files", "--", "pyproject.toml"):
            return ""
        return commit + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


@dataclass(frozen=True)
class Commit:
    """The commit that code comes from, and whether files differ from it."""

    commit: str
    dirty: bool


def commit_of(state: str) -> Commit | None:
    """The commit in a string of git_state; None if that is empty."""
    commit, changes, _ = state.partition("+changes")
    return Commit(commit, dirty=bool(changes)) if commit else None
