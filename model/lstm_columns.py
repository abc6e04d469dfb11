"""The projected LSTM by feature in memory, [direction, width, time, row]: for many rows.

See `lstm.py` for the rest.

The window is one matrix for the products over all steps. A step is a slice of it, which is copied
out, worked on and copied back (ten passes over the slice itself took twice as long in a small model
as over the copy). The recurrence is Wᵀ·mᵀ, wide weights by narrow columns: at 4096/512 with 128
rows 75 GFLOP/s on one core and 104 on two, where m·W got 53 and 57 in turn with it (a large
product: 85 on one). That needs a transposed copy of the recurrent weights once a window. No other
product is slower this way round. The output is a view as [direction, time, row, width].
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmwright.model.lstm_rows import (
    at_end,
    clip_back,
    final_grads,
    keeps_graph,
    past_end,
    sigmoid_back,
    spare,
    tanh_back,
)


class LSTMColumns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor,
        w_proj: Tensor,
        c0: Tensor,
        m0: Tensor,
        cell_clip: float,
        proj_clip: float,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        groups, steps, rows, width = x.shape
        dim, proj = w_proj.shape[1:]
        bias = b.unsqueeze(2).clone()
        bias[:, 2 * dim : 3 * dim] += 1.0  # the forget bias that no file stores
        z = spare.take(x, (groups, 4 * dim, steps, rows))
        w_in = w[:, :width].transpose(1, 2)
        torch.baddbmm(bias, w_in, _columns(x).flatten(2), out=z.flatten(2))
        cells = spare.take(x, (groups, steps, dim, rows))  # in no product, so a step is a block
        tanh_cells = spare.take(x, (groups, dim, steps, rows))
        y = x.new_empty(groups, proj, steps, rows)
        _run(z, w[:, width:], w_proj, c0, m0, cells, tanh_cells, y, cell_clip, proj_clip)

        out, by_step = _by_step(y), cells.transpose(2, 3)
        if lengths is None:
            c, m = by_step[:, -1].clone(), out[:, -1].clone()
        else:
            out.masked_fill_(past_end(lengths, steps), 0.0)
            c, m = at_end(by_step, c0, lengths), at_end(out, m0, lengths)
        ctx.save_for_backward(x, w, w_proj, c0, m0, z, cells, tanh_cells, out, lengths)
        ctx.clips = cell_clip, proj_clip
        ctx.set_materialize_grads(False)
        return out, c.contiguous(), m.contiguous()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gy: Tensor | None, gc: Tensor | None, gm: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, w, w_proj, c0, m0, gates, cells, tanh_cells, out, lengths = ctx.saved_tensors
        _, steps, _, width = x.shape
        y = _columns(out)
        with torch.autocast(x.device.type, enabled=False):
            dm = torch.zeros_like(y)
            if gy is not None:
                _copy_columns(dm, gy)
            if lengths is not None and gy is not None:
                _by_step(dm).masked_fill_(past_end(lengths, steps), 0.0)
            dc_in, dc0, dm0 = final_grads(_by_step(dm), gc, gm, c0, m0, steps, lengths)

            last = not keeps_graph()
            if not last:  # somebody will come back for what was saved
                gates, tanh_cells = gates.clone(), tanh_cells.clone()
            saved = gates, cells, tanh_cells, y
            dc = _run_back(dm, dc_in, w[:, width:], w_proj, c0, saved, ctx.clips)
            dz, hidden = gates, tanh_cells  # what they have become
            dc0 += dc.transpose(1, 2)
            dm0 += w[:, width:].bmm(dz[:, :, 0]).transpose(1, 2)

            flat = dz.flatten(2)
            read = y.new_empty(y.size(0), w.size(1), *y.shape[2:])  # by the gates: [x; m_prev]
            _copy_columns(read[:, :width], x)
            read[:, width:, 0] = m0.transpose(1, 2)
            read[:, width:, 1:] = y[:, :, :-1]
            dw = read.flatten(2).bmm(flat.transpose(1, 2))
            dw_proj = hidden.flatten(2).bmm(dm.flatten(2).transpose(1, 2))
            dx = None
            if ctx.needs_input_grad[0]:
                dx = _by_step(w[:, :width].bmm(flat).view(*x.shape[:1], width, *x.shape[1:3]))
            db = flat.sum(2)
        if last:
            spare.give(gates, cells, tanh_cells)
        return dx, dw, db, dw_proj, dc0, dm0, None, None, None


def _columns(values: Tensor) -> Tensor:
    """[G, T, N, width] seen as [G, width, T, N]."""
    return values.permute(0, 3, 1, 2)


def _by_step(columns: Tensor) -> Tensor:
    """The way back."""
    return columns.permute(0, 2, 3, 1)


def _copy_columns(target: Tensor, values: Tensor) -> None:
    """Copy [G, T, N, width] into [G, width, T, N], whichever way it lies in memory."""
    for into, group in zip(target, values, strict=True):
        into.flatten(1).copy_(group.flatten(0, 1).t())  # by matrix, as in `_transposed`


def _run(
    z: Tensor,
    w_rec: Tensor,
    w_proj: Tensor,
    c0: Tensor,
    m0: Tensor,
    cells: Tensor,
    tanh_cells: Tensor,
    y: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> None:
    """The sequential part of the forward pass: turns z into gate values, fills cells and y."""
    w_rec_t, w_proj_t = _transposed(w_rec), _transposed(w_proj)
    c, m = c0.transpose(1, 2).contiguous(), m0.transpose(1, 2).contiguous()
    gates, tanh_c, hidden = z.new_empty(z[:, :, 0].shape), torch.empty_like(c), torch.empty_like(c)
    dim = c.size(1)
    i, j, f_o = gates[:, :dim], gates[:, dim : 2 * dim], gates[:, 2 * dim :]
    steps = zip(z.unbind(2), cells.unbind(1), tanh_cells.unbind(2), y.unbind(2), strict=True)
    for gate, cell, tanh_cell, out in steps:
        torch.baddbmm(gate, w_rec_t, m, out=gates)
        i.sigmoid_()
        j.tanh_()
        f_o.sigmoid_()
        torch.mul(f_o[:, :dim], c, out=cell)
        cell.addcmul_(i, j).clamp_(-cell_clip, cell_clip)
        torch.tanh(cell, out=tanh_c)
        torch.mul(f_o[:, dim:], tanh_c, out=hidden)
        gate.copy_(gates)
        tanh_cell.copy_(tanh_c)
        torch.bmm(w_proj_t, hidden, out=out)
        out.clamp_(-proj_clip, proj_clip)
        c, m = cell, out


def _transposed(w: Tensor) -> Tensor:
    """A copy of [G, A, B] as [G, B, A]. Matrix by matrix, because torch copies a transposed matrix
    in blocks and a transposed batch element by element: 27 ms for 160 at 4096/512."""
    copy = w.new_empty(w.size(0), w.size(2), w.size(1))
    for target, source in zip(copy, w, strict=True):
        target.copy_(source.t())
    return copy


def _run_back(
    dm: Tensor,
    dc_in: list[Tensor | None],
    w_rec: Tensor,
    w_proj: Tensor,
    c0: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    clips: tuple[float, float],
) -> Tensor:
    """Back through time: completes dm, returns the gradient of c0 as [G, D, N].

    Each step is done with its saved values once it has been passed, so their memory takes what is
    needed afterwards: `gates` becomes the gradient of z and `tanh_cells` becomes σ(o)·tanh(c), the
    projection's input. (Fresh buffers for the two would cost the first touch of every page.)
    `hardtanh_backward` on the clipped value is zero exactly where the clip binds, in one pass.
    """
    (cell_clip, proj_clip), (gates, cells, tanh_cells, y) = clips, saved
    first = c0.transpose(1, 2).contiguous()
    dc, dh, part = torch.zeros_like(first), torch.empty_like(first), torch.empty_like(first)
    # All views of all steps at once: taken one by one they cost 4 % of a small model's step.
    gate, cell, tanh_cell = gates.unbind(2), cells.unbind(1), tanh_cells.unbind(2)
    out, dm_step = y.unbind(2), dm.unbind(2)
    dz = torch.empty_like(gate[0], memory_format=torch.contiguous_format)
    i, j, f, o = dz.chunk(4, dim=1)
    last = len(gate) - 1
    for t in range(last, -1, -1):
        dm_t, arriving = dm_step[t], dc_in[t]
        if t < last:
            dm_t.baddbmm_(w_rec, dz)
        dz.copy_(gate[t])
        clip_back(dm_t, out[t], -proj_clip, proj_clip, grad_input=dm_t)
        torch.bmm(w_proj, dm_t, out=dh)
        torch.mul(dh, tanh_cell[t], out=part)
        tanh_back(dh.mul_(o), tanh_cell[t], grad_input=dh)
        tanh_cell[t].mul_(o)
        dc.add_(dh)
        if arriving is not None:
            dc.add_(arriving.transpose(1, 2))
        clip_back(dc, cell[t], -cell_clip, cell_clip, grad_input=dc)
        sigmoid_back(part, o, grad_input=o)
        torch.mul(dc, j, out=part)
        torch.mul(dc, i, out=dh)
        sigmoid_back(part, i, grad_input=i)
        tanh_back(dh, j, grad_input=j)
        torch.mul(dc, cell[t - 1] if t else first, out=part)
        dc.mul_(f)
        sigmoid_back(part, f, grad_input=f)
        gate[t].copy_(dz)
    return dc
