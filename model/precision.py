"""The type of numbers that products of matrices read.

Under `train.precision = "bf16"` both operands of products are rounded to bfloat16, which has the
range of float32 and 8 bits of its 24. Products add in float32 and give bfloat16, so outputs of
LSTM layers and gradients of weights are rounded once, too. Weights, cells, sums of gates, losses,
reductions and the optimiser stay in float32: a step rounds a copy of the weights, once. With the
kernels in C, convolutions alone read float32: they take less time than it would take to gather
rounded windows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from elmwright.model.config import Precision


@dataclass(frozen=True)
class Operands:
    """The type that products read in each part of the model; None for that of the weights.

    Not for tf32, which concerns products of float32 on GPUs, and is a switch of torch.
    """

    encoder: torch.dtype | None = None
    lstm: torch.dtype | None = None
    softmax: torch.dtype | None = None

    @classmethod
    def of(cls, precision: Precision) -> "Operands":
        if precision == "bf16":
            return cls(torch.bfloat16, torch.bfloat16, torch.bfloat16)
        return cls(encoder=torch.bfloat16) if precision == "bf16-encoder" else EXACT


EXACT = Operands()

_rounded = WeakTensorKeyDictionary()
"""Weight → its version, place and type, and the rounded copy."""


def operand(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in this type; without a copy if it has it, else one copy for each value of it."""
    if weight.dtype == dtype:
        return weight.detach()
    if weight.is_inference():
        return weight.to(dtype)
    key = (weight._version, weight.data_ptr(), dtype)
    known: tuple[object, Tensor] | None = _rounded.get(weight)  # type: ignore[no-untyped-call]
    if known is None or known[0] != key:
        known = (key, weight.detach().to(dtype))
        _rounded[weight] = known
    return known[1]


def product(x: Tensor, weight: Tensor, bias: Tensor | None, operands: torch.dtype | None) -> Tensor:
    """x·W + b, with operands of this type (None: as they are)."""
    if operands is None or operands == x.dtype:
        return x.mm(weight) if bias is None else torch.addmm(bias, x, weight)
    result: Tensor = _Product.apply(x, weight, operands)  # type: ignore[no-untyped-call]
    return result if bias is None else result + bias


class _Product(torch.autograd.Function):
    """A product of rounded operands, forward and backward; the result is float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        x_operand, w_operand = x.to(dtype), operand(weight, dtype)
        ctx.save_for_backward(x_operand, w_operand)
        ctx.dtype = x.dtype
        return x_operand.mm(w_operand).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.to(x.dtype)
        d_x = grad.mm(weight.t()).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        d_weight = x.t().mm(grad).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, None
