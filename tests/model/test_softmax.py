"""Sampled and full losses, and the sampler behind the first."""

import time
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.model import softmax as module
from elmwright.model.softmax import (
    Negatives,
    Softmax,
    draw_negatives,
    full_table_loss,
    log_expected_count,
    nll,
    parts_of_table,
    sampled_loss,
)

V, P, M = 50, 6, 17
FROZEN_IDS, FROZEN_TRIES = [0, 2, 5, 7, 29, 364, 502, 761], 11


def touched(targets, negatives):
    """The rows a step reads and writes."""
    return torch.unique(torch.cat([targets, negatives.ids]))


def full_loss(hidden, targets, weights, weight, bias):
    """`full_table_loss` of a weight and bias that are kept apart."""
    return full_table_loss(hidden, targets, weights, torch.cat([weight.view(-1), bias]))


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(M, P, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, V, (M,), generator=generator)
    weights = torch.rand(M, dtype=torch.float64, generator=generator)
    softmax = Softmax.create(V, P, 1)
    softmax.weight, softmax.bias = softmax.weight.double(), torch.linspace(-1, 1, V).double()
    return hidden, targets, weights, softmax


def obvious_sampled(hidden, targets, weights, rows, table, negatives, vocab_size):
    """One position at a time."""
    total = 0 * (hidden.sum() + table.sum())
    where = {int(row): k for k, row in enumerate(rows)}
    for h, target, weight in zip(hidden, targets.tolist(), weights, strict=True):
        ids = [target, *[i for i in negatives.ids.tolist() if i != target]]
        at = torch.tensor([where[i] for i in ids])
        shift = log_expected_count(torch.tensor(ids), negatives.tries, vocab_size)
        rows_weight, rows_bias = parts_of_table(table, len(h))
        logits = rows_weight.index_select(0, at) @ h + rows_bias.index_select(0, at) - shift
        total = total - weight * logits.log_softmax(0)[0]
    return total


@pytest.mark.parametrize("piece", [1 << 20, 128], ids=["whole", "pieces"])
def test_sampled_loss_and_gradients_equal_the_obvious_ones(case, piece, monkeypatch):
    monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(module, "LEAST", 1)
    hidden, targets, weights, softmax = case
    negatives = draw_negatives(0, 7, 20, V)
    rows = touched(targets, negatives)
    assert torch.isin(targets, negatives.ids).any()  # accidental hits occur
    results = []
    for function in (sampled_loss, obvious_sampled):
        h, table = hidden.clone().requires_grad_(), softmax.table(rows).requires_grad_()
        loss = function(h, targets, weights, rows, table, negatives, V)
        (3 * loss).backward()
        results.append((loss.detach(), h.grad, table.grad))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


@settings(max_examples=30, deadline=None)
@given(
    positions=st.integers(0, 9),
    width=st.integers(1, 5),
    vocab=st.integers(2, 30),
    share=st.floats(0.05, 1.0),
    piece=st.integers(1, 200),
    seed=st.integers(0, 999),
)
def test_sampled_loss_of_any_shape_equals_the_obvious_one(
    positions, width, vocab, share, piece, seed
):
    generator = torch.Generator().manual_seed(seed)
    hidden = 3 * torch.randn(positions, width, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, vocab, (positions,), generator=generator)
    weights = torch.rand(positions, dtype=torch.float64, generator=generator)
    negatives = draw_negatives(seed, 1, max(1, round(share * vocab)), vocab)
    rows = touched(targets, negatives)
    values = 3 * torch.randn(len(rows) * (width + 1), dtype=torch.float64, generator=generator)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        patch.setattr(module, "LEAST", 1)
        for function in (sampled_loss, obvious_sampled):
            h, table = hidden.clone().requires_grad_(), values.clone().requires_grad_()
            loss = function(h, targets, weights, rows, table, negatives, vocab)
            results.append((loss.detach(), *torch.autograd.grad(loss, (h, table))))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_losses_pass_a_gradient_check(case):
    hidden, targets, weights, softmax = case
    negatives = draw_negatives(0, 7, 20, V)
    rows = touched(targets, negatives)
    arguments = hidden.requires_grad_(), softmax.table(rows).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h, t: sampled_loss(h, targets, weights, rows, t, negatives, V), arguments
    )
    every = softmax.table(torch.arange(V)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h, t: full_table_loss(h, targets, weights, t), (hidden, every)
    )


