"""Projected LSTM layers with clipping, the directions of a biLM side by side.

    z = [x; m_prev]·W + B                    gates in the order i, j, f, o
    c = clip(σ(f + 1)·c_prev + σ(i)·tanh(j), ±cell_clip)
    m = clip((σ(o)·tanh(c))·W_P, ±proj_clip)

`torch.nn.LSTM(proj_size=)` cannot clip and adds a full weight gradient at every time step. Here
one autograd function runs a whole window: a single GEMM for the inputs of all steps, a loop that
does only what is sequential, and in the backward pass one GEMM for each weight after the loop. The
leading axis holds the directions: two independent LSTMs share every batched GEMM and pointwise
call, so there are half as many calls at the same GEMM rate (measured from 256/64 to 4096/512).

Tensors are [direction, time, row, width]. Inside there are two layouts: row by row
(`lstm_rows.py`), and by feature (`lstm_columns.py`), whose products are faster but only pay where
rows are many and gradients are wanted (a single sentence is read 6 times as fast row by row).

Kept for the backward pass: gates (4·dim), cell and tanh(cell) for each token and direction. It
overwrites gates and tanh(cell) step by step with what the weight gradients need, because fresh
buffers would cost the first touch of every page. Gradients are zero where a clip binds. Every sum
has a fixed order: the result is deterministic.

A row may forget its states before any step (`resets`), as at the start of a sentence: the forget
gate's sum becomes −∞, which makes the gate and all gradients through it exactly zero, and the
recurrent product reads zeros in place of m.

Rows of different length need no masks inside the loops. Steps past a row's end compute with
whatever is there. Their outputs are set to zero and the row's final state is read at its last valid
step, so no gradient enters past it either.

Under autocast the layer computes in float32: ten pointwise steps chained over a window are where
bfloat16 loses most.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmwright.model.lstm_columns import Columns
from elmwright.model.lstm_rows import Rows
from elmwright.model.lstm_step import Clips, Window, spare

MANY_ROWS = 64
"""Fewest rows for which training uses the layout by feature. At 1024/128 with 64 rows that took as
long on one core and 5 % less on two. At 4096/512 with 128 rows it took 5 % less on one."""


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Run G independent LSTMs over a window; returns (outputs, final cells, final projections).

    x [G, T, N, in]; w [G, in + P, 4·D]; b [G, 4·D]; w_proj [G, D, P]; c0 [G, N, D]; m0 [G, N, P];
    lengths [N] (valid steps of each row, 0..T) or None when all T are valid; resets [T, N] (true
    where a row forgets its states before a step) or None.
    """
    if x.size(1) == 0 or x.size(2) == 0:
        return x.new_zeros(*x.shape[:3], m0.size(-1)), c0, m0
    tensors: tuple[Tensor, ...] = (x, w, b, w_proj, c0, m0)
    if torch.is_autocast_enabled(x.device.type):
        tensors = tuple(tensor.float() for tensor in tensors)
    is_tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    layout = Columns if is_tracked and x.size(2) >= MANY_ROWS else Rows
    run: Any = _LSTM.apply
    with torch.autocast(x.device.type, enabled=False):
        clips = Clips(cell_clip or torch.inf, proj_clip or torch.inf)  # 0 never clips
        y, c, m = run(layout, lengths, resets, clips, *tensors)
    return y, c, m


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layout: type[Rows | Columns],
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
        dim = w_proj.size(1)
        bias = b.clone()
        bias[:, 2 * dim : 3 * dim] += 1.0  # the forget bias that no file stores
        window = layout.forward(x, w, bias, w_proj, c0, m0, clips, resets)
        y, cells = window.y, layout.cells_by_step(window.cells)
        if lengths is None:
            c, m = cells[:, -1].clone(), y[:, -1].clone()
        else:
            y.masked_fill_(_past_end(lengths, x.size(1)), 0.0)
            c, m = _at_end(cells, c0, lengths), _at_end(y, m0, lengths)
        ctx.save_for_backward(x, w, w_proj, c0, m0, lengths, resets, *window)
        ctx.layout, ctx.clips = layout, clips
        ctx.set_materialize_grads(False)
        return y, c.contiguous(), m.contiguous()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gy: Tensor | None, gc: Tensor | None, gm: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, w, w_proj, c0, m0, lengths, resets, *saved = ctx.saved_tensors
        window = Window(*saved)
        with torch.autocast(x.device.type, enabled=False):
            dm = torch.zeros_like(window.y)
            if gy is not None:
                ctx.layout.copy(dm, gy)
                if lengths is not None:
                    dm.masked_fill_(_past_end(lengths, x.size(1)), 0.0)
            dc_end, dc0, dm0 = _final_grads(dm, gc, gm, c0, m0, lengths)
            keeps_saved = keeps_graph()
            if keeps_saved:
                window = window._replace(
                    gates=window.gates.clone(), tanh_cells=window.tanh_cells.clone()
                )
            dx, dw, db, dw_proj, dc0_by_steps, dm0_by_steps = ctx.layout.backward(
                x, w, w_proj, c0, m0, window, dm, dc_end, ctx.clips, resets
            )
        if not keeps_saved:
            spare.give(window.gates, window.cells, window.tanh_cells)
        dc0, dm0 = dc0 + dc0_by_steps, dm0 + dm0_by_steps
        return None, None, None, None, dx, dw, db, dw_proj, dc0, dm0


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
