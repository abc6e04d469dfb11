"""The projected LSTM with features first in memory, [direction, width, time, row]: for many rows.

`lstm.py` has the equations, and chooses between this layout and `lstm_rows.py`.

Products over all steps use the window as one matrix. A step is a slice of it, which is copied out,
changed and copied back: in a small model, ten passes over the slice took twice as long as over the
copy. The recurrence is Wᵀ·mᵀ. At 4096/512 with 128 rows it reached 75 GFLOP/s on one core and 104
on two, and m·W only 53 and 57 (a large product: 85 on one). It needs a transposed copy of the
recurrent weights once per window. No other product is slower in this layout.
"""

import torch
from torch import Tensor

from elmwright.model.lstm_step import (
    Clips,
    Window,
    backward_step,
    clip_back,
    forward_step,
    gate_views,
    spare,
)


class Columns:
    """The forward and the backward pass over one window."""

    @staticmethod
    def forward(
        x: Tensor,
        w: Tensor,
        bias: Tensor,
        w_proj: Tensor,
        c: Tensor,
        m: Tensor,
        clips: Clips,
        resets: Tensor | None,
    ) -> Window:
        groups, steps, rows, width = x.shape
        dim, proj = w_proj.shape[1:]
        z = spare.take(x, (groups, 4 * dim, steps, rows))
        w_in = w[:, :width].transpose(1, 2)
        torch.baddbmm(bias.unsqueeze(2), w_in, _columns(x).flatten(2), out=z.flatten(2))
        if resets is not None:
            z.narrow(1, 2 * dim, dim).masked_fill_(resets, -torch.inf)
        cells = spare.take(x, (groups, steps, dim, rows))  # in no product: a step is contiguous
        tanh_cells = spare.take(x, (groups, dim, steps, rows))
        y = x.new_empty(groups, proj, steps, rows)
        w_rec_t, w_proj_t = _transposed(w[:, width:]), _transposed(w_proj)
        c, m = c.transpose(1, 2).contiguous(), m.transpose(1, 2).contiguous()
        gates = z.new_empty(groups, 4 * dim, rows)
        tanh_c, hidden = torch.empty_like(c), torch.empty_like(c)
        parts = gate_views(gates, 1)
        views = zip(z.unbind(2), cells.unbind(1), tanh_cells.unbind(2), y.unbind(2), strict=True)
        for t, (gates_in_window, cell, tanh_cell, out) in enumerate(views):
            before = m if resets is None else m.masked_fill(resets[t], 0.0)
            torch.baddbmm(gates_in_window, w_rec_t, before, out=gates)
            forward_step(parts, c, cell, tanh_c, hidden, clips.cell)
            gates_in_window.copy_(gates)
            tanh_cell.copy_(tanh_c)
            torch.bmm(w_proj_t, hidden, out=out)
            out.clamp_(-clips.proj, clips.proj)
            c, m = cell, out
        return Window(z, cells, tanh_cells, _by_step(y))

    @staticmethod
    def cells_by_step(cells: Tensor) -> Tensor:
        """The cells of a window as [direction, time, row, dim]."""
        return cells.transpose(2, 3)

    @staticmethod
    def copy(target: Tensor, values: Tensor) -> None:
        """Copy [direction, time, row, width] into a tensor of that shape in this memory layout."""
        _copy_columns(_columns(target), values)

    @staticmethod
    def backward(
        x: Tensor,
        w: Tensor,
        w_proj: Tensor,
        c0: Tensor,
        m0: Tensor,
        window: Window,
        dm: Tensor,
        dc_end: list[Tensor | None],
        clips: Clips,
        resets: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """The gradients of x, w, bias, w_proj, c0 and m0, from those of the outputs (`dm`,
        which is overwritten) and of the final cells."""
        width = x.size(3)
        w_rec, y, dm = w[:, width:], _columns(window.y), _columns(dm)
        c = c0.transpose(1, 2).contiguous()
        dc, dh, part = torch.zeros_like(c), torch.empty_like(c), torch.empty_like(c)
        # Views of all steps at once: one by one they took 4 % of a small model's training step.
        gates, tanh_cell = window.gates.unbind(2), window.tanh_cells.unbind(2)
        cell, out, dm_step = window.cells.unbind(1), y.unbind(2), dm.unbind(2)
        dz = torch.empty_like(gates[0], memory_format=torch.contiguous_format)
        parts = dz.chunk(4, dim=1)
        last = len(gates) - 1
        for t in range(last, -1, -1):
            if t < last:
                if resets is not None:  # before the product, whose bits stay the same without them
                    dz.masked_fill_(resets[t + 1], 0.0)
                dm_step[t].baddbmm_(w_rec, dz)
            dz.copy_(gates[t])
            clip_back(dm_step[t], out[t], -clips.proj, clips.proj, grad_input=dm_step[t])
            torch.bmm(w_proj, dm_step[t], out=dh)
            before, end = cell[t - 1] if t else c, dc_end[t]
            end = None if end is None else end.transpose(1, 2)
            backward_step(parts, before, cell[t], tanh_cell[t], dh, dc, end, part, clips.cell)
            gates[t].copy_(dz)
        dm0 = w_rec.bmm(dz).transpose(1, 2)
        flat = window.gates.flatten(2)
        inputs = y.new_empty(y.size(0), w.size(1), *y.shape[2:])  # of the gates: [x; m_prev]
        _copy_columns(inputs[:, :width], x)
        inputs[:, width:, 0] = m0.transpose(1, 2)
        inputs[:, width:, 1:] = y[:, :, :-1]
        if resets is not None:
            inputs[:, width:].masked_fill_(resets, 0.0)
            dm0 = dm0.masked_fill(resets[0].unsqueeze(-1), 0.0)
        dw = inputs.flatten(2).bmm(flat.transpose(1, 2))
        dw_proj = window.tanh_cells.flatten(2).bmm(dm.flatten(2).transpose(1, 2))
        dx = _by_step(w[:, :width].bmm(flat).view(*x.shape[:1], width, *x.shape[1:3]))
        return dx, dw, flat.sum(2), dw_proj, dc.transpose(1, 2), dm0


def _columns(values: Tensor) -> Tensor:
    """A view of [G, T, N, width] as [G, width, T, N]."""
    return values.permute(0, 3, 1, 2)


def _by_step(columns: Tensor) -> Tensor:
    """A view of [G, width, T, N] as [G, T, N, width]."""
    return columns.permute(0, 2, 3, 1)


def _copy_columns(target: Tensor, values: Tensor) -> None:
    """Copy [G, T, N, width], of any memory layout, into [G, width, T, N]."""
    for matrix, group in zip(target, values, strict=True):
        matrix.flatten(1).copy_(group.flatten(0, 1).t())  # one by one, as in `_transposed`


def _transposed(w: Tensor) -> Tensor:
    """A copy of [G, A, B] as [G, B, A]. Matrices are copied one by one, because torch copies a
    transposed matrix in blocks, but a batch of them by element (4096/512: 27 ms, not 160)."""
    copy = w.new_empty(w.size(0), w.size(2), w.size(1))
    for target, source in zip(copy, w, strict=True):
        target.copy_(source.t())
    return copy
