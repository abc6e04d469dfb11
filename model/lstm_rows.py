"""The projected LSTM row by row in memory, [direction, time, row, width]: the layout for reading
text and for few rows; `lstm_columns.py` is the one for training with many. See `lstm.py`.
"""

import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
tanh_back = torch.ops.aten.tanh_backward.grad_input
clip_back = torch.ops.aten.hardtanh_backward.grad_input


class LSTMRows(torch.autograd.Function):
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
        bias = b.clone()
        bias[:, 2 * dim : 3 * dim] += 1.0  # the forget bias that no file stores
        z = spare.take(x, (groups, steps, rows, 4 * dim))
        torch.baddbmm(bias.unsqueeze(1), x.flatten(1, 2), w[:, :width], out=z.flatten(1, 2))
        cells = x.new_empty(groups, steps, rows, dim)
        tanh_cells = torch.empty_like(cells)
        y = x.new_empty(groups, steps, rows, proj)
        _run(z, w[:, width:], w_proj, c0, m0, cells, tanh_cells, y, cell_clip, proj_clip)

        if lengths is None:
            c, m = cells[:, -1].clone(), y[:, -1].clone()
        else:
            y.masked_fill_(past_end(lengths, steps), 0.0)
            c, m = at_end(cells, c0, lengths), at_end(y, m0, lengths)
        ctx.save_for_backward(x, w, w_proj, c0, m0, z, cells, tanh_cells, y, lengths)
        ctx.clips = cell_clip, proj_clip
        ctx.set_materialize_grads(False)
        return y, c, m

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gy: Tensor | None, gc: Tensor | None, gm: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, w, w_proj, c0, m0, gates, cells, tanh_cells, y, lengths = ctx.saved_tensors
        _, steps, _, width = x.shape
        with torch.autocast(x.device.type, enabled=False):
            dm = torch.zeros_like(y) if gy is None else gy.contiguous().clone()
            if lengths is not None and gy is not None:
                dm.masked_fill_(past_end(lengths, steps), 0.0)
            dc_in, dc0, dm0 = final_grads(dm, gc, gm, c0, m0, steps, lengths)

            last = not keeps_graph()
            if not last:  # somebody will come back for what was saved
                gates, tanh_cells = gates.clone(), tanh_cells.clone()
            saved = gates, cells, tanh_cells, y
            dc0 += _run_back(dm, dc_in, w[:, width:], w_proj, c0, saved, ctx.clips)
            dz, hidden = gates, tanh_cells  # what they have become
            dm0.baddbmm_(dz[:, 0], w[:, width:].transpose(1, 2))

            flat = dz.flatten(1, 2)
            before = torch.cat([m0.unsqueeze(1), y[:, :-1]], dim=1)
            dw = torch.cat([x, before], dim=-1).flatten(1, 2).transpose(1, 2).bmm(flat)
            dw_proj = hidden.flatten(1, 2).transpose(1, 2).bmm(dm.flatten(1, 2))
            dx = None
            if ctx.needs_input_grad[0]:
                dx = flat.bmm(w[:, :width].transpose(1, 2)).view_as(x)
            db = flat.sum(1)
        if last:
            spare.give(gates)
        return dx, dw, db, dw_proj, dc0, dm0, None, None, None


