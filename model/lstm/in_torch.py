"""The projected LSTM in torch alone: for GPUs, for other types than float32, where there is no
compiler, and as the oracle of the kernels in C.

`projected.py` has the equations. Tensors are [direction, time, row, width]. A loop over steps is a
chain of small operations, and on a GPU starting one takes as long as computing it. So the loops
have as few as possible: the backward one multiplies by factors that were computed for all steps at
once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from elmwright.model.lstm.window import Clips, Gradients, Window, spare

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class TorchLSTM:
    """Computes one window, with products of operands of this type."""

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
        """As `NativeLSTM.forward`, but what is kept of a gate is its value."""
        width, (dim, proj) = x.size(3), w_proj.shape[1:]
        gates, w_rec = self._buffer(x, 4 * dim, x.dtype), w[:, width:]
        read = x.flatten(1, 2).to(self.operands)
        self._add_product(bias.unsqueeze(1), read, w[:, :width], gates.flatten(1, 2))
        if keep is not None:
            gates.narrow(-1, 2 * dim, dim).masked_fill_((keep == 0).unsqueeze(-1), -torch.inf)
            keep = keep.to(self.operands).unsqueeze(-1)
        cells, hidden = self._buffer(x, dim, x.dtype), self._buffer(x, dim, self.operands)
        y = torch.empty((*x.shape[:3], proj), dtype=self.operands, device=x.device)
        sums, squashed = torch.empty_like(gates[:, 0]), torch.empty_like(cells[:, 0])
        sum_j, c, m = sums.narrow(-1, dim, dim), c0, m0.to(self.operands)
        upper = lower = None
        if keep is not None:  # a limit of 0 forgets: one operation for that and for the clip
            m = m * keep[0]
            limits = (keep[1:] * clips.proj).nan_to_num_(0.0, posinf=torch.inf)
            upper, lower = limits.unbind(0), (-limits).unbind(0)
        parts = zip(
            *(gate.unbind(1) for gate in gates.chunk(4, dim=-1)),
            *(values.unbind(1) for values in (gates, cells, hidden, y)),
            strict=True,
        )
        for t, (i, j, f, o, every_gate, cell, hidden_t, y_t) in enumerate(parts):
            self._add_product(every_gate, m, w_rec, sums)
            torch.sigmoid(sums, out=every_gate)  # one call for all gates, that of j in vain
            torch.tanh(sum_j, out=j)
            torch.mul(f, c, out=cell)
            cell.addcmul_(i, j).clamp_(-clips.cell, clips.cell)
            torch.tanh(cell, out=squashed)
            torch.mul(o, squashed, out=hidden_t)
            c, m = cell, torch.bmm(hidden_t, w_proj, out=y_t)
            if upper is None or lower is None:
                m = y_t.clamp_(-clips.proj, clips.proj)
            elif t < len(upper):
                m = y_t.clamp(lower[t], upper[t])
        return Window(gates, cells, hidden, y.clamp_(-clips.proj, clips.proj))

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
        """As `NativeLSTM.backward`."""
        width, dim = x.size(3), w_proj.size(1)
        y = window.y
        factors, through_cell, inside = _derivatives(window, c0, clips)
        passes = (y.abs() < clips.proj).to(dm.dtype)
        dm = dm * passes
        if keep is not None:
            passes[:, :-1] *= keep[1:].unsqueeze(-1)
        operands = torch.empty_like(y)
        w_rec_t, w_proj_t = w[:, width:].transpose(1, 2), w_proj.transpose(1, 2)
        by_cell, by_hidden = factors[..., :3, :].unbind(1), factors[..., 3:, :].unbind(1)
        # The gradients of the four sums and, beside them, what reaches the cell through `hidden`.
        products = torch.empty_like(factors, dtype=self.operands)
        dz_ijf, through = products[..., :3, :].unbind(1), products[..., 3:, :].unbind(1)
        dz = products[..., :4, :].flatten(3)
        dz_t, dm_t, operand = dz.unbind(1), dm.unbind(1), operands.unbind(1)
        dc, last = torch.zeros_like(c0), x.size(1) - 1
        for t in range(last, -1, -1):
            if t < last:
                back = dz_t[t + 1].bmm(w_rec_t)
                torch.addcmul(dm_t[t], back, passes[:, t], out=operand[t])
            else:
                operand[t].copy_(dm_t[t])
            dh = operand[t].bmm(w_proj_t)
            torch.mul(by_hidden[t], dh.unsqueeze(2), out=through[t])
            dc = torch.addcmul(through[t][:, :, 1], dc, through_cell[:, t])
            end = dc_end[t]
            if end is not None:
                dc.addcmul_(end, inside[:, t])
            torch.mul(by_cell[t], dc.unsqueeze(2), out=dz_ijf[t])
        dc = dc * window.gates.narrow(-1, 2 * dim, dim)[:, 0]
        return Gradients.of_window(x, w, m0, window, dz, operands, dc, keep)

    @property
    def is_mixed(self) -> bool:
        """Whether products have another type than everything else."""
        return self.operands in (torch.bfloat16, torch.float16)

    def _add_product(self, sums: Tensor, values: Tensor, matrix: Tensor, out: Tensor) -> None:
        """sums + values·matrix, where `sums` may be `out`."""
        if self.is_mixed:
            torch.add(sums, values.bmm(matrix), out=out)
        else:
            torch.baddbmm(sums, values, matrix, out=out)

    @staticmethod
    def _buffer(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return spare.take((*x.shape[:3], width), dtype, x.device)


def _derivatives(window: Window, c0: Tensor, clips: Clips) -> tuple[Tensor, Tensor, Tensor]:
    """Of all steps: factors [G, T, N, 5, D], which are the derivatives of the sums of i, j and f by
    the cell, and of the sum of o and of the cell by `hidden`; the derivative of a cell by the cell
    of the next step, which is 0 for the last; and 1 where the cell is not clipped, else 0."""
    i, j, f, o = window.gates.chunk(4, dim=-1)
    cells = window.cells
    inside = (cells.abs() < clips.cell).to(cells.dtype)
    squashed = cells.tanh()
    before = torch.cat([c0.unsqueeze(1), cells[:, :-1]], dim=1)
    factors = cells.new_empty(*cells.shape[:3], 5, cells.size(3))
    by_i, by_j, by_f, by_o, by_hidden = factors.unbind(3)
    _sigmoid_back(j, i, grad_input=by_i)
    _tanh_back(i, j, grad_input=by_j)
    _sigmoid_back(before, f, grad_input=by_f)
    _sigmoid_back(squashed, o, grad_input=by_o)
    _tanh_back(o, squashed, grad_input=by_hidden).mul_(inside)
    through_cell = torch.zeros_like(cells)
    torch.mul(f[:, 1:], inside[:, :-1], out=through_cell[:, :-1])
    return factors, through_cell, inside
