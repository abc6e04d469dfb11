"""The hand-written LSTM: values against numpy, gradients against plain autograd in double."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.model.kernels.native import use_kernels
from elmwright.model.lstm.projected import keeps_graph, projected_lstm
from elmwright.model.reference import ReferenceBiLM

pytestmark = pytest.mark.slow(5)


@pytest.fixture(autouse=True, scope="module", params=[NATIVE, TORCH])
def kernels(request):
    """Every test with the kernels in C and in torch; the former are for float32 alone."""
    with use_kernels(request.param):
        yield


def inputs(groups, steps, rows, width, dim, proj, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    return [
        draw(groups, steps, rows, width),
        draw(groups, width + proj, 4 * dim),
        draw(groups, 4 * dim),
        draw(groups, dim, proj),
        draw(groups, rows, dim),
        draw(groups, rows, proj),
    ]


def plain(x, w, b, w_proj, c, m, cell_clip, proj_clip, lengths=None, resets=None):
    """The equations, step by step, with autograd; a clip of 0 is none."""

    def clip(values, limit):
        return values.clamp(-limit, limit) if limit else values

    outputs = []
    for t in range(x.size(1)):
        if resets is not None:
            forgets = resets[t] if lengths is None else resets[t] & (t < lengths)
            c, m = (state.masked_fill(forgets.unsqueeze(-1), 0.0) for state in (c, m))
        z = torch.cat([x[:, t], m], -1) @ w + b.unsqueeze(1)
        i, j, f, o = z.chunk(4, -1)
        c_new = clip((f + 1).sigmoid() * c + i.sigmoid() * j.tanh(), cell_clip)
        m_new = clip((o.sigmoid() * c_new.tanh()) @ w_proj, proj_clip)
        alive = torch.ones(x.size(2), 1, dtype=torch.bool)
        if lengths is not None:
            alive = (t < lengths).unsqueeze(-1)
        c, m = torch.where(alive, c_new, c), torch.where(alive, m_new, m)
        outputs.append(torch.where(alive, m_new, 0.0))
    return torch.stack(outputs, 1), c, m


@pytest.mark.parametrize(
    "clips",
    [(50.0, 50.0), (0.4, 0.3), (0, 0), (0.4, 0)],
    ids=["free", "clipped", "none", "cell only"],
)
@pytest.mark.parametrize("lengths", [None, [4, 0, 2]], ids=["full", "ragged"])
@pytest.mark.parametrize("has_resets", [False, True], ids=["carried", "reset"])
def test_gradients_are_right_in_double_precision(clips, lengths, has_resets):
    args = inputs(2, 4, 3, 3, 4, 2)
    ends = None if lengths is None else torch.tensor(lengths)
    resets = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 0]]).bool()
    rest = *clips, ends, resets if has_resets else None
    if 0 < clips[0] < 1:
        cells = projected_lstm(*args, *rest)[1]
        assert (cells.abs() == clips[0]).any()  # the clip does bind
    assert torch.autograd.gradcheck(lambda *a: projected_lstm(*a, *rest), args)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([(0.2, 0.1), (3.0, 3.0), (0.0, 0.0), (0.2, 0.0), (0.0, 0.1)]),
    st.data(),
)
def test_any_shape_equals_the_plain_loop(groups, steps, rows, width, dim, proj, clips, data):
    args = inputs(groups, steps, rows, width, dim, proj, data.draw(st.integers(0, 99)))
    lengths = None
    if data.draw(st.booleans()):
        lengths = torch.tensor(
            data.draw(st.lists(st.integers(0, steps), min_size=rows, max_size=rows))
        )
    resets = None
    if data.draw(st.booleans()):
        drawn = st.lists(st.booleans(), min_size=steps * rows, max_size=steps * rows)
        resets = torch.tensor(data.draw(drawn)).view(steps, rows)
    results = []
    for function in (projected_lstm, plain):
        outputs = function(*args, *clips, lengths, resets)
        loss = sum((out * (k + 1)).sin().sum() for k, out in enumerate(outputs))
        results.append((outputs, torch.autograd.grad(loss, args)))
    for got, wanted in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(got, wanted)
    for got, wanted in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(got, wanted)
    outputs = [out.detach().numpy() for out in results[0][0]]
    for group in range(groups):
        arrays = [a.detach().numpy() for a in args]
        check_against_numpy(group, arrays, clips, lengths, resets, outputs)


def check_against_numpy(group, args, clips, lengths, resets, outputs):
    """Row by row and step by step, with the cell of the reference, which knows nothing of torch."""
    x, w, b, w_proj, c0, m0 = (a[group] for a in args)
    y, c_end, m_end = (out[group] for out in outputs)
    reference = ReferenceBiLM.__new__(ReferenceBiLM)
    reference.options = {"lstm": {"cell_clip": clips[0], "proj_clip": clips[1]}}
    name = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"
    reference.w = {f"{name}/W_0": w, f"{name}/B": b, f"{name}/W_P_0": w_proj}
    for row in range(x.shape[1]):
        c, m, end = c0[row], m0[row], len(x) if lengths is None else int(lengths[row])
        for step in range(end):
            if resets is not None and resets[step, row]:
                c, m = np.zeros_like(c), np.zeros_like(m)
            out, (c, m) = reference._cell(x[step, row], 0, 0, c, m)
            np.testing.assert_allclose(y[step, row], out, rtol=1e-9, atol=1e-12)
        assert not y[end:, row].any()
        np.testing.assert_allclose(c_end[row], c, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(m_end[row], m, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("none", [0, None])
def test_no_clip_gives_values_beyond_any_clip_as_the_reference_does(none):
    args = inputs(1, 30, 2, 3, 4, 2)
    with torch.no_grad():
        args[2] += 3  # the gates are open, so cells grow with every step
    outputs = [out.detach().numpy() for out in projected_lstm(*args, 0, 0)]
    assert np.abs(outputs[1]).max() > 10
    check_against_numpy(0, [a.detach().numpy() for a in args], (none, none), None, None, outputs)


def test_inputs_of_any_memory_layout_give_the_same():
    """The output of a layer is by feature in memory. Inputs may have any layout."""
    args = inputs(2, 4, 3, 3, 4, 2)
    strange = [a.detach().transpose(0, -1).contiguous().transpose(0, -1) for a in args]
    strange = [a.requires_grad_() for a in strange]
    results = []
    for given_args in (args, strange):
        outputs = projected_lstm(*given_args, 0.4, 0.3)
        loss = sum((out * (k + 1)).sin().sum() for k, out in enumerate(outputs))
        results.append((*outputs, *torch.autograd.grad(loss, given_args)))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_windows_that_hand_on_their_states_equal_one_long_window():
    args = inputs(2, 6, 3, 3, 4, 2)
    y, c, m = projected_lstm(*args, 3.0, 3.0)
    x, *weights = args
    y1, c1, m1 = projected_lstm(x[:, :4], *weights, 3.0, 3.0)
    y2, c2, m2 = projected_lstm(x[:, 4:], *weights[:3], c1, m1, 3.0, 3.0)
    torch.testing.assert_close(torch.cat([y1, y2], 1), y)
    torch.testing.assert_close((c2, m2), (c, m))


def test_a_row_that_forgets_equals_a_new_row():
    x, *weights, c0, m0 = inputs(2, 6, 3, 3, 4, 2)
    resets = torch.zeros(6, 3, dtype=torch.bool)
    resets[4] = True
    y, c, m = projected_lstm(x, *weights, c0, m0, 3.0, 3.0, None, resets)
    zeros = torch.zeros_like(c0), torch.zeros_like(m0)
    y2, c2, m2 = projected_lstm(x[:, 4:], *weights, *zeros, 3.0, 3.0)
    torch.testing.assert_close((y[:, 4:], c, m), (y2, c2, m2))


def test_forgetting_at_the_first_step_has_the_bits_of_zero_states():
    """Runs of early versions set states to zero where a block began, and must continue exactly."""
    x, w, b, w_proj, c0, m0 = (a.detach().float() for a in inputs(2, 5, 40, 16, 24, 8))
    weights = [tensor.requires_grad_() for tensor in (x, w, b, w_proj)]
    zeros = torch.zeros_like(c0), torch.zeros_like(m0)
    resets = torch.zeros(5, 40, dtype=torch.bool)
    resets[0] = True
    results = []
    for states, mask in (((c0, m0), resets), (zeros, None), (zeros, resets & False)):
        y, c, m = projected_lstm(*weights, *states, 3.0, 3.0, None, mask)
        results.append((y, c, m, *torch.autograd.grad(y.sin().sum(), weights)))
    for others in zip(*results, strict=True):
        assert all(torch.equal(others[0], other) for other in others[1:])


def test_an_empty_window_keeps_the_states():
    args = inputs(2, 3, 2, 3, 4, 2)
    y, c, m = projected_lstm(args[0][:, :0], *args[1:], 3.0, 3.0)
    assert y.shape == (2, 0, 2, 2)
    assert torch.equal(c, args[4])
    assert torch.equal(m, args[5])


def test_repeated_runs_give_the_same_bits():
    def grads():
        args = [a.float().detach().requires_grad_() for a in inputs(2, 8, 16, 16, 32, 16)]
        return torch.autograd.grad(projected_lstm(*args, 3.0, 3.0)[0].sum(), args)

    first = grads()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, grads(), strict=True))


def test_autocast_changes_nothing_but_the_inputs():
    args = [a.float().detach().requires_grad_() for a in inputs(2, 4, 3, 3, 4, 2)]
    with torch.autocast("cpu", torch.bfloat16):
        y = projected_lstm(*args, 3.0, 3.0)[0]
        y.sum().backward()
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, projected_lstm(*args, 3.0, 3.0)[0])


def test_a_kept_graph_gives_the_same_gradients_again():
    """The backward pass overwrites saved tensors, unless the graph is kept."""
    args = inputs(2, 5, 3, 3, 4, 2)
    outputs = projected_lstm(*args, 0.4, 0.3)
    loss = sum((out * (k + 1)).sin().sum() for k, out in enumerate(outputs))
    first = torch.autograd.grad(loss, args, retain_graph=True)
    again = torch.autograd.grad(loss, args, retain_graph=True)
    last = torch.autograd.grad(loss, args)
    for other in (again, last):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, args)


def test_without_the_private_modules_of_torch_the_graph_is_kept(monkeypatch):
    monkeypatch.delattr(torch._C, "_autograd")
    assert keeps_graph()


def test_runs_that_overlap_do_not_share_memory():
    """Two forward passes before their backward passes, with a finished one before them."""
    args = inputs(2, 5, 3, 3, 4, 2)
    wanted = torch.autograd.grad(projected_lstm(*args, 3.0, 3.0)[0].sum(), args)
    one, two = (projected_lstm(*args, 3.0, 3.0)[0].sum() for _ in range(2))
    for loss in (one, two):
        got = torch.autograd.grad(loss, args)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
