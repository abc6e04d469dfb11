"""The matrix products of a training step: their sizes, their own speed, and what that adds up to.

The bound is the time that the step's products take when each is run alone, repeatedly and on warm
operands; a step cannot be faster without fewer or better-shaped products. Each filter's convolution
is a product over every word's own windows, forward only: backward a filter follows one window per
word, which is no product. What arithmetic counts as useful is in `model/flops.py`.
"""

import time
from dataclasses import dataclass

import torch

from elmwright.model.config import ModelConfig
from elmwright.model.encoder import varying_positions
from elmwright.model.softmax import LEAST, PIECE


@dataclass(frozen=True)
class Product:
    """[m, k] × [k, n], `count` times per step; `a_t`/`b_t`: the operand is transposed."""

    name: str
    m: int
    k: int
    n: int
    count: float
    a_t: bool = False
    b_t: bool = False

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n

    def seconds(self) -> float:
        """Best of several runs, for about a quarter of a second."""
        a = torch.randn(self.k, self.m).t() if self.a_t else torch.randn(self.m, self.k)
        b = torch.randn(self.n, self.k).t() if self.b_t else torch.randn(self.k, self.n)
        out = torch.empty(self.m, self.n)
        torch.mm(a, b, out=out)
        times: list[float] = []
        while sum(times) < 0.25 or len(times) < 3:
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            times.append(time.perf_counter() - start)
        return min(times)


def linear(name: str, m: int, k: int, n: int, count: float = 1) -> list[Product]:
    """A product and its two backward ones."""
    return [
        Product(name, m, k, n, count),
        Product(f"{name}, d input", m, n, k, count, b_t=True),
        Product(f"{name}, d weight", k, m, n, count, a_t=True),
    ]


def step_products(
    config: ModelConfig, lanes: int, window: int, negatives: int, chars: torch.Tensor
) -> list[Product]:
    """Everything a step multiplies, given the characters of its distinct words."""
    dim, proj, filters, types = config.dim, config.projection_dim, config.n_filters, len(chars)
    tokens, runs = lanes * window, 2 * config.n_layers
    starts = varying_positions(chars.int()) + 1
    products = []
    for width, number in config.filters:
        windows = int(starts.clamp_max(config.max_chars - width + 1).sum())
        products.append(
            Product(f"convolution {width}", windows, width * config.char_dim, number, 1)
        )
    products += linear("highway", types, filters, filters, 2 * config.n_highway)
    products += linear("encoder projection", types, filters, proj)
    products += [
        Product("lstm input", 4 * dim, proj, tokens, runs, a_t=True),
        Product("lstm recurrence", 4 * dim, proj, lanes, runs * window),
        Product("lstm projection", proj, dim, lanes, runs * window),
        Product("lstm projection, d input", dim, proj, lanes, runs * window),
        Product("lstm recurrence, d input", proj, 4 * dim, lanes, runs * window),
        Product("lstm input, d input", proj, 4 * dim, tokens, runs),
        Product("lstm gates, d weight", 2 * proj, tokens, 4 * dim, runs, b_t=True),
        Product("lstm projection, d weight", dim, tokens, proj, runs, b_t=True),
    ]
    rows = min(2 * tokens, max(LEAST, PIECE // negatives))
    pieces = 2 * tokens / rows
    return [
        *products,
        Product("softmax logits", rows, proj, negatives, pieces, b_t=True),
        Product("softmax, d hidden", rows, negatives, proj, pieces),
        Product("softmax, d rows", negatives, rows, proj, pieces, a_t=True),
    ]


def large_rate() -> float:
    """FLOP/s of a 4096-cubed product: what this machine can do at best."""
    product = Product("large", 4096, 4096, 4096, 1)
    return product.flops / product.seconds()


def print_bound(products: list[Product], step_seconds: float) -> float:
    """Print every product; returns the share of the step that they would take alone."""
    print(f"  {'product':28} {'size':>18} {'GFLOP/s':>8} {'ms a step':>10}")
    total = 0.0
    for product in products:
        seconds = product.seconds()
        total += seconds * product.count
        size = f"{product.m}×{product.k}×{product.n}"
        rate = product.flops / seconds / 1e9
        print(f"  {product.name:28} {size:>18} {rate:8.1f} {1e3 * seconds * product.count:10.1f}")
    print(
        f"  these products alone {1e3 * total:.0f} ms, the step {1e3 * step_seconds:.0f} ms: "
        f"{total / step_seconds:.0%}"
    )
    return total / step_seconds
