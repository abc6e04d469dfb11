"""Counts what a step asks of its device: operations started, copies, and waits.

Starting an operation on a GPU takes the CPU some microseconds, whatever its size, and a wait lets
the GPU run dry. Both can be counted without a GPU: on a CPU a step takes the same way within
`launches.py: like_a_gpu`. Views, allocations and changes of metadata start nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_START_NOTHING = (
    "aten::empty",
    "aten::new_empty",
    "aten::detach",
    "aten::_unsafe_view",
    "aten::lift",
)
_SIZE_FROM_DATA = ("nonzero", "unique", "masked_select", "_local_scalar_dense", "bincount")
_WAITING = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")
"""Methods that need values of a tensor in main memory. `numpy` is none: for a tensor of a GPU it is
an error."""


class Operations(TorchDispatchMode):
    """Counts while it is active, in this thread, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.started: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        """What makes the CPU wait for the device: values that are read, and sizes that depend on
        values."""
        self.copies: Counter[str] = Counter()
        """Copies from one device to another."""
        self._methods = _Methods(self.waits)

    def __enter__(self) -> "Operations":
        super().__enter__()  # type: ignore[no-untyped-call]
        self._methods.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._methods.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name
        result = func(*args, **(kwargs or {}))
        if not func.is_view and not name.startswith(_START_NOTHING):
            self.started[str(func)] += 1
        if any(part in name for part in _SIZE_FROM_DATA) or _is_masked_index(name, args):
            self.waits[name] += 1
        tensors = [value for value in (result, *args) if isinstance(value, torch.Tensor)]
        if len({tensor.device.type for tensor in tensors}) > 1:
            self.copies[name] += 1
        return result


def _is_masked_index(name: str, args: tuple[Any, ...]) -> bool:
    """Whether it takes the places where a mask is true."""
    if not name.startswith("aten::index") or len(args) < 2 or not isinstance(args[1], list):
        return False
    return any(getattr(index, "dtype", None) in (torch.bool, torch.uint8) for index in args[1])


class _Methods(TorchFunctionMode):
    """Counts methods that wait."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _WAITING and getattr(torch.Tensor, name, None) is func:
            self._waits[name] += 1
        return func(*args, **(kwargs or {}))
