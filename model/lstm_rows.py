"""The projected LSTM with rows contiguous in memory, [direction, time, row, width].

The layout for reading text and for few rows. `lstm_columns.py` is the one for training with many.
See `lstm.py`.
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


class Rows:
    """One window in this layout."""

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
        z = spare.take(x, (groups, steps, rows, 4 * dim))
        torch.baddbmm(bias.unsqueeze(1), x.flatten(1, 2), w[:, :width], out=z.flatten(1, 2))
        forgets = None if resets is None else resets.unsqueeze(-1)
        if forgets is not None:
            z.narrow(-1, 2 * dim, dim).masked_fill_(forgets, -torch.inf)
        cells = spare.take(x, (groups, steps, rows, dim))
        tanh_cells = spare.take(x, (groups, steps, rows, dim))
        y = x.new_empty(groups, steps, rows, proj)
        w_rec, hidden = w[:, width:], torch.empty_like(c)
        views = zip(z.unbind(1), cells.unbind(1), tanh_cells.unbind(1), y.unbind(1), strict=True)
        for t, (gates, cell, tanh_cell, out) in enumerate(views):
            before = m if forgets is None else m.masked_fill(forgets[t], 0.0)
            gates.baddbmm_(before, w_rec)
            forward_step(gate_views(gates, -1), c, cell, tanh_cell, hidden, clips.cell)
            torch.bmm(hidden, w_proj, out=out)
            out.clamp_(-clips.proj, clips.proj)
            c, m = cell, out
        return Window(z, cells, tanh_cells, y)

    @staticmethod
    def cells_by_step(cells: Tensor) -> Tensor:
        """The cells of a window as [direction, time, row, dim]."""
        return cells

    @staticmethod
    def copy(target: Tensor, values: Tensor) -> None:
        """Copy [direction, time, row, width] into a tensor that is in this layout."""
        target.copy_(values)

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
        """The gradients of x, w, bias, w_proj, c0 and m0, from those of the outputs (`dm`, to
        which the steps add) and of the final cells."""
        width = x.size(3)
        w_rec_t, w_proj_t = w[:, width:].transpose(1, 2), w_proj.transpose(1, 2)
        dc, dh, part = torch.zeros_like(c0), torch.empty_like(c0), torch.empty_like(c0)
        # All views of all steps at once: taken one by one they cost 4 % of a small model's step.
        gates = list(zip(*(gate.unbind(1) for gate in window.gates.chunk(4, dim=-1)), strict=True))
        cell, tanh_cell = window.cells.unbind(1), window.tanh_cells.unbind(1)
        dz, out, dm_step = window.gates.unbind(1), window.y.unbind(1), dm.unbind(1)
        last = len(dz) - 1
        forgets = None if resets is None else resets.unsqueeze(-1)
        for t in range(last, -1, -1):
            if t < last:
                after = dz[t + 1]
                # Masked before the product, which so has the same bits with and without resets.
                kept = after if forgets is None else after.masked_fill(forgets[t + 1], 0.0)
                dm_step[t].baddbmm_(kept, w_rec_t)
            clip_back(dm_step[t], out[t], -clips.proj, clips.proj, grad_input=dm_step[t])
            torch.bmm(dm_step[t], w_proj_t, out=dh)
            before = cell[t - 1] if t else c0
            backward_step(
                gates[t], before, cell[t], tanh_cell[t], dh, dc, dc_end[t], part, clips.cell
            )
        flat = window.gates.flatten(1, 2)
        m_before = torch.cat([m0.unsqueeze(1), window.y[:, :-1]], dim=1)
        dm0 = dz[0].bmm(w_rec_t)
        if forgets is not None:
            m_before.masked_fill_(forgets, 0.0)
            dm0.masked_fill_(forgets[0], 0.0)
        read = torch.cat([x, m_before], dim=-1).flatten(1, 2)
        dx = flat.bmm(w[:, :width].transpose(1, 2)).view_as(x)
        dw = read.transpose(1, 2).bmm(flat)
        dw_proj = window.tanh_cells.flatten(1, 2).transpose(1, 2).bmm(dm.flatten(1, 2))
        return dx, dw, flat.sum(1), dw_proj, dc, dm0
