"""Projected LSTM layers with clipping, the directions of a biLM side by side.

    z = [x; m_prev]·W + B                    gates in the order i, j, f, o
    c = clip(σ(f + 1)·c_prev + σ(i)·tanh(j), ±cell_clip)
    m = clip((σ(o)·tanh(c))·W_P, ±proj_clip)

`torch.nn.LSTM(proj_size=)` cannot clip and adds a full weight gradient at every time step. Here
one autograd function runs a whole window: a single GEMM for the inputs of all steps, a loop that
does only what is sequential, and in the backward pass one GEMM for each weight after the loop. The
leading axis holds the directions: two independent LSTMs share every batched GEMM and pointwise
call, so there are half as many calls at the same GEMM rate (measured from 256/64 to 4096/512).

`native.py` computes a window with kernels in C, `in_torch.py` in torch alone. Tensors are
[direction, time, row, width] out here.

Kept for the backward pass: the gates (4·dim), the cell and σ(o)·tanh(c) for each token and
direction. The backward pass overwrites them, because fresh buffers would cost the first touch of
every page. Gradients are zero where a clip binds. Every sum has a fixed order: the result is
deterministic.

A row may forget its states before any step (`resets`), as at the start of a sentence: then its
forget gate, and all gradients through it, are exactly zero, and the recurrent product reads zeros
in place of m.

Rows of different length need no masks inside the loops. Steps past a row's end compute with
whatever is there. Their outputs are set to zero and the row's final state is read at its last valid
step, so no gradient enters past it either.

With operands in bfloat16, products read and give bfloat16, and add in float32. Everything else is
in float32, also under autocast, because ten pointwise steps chained over a window are where
bfloat16 loses most.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmwright.model.kernels.native import native_for
from elmwright.model.lstm.in_torch import TorchLSTM
from elmwright.model.lstm.native import NativeLSTM
from elmwright.model.lstm.window import Clips, Window, spare
from elmwright.model.precision import operand


def projected_lstm(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    w_proj: Tensor,
    c0: Tensor,
    m0: Tensor,
    cell_clip: float,
    proj_clip: float,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    operands: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run G independent LSTMs over a window; returns (outputs, final cells, final projections).

    x [G, T, N, in]; w [G, in + P, 4·D]; b [G, 4·D]; w_proj [G, D, P]; c0 [G, N, D]; m0 [G, N, P];
    lengths [N] (valid steps of each row, 0..T) or None when all T are valid; resets [T, N] (true
    where a row forgets its states before a step) or None; `operands` is the type that products read
    if it is not that of the tensors.
    """
    if x.size(1) == 0 or x.size(2) == 0:
        return x.new_zeros(*x.shape[:3], m0.size(-1)), c0, m0
    if torch.is_autocast_enabled(x.device.type):
        x, w, b, w_proj, c0, m0 = (tensor.float() for tensor in (x, w, b, w_proj, c0, m0))
    tensors = (x, w, b, w_proj, c0, m0)
    is_tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    kernels, operands = native_for(*tensors), operands or x.dtype
    implementation: NativeLSTM | TorchLSTM = TorchLSTM(operands)
    if kernels is not None:
        implementation = NativeLSTM(kernels, operands)
    run: Any = _LSTM.apply
    with torch.autocast(x.device.type, enabled=False):
        clips = Clips(cell_clip or torch.inf, proj_clip or torch.inf)  # 0 never clips
        y, c, m = run(implementation, is_tracked, lengths, resets, clips, *tensors)
    return y, c, m


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        implementation: NativeLSTM | TorchLSTM,
        is_tracked: bool,
        lengths: Tensor | None,
        resets: Tensor | None,
        clips: Clips,
        x: Tensor,
        w: Tensor,
        b: Tensor,
        w_proj: Tensor,
        c0: Tensor,
        m0: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dim, operands = w_proj.size(1), implementation.operands
        bias = b.clone(memory_format=torch.contiguous_format)
        bias[:, 2 * dim : 3 * dim] += 1.0  # the forget bias that no file stores
        keep = None if resets is None else (~resets).to(x.dtype).contiguous()
        weights = operand(w, operands), operand(w_proj, operands)
        window = implementation.forward(x, weights[0], bias, weights[1], c0, m0, clips, keep)
        y, cells = window.y.to(x.dtype), window.cells
        if lengths is None:
            c, m = cells[:, -1].clone(), y[:, -1].clone()
        else:
            y = y.masked_fill(_past_end(lengths, x.size(1)), 0.0)
            c, m = _at_end(cells, c0, lengths), _at_end(y, m0, lengths)
        if is_tracked:
            ctx.save_for_backward(x, *weights, c0, m0, lengths, keep, *window)
            ctx.implementation, ctx.clips = implementation, clips
            ctx.set_materialize_grads(False)
        else:
            _give_back(window)
        return y, c.contiguous(), m.contiguous()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gy: Tensor | None, gc: Tensor | None, gm: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, w, w_proj, c0, m0, lengths, keep, *saved = ctx.saved_tensors
        window = Window(*saved)
        with torch.autocast(x.device.type, enabled=False):
            dm = torch.zeros((*x.shape[:3], m0.size(-1)), dtype=x.dtype, device=x.device)
            if gy is not None:
                dm.copy_(gy)
                if lengths is not None:
                    dm.masked_fill_(_past_end(lengths, x.size(1)), 0.0)
            dc_end, dc0, dm0 = _final_grads(dm, gc, gm, c0, m0, lengths)
            keeps_saved = keeps_graph()
            if keeps_saved:
                window = window._replace(gates=window.gates.clone())
            grads = ctx.implementation.backward(
                x, w, w_proj, c0, m0, window, dm, dc_end, ctx.clips, keep
            )
        if not keeps_saved:
            _give_back(window)
        dc0, dm0 = dc0 + grads.c0, dm0 + grads.m0
        return *[None] * 5, grads.x, grads.w, grads.b, grads.w_proj, dc0, dm0


