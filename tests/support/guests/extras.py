"""Libraries that are too large for every test run: `make extras-test` installs them."""

import importlib
import os
from types import ModuleType

import pytest

REQUIRED = os.environ.get("ELMWRIGHT_EXTRAS") == "required"


def extra(name: str) -> ModuleType:
    """A library, or a skipped module where it is absent and need not be there."""
    if REQUIRED:
        return importlib.import_module(name)
    reason = f"no {name}; make extras-test installs it"
    module: ModuleType = pytest.importorskip(name, reason=reason)
    return module
