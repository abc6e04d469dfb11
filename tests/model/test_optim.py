"""Row-sparse updates against torch's dense optimisers."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from elmwright.model import optim as module
from elmwright.model.config import OptimConfig
from elmwright.model.optim import Optimizer, global_norm
from elmwright.model.softmax import Softmax

V, P = 40, 5


def setup(settings):
    generator = torch.Generator().manual_seed(0)
    dense = {
        "a": nn.Parameter(torch.randn(4, 3, generator=generator)),
        "b": nn.Parameter(torch.randn(7, generator=generator)),
    }
    softmax = Softmax.create(V, P, 0)
    return dense, softmax, Optimizer(dense, softmax, settings)


def twin(dense, softmax):
    """The same values as parameters of a torch optimiser."""
    values = [*dense.values(), softmax.weight, softmax.bias]
    return [nn.Parameter(v.detach().clone()) for v in values]


def as_table(gradients):
    """Gradients of rows, that of the bias in the last column, in the order of a table."""
    return torch.cat([gradients[:, :-1].reshape(-1), gradients[:, -1]])


def train(settings, theirs, steps, touch):
    """The same gradients, clipped to norm 1, into ours (row-sparse) and torch's (dense)."""
    dense, softmax, ours = setup(settings)
    copies = twin(dense, softmax)
    reference = theirs(copies)
    generator = torch.Generator().manual_seed(1)
    clipped = 0
    for _ in range(steps):
        rows = torch.randperm(V, generator=generator)[: touch(generator)].sort().values
        table_grad = torch.randn(len(rows), P + 1, generator=generator) * 0.1
        for parameter, copy in zip(dense.values(), copies, strict=False):
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.1
            copy.grad = parameter.grad.clone()
        copies[2].grad = torch.zeros(V, P).index_copy(0, rows, table_grad[:, :-1])
        copies[3].grad = torch.zeros(V).index_copy(0, rows, table_grad[:, -1])

        norm = float(global_norm([p.grad for p in dense.values()], table_grad))
        theirs_norm = nn.utils.clip_grad_norm_(copies, 1.0)
        assert norm == pytest.approx(theirs_norm.item(), rel=1e-5)
        clipped += norm > 1
        ours.step(0.2, min(1.0, 1.0 / norm), rows, as_table(table_grad))
        reference.step()
    assert 0 < clipped < steps or clipped == steps
    got = [*dense.values(), softmax.weight, softmax.bias]
    for value, copy in zip(got, copies, strict=True):
        torch.testing.assert_close(value.detach(), copy.detach(), atol=1e-6, rtol=1e-6)


def some(generator):
    return int(torch.randint(1, 15, (1,), generator=generator))


def test_row_sparse_adagrad_is_dense_adagrad_over_100_steps_with_clipping():
    def theirs(parameters):
        return torch.optim.Adagrad(parameters, lr=0.2, initial_accumulator_value=1.0)

    train(OptimConfig(), theirs, 100, some)


def test_lazy_adamw_is_dense_adamw_when_every_row_is_touched():
    def theirs(parameters):
        return torch.optim.AdamW(parameters, lr=0.2, weight_decay=0.01, betas=(0.9, 0.98))

    settings = OptimConfig("adamw", betas=(0.9, 0.98), weight_decay=0.01)
    train(settings, theirs, 30, lambda _: V)


@pytest.mark.parametrize("name", ["adagrad", "adamw"])
def test_untouched_rows_keep_every_bit(name):
    _, softmax, optimizer = setup(OptimConfig(name, weight_decay=0.1))
    before = softmax.weight.clone()
    rows = torch.tensor([3, 17])
    optimizer.step(0.2, 1.0, rows, torch.ones(2 * (P + 1)))
    changed = (softmax.weight != before).any(1).nonzero().flatten()
    assert changed.tolist() == rows.tolist()


