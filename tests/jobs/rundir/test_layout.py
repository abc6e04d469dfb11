"""The paths of a run."""

import copy
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from elmwright.jobs.rundir.layout import RunFolder


def test_paths_of_a_run_cannot_be_changed() -> None:
    run = RunFolder("/runs/x", Path("/scratch"))
    with pytest.raises(FrozenInstanceError):
        run.root = "/runs/y"  # type: ignore[misc]
    assert copy.copy(run) == run  # which is how pickle copies it to Ray's workers
    assert len({run, RunFolder("/runs/x", Path("/scratch")), RunFolder("/runs/y", Path())}) == 2
    assert "/runs/x" in repr(run)