def _give_back(window: Window) -> None:
    spare.give(window.gates, window.cells, window.hidden)


def keeps_graph() -> bool:
    """Whether the backward pass that is running was asked to keep the graph for another one.

    A torch that no longer says so is assumed to keep it, which is only slower."""
    autograd = getattr(torch._C, "_autograd", None)
    ask = getattr(autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


def _final_grads(
    dm: Tensor, gc: Tensor | None, gm: Tensor | None, c0: Tensor, m0: Tensor, lengths: Tensor | None
) -> tuple[list[Tensor | None], Tensor, Tensor]:
    """Send the gradients of the final states to the steps they were read at.

    Adds that of m into dm; returns that of c by step, and the starts of dc0 and dm0 (which only
    rows of length 0 reach directly).
    """
    steps = dm.size(1)
    dc_end: list[Tensor | None] = [None] * steps
    dc0, dm0 = torch.zeros_like(c0), torch.zeros_like(m0)
    if lengths is None:
        dc_end[-1] = gc
        if gm is not None:
            dm[:, -1] += gm
        return dc_end, dc0, dm0
    ends = lengths.unsqueeze(-1)
    if gc is not None:
        dc_end = [gc * (ends == t + 1) for t in range(steps)]
        dc0 += gc * (ends == 0)
    if gm is not None:
        for t in range(steps):
            dm[:, t] += gm * (ends == t + 1)
        dm0 += gm * (ends == 0)
    return dc_end, dc0, dm0


def _past_end(lengths: Tensor, steps: int) -> Tensor:
    """[1, T, N, 1], true at steps that a row does not have."""
    time = torch.arange(steps, device=lengths.device)
    return (time.unsqueeze(1) >= lengths).view(1, steps, -1, 1)


def _at_end(values: Tensor, initial: Tensor, lengths: Tensor) -> Tensor:
    """Each row's value at its last valid step, or its initial value if it has none."""
    last = (lengths - 1).clamp_min(0).view(1, 1, -1, 1)
    last = last.expand(values.size(0), 1, values.size(2), values.size(3))
    read = values.gather(1, last).squeeze(1)
    return torch.where((lengths == 0).unsqueeze(-1), initial, read)