def test_a_late_row_starts_with_a_first_step():
    """Lazy AdamW corrects by the row's own count, so its first step is lr, whenever that is."""
    _, softmax, optimizer = setup(OptimConfig("adamw"))
    for _ in range(50):
        optimizer.step(0.01, 1.0, torch.tensor([0]), torch.ones(P + 1))
    before = softmax.bias[1].item()
    optimizer.step(0.01, 1.0, torch.tensor([1]), torch.full((P + 1,), 0.3))
    assert before - softmax.bias[1].item() == pytest.approx(0.01, rel=1e-4)


def after_hold(numerics):
    """The largest dense change of each of 20 steps after 1000 that updated softmax rows alone."""
    dense, _, optimizer = setup(OptimConfig("adamw"))
    rows, table_grad = torch.tensor([0]), torch.ones(P + 1)
    for _ in range(1000):
        optimizer.step(0.01, 1.0, rows, table_grad, numerics)
    largest = []
    for _ in range(20):
        before = [p.detach().clone() for p in dense.values()]
        for p in dense.values():
            p.grad = torch.full_like(p, 0.3)
        optimizer.step(0.01, 1.0, rows, table_grad, numerics)
        changes = [p.detach() - b for p, b in zip(dense.values(), before, strict=True)]
        largest.append(max(change.abs().max().item() for change in changes))
    return largest, optimizer.steps


def test_dense_parameters_that_were_held_start_with_a_first_step():
    changes, steps = after_hold(numerics=2)
    assert changes == pytest.approx([0.01] * 20, rel=1e-3)
    assert steps == 20


def test_runs_that_began_with_numerics_1_count_held_steps():
    changes, steps = after_hold(numerics=1)
    assert max(changes) > 0.04
    assert steps == 1020


@pytest.mark.parametrize("name", ["adagrad", "adamw"])
def test_state_saved_as_safetensors_resumes_bit_for_bit(name, tmp_path):
    def advance(parts, steps):
        dense, softmax, optimizer = parts
        for k in steps:
            rows = torch.arange(k, k + 5)
            for p in dense.values():
                p.grad = torch.full_like(p, 0.1 * k)
            optimizer.step(0.1, 0.7, rows, torch.full((5 * (P + 1),), 0.2 * k))
        return [*dense.values(), softmax.weight, softmax.bias]

    settings = OptimConfig(name)
    straight = advance(setup(settings), range(10))
    first = setup(settings)
    advance(first, range(6))
    save_file(first[2].state_dict(), tmp_path / "optimizer.safetensors")
    second = setup(settings)
    for p, q in zip(second[0].values(), first[0].values(), strict=True):
        p.data.copy_(q)
    second[1].load(first[1].state())
    second[2].load_state_dict(load_file(tmp_path / "optimizer.safetensors"))
    for a, b in zip(straight, advance(second, range(6, 10)), strict=True):
        assert torch.equal(a, b)


def test_the_norm_of_nothing_is_zero_and_of_a_bad_gradient_not_finite():
    assert float(global_norm([], None)) == 0
    assert not torch.isfinite(global_norm([torch.tensor([1.0, float("nan")])], None))


