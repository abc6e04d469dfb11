"""Types of settings that also say which values are allowed: `lanes: Count = 128`.

jobs/config/check_settings.py refuses a config with any other value.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple


class Bound(NamedTuple):
    """The allowed values of a setting."""

    text: str
    """What the value must be, for the error message."""
    allows: Callable[[float], bool]


Count = Annotated[int, Bound("at least 1", lambda value: value >= 1)]
Natural = Annotated[int, Bound("0 or more", lambda value: value >= 0)]
NotNegative = Annotated[float, Bound("0 or more", lambda value: value >= 0)]
Positive = Annotated[float, Bound("above 0", lambda value: value > 0)]
Share = Annotated[float, Bound("from 0 to 1", lambda value: 0 <= value <= 1)]