class Spare(threading.local):
    """Buffers that a backward pass is done with, for the next forward pass.

    A buffer of this size (42 MB for a small model) goes back to the system when it is freed, and
    the first touch of every page of a new one is slow. On CUDA the caching allocator does this.
    Never more than the layers of one step; a shape that is not asked for any more is let go.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[tuple[int, ...], torch.dtype], list[Tensor]] = {}

    def take(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        kept = self.buffers.get((shape, like.dtype))
        if kept and like.device.type == "cpu":
            return kept.pop()
        self.buffers.clear()
        return like.new_empty(shape)

    def give(self, *buffers: Tensor) -> None:
        for buffer in buffers:
            if buffer.device.type == "cpu":
                self.buffers.setdefault((tuple(buffer.shape), buffer.dtype), []).append(buffer)


spare = Spare()


def _run(
    z: Tensor,
    w_rec: Tensor,
    w_proj: Tensor,
    c: Tensor,
    m: Tensor,
    cells: Tensor,
    tanh_cells: Tensor,
    y: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> None:
    """The sequential part of the forward pass: turns z into gate values, fills cells and y."""
    dim = cells.size(-1)
    hidden = torch.empty_like(c)
    steps = zip(z.unbind(1), cells.unbind(1), tanh_cells.unbind(1), y.unbind(1), strict=True)
    for gate, cell, tanh_cell, out in steps:
        gate.baddbmm_(m, w_rec)
        i, j, f_o = gate[..., :dim], gate[..., dim : 2 * dim], gate[..., 2 * dim :]
        i.sigmoid_()
        j.tanh_()
        f_o.sigmoid_()
        torch.mul(f_o[..., :dim], c, out=cell)
        cell.addcmul_(i, j).clamp_(-cell_clip, cell_clip)
        torch.tanh(cell, out=tanh_cell)
        torch.mul(f_o[..., dim:], tanh_cell, out=hidden)
        torch.bmm(hidden, w_proj, out=out)
        out.clamp_(-proj_clip, proj_clip)
        c, m = cell, out


def _run_back(
    dm: Tensor,
    dc_in: list[Tensor | None],
    w_rec: Tensor,
    w_proj: Tensor,
    c0: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    clips: tuple[float, float],
) -> Tensor:
    """Back through time: completes dm, returns the gradient of c0.

    Each step is done with its saved values once it has been passed, so their memory takes what is
    needed afterwards: `gates` becomes the gradient of z and `tanh_cells` becomes σ(o)·tanh(c), the
    projection's input. (Fresh buffers for the two would cost the first touch of every page.)
    `hardtanh_backward` on the clipped value is zero exactly where the clip
    binds, in one pass.
    """
    (cell_clip, proj_clip), (gates, cells, tanh_cells, y) = clips, saved
    w_rec_t, w_proj_t = w_rec.transpose(1, 2), w_proj.transpose(1, 2)
    dc, dh, part = torch.zeros_like(c0), torch.empty_like(c0), torch.empty_like(c0)
    # All views of all steps at once: taken one by one they cost 4 % of a small model's step.
    i, j, f, o = (gate.unbind(1) for gate in gates.chunk(4, dim=-1))
    cell, tanh_cell, out = cells.unbind(1), tanh_cells.unbind(1), y.unbind(1)
    dz, dm_step = gates.unbind(1), dm.unbind(1)
    last = len(dz) - 1
    for t in range(last, -1, -1):
        dm_t, arriving = dm_step[t], dc_in[t]
        if t < last:
            dm_t.baddbmm_(dz[t + 1], w_rec_t)
        clip_back(dm_t, out[t], -proj_clip, proj_clip, grad_input=dm_t)
        torch.bmm(dm_t, w_proj_t, out=dh)
        torch.mul(dh, tanh_cell[t], out=part)
        tanh_back(dh.mul_(o[t]), tanh_cell[t], grad_input=dh)
        tanh_cell[t].mul_(o[t])
        sigmoid_back(part, o[t], grad_input=o[t])
        dc.add_(dh)
        if arriving is not None:
            dc.add_(arriving)
        clip_back(dc, cell[t], -cell_clip, cell_clip, grad_input=dc)
        torch.mul(dc, j[t], out=part)
        torch.mul(dc, i[t], out=dh)
        sigmoid_back(part, i[t], grad_input=i[t])
        tanh_back(dh, j[t], grad_input=j[t])
        torch.mul(dc, cell[t - 1] if t else c0, out=part)
        dc.mul_(f[t])
        sigmoid_back(part, f[t], grad_input=f[t])
    return dc


def keeps_graph() -> bool:
    """Whether the backward pass that is running was asked to keep the graph for another one.

    A torch that no longer says so is taken to keep it, which is only slower."""
    autograd = getattr(torch._C, "_autograd", None)
    says = getattr(autograd, "_get_current_graph_task_keep_graph", None)
    return True if says is None else bool(says())


def final_grads(
    dm: Tensor,
    gc: Tensor | None,
    gm: Tensor | None,
    c0: Tensor,
    m0: Tensor,
    steps: int,
    lengths: Tensor | None,
) -> tuple[list[Tensor | None], Tensor, Tensor]:
    """Send the gradients of the final states to the steps they were read at.

    Adds that of m into dm; returns that of c by step, and the starts of dc0 and dm0 (which only
    rows of length 0 reach directly).
    """
    dc_in: list[Tensor | None] = [None] * steps
    dc0, dm0 = torch.zeros_like(c0), torch.zeros_like(m0)
    if lengths is None:
        dc_in[-1] = gc
        if gm is not None:
            dm[:, -1] += gm
        return dc_in, dc0, dm0
    ends = lengths.unsqueeze(-1)
    if gc is not None:
        dc_in = [gc * (ends == t + 1) for t in range(steps)]
        dc0 += gc * (ends == 0)
    if gm is not None:
        for t in range(steps):
            dm[:, t] += gm * (ends == t + 1)
        dm0 += gm * (ends == 0)
    return dc_in, dc0, dm0


def past_end(lengths: Tensor, steps: int) -> Tensor:
    """[1, T, N, 1], true at steps that a row does not have."""
    time = torch.arange(steps, device=lengths.device)
    return (time.unsqueeze(1) >= lengths).view(1, steps, -1, 1)


def at_end(values: Tensor, initial: Tensor, lengths: Tensor) -> Tensor:
    """Each row's value at its last valid step, or its initial value if it has none."""
    last = (lengths - 1).clamp_min(0).view(1, 1, -1, 1)
    last = last.expand(values.size(0), 1, values.size(2), values.size(3))
    read = values.gather(1, last).squeeze(1)
    return torch.where((lengths == 0).unsqueeze(-1), initial, read)