def whole_adamw(value, grad, mean, square, lr, scale, count, settings):
    """AdamW of the runs with numerics 1, in whole tensors: its bits must not change."""
    beta1, beta2 = settings.betas
    value.mul_(1 - lr * settings.weight_decay)
    mean.mul_(beta1).add_(grad, alpha=(1 - beta1) * scale)
    square.mul_(beta2).addcmul_(grad, grad, value=(1 - beta2) * scale * scale)
    steps = torch.as_tensor(count, dtype=torch.float64)
    size = (lr / (1 - beta1**steps)).to(value.dtype)
    root = (1 - beta2**steps).sqrt().to(value.dtype)
    value.sub_(size * mean / (square.sqrt() / root + settings.eps))


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 18])
@pytest.mark.parametrize("touched", [V, 23], ids=["every row", "some rows"])
def test_adamw_in_blocks_of_any_size_gives_the_bits_of_whole_tensors(block, touched, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    settings = OptimConfig("adamw", betas=(0.9, 0.98), weight_decay=0.01)
    generator = torch.Generator().manual_seed(3)
    dense = {"a": nn.Parameter(torch.randn(31, 37, generator=generator))}
    softmax = Softmax.create(V, P, 0)
    optimizer = Optimizer(dense, softmax, settings)
    values = [dense["a"].detach().clone(), softmax.weight.clone(), softmax.bias.clone()]
    moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in values]
    counts = torch.zeros(V, dtype=torch.int32)
    for step in range(1, 6):
        rows = torch.randperm(V, generator=generator)[:touched].sort().values
        table_grad = torch.randn(touched, P + 1, generator=generator)
        dense["a"].grad = torch.randn(31, 37, generator=generator)
        optimizer.step(0.01, 0.7, rows, as_table(table_grad))

        whole_adamw(values[0], dense["a"].grad, *moments[0], 0.01, 0.7, step, settings)
        counts[rows] += 1
        for number, change, count in (
            (1, table_grad[:, :-1], counts[rows].unsqueeze(1)),
            (2, table_grad[:, -1], counts[rows]),
        ):
            whole = values[number], *moments[number]
            part = [tensor[rows] for tensor in whole]
            whole_adamw(part[0], change, *part[1:], 0.01, 0.7, count, settings)
            for tensor, updated in zip(whole, part, strict=True):
                tensor[rows] = updated
    for mine, expected in zip([dense["a"], softmax.weight, softmax.bias], values, strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("touched", [V, 23], ids=["every row", "some rows"])
def test_adagrad_in_blocks_of_any_size_gives_the_same_bits(touched, monkeypatch):
    results = []
    for block in (1 << 18, 64, 7, 1):
        monkeypatch.setattr(module, "BLOCK", block)
        generator = torch.Generator().manual_seed(3)
        dense = {"a": nn.Parameter(torch.randn(31, 37, generator=generator))}
        softmax = Softmax.create(V, P, 0)
        optimizer = Optimizer(dense, softmax, OptimConfig())
        for _ in range(5):
            rows = torch.randperm(V, generator=generator)[:touched].sort().values
            dense["a"].grad = torch.randn(31, 37, generator=generator)
            optimizer.step(0.1, 0.7, rows, torch.randn(touched * (P + 1), generator=generator))
        results.append([dense["a"], softmax.weight, softmax.bias])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", ["adagrad", "adamw"])
def test_softmax_rows_have_their_own_rate_and_decay(name):
    """As torch's optimiser with two groups of parameters."""
    options = {"lr": 0.1, "weight_decay": 0.01}, {"lr": 0.25, "weight_decay": 0.01}
    settings = OptimConfig(
        name, betas=(0.9, 0.98), weight_decay=0.01, softmax_lr=2.5, softmax_betas=(0.0, 0.9)
    )
    dense, softmax, ours = setup(settings)
    copies = twin(dense, softmax)
    groups = [
        {"params": copies[:2], **options[0], "betas": (0.9, 0.98)},
        {"params": copies[2:], **options[1], "betas": (0.0, 0.9)},
    ]
    theirs = torch.optim.AdamW(groups)
    if name == "adagrad":
        groups = [{"params": group["params"], "lr": group["lr"]} for group in groups]
        theirs = torch.optim.Adagrad(groups, initial_accumulator_value=1.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        table_grad = torch.randn(V, P + 1, generator=generator)
        for parameter, copy in zip(dense.values(), copies, strict=False):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            copy.grad = parameter.grad.clone()
        copies[2].grad, copies[3].grad = table_grad[:, :-1].clone(), table_grad[:, -1].clone()
        ours.step(0.1, 1.0, torch.arange(V), as_table(table_grad))
        theirs.step()
    got = [*dense.values(), softmax.weight, softmax.bias]
    for value, copy in zip(got, copies, strict=True):
        torch.testing.assert_close(value.detach(), copy.detach(), atol=1e-6, rtol=1e-5)
