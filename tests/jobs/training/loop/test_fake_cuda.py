"""Is every tensor of a step and of an evaluation on the right device? Asked without a GPU.

torch's FakeTensorMode pretends: tensors have a device, a shape and a type, but no values. An
operation whose arguments are on different devices is an error there, as it is on a GPU. Only the
CUDA build of torch can pretend CUDA tensors: `make gpu-test` installs it in an environment of its
own.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.planning.measuring import Rehearsal, documentation
from elmwright.jobs.training.loop import training_step
from elmwright.jobs.training.loop.input.step_input import StepInput
from elmwright.jobs.training.loop.training_step import StepResult, make_step
from elmwright.model.bilm import BiLM, States
from elmwright.model.softmax import nll

REQUIRED = os.environ.get("ELMWRIGHT_CUDA") == "required"
CUDA = torch.device("cuda")
TINY = ("model.dim=32", "model.projection_dim=16", "train.lanes=6", "train.negatives=64")
pytestmark = pytest.mark.skipif(
    torch.version.cuda is None and not REQUIRED, reason="this torch has no CUDA; make gpu-test"
)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Pretended CUDA tensors; values that are read from the device are 0, and are listed."""
    read: list[str] = []

    def pretend(tensor: Tensor) -> Any:
        read.append(str(tensor.device))
        return np.zeros(tensor.shape).tolist()

    def move(bilm: BiLM, device: torch.device) -> BiLM:
        for module in bilm.modules():  # `Module.to` swaps tensors, which pretended ones refuse
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(device)))
        return bilm

    monkeypatch.setattr(FakeTensor, "tolist", pretend)
    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setattr(BiLM, "to", move)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield read


def backward(loss: Tensor) -> None:
    """`Tensor.backward` without torch's engine, which wants a GPU for the threads of its device.

    Nodes of the graph are called in falling order of their numbers, that is, after all that lead to
    them, each with the sum of its gradients."""
    waiting: dict[Any, list[Tensor | None]] = {loss.grad_fn: [torch.ones_like(loss)]}
    while waiting:
        node = max(waiting, key=lambda node: (node._sequence_nr(), id(node)))
        grads = waiting.pop(node)
        if hasattr(node, "variable"):
            leaf, (grad,) = node.variable, grads
            assert grad is not None
            assert grad.device == leaf.device
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad
            continue
        grads.extend([None] * (len(node._input_metadata) - len(grads)))
        call = node.apply if hasattr(node, "apply") else node  # those written in Python have apply
        with torch.no_grad():
            results = call(*grads)
        results = results if isinstance(results, tuple) else (results,)
        for (following, place), grad in zip(node.next_functions, results, strict=False):
            if following is None or grad is None:
                continue
            slots = waiting.setdefault(following, [])
            slots.extend([None] * (place + 1 - len(slots)))
            before = slots[place]
            slots[place] = grad if before is None else before + grad


def configured(*settings: str) -> RunConfig:
    config = load_config("original", [*TINY, *settings])
    return replace(config, train=replace(config.train, processes=1))


def prepared(config: RunConfig) -> StepInput:
    """What a step computes with, in main memory, with values."""
    return Rehearsal(config, documentation(), 500).input(0)


@pytest.fixture(
    params=[
        (),
        ("optim.name='adamw'", "optim.weight_decay=0.1", "train.average_steps=1"),
        ("train.precision='bf16'", "train.accumulate=2", "optim.name='adamw'"),
        ("train.negatives=5000", "train.reset_states='never'", "train.dropout=0"),
    ],
    ids=["adagrad", "adamw and average", "bf16 and accumulation", "full softmax"],
)
def case(request: pytest.FixtureRequest) -> tuple[RunConfig, StepInput]:
    config = configured(*request.param)
    return config, prepared(config)


def step(case: tuple[RunConfig, StepInput]) -> tuple[Rehearsal, StepResult]:
    config, given = case
    rehearsal = Rehearsal(config, ["a b c ."], 500, CUDA)
    return rehearsal, make_step(rehearsal.process, given, wants_stop=False)


def test_all_tensors_of_a_step_are_on_the_device(
    case: tuple[RunConfig, StepInput], pretended: list[str]
) -> None:
    rehearsal, result = step(case)
    trainer = rehearsal.process.trainer
    assert result.updated
    assert trainer.step == 1
    tensors = [*trainer.bilm.parameters(), *trainer.softmax.state().values(), trainer.states.c]
    optimiser = trainer.optimizer.state_dict()
    tensors += [value for name, value in optimiser.items() if name != "steps"]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}


def test_values_are_read_from_the_device_once(
    case: tuple[RunConfig, StepInput], pretended: list[str]
) -> None:
    step(case)
    assert [device.partition(":")[0] for device in pretended] == ["cuda"]


def test_an_evaluation_is_on_the_device(pretended: list[str]) -> None:
    config = configured()
    trainer = Rehearsal(config, ["a b c ."], 500, CUDA).process.trainer
    chars = trainer.bilm.encoder.ids(["a", "word"]).to(CUDA)
    index = torch.zeros(3, 5, dtype=torch.int64, device=CUDA)
    resets = torch.zeros(3, 5, dtype=torch.bool, device=CUDA)
    lengths = torch.zeros(3, dtype=torch.int64, device=CUDA)
    with torch.no_grad():
        types = trainer.bilm.encoder(chars)
        states = States.zeros(config.model, 3, CUDA)
        output = trainer.bilm.run(types, index, index, states, resets=resets)
        output = trainer.bilm.run(types, index, index, output.states, lengths=lengths)
        hidden = output.top_forward.reshape(15, -1)
        losses = nll(hidden, index.reshape(-1), trainer.softmax.weight, trainer.softmax.bias)
    assert losses.device.type == "cuda"
    assert losses.shape == (15,)


def test_a_tensor_on_the_wrong_device_is_found(
    case: tuple[RunConfig, StepInput], pretended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training_step.sampled_loss
    full = training_step.full_table_loss

    def misplaced(hidden: Tensor, targets: Tensor, *rest: Any) -> Tensor:
        return real(hidden, targets.cpu(), *rest)

    def misplaced_full(hidden: Tensor, targets: Tensor, *rest: Any) -> Tensor:
        return full(hidden, targets.cpu(), *rest)

    monkeypatch.setattr(training_step, "sampled_loss", misplaced)
    monkeypatch.setattr(training_step, "full_table_loss", misplaced_full)
    with pytest.raises(RuntimeError, match="device"):
        step(case)
