"""The kernels in C against the same computations in double precision, and bit for bit against
themselves: with other numbers of threads, and compiled for another kind of processor."""

import ctypes
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.model import softmax
from elmwright.model.config import ModelConfig
from elmwright.model.encoder import TokenEncoder
from elmwright.model.kernels import compile as compiling
from elmwright.model.kernels import native as module
from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.model.kernels.native import Native, native, use_kernels
from elmwright.model.lstm.projected import projected_lstm
from elmwright.model.softmax import Softmax, draw_negatives, nll, sampled_loss

pytestmark = [
    pytest.mark.slow(20),
    pytest.mark.skipif(bool(module.why_not_native()), reason=module.why_not_native()),
]

FILTERS = ((1, 3), (2, 16), (3, 17), (4, 70), (5, 64))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def encoder(max_chars=20, char_dim=5, seed=0):
    config = ModelConfig(
        dim=8, projection_dim=4, filters=FILTERS, max_chars=max_chars, char_dim=char_dim
    )
    made = TokenEncoder(config)
    made.initialize(torch.Generator().manual_seed(seed))
    return made


def in_double(made):
    copy = TokenEncoder(made.config).double()
    copy.load_state_dict({name: value.double() for name, value in made.state_dict().items()})
    return copy


def words_of(lengths, made):
    return made.ids(["".join(chr(97 + (k * k + n) % 26) for k in range(n)) for n in lengths])


def maxima_and_gradients(made, chars):
    made.zero_grad()
    maxima = made.maxima(chars)
    weights = torch.linspace(-1, 1, maxima.numel(), dtype=torch.float64).view_as(maxima)
    (maxima * weights.to(maxima.dtype)).sum().backward()
    parameters = [made.char_embed, *made.conv.parameters()]
    return [maxima.detach(), *(p.grad.clone() for p in parameters)]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    char_dim=st.integers(1, 19),
    max_chars=st.integers(5, 24),
)
def test_convolutions_are_those_of_torch_in_double(lengths, char_dim, max_chars):
    made = encoder(max_chars, char_dim)
    chars = words_of(lengths, made)
    got = maxima_and_gradients(made, chars)
    wanted = maxima_and_gradients(in_double(made), chars)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-6, rtol=2e-5)


def test_a_word_has_the_same_bits_whatever_it_is_encoded_with():
    made = encoder()
    together = made.maxima(words_of([3, 18, 7, 0], made))
    for place, length in enumerate([3, 18, 7, 0]):
        assert torch.equal(made.maxima(words_of([length], made))[0], together[place])


def test_a_maximum_that_is_no_number_stays_one():
    made = encoder()
    with torch.no_grad():
        made.char_embed[ord("h")] = torch.nan  # stored ids are byte + 1, and row 0 is not stored
    maxima = made.maxima(made.ids(["aaah", "aaaa"]))
    assert maxima[0].isnan().all()
    assert not maxima[1].isnan().any()


def test_equal_windows_give_the_gradient_to_the_first_one():
    """The characters before it get none."""
    made = encoder()
    with torch.no_grad():
        made.char_embed.zero_()  # all windows are equal
    chars = made.ids(["abcd"])
    made.maxima(chars).sum().backward()
    touched = made.char_embed.grad.abs().sum(1).nonzero().flatten() + 1
    width = max(width for width, _ in FILTERS)
    assert sorted(touched.tolist()) == sorted(set(chars[0, :width].tolist()))


def lstm_inputs(groups, steps, rows, width, dim, proj, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    tensors = (
        draw(groups, steps, rows, width),
        draw(groups, width + proj, 4 * dim, scale=0.4),
        draw(groups, 4 * dim, scale=0.2),
        draw(groups, dim, proj, scale=0.4),
        draw(groups, rows, dim),
        draw(groups, rows, proj),
    )
    resets = torch.rand(rows, steps, generator=generator) < 0.3
    return tensors, resets.t()  # as a batch has them: not contiguous


def run_lstm(tensors, resets, clips, dtype=torch.float32, operands=None):
    tensors = [tensor.to(dtype).requires_grad_() for tensor in tensors]
    outputs = projected_lstm(*tensors, *clips, None, resets, operands=operands)
    loss = sum((out * (k + 1)).sin().sum() for k, out in enumerate(outputs))
    return [*(out.detach() for out in outputs), *torch.autograd.grad(loss, tensors)]


def distance(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm().clamp_min(1e-9)).item()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(
        st.integers(1, 2), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5),
        st.integers(1, 40), st.integers(1, 6),
    ),
    has_resets=st.booleans(),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_the_lstm_is_that_of_torch_in_double(sizes, has_resets, seed):
    tensors, resets = lstm_inputs(*sizes, seed)
    resets = resets if has_resets else None
    got = run_lstm(tensors, resets, (1e3, 1e3))
    wanted = run_lstm(tensors, resets, (1e3, 1e3), torch.float64)
    for ours, theirs in zip(got, wanted, strict=True):
        assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("clip", [0.5, 3.0, torch.inf])