@pytest.mark.parametrize("piece", [module.COLUMNS, 7], ids=["whole", "pieces"])
def test_full_loss_and_nll_equal_torch(case, piece, monkeypatch):
    monkeypatch.setattr(module, "COLUMNS", piece)
    monkeypatch.setattr(module, "PIECE", 5 * piece)
    monkeypatch.setattr(module, "LEAST", 1)
    hidden, targets, weights, softmax = case
    leaves = [hidden, softmax.weight, softmax.bias]
    results = []
    for ours in (True, False):
        h, weight, bias = (leaf.detach().clone().requires_grad_() for leaf in leaves)
        if ours:
            loss = full_loss(h, targets, weights, weight, bias)
        else:
            each = F.cross_entropy(h @ weight.t() + bias, targets, reduction="none")
            loss = (each * weights).sum()
        loss.backward()
        results.append((loss.detach(), h.grad, weight.grad, bias.grad))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)
    scores = nll(hidden, targets, softmax.weight, softmax.bias)
    wanted = F.cross_entropy(hidden @ softmax.weight.t() + softmax.bias, targets, reduction="none")
    torch.testing.assert_close(scores, wanted.float())


def test_the_sampled_loss_becomes_the_full_one_as_samples_grow(case):
    hidden, targets, weights, softmax = case
    full = full_loss(hidden, targets, weights, softmax.weight, softmax.bias)
    gaps = []
    for n in (5, 20, V - 1):
        losses = []
        for step in range(40):
            negatives = draw_negatives(1, step, n, V)
            rows = touched(targets, negatives)
            table = softmax.table(rows)
            losses.append(sampled_loss(hidden, targets, weights, rows, table, negatives, V))
        gaps.append(abs(torch.stack(losses).mean() - full).item() / full.item())
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.01
    everything = draw_negatives(1, 0, V, V)
    table = softmax.table(touched(targets, everything))
    last = sampled_loss(hidden, targets, weights, torch.arange(V), table, everything, V)
    torch.testing.assert_close(last, full)


def test_negatives_are_a_function_of_seed_and_step():
    one = draw_negatives(3, 10, 100, 5000)
    again = draw_negatives(3, 10, 100, 5000)
    assert torch.equal(one.ids, again.ids)
    assert one.tries == again.tries
    assert not torch.equal(one.ids, draw_negatives(3, 11, 100, 5000).ids)
    assert not torch.equal(one.ids, draw_negatives(4, 10, 100, 5000).ids)
    assert not torch.equal(one.ids, draw_negatives(2, 11, 100, 5000).ids)
    # Frozen: another result here means that resumed runs would draw other negatives.
    assert draw_negatives(1, 2, 8, 1000).ids.tolist() == FROZEN_IDS
    assert draw_negatives(1, 2, 8, 1000).tries == FROZEN_TRIES


def test_negatives_are_distinct_sorted_and_match_theory_at_full_size():
    size, n, steps = 793_471, 8192, 60
    seen = np.zeros(size)
    expected = np.zeros(size)
    every = torch.arange(size)
    for step in range(steps):
        drawn = draw_negatives(0, step, n, size)
        ids = drawn.ids.numpy()
        assert len(ids) == n
        assert (np.diff(ids) > 0).all()
        assert ids[0] >= 0
        assert ids[-1] < size
        seen[ids] += 1
        if step < 5:
            expected += np.exp(log_expected_count(every, drawn.tries, size).numpy()) * steps / 5
    edges = [0, 10, 100, 1000, 10_000, 100_000, size]
    for low, high in pairwise(edges):
        want = expected[low:high].sum()
        assert seen[low:high].sum() == pytest.approx(want, rel=5 / want**0.5 + 0.01)


