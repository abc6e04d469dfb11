"""Calls the kernels in C with the addresses of tensors.

All tensors are on the CPU; sizes, strides and types are the caller's promise, because a call with
checks would take longer than some kernels. `native()` says whether there are kernels, and
`use_kernels` switches between them and torch's code.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from elmwright.model.kernels.compile import NATIVE, TORCH, NoKernels, load_library
from elmwright.model.launches import wants_few

_ADDRESS, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float


class Step(ctypes.Structure):
    """Sizes and strides of an LSTM's step; the comment in kernels.c explains them."""

    _fields_ = [(name, _SIZE) for name in ("groups", "rows", "dim", "z_group", "cell_group")]


_SIGNATURES: dict[str, list[Any]] = {
    "lstm_forward": [_INT, _ADDRESS, _SIZE, *[_ADDRESS] * 7, _FLOAT],
    "lstm_backward": [_INT, _ADDRESS, _SIZE, *[_ADDRESS] * 6, _FLOAT],
    "softmax": [_INT, _SIZE, _SIZE, *[_ADDRESS] * 5],
}
_PLAIN = ("lstm_read", "convolve", "convolve_back")
"""Those of float32 alone."""
_WORTH_THREADS = 1 << 15
"""Of fewer sums, a step is done before a second thread has begun."""
NATIVE_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Native:
    """The functions of kernels.c, by the type of their numbers where there are two."""

    lstm_forward: dict[torch.dtype, Any]
    lstm_backward: dict[torch.dtype, Any]
    softmax: dict[torch.dtype, Any]
    _lstm_read: Any
    _convolve: Any
    _convolve_back: Any

    @classmethod
    def of(cls, library: ctypes.CDLL) -> "Native":
        """The functions of a compiled library."""
        typed: dict[str, dict[torch.dtype, Any]] = {}
        for name, arguments in _SIGNATURES.items():
            typed[name] = {}
            for dtype, suffix in NATIVE_TYPES.items():
                function = getattr(library, f"{name}_{suffix}")
                function.argtypes, function.restype = arguments, None
                typed[name][dtype] = function
        library.convolve.argtypes = [_INT, *[_SIZE] * 6, _INT, *[_ADDRESS] * 5]
        library.convolve_back.argtypes = [_INT, *[_SIZE] * 6, *[_ADDRESS] * 6]
        library.lstm_read.argtypes = [_INT, *[_SIZE] * 5, *[_ADDRESS] * 3, _FLOAT]
        plain = {name: getattr(library, name) for name in _PLAIN}
        for function in plain.values():
            function.restype = None
        return cls(**typed, **{f"_{name}": function for name, function in plain.items()})

    def lstm_read(self, gates: Tensor, cells: Tensor, hidden: Tensor, clip: float) -> None:
        """Update `cells` by the sums of the gates [groups, rows, 4·dim], and fill `hidden`.

        Both are [groups, at least as many rows, dim] with the same strides.
        """
        groups, rows, width = gates.shape
        threads = torch.get_num_threads() if gates.numel() >= _WORTH_THREADS else 1
        self._lstm_read(
            *(threads, groups, rows, width // 4, gates.stride(0), cells.stride(0)),
            *(gates.data_ptr(), cells.data_ptr(), hidden.data_ptr(), clip),
        )

    def convolve(
        self,
        embedded: Tensor,
        starts: Tensor,
        weight: Tensor,
        out: Tensor,
        places: Tensor,
        offset: int,
    ) -> None:
        """Fill columns of `out` [U, filters] and `places` (int16), from `offset` on, with the
        maxima of the filters `weight` [width, char_dim, number] over the first starts[u] windows of
        each word of `embedded` [U, positions, char_dim], and with the windows they are from."""
        words, positions, char_dim = embedded.shape
        width, _, number = weight.shape
        self._convolve(
            torch.get_num_threads(),
            *(words, positions * char_dim, char_dim, width, number, out.size(1)),
            positions - width + 1,
            *(starts.data_ptr(), embedded.data_ptr(), weight.data_ptr()),
            *(out.data_ptr() + 4 * offset, places.data_ptr() + 2 * offset),
        )

    def convolve_back(
        self,
        embedded: Tensor,
        weight: Tensor,
        grad: Tensor,
        places: Tensor,
        offset: int,
        d_embedded: Tensor,
    ) -> Tensor:
        """The gradient of `weight`, and that of `embedded` added to `d_embedded`."""
        words, positions, char_dim = embedded.shape
        width, _, number = weight.shape
        by_filter = weight.view(-1, number).t().contiguous()
        d_filters = torch.zeros_like(by_filter)
        self._convolve_back(
            torch.get_num_threads(),
            *(words, positions * char_dim, char_dim, width, number, grad.size(1)),
            *(embedded.data_ptr(), by_filter.data_ptr(), grad.data_ptr() + 4 * offset),
            *(places.data_ptr() + 2 * offset, d_embedded.data_ptr(), d_filters.data_ptr()),
        )
        return d_filters.t().contiguous().view_as(weight)

    def softmax_rows(self, logits: Tensor, bias: Tensor, hit: Tensor | None, top: Tensor) -> Tensor:
        """Replace `logits` [rows, columns] by exp(logits + bias − top), and `top` by the largest
        logit of each row or itself if that is larger; return the sums. The logit at hit[row] does
        not count, if that is not −1."""
        sums = torch.empty_like(top)
        self.softmax[logits.dtype](
            torch.get_num_threads(),
            *logits.shape,
            *(logits.data_ptr(), bias.data_ptr(), None if hit is None else hit.data_ptr()),
            *(top.data_ptr(), sums.data_ptr()),
        )
        return sums


_in_use: str | None = None


@cache
def _loaded() -> Native | NoKernels:
    try:
        return Native.of(load_library())
    except NoKernels as reason:
        return reason
    except (OSError, AttributeError) as error:  # a full disk; a library without our functions
        return NoKernels(f"they cannot be compiled or loaded ({error})")


def native() -> Native | None:
    """The kernels in C, if they are in use and this machine has them."""
    if _in_use == TORCH:
        return None
    found = _loaded()
    return found if isinstance(found, Native) else None


def native_for(*tensors: Tensor) -> Native | None:
    """The same, for float32 tensors on the CPU."""
    fits = all(t.dtype == torch.float32 and not wants_few(t.device) for t in tensors)
    return native() if fits else None


def kernel_name() -> str:
    """The kernels in use."""
    return TORCH if native() is None else NATIVE


def why_not_native() -> str:
    """Why the kernels in C are not in use; empty if they are."""
    found = _loaded()
    return str(found) if isinstance(found, NoKernels) else ""


def choose_kernels(name: str) -> None:
    """Use the kernels of this name from now on, in all threads; torch's if it is not known."""
    global _in_use  # noqa: PLW0603 - one choice for the process, made before it computes
    _in_use = None if name == NATIVE else TORCH


@contextmanager
def use_kernels(name: str) -> Iterator[None]:
    """`choose_kernels` for a while."""
    global _in_use  # noqa: PLW0603
    before = _in_use
    choose_kernels(name)
    try:
        yield
    finally:
        _in_use = before
