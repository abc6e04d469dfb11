"""Which kernels a run computes with, and what it says when it cannot have those of its start."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints, read_state
from elmwright.jobs.training.loop import kernel_choice
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.kernel_choice import settle_kernels
from elmwright.jobs.training.loop.state import Trainer
from elmwright.jobs.training.loop.train import train
from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.model.kernels.native import kernel_name, native, use_kernels
from tests.support.tiny_runs.training import prepare

pytestmark = pytest.mark.slow(6)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Tests choose kernels for the whole process."""
    with use_kernels(kernel_name()):
        yield


def settled(kernels: str, step: int = 3, device: str = "cpu") -> Trainer:
    nothing: Any = None
    trainer = Trainer(nothing, nothing, nothing, nothing)
    trainer.progress = replace(trainer.progress, step=step, kernels=kernels, device=device)
    settle_kernels(trainer, Ranks())
    return trainer


@pytest.mark.skipif(native() is None, reason="there is no C compiler here")
def test_a_run_keeps_the_kernels_of_its_checkpoint() -> None:
    assert settled(TORCH).warnings == []
    assert kernel_name() == TORCH
    assert settled(NATIVE).warnings == []
    assert kernel_name() == NATIVE
    assert settled("").warnings == [], "of an early version: restore has said so already"
    assert kernel_name() == NATIVE


@pytest.mark.skipif(native() is None, reason="there is no C compiler here")
def test_a_run_that_comes_from_a_gpu_uses_those_of_the_machine() -> None:
    assert settled(TORCH, device="cuda").warnings == []
    assert kernel_name() == NATIVE


def test_a_machine_without_them_continues_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "why_not_native", lambda: "there is no C compiler")
    (warning,) = settled(NATIVE).warnings
    assert "(there is no C compiler): training continues with torch, but not bit for bit" in warning
    assert kernel_name() == TORCH


def test_a_run_that_begins_there_says_that_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "why_not_native", lambda: "there is no C compiler")
    (warning,) = settled("", step=0).warnings
    assert warning == "training is slower without the kernels in C (there is no C compiler)"
    assert kernel_name() == TORCH


def test_kernels_of_another_version_are_named() -> None:
    (warning,) = settled("c-999").warnings
    assert "the kernels c-999, which this version" in warning


def test_a_checkpoint_names_its_kernels(corpus: Path, tmp_path: Path) -> None:
    config, run = prepare(tmp_path, corpus, train_max_steps=2, eval_every_steps=0)
    train(config, run, begin_attempt(run.attempt), Ranks())
    (checkpoint,) = list_checkpoints(run.checkpoints)
    assert read_state(checkpoint.path).kernels == kernel_name()
