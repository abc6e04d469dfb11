"""Expect a mistake by its code and by the names in its sentence, not by its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elmwright.pipeline.errors import Code, UserError


@contextmanager
def mistake(code: Code, *names: str) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError with this code, whose sentence contains these names and values."""
    with pytest.raises(UserError) as raised:
        yield raised
    assert raised.value.code == code, f"the code is {raised.value.code!r}: {raised.value}"
    missing = [name for name in names if name not in str(raised.value)]
    assert not missing, f"{missing} not in: {raised.value}"
