"""Projected LSTM layers with clipping, the directions of a biLM side by side.

    z = [x; m_prev]·W + B                    gates in the order i, j, f, o
    c = clip(σ(f + 1)·c_prev + σ(i)·tanh(j), ±cell_clip)
    m = clip((σ(o)·tanh(c))·W_P, ±proj_clip)

`torch.nn.LSTM(proj_size=)` cannot clip and adds a full weight gradient at every time step. Here
one autograd function runs a whole window: a single GEMM for the inputs of all steps, a loop that
does only what is sequential, and in the backward pass one GEMM for each weight after the loop. The
leading axis holds the directions: two independent LSTMs share every batched GEMM and pointwise
call: half as many calls, at the same GEMM rate (measured from 256/64 to 4096/512).

Tensors are [direction, time, row, width]. Inside there are two layouts, each a file of its own:
row by row, and by feature, whose products are faster but only pay where rows are many and gradients
are wanted (a single sentence is read 6 times as fast row by row).

Kept for the backward pass: gates (4·dim), cell and tanh(cell) for each token and direction.
Gradients are zero where a clip binds. Every sum has a fixed order: the result is deterministic.

Rows of different length need no masks inside the loops. Steps past a row's end run on whatever
stands there; their outputs are set to zero and the row's final state is read at its last valid
step, so no gradient enters past it either.

Under autocast the layer computes in float32: ten pointwise steps chained over a window are where
bfloat16 loses most.
"""

from typing import Any

import torch
from torch import Tensor

from elmwright.model.lstm_columns import LSTMColumns
from elmwright.model.lstm_rows import LSTMRows

MANY_ROWS = 64
"""From so many rows on, training lays the window out by feature. At 1024/128 with 64 rows that took
as long on one core and 5 % less on two; at 4096/512 with 128 rows, 5 % less on one."""


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Run G independent LSTMs over a window; returns (outputs, final cells, final projections).

    x [G, T, N, in]; w [G, in + P, 4·D]; b [G, 4·D]; w_proj [G, D, P]; c0 [G, N, D]; m0 [G, N, P];
    lengths [N] (valid steps of each row, 0..T) or None when all T are valid.
    """
    if x.size(1) == 0 or x.size(2) == 0:
        return x.new_zeros(*x.shape[:3], m0.size(-1)), c0, m0
    if torch.is_autocast_enabled(x.device.type):
        x, w, b, w_proj, c0, m0 = (t.float() for t in (x, w, b, w_proj, c0, m0))
    with torch.autocast(x.device.type, enabled=False):
        tracked = torch.is_grad_enabled() and any(
            t.requires_grad for t in (x, w, b, w_proj, c0, m0)
        )
        run: Any = (LSTMColumns if tracked and x.size(2) >= MANY_ROWS else LSTMRows).apply
        y, c, m = run(x, w, b, w_proj, c0, m0, cell_clip, proj_clip, lengths)
    return y, c, m
