"""Products of rounded operands, and the copies of weights that they read."""

import pytest
import torch

from elmwright.model.bilm import BiLM, States
from elmwright.model.config import ModelConfig
from elmwright.model.precision import EXACT, Operands, operand, product

CONFIG = ModelConfig(dim=32, projection_dim=16, n_highway=1, filters=((1, 8), (2, 8), (3, 16)))


def test_a_product_of_rounded_operands_is_that_of_the_rounded_numbers() -> None:
    x, weight, bias = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
    rounded = x.bfloat16().double() @ weight.bfloat16().double()
    result = product(x, weight, bias, torch.bfloat16)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), rounded + bias, rtol=1e-2, atol=1e-2)
    assert torch.equal(product(x, weight, bias, None), torch.addmm(bias, x, weight))


def test_gradients_of_a_rounded_product_are_float32_and_near() -> None:
    x, weight = torch.randn(6, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    (x @ weight).square().sum().backward()
    exact = x.grad, weight.grad
    x.grad = weight.grad = None
    product(x, weight, None, torch.bfloat16).square().sum().backward()
    for ours, theirs in zip((x.grad, weight.grad), exact, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_a_weight_is_rounded_once_for_each_of_its_values() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    once = operand(weight, torch.bfloat16)
    assert operand(weight, torch.bfloat16) is once
    with torch.no_grad():
        weight.add_(1.0)
    again = operand(weight, torch.bfloat16)
    assert again is not once
    assert torch.equal(again, weight.detach().bfloat16())
    assert operand(weight, torch.float32).data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    ("name", "encoder", "lstm"),
    [
        ("fp32", None, None),
        ("tf32", None, None),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("bf16-encoder", torch.bfloat16, None),
    ],
)
def test_a_precision_says_what_each_part_reads(
    name: str, encoder: torch.dtype | None, lstm: torch.dtype | None
) -> None:
    operands = Operands.of(name)  # type: ignore[arg-type]
    assert (operands.encoder, operands.lstm, operands.softmax) == (encoder, lstm, lstm)


def test_a_model_reads_alike_with_rounded_operands_and_keeps_states_in_float32() -> None:
    bilm, index = BiLM(CONFIG, 1), torch.randint(0, 9, (4, 6))
    chars = bilm.encoder.ids([f"word{n}" * (n % 3 + 1) for n in range(9)])
    states = States.zeros(CONFIG, 4)
    with torch.no_grad():
        exact = bilm(chars, index, index.flip(1), states, operands=EXACT)
        rounded = bilm(chars, index, index.flip(1), states, operands=Operands.of("bf16"))
    assert rounded.states.c.dtype == rounded.top_forward.dtype == torch.float32
    difference = (rounded.top_forward - exact.top_forward).norm() / exact.top_forward.norm()
    assert 0 < difference < 0.03
