"""Converts dataclasses to plain data and back; all JSON and TOML is read and written with this.

`to_data` gives dicts, lists and scalars. `from_data` builds a dataclass from them by the types of
its fields, and names the first field that does not fit. A value must have its field's type, but
a number may be a whole number, a tuple a list, a whole number as a key of a table a string of
digits (JSON has no other keys), and a dataclass with a method `from_text` a string.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, TypeVar

T = TypeVar("T")

LARGEST = 1 << 63
"""Whole numbers are smaller than this, as in TOML and in Arrow."""
_EXACT = (str, int, bool)
_DIGITS = re.compile(r"-?[0-9]{1,20}")
_NAMES = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    bool: ("true or false", "true or false"),
    types.NoneType: ("nothing", "nothing"),
}


class BadField(ValueError):  # noqa: N818 - named after the field
    """A field that does not fit its type: its dotted name and the reason."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key, self.reason = key, reason


class UnknownField(BadField):
    """A key that is not the name of a field; `valid` lists the names."""

    def __init__(self, key: str, valid: tuple[str, ...]) -> None:
        super().__init__(key, "unknown key")
        self.valid = valid


def to_data(record: Any) -> Any:
    """A dataclass and everything in it as dicts, lists and scalars."""
    if dataclasses.is_dataclass(record):
        fields = dataclasses.fields(record)
        return {field.name: to_data(getattr(record, field.name)) for field in fields}
    if isinstance(record, Mapping):
        return {key: to_data(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_data(item) for item in record]
    return record.value if isinstance(record, Enum) else record


def from_data(
    cls: type[T],
    data: object,
    *,
    prefix: str = "",
    ignore_unknown: bool = False,
    finite: bool = True,
    largest: int = LARGEST,
) -> T:
    """Plain data as an instance of `cls`; raises BadField.

    Errors put `prefix` before a field's name. `ignore_unknown` skips unknown keys, which a newer
    version may have written. `finite` refuses infinity and NaN. Whole numbers must be smaller than
    `largest`. A field whose type is a type variable takes anything.
    """
    return typing.cast(T, _Builder(ignore_unknown, finite, largest).record(cls, data, prefix))


@dataclasses.dataclass(frozen=True)
class _Builder:
    ignore_unknown: bool
    finite: bool
    largest: int

    def record(self, cls: type, data: object, prefix: str) -> Any:
        if not isinstance(data, Mapping):
            raise BadField(prefix.rstrip("."), f"expected {type_name(cls)}, got {data!r:.200}")
        hints = _hints(cls)
        values = {}
        for key, value in data.items():
            if key in hints:
                values[key] = self.value(value, hints[key], prefix + key)
            elif not self.ignore_unknown:
                raise UnknownField(f"{prefix}{key}", tuple(hints))
        for name in _required(cls):
            if name not in values:
                raise BadField(prefix + name, "is missing")
        return cls(**values)

    def value(self, value: Any, hint: Any, key: str) -> Any:
        if hint is Any or isinstance(hint, TypeVar):
            return value
        if hint is type(value) is float and not self.finite:
            return value  # first for speed: a journal has millions of numbers
        if type(value) is int and abs(value) >= self.largest:
            raise BadField(key, "expected a number of at most 18 digits")
        if hint in _EXACT and type(value) is hint:
            return value  # early for speed: a manifest may list a million files
        if dataclasses.is_dataclass(hint):
            if isinstance(value, str) and hasattr(hint, "from_text"):
                return hint.from_text(value)
            return self.record(typing.cast(type, hint), value, f"{key}.")
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            return self._choice(value, hint, key)
        if origin is Literal:
            if value in arguments:
                return value
            nearest = difflib.get_close_matches(str(value), map(str, arguments), n=1, cutoff=0.4)
            advice = f"; did you mean {nearest[0]!r}?" if nearest else ""
            choices = ", ".join(repr(argument) for argument in arguments)
            raise BadField(key, f"expected one of {choices}, got {value!r:.200}{advice}")
        if origin is tuple and isinstance(value, list | tuple):
            if arguments[-1] is Ellipsis:
                return tuple(self.value(item, arguments[0], key) for item in value)
            if len(value) == len(arguments):
                pairs = zip(value, arguments, strict=True)
                return tuple(self.value(item, argument, key) for item, argument in pairs)
        if origin in (dict, Mapping) and isinstance(value, Mapping):
            return {
                self._table_key(name, arguments[0], key): self.value(
                    item, arguments[1], f"{key}.{name}"
                )
                for name, item in value.items()
            }
        if isinstance(hint, type) and issubclass(hint, Enum):
            if value in [member.value for member in hint]:
                return hint(value)
        elif hint is float and type(value) in (int, float):
            if math.isfinite(value) or not self.finite:
                return float(value)
        elif type(value) is hint:
            return value
        raise BadField(key, f"expected {type_name(hint)}, got {value!r:.200}")

    def _table_key(self, name: object, hint: Any, key: str) -> str | int:
        text = str(name)
        if hint is not int:
            return text
        if not _DIGITS.fullmatch(text):
            raise BadField(f"{key}.{text:.200}", "expected a whole number as the key")
        return typing.cast(int, self.value(int(text), int, f"{key}.{text}"))

    def _choice(self, value: Any, hint: Any, key: str) -> Any:
        """The value as the first type of a union that accepts it."""
        for argument in typing.get_args(hint):
            try:
                return self.value(value, argument, key)
            except BadField as error:
                last = error
        is_nested = isinstance(value, list | tuple | Mapping)
        raise (
            last if is_nested else BadField(key, f"expected {type_name(hint)}, got {value!r:.200}")
        )


@lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: hint for name, hint in typing.get_type_hints(cls).items() if name in names}


@lru_cache(maxsize=256)
def _required(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return [field.name for field in fields if field.default is field.default_factory is missing]


def type_name(hint: Any, *, many: bool = False) -> str:
    """A description of a type for error messages, with `many` in the plural."""
    if dataclasses.is_dataclass(hint):
        paths = ("paths or " if many else "a path or ") if hasattr(hint, "from_text") else ""
        table = "tables" if many else "a table"
        return f"{paths}{table} with a path" if paths else table
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(argument, many=many) for argument in arguments)
    if origin is Literal:
        return " | ".join(str(argument) for argument in arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(str(member.value) for member in hint)
    if origin is None:
        return _NAMES[hint][many] if hint in _NAMES else "anything"
    if origin in (dict, Mapping):
        return f"a table of {type_name(arguments[1], many=True)}"
    kind = "list" if arguments[-1] is Ellipsis else "pair"
    start = f"{kind}s" if many else f"a {kind}"
    return f"{start} of {type_name(arguments[0], many=True)}"
