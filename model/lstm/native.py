"""The projected LSTM with the kernels in C.

`projected.py` has the equations. Products are torch's. Everything between two products of a step is
one call of a kernel, which reads and writes the window in place. Tensors are [direction, time, row,
width], so a row's gates are next to each other. (By feature, [direction, width, time, row], the
recurrent product is up to 5 % faster, and the kernels take twice as long.)

With operands in bfloat16 the products read and give bfloat16, and add in float32. Sums of gates,
cells and their gradients are computed in float32. What is kept of a gate for the backward pass is
its sum in the operands' type: its value would lose the difference to 0 or 1.
"""

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from elmwright.model.kernels.native import Native, Step
from elmwright.model.lstm.window import Clips, Gradients, Window, spare


@dataclass(frozen=True)
class NativeLSTM:
    """Computes one window, with products of operands of this type; all else is float32."""

    kernels: Native
    operands: torch.dtype

    def forward(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor,
        w_proj: Tensor,
        c0: Tensor,
        m0: Tensor,
        clips: Clips,
        keep: Tensor | None,
    ) -> Window:
        """x [G, T, N, in]; `w` and `w_proj` in the operands' type; `keep` [T, N] is 0 where a row
        forgets its states before a step, else 1."""
        width, (dim, proj) = x.size(3), w_proj.shape[1:]
        z = spare.take((*x.shape[:3], 4 * dim), self.operands, x.device)
        torch.bmm(x.flatten(1, 2).to(self.operands), w[:, :width], out=z.flatten(1, 2))
        cells = spare.take((*x.shape[:3], dim), x.dtype, x.device)
        hidden = spare.take((*x.shape[:3], dim), self.operands, x.device)
        y = torch.empty((*x.shape[:3], proj), dtype=self.operands)
        w_rec = w[:, width:].contiguous()  # else every product in bfloat16 copies it
        rec = torch.empty_like(z[:, 0], memory_format=torch.contiguous_format)
        c, m = c0.contiguous(), m0.to(self.operands)
        call, threads = self.kernels.lstm_forward[self.operands], torch.get_num_threads()
        sizes = _sizes(z, cells)
        parts = (values.unbind(1) for values in (z, cells, hidden, y))
        for t, (z_t, cell, hidden_t, y_t) in enumerate(zip(*parts, strict=True)):
            torch.bmm(m if keep is None else m * keep[t].to(m.dtype).unsqueeze(1), w_rec, out=rec)
            call(
                *(threads, byref(sizes), c.stride(0), z_t.data_ptr(), rec.data_ptr()),
                *(bias.data_ptr(), c.data_ptr(), cell.data_ptr(), hidden_t.data_ptr()),
                *(None if keep is None else keep[t].data_ptr(), clips.cell),
            )
            torch.bmm(hidden_t, w_proj, out=y_t)
            y_t.clamp_(-clips.proj, clips.proj)
            c, m = cell, y_t
        return Window(z, cells, hidden, y)

    def backward(
        self,
        x: Tensor,
        w: Tensor,
        w_proj: Tensor,
        c0: Tensor,
        m0: Tensor,
        window: Window,
        dm: Tensor,
        dc_end: list[Tensor | None],
        clips: Clips,
        keep: Tensor | None,
    ) -> Gradients:
        """The gradients, from those of the outputs, `dm` [G, T, N, P], to which the steps add, and
        of the final cells. The window is overwritten."""
        width, steps = x.size(3), x.size(1)
        w_rec_t, w_proj_t = w[:, width:].contiguous().transpose(1, 2), w_proj.transpose(1, 2)
        z, cells, hidden, y = window
        operands = dm if self.operands == dm.dtype else torch.empty_like(y)
        c0 = c0.contiguous()
        dc, dh = torch.zeros_like(c0), hidden.new_empty(c0.shape)
        back = y.new_empty(m0.shape)
        z_t, cell, y_t, dm_t, operand = (v.unbind(1) for v in (z, cells, y, dm, operands))
        call, threads = self.kernels.lstm_backward[self.operands], torch.get_num_threads()
        sizes = _sizes(z, cells)
        for t in range(steps - 1, -1, -1):
            if t < steps - 1:
                torch.bmm(z_t[t + 1], w_rec_t, out=back)
                dm_t[t].add_(back if keep is None else back * keep[t + 1].unsqueeze(1))
            dm_t[t].masked_fill_(y_t[t].abs() >= clips.proj, 0.0)
            if operands is not dm:
                operand[t].copy_(dm_t[t])
            torch.bmm(operand[t], w_proj_t, out=dh)
            end, before = dc_end[t], cell[t - 1] if t else c0
            if end is not None:
                dc.add_(end)
            call(
                *(threads, byref(sizes), before.stride(0), z_t[t].data_ptr(), dh.data_ptr()),
                *(before.data_ptr(), cell[t].data_ptr(), dc.data_ptr()),
                *(None if keep is None else keep[t].data_ptr(), clips.cell),
            )
        return Gradients.of_window(x, w, m0, window, z, operands, dc, keep)


def _sizes(z: Tensor, cells: Tensor) -> Step:
    groups, _, rows, dim = cells.shape
    return Step(groups=groups, rows=rows, dim=dim, z_group=z.stride(0), cell_group=cells.stride(0))