def test_a_step_that_only_reads_is_that_of_torch_in_double(rows, clip):
    generator = torch.Generator().manual_seed(rows)
    sums = 3 * torch.randn(2, 7, 4 * 37, generator=generator)
    cells, hidden = torch.randn(2, 5, 37, generator=generator), torch.full((2, 5, 37), 9.0)
    before = cells.double()
    i, j, f, o = sums.double()[:, 1 : 1 + rows].chunk(4, dim=-1)
    wanted = f.sigmoid() * before[:, :rows] + i.sigmoid() * j.tanh()
    wanted = wanted.clamp(-clip, clip)
    kernels = native()
    assert kernels is not None
    kernels.lstm_read(sums[:, 1 : 1 + rows], cells, hidden, clip)
    close = {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(cells[:, :rows].double(), wanted, **close)
    torch.testing.assert_close(hidden[:, :rows].double(), o.sigmoid() * wanted.tanh(), **close)
    assert torch.equal(cells[:, rows:].double(), before[:, rows:])  # of rows that have ended
    assert bool((hidden[:, rows:] == 9).all())


@pytest.mark.parametrize("kernels", [NATIVE, TORCH])
def test_operands_in_bfloat16_change_the_result_by_their_rounding(kernels):
    tensors, resets = lstm_inputs(2, 6, 8, 10, 24, 12, 1)
    wanted = run_lstm(tensors, resets, (1e3, 1e3), torch.float64)
    with use_kernels(kernels):
        got = run_lstm(tensors, resets, (1e3, 1e3), operands=torch.bfloat16)
    assert all(value.dtype == torch.float32 for value in got)
    distances = [distance(ours, theirs) for ours, theirs in zip(got, wanted, strict=True)]
    assert 1e-4 < max(distances) < 3e-2


def test_gradients_are_zero_where_a_clip_binds():
    tensors, resets = lstm_inputs(2, 5, 6, 4, 20, 3, 2)
    got = run_lstm(tensors, resets, (0.3, 0.2))
    with use_kernels(TORCH):
        wanted = run_lstm(tensors, resets, (0.3, 0.2))
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def losses(operands=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    size, width, positions = 300, 12, 40
    table = Softmax.create(size, width, 4)
    negatives = draw_negatives(0, 1, 90, size)
    targets = torch.randint(0, size, (positions,), generator=generator)
    rows = softmax.distinct(targets, negatives.ids)
    hidden = (3 * torch.randn(positions, width, generator=generator)).to(dtype).requires_grad_()
    values = table.table(rows).to(dtype).requires_grad_()
    weights = torch.rand(positions, generator=generator).to(dtype)
    loss = sampled_loss(hidden, targets, weights, rows, values, negatives, size, operands)
    scores = nll(hidden, targets, table.weight.to(dtype), table.bias.to(dtype))
    return [loss.detach(), *torch.autograd.grad(loss, [hidden, values]), scores]


def test_losses_are_those_of_torch_in_double():
    for ours, theirs in zip(losses(), losses(dtype=torch.float64), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernels", [NATIVE, TORCH])
def test_a_loss_of_rounded_operands_is_near(kernels):
    wanted = losses(dtype=torch.float64)
    with use_kernels(kernels):
        got = losses(torch.bfloat16)
    assert all(distance(o, t.double()) < 2e-2 for o, t in zip(got, wanted, strict=True))
    assert distance(got[1], wanted[1]) > 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 63, 64, 200])
def test_rows_of_a_softmax(columns, dtype):
    generator = torch.Generator().manual_seed(columns)
    logits = (20 * torch.randn(9, columns, generator=generator)).to(dtype)
    bias, top = torch.randn(columns, generator=generator), torch.randn(9, generator=generator)
    hit = torch.tensor([-1, 0, columns - 1] * 3)
    exact = logits.double() + bias
    for row, column in enumerate(hit.tolist()):
        if column >= 0:
            exact[row, column] = -torch.inf
    wanted_top = torch.maximum(exact.amax(1), top.double())
    wanted = (exact - wanted_top.unsqueeze(1)).exp()
    kernels = native()
    assert kernels is not None
    sums = kernels.softmax_rows(logits, bias, hit, top)
    torch.testing.assert_close(top.double(), wanted_top, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(sums.double(), wanted.sum(1), atol=1e-5, rtol=1e-4)
    close = {"atol": 1e-6, "rtol": 2e-5} if dtype == torch.float32 else {"atol": 4e-3, "rtol": 4e-3}
    torch.testing.assert_close(logits.double(), wanted, **close)
    assert all(logits[row, column] == 0 for row, column in enumerate(hit.tolist()) if column >= 0)


def everything():
    """The results of all kernels, on shapes that no number of threads divides."""
    made = encoder()
    tensors, resets = lstm_inputs(2, 5, 7, 6, 37, 5, 5)
    rounded = run_lstm(tensors, resets, (3.0, 3.0), operands=torch.bfloat16)
    return [
        *maxima_and_gradients(made, words_of(range(23), made)),
        *run_lstm(tensors, resets, (3.0, 3.0)),
        *rounded,
        *losses(),
        *losses(torch.bfloat16),
    ]


def kernels_alone(kernels: Native):
    """What the kernels themselves compute, without torch's products, whose order of sums depends
    on the threads."""
    generator = torch.Generator().manual_seed(9)
    made = encoder()
    chars = words_of(range(23), made)
    results = []
    embedded = torch.randn(len(chars), chars.size(1), 5, generator=generator)
    starts = torch.randint(1, 20, (len(chars),), generator=generator, dtype=torch.int32)
    total = sum(number for _, number in FILTERS)
    maxima = torch.empty(len(chars), total)
    places = torch.empty(len(chars), total, dtype=torch.int16)
    grad = torch.randn(len(chars), total, generator=generator)
    d_embedded, offset = torch.zeros_like(embedded), 0
    for conv in made.conv:
        kernels.convolve(embedded, starts, conv.weight.detach(), maxima, places, offset)
        arguments = embedded, conv.weight.detach(), grad, places, offset, d_embedded
        results.append(kernels.convolve_back(*arguments))
        offset += conv.weight.size(2)
    results += [maxima, places, d_embedded]
    gates = torch.randn(2, 1000, 4 * 37, generator=generator)
    cells, hidden = torch.ones(2, 1003, 37), torch.zeros(2, 1003, 37)
    kernels.lstm_read(gates, cells, hidden, 1.5)
    results += [cells, hidden]
    for dtype in module.NATIVE_TYPES:
        logits = (9 * torch.randn(11, 150, generator=generator)).to(dtype)
        top = torch.zeros(11)
        results += [kernels.softmax_rows(logits, torch.zeros(150), None, top), logits, top]
        shape = module.Step(groups=2, rows=7, dim=37, z_group=7 * 4 * 37, cell_group=7 * 37)
        z, rec = torch.randn(2, 2, 7, 4 * 37, generator=generator).to(dtype)
        bias, before, dc = (torch.randn(2, 7 * 37, generator=generator) for _ in range(3))
        cell, hidden = torch.empty(2, 7 * 37), torch.empty(2, 7 * 37, dtype=dtype)
        common = torch.get_num_threads(), ctypes.byref(shape), before.stride(0), z.data_ptr()
        kernels.lstm_forward[dtype](
            *common, rec.data_ptr(), bias.data_ptr(), before.data_ptr(), cell.data_ptr(),
            hidden.data_ptr(), None, 1.0,
        )  # fmt: skip
        results += [z.clone(), cell, hidden.clone()]
        kernels.lstm_backward[dtype](
            *common, hidden.data_ptr(), before.data_ptr(), cell.data_ptr(), dc.data_ptr(), None, 1.0
        )
        results += [z, dc]
    return results


def assert_same_bits(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_kernels_have_the_same_bits_with_any_number_of_threads(two_threads):
    kernels = native()
    assert kernels is not None
    with_two = kernels_alone(kernels)
    torch.set_num_threads(1)
    assert_same_bits(kernels_alone(kernels), with_two)


def test_kernels_have_the_same_bits_on_another_kind_of_processor(tmp_path):
    """Compiled for processors with half as wide vectors, and without optimisation."""
    kernels = native()
    assert kernels is not None
    if compiling._processor_flags()[:1] != ["-march=x86-64-v4"]:
        pytest.skip("this processor has one width of vectors")
    for number, flags in enumerate((["-march=x86-64-v3"], ["-march=x86-64-v3", "-O1"])):
        compiled, library = tmp_path / f"{number}.o", tmp_path / f"{number}.so"
        command = ["gcc", *compiling.FLAGS, *flags, "-c", str(compiling.SOURCE)]
        subprocess.run([*command, "-o", str(compiled)], check=True)
        subprocess.run(["gcc", "-shared", str(compiled), "-o", str(library), "-lm"], check=True)
        other = Native.of(ctypes.CDLL(str(library)))
        assert_same_bits(kernels_alone(other), kernels_alone(kernels))


def test_repeated_computations_have_the_same_bits(two_threads):
    assert_same_bits(everything(), everything())
