"""The commit of a checkout."""

import subprocess
from pathlib import Path

from elmwright.jobs.environment.checkout import Commit, checkout, commit_of, git_state
from tests.support.places import ROOT


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_these_tests_run_from_this_checkout() -> None:
    assert checkout() == ROOT


def test_git_state_is_the_commit_and_whether_files_differ(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == commit
    assert commit_of(git_state(tmp_path)) == Commit(commit, dirty=False)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "new.py").touch()
    assert git_state(tmp_path) == f"{commit}+changes"
    assert commit_of(git_state(tmp_path)) == Commit(commit, dirty=True)


def test_a_copy_inside_another_repository_is_not_at_its_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "somebody else's")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "pyproject.toml").touch()
    assert git_state(copy) == git_state(None) == ""
    assert commit_of("") is None
