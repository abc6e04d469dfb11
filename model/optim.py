"""Adagrad and AdamW for a model whose softmax is row-sparse.

One `Optimizer` owns the dense parameters and the softmax. Dense parameters are updated from their
`.grad`; of the softmax only the rows that a step touched, from the gradient of their compact table.
The learning rate comes with each step. The gradient's scale (clipping, loss scale) is folded into
the update: no clipped copy is made.

Adagrad is that of the original run: the accumulator starts at 1.0 and there is no epsilon
(TensorFlow's rule; torch adds 1e-10 to a root that is never below 1). A row without gradient would
not move anyway, so the row-sparse update *is* the dense one.

AdamW is torch's rule. On softmax rows it is lazy: a row's moments, decay and bias correction
advance only on steps that touch it, with its own count of steps, so that a rare word's first update
is as large as any first update. Equal to the dense rule when every row is touched on every step.

State is a flat dict of tensors: safetensors can write it, and nothing else is needed to resume.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from elmwright.model.config import OptimConfig
from elmwright.model.launches import wants_few
from elmwright.model.softmax import Softmax, parts_of_table


@torch.no_grad()
def global_norm(dense_grads: Iterable[Tensor], table_grad: Tensor | None) -> Tensor:
    """The norm over all gradients together, a float64 scalar; the order of sums is fixed."""
    grads = [*dense_grads, *([] if table_grad is None else [table_grad])]
    if grads and wants_few(grads[0].device):
        norms = list(torch._foreach_norm(grads, 2.0))
    else:
        norms = [_norm(grad) for grad in grads]
    if not norms:
        return torch.zeros((), dtype=torch.float64)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), dtype=torch.float64)
    return total


def _norm(grad: Tensor) -> Tensor:
    """Rows in float32 (a few thousand terms), their norms in float64. In float64 throughout, torch
    would first copy the whole gradient, which took 4 % of a step."""
    rows = torch.linalg.vector_norm(grad, dim=-1) if grad.dim() > 1 else grad
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm


BLOCK = 1 << 18
"""Numbers that are updated at a time: all passes over a block find it in the cache, and temporaries
need a megabyte or two in place of copies of the largest parameter (134 MB in the original)."""


def _blocks(*tensors: Tensor) -> Iterable[Sequence[Tensor]]:
    """Tensors of one shape, in blocks if they are long and contiguous."""
    is_flat = all(tensor.is_contiguous() for tensor in tensors)
    if not is_flat or tensors[0].numel() <= BLOCK:
        return [tensors]
    starts = range(0, tensors[0].numel(), BLOCK)
    return ([tensor.view(-1)[start : start + BLOCK] for tensor in tensors] for start in starts)


class Optimizer:
    """Updates the dense parameters and the touched rows of the softmax."""

    def __init__(
        self,
        named_params: Mapping[str, nn.Parameter],
        softmax: Softmax | None,
        settings: OptimConfig,
    ) -> None:
        self.params = dict(named_params)
        self.softmax = softmax
        self.settings = settings
        self.steps = 0
        """Updates of the dense parameters so far (AdamW corrects their moments by it)."""
        self._state = {
            f"{kind}.{name}": torch.full_like(
                value.detach(), start, memory_format=torch.contiguous_format
            )
            for name, value in self._values()
            for kind, start in self._kinds()
        }
        self._row_steps = (
            torch.zeros(softmax.vocab_size, dtype=torch.int32, device=softmax.weight.device)
            if softmax is not None and settings.name == "adamw"
            else None
        )

    def _kinds(self) -> Sequence[tuple[str, float]]:
        """The tensors kept for each parameter, with their initial value."""
        if self.settings.name == "adagrad":
            return (("sum", self.settings.initial_accumulator),)
        return (("mean", 0.0), ("square", 0.0))

    def _values(self) -> Iterable[tuple[str, Tensor]]:
        yield from self.params.items()
        if self.softmax is not None:
            for name, value in self.softmax.state().items():
                yield f"softmax.{name}", value

    @torch.no_grad()
    def step(
        self,
        lr: float,
        grad_scale: float = 1.0,
        rows: Tensor | None = None,
        table_grad: Tensor | None = None,
        numerics: int = 2,
    ) -> None:
        """One update. Gradients are taken times `grad_scale`; `table_grad` belongs to the
        softmax rows `rows` (sorted, distinct).

        A step in which no dense parameter has a gradient (`train.hold_steps`) does not count as an
        update of theirs, else AdamW's first real ones would be several times `lr`. `numerics` 1
        counts it, for runs that began that way.
        """
        if numerics < 2 or any(param.grad is not None for param in self.params.values()):
            self.steps += 1
        self._step_dense(lr, grad_scale)
        if self.softmax is not None and rows is not None and table_grad is not None:
            self._step_rows(self.softmax, lr, grad_scale, rows, table_grad)

    def _step_dense(self, lr: float, grad_scale: float) -> None:
        groups = [
            [param, param.grad, *(self._state[f"{kind}.{name}"] for kind, _ in self._kinds())]
            for name, param in self.params.items()
            if param.grad is not None
        ]
        if groups and wants_few(groups[0][0].device):
            self._update_together(*map(list, zip(*groups, strict=True)), lr=lr, scale=grad_scale)
            return
        for group in groups:
            for value, grad, *part in _blocks(*group):
                betas = self.settings.betas
                self._update(value, grad, part, lr, grad_scale, self.steps, betas)

    def _update_together(
        self,
        values: list[Tensor],
        grads: list[Tensor],
        *states: list[Tensor],
        lr: float,
        scale: float,
    ) -> None:
        """`_update` of all parameters, with one operation for all of them at a time."""
        if self.settings.name == "adagrad":
            (totals,) = states
            torch._foreach_addcmul_(totals, grads, grads, value=scale * scale)
            torch._foreach_addcdiv_(values, grads, torch._foreach_sqrt(totals), value=-lr * scale)
            return
        means, squares = states
        beta1, beta2 = self.settings.betas
        if self.settings.weight_decay:
            torch._foreach_mul_(values, 1 - lr * self.settings.weight_decay)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, grads, alpha=(1 - beta1) * scale)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=(1 - beta2) * scale * scale)
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, math.sqrt(1 - beta2**self.steps))
        torch._foreach_add_(divisors, self.settings.eps)
        torch._foreach_addcdiv_(values, means, divisors, value=-lr / (1 - beta1**self.steps))

    def _step_rows(
        self, softmax: Softmax, lr: float, grad_scale: float, rows: Tensor, table_grad: Tensor
    ) -> None:
        lr *= self.settings.softmax_lr
        betas = self.settings.softmax_betas or self.settings.betas
        is_every_row = len(rows) == softmax.vocab_size  # distinct and sorted: all, in order
        weight_grad, bias_grad = parts_of_table(table_grad, softmax.weight.size(1))
        height = max(1, len(rows) if wants_few(rows.device) else BLOCK // weight_grad.size(1))
        for start in range(0, len(rows), height):
            block = slice(start, start + height)
            ids = rows[block]
            count: Tensor | int = self.steps
            if self._row_steps is not None:
                count = self._row_steps.index_select(0, ids) + 1
                self._row_steps.index_copy_(0, ids, count)
            for name, value in softmax.state().items():
                state = [self._state[f"{kind}.softmax.{name}"] for kind, _ in self._kinds()]
                whole = [value, *state]
                if is_every_row:
                    part = [tensor[block] for tensor in whole]
                else:
                    part = [tensor.index_select(0, ids) for tensor in whole]
                change, steps = bias_grad[block], count
                if name == "weight":
                    change = weight_grad[block]
                    steps = count.unsqueeze(1) if isinstance(count, Tensor) else count
                self._update(part[0], change, part[1:], lr, grad_scale, steps, betas)
                if not is_every_row:
                    for tensor, updated in zip(whole, part, strict=True):
                        tensor.index_copy_(0, ids, updated)

    def _update(
        self,
        value: Tensor,
        grad: Tensor,
        state: Sequence[Tensor],
        lr: float,
        scale: float,
        count: Tensor | int,
        betas: Sequence[float],
    ) -> None:
        if self.settings.name == "adagrad":
            (total,) = state
            total.addcmul_(grad, grad, value=scale * scale)
            value.addcdiv_(grad, total.sqrt(), value=-lr * scale)
            return
        mean, square = state
        beta1, beta2 = betas
        if self.settings.weight_decay:
            value.mul_(1 - lr * self.settings.weight_decay)
        mean.mul_(beta1).add_(grad, alpha=(1 - beta1) * scale)
        square.mul_(beta2).addcmul_(grad, grad, value=(1 - beta2) * scale * scale)
        steps = torch.as_tensor(count, dtype=torch.float64, device=value.device)
        size = (lr / (1 - beta1**steps)).to(value.dtype)
        root = (1 - beta2**steps).sqrt().to(value.dtype)
        divisor = square.sqrt().div_(root).add_(self.settings.eps)
        value.sub_((mean * size).div_(divisor))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to resume, by name. The tensors are the live ones, not copies."""
        state = dict(self._state)
        state["steps"] = torch.tensor(self.steps, dtype=torch.int64)
        if self._row_steps is not None:
            state["row_steps"] = self._row_steps
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy the values of another `state_dict()`; the caller has compared names and shapes."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])
        self.steps = int(state["steps"])
