"""The average of the weights, against one that moves every row after every update."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from elmwright.model.average import DENSE, ROWS, Average, averaged, share_left
from elmwright.model.bilm import BiLM
from elmwright.model.formats.folder import model_tensors
from elmwright.model.softmax import Softmax
from tests.support.shapes import TINY

V = 12
TOUCHED = st.lists(st.sets(st.integers(0, V - 1), max_size=V), min_size=1, max_size=30)
"""The rows that each update touches."""


class Training:
    """Random updates of the weights of a tiny model, and their average."""

    def __init__(self, horizon: int) -> None:
        self.bilm = BiLM(TINY, 1)
        self.softmax = Softmax.create(V, TINY.projection_dim, 2)
        self.average = Average(self.bilm, self.softmax, horizon)

    def step(self, touched: set[int]) -> None:
        """An update whose size depends only on its number."""
        draw = torch.Generator().manual_seed(self.average.updates)
        rows = torch.tensor(sorted(touched), dtype=torch.int64)
        before = self.softmax.table(rows)
        with torch.no_grad():
            for value in self.bilm.parameters():
                value.add_(torch.randn(value.shape, generator=draw))
            for value in self.softmax.state().values():
                shape = (len(rows), *value.shape[1:])
                value.index_add_(0, rows, torch.randn(shape, generator=draw))
        self.average.update(rows, before)

    def weights(self) -> dict[str, torch.Tensor]:
        tensors = {**model_tensors(self.bilm), **self.softmax.state()}
        return {name: tensor.double() for name, tensor in tensors.items()}

    def averages(self) -> dict[str, torch.Tensor]:
        return {**model_tensors(self.average.bilm), **self.average.current_softmax().state()}

    def restart(self) -> "Training":
        """Another process with the weights and the state of the average, nothing else."""
        other = Training(self.average.horizon)
        for mine, its in zip(self.bilm.parameters(), other.bilm.parameters(), strict=True):
            its.detach().copy_(mine.detach())
        other.softmax.load(self.softmax.state())
        other.average.load(self.average.state())
        return other


def plain_loop(training: Training, updates: list[set[int]]) -> dict[str, torch.Tensor]:
    """Make the updates, and move the average of everything after each, in float64."""
    expected = training.weights()
    for number, touched in enumerate(updates, 1):
        training.step(touched)
        for name, value in training.weights().items():
            expected[name] += (value - expected[name]) / min(number, training.average.horizon)
    return expected


@settings(max_examples=60, deadline=None)
@given(updates=TOUCHED, horizon=st.integers(1, 12))
def test_it_is_the_average_of_every_row_after_every_update(
    updates: list[set[int]], horizon: int
) -> None:
    training = Training(horizon)
    expected = plain_loop(training, updates)
    for name, value in training.averages().items():
        torch.testing.assert_close(value.double(), expected[name], atol=1e-5, rtol=1e-5)


def test_up_to_the_horizon_it_is_the_mean_of_all_weights() -> None:
    training, sums = Training(8), {}
    for number in range(8):
        training.step({number % 3, 5})
        for name, value in training.weights().items():
            sums[name] = sums.get(name, 0) + value
    for name, value in training.averages().items():
        torch.testing.assert_close(value.double(), sums[name] / 8, atol=1e-5, rtol=1e-5)


def test_it_is_ready_after_as_many_updates_as_its_horizon() -> None:
    training = Training(3)
    ready = []
    for _ in range(4):
        training.step({1})
        ready.append(training.average.is_ready)
    assert ready == [False, False, True, True]


@settings(max_examples=30, deadline=None)
@given(updates=TOUCHED, stops=st.sets(st.integers(0, 29)), horizon=st.integers(1, 12))
def test_a_restart_after_any_update_changes_no_bit(
    updates: list[set[int]], stops: set[int], horizon: int
) -> None:
    whole, parts = Training(horizon), Training(horizon)
    for number, touched in enumerate(updates):
        whole.step(touched)
        parts.step(touched)
        if number in stops:
            parts = parts.restart()
    check_same(whole, parts)


@settings(max_examples=30, deadline=None)
@given(updates=TOUCHED, looks=st.sets(st.integers(0, 29)))
def test_looking_at_it_changes_no_bit(updates: list[set[int]], looks: set[int]) -> None:
    alone, watched = Training(5), Training(5)
    for number, touched in enumerate(updates):
        alone.step(touched)
        watched.step(touched)
        if number in looks:
            watched.average.current_softmax().weight.zero_()
    check_same(alone, watched)


def check_same(one: Training, other: Training) -> None:
    for part, tensors in one.average.state().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other.average.state()[part][name]), name
    assert one.average.updates == other.average.updates


def test_a_reader_computes_the_same_average_from_the_files(tmp_path) -> None:
    training = Training(4)
    for touched in ({1, 2}, {3}, {2, 11}, set(), {0}, {1}, {5}):
        training.step(touched)
    for part, tensors in training.average.state().items():
        save_file(tensors, tmp_path / f"{part}.safetensors")
    found = averaged(training.softmax, load_file(tmp_path / f"{ROWS}.safetensors"))
    expected = training.average.current_softmax()
    assert torch.equal(found.weight, expected.weight)
    assert torch.equal(found.bias, expected.bias)
    assert (
        load_file(tmp_path / f"{DENSE}.safetensors").keys() == model_tensors(training.bilm).keys()
    )


@pytest.mark.parametrize("horizon", [1, 2, 7, 1000])
def test_what_is_left_is_the_product_over_the_updates_in_between(horizon: int) -> None:
    since = torch.arange(41, dtype=torch.int32)
    expected = torch.ones(41, dtype=torch.float64)
    for number in range(41):
        for update in range(number + 1, 41):
            expected[number] *= 1 - 1 / min(update, horizon)
    torch.testing.assert_close(share_left(since, 40, horizon), expected, rtol=1e-12, atol=0)


def test_a_row_that_is_never_touched_is_its_own_average() -> None:
    training = Training(3)
    for _ in range(5):
        training.step({1})
    current = training.average.current_softmax()
    assert torch.equal(current.weight[2:], training.softmax.weight[2:])
    assert not torch.equal(current.weight[1], training.softmax.weight[1])
