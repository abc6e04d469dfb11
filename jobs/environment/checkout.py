"""The checkout that this code runs from, if it runs from one, and the commit it is at."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from elmwright import jobs

GIT_SECONDS = 30
"""How long git may take to answer."""


@dataclass(frozen=True)
class GitState:
    """The state of a repository."""

    commit: str
    is_dirty: bool
    """Whether files differ from the commit, or are unknown to it."""


def checkout() -> Path | None:
    """The root of the repository, or None for an installed package."""
    root = Path(str(jobs.__file__)).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / "jobs").is_dir() else None


def git_state() -> GitState | None:
    """The commit of the checkout; None without one, or if git does not know its files."""
    root = checkout()
    if root is None:
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True, text=True, check=True, timeout=GIT_SECONDS,
        ).stdout.strip()  # fmt: skip

    try:
        # Only what belongs to the repository counts: another one may hold this folder.
        if not git("ls-files", "--", "pyproject.toml"):
            return None
        return GitState(git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", ".")))
    except (OSError, subprocess.SubprocessError):
        return None