def test_almost_the_whole_vocabulary_is_drawn_quickly_and_from_the_same_distribution(monkeypatch):
    size, n, steps = 40, 34, 1500
    assert n > module.MOST * size
    counts, tries = np.zeros((2, size)), np.zeros((2, steps))
    for way, most in enumerate((module.MOST, 1.0)):  # the race, and draw by draw
        monkeypatch.setattr(module, "MOST", most)
        for step in range(steps):
            drawn = draw_negatives(9, step, n, size)
            assert len(drawn.ids) == n
            counts[way, drawn.ids.numpy()] += 1
            tries[way, step] = drawn.tries
    monkeypatch.undo()
    spread = np.sqrt(counts[1] * (1 - counts[1] / steps)) + 1  # both sides vary: √2 of it
    assert (np.abs(counts[0] - counts[1]) < 5 * 1.5 * spread).all()
    error = tries[1].std() / steps**0.5
    assert tries[0].mean() == pytest.approx(tries[1].mean(), abs=5 * 1.5 * error)

    size = 793_471
    start = time.perf_counter()
    drawn = draw_negatives(0, 0, size - 1, size)
    assert time.perf_counter() - start < 5  # 0.1 s; draw by draw, over 100 M of them
    assert len(drawn.ids) == size - 1
    assert (drawn.ids.diff() > 0).all()
    assert torch.equal(drawn.ids, draw_negatives(0, 0, size - 1, size).ids)
    assert not torch.equal(drawn.ids, draw_negatives(0, 1, size - 1, size).ids)


def test_expected_counts_are_exact_for_the_rarest_words():
    size, tries = 793_471, 12_345
    k = size - 1
    p = np.log1p(np.longdouble(1) / (k + 1)) / np.log1p(np.longdouble(size))
    wanted = np.log(-np.expm1(tries * np.log1p(-p)))
    got = log_expected_count(torch.tensor([k]), tries, size).item()
    assert got == pytest.approx(float(wanted), rel=1e-6)


def test_logits_of_a_large_vocabulary_are_computed_in_pieces(monkeypatch):
    largest = 0
    mm = torch.mm

    def watched(*args, **kwargs):
        nonlocal largest
        result = mm(*args, **kwargs)
        largest = max(largest, result.numel())
        return result

    monkeypatch.setattr(torch, "mm", watched)
    size, positions = 50_000, 2560
    softmax = Softmax.create(size, 4, 0)
    hidden, targets = torch.randn(positions, 4), torch.randint(0, size, (positions,))
    nll(hidden, targets, softmax.weight, softmax.bias)
    assert 0 < largest <= module.PIECE
    full_table_loss(hidden, targets, torch.ones(positions), softmax.table(torch.arange(size)))
    assert largest == module.LEAST * size


def test_a_softmax_with_counts_starts_as_the_smoothed_unigram_model():
    counts = np.array([3, 3, 0, 40, 12, 0])
    softmax = Softmax.create(6, 4, 0, counts=counts)
    nats = nll(torch.zeros(6, 4), torch.arange(6), softmax.weight, softmax.bias)
    expected = (counts + 1) / (counts + 1).sum()
    torch.testing.assert_close(nats, torch.tensor(-np.log(expected), dtype=torch.float32))
    assert torch.equal(softmax.weight, Softmax.create(6, 4, 0).weight * 0.3)
    assert softmax.bias.dtype == softmax.weight.dtype == torch.float32


def test_a_softmax_without_counts_starts_as_it_always_did():
    """Runs with train.softmax_init = "zero" can be repeated bit for bit."""
    softmax = Softmax.create(5, 3, 7)
    drawn = torch.empty(5, 3).normal_(0.0, 3**-0.5, generator=torch.Generator().manual_seed(7))
    assert torch.equal(softmax.weight, drawn)
    assert not softmax.bias.any()


def test_state_round_trip():
    one, other = Softmax.create(9, 4, 0), Softmax.create(9, 4, 1)
    other.load(one.state())
    assert torch.equal(one.weight, other.weight)


def test_negatives_have_no_correction_when_all_ids_are_present():
    negatives = draw_negatives(0, 0, 99, 10)
    assert negatives.tries == 0
    assert isinstance(negatives, Negatives)
    assert not log_expected_count(negatives.ids, 0, 10).any()
