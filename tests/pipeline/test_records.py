"""Plain data becomes typed values, and what does not fit is named."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.records import BadField, UnknownField, from_data, to_data, type_name


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0

    @classmethod
    def from_text(cls, name: str) -> "Part":
        return cls(name)


@dataclass(frozen=True)
class Whole:
    count: int
    parts: tuple[Part, ...] = ()
    pair: tuple[int, str] = (1, "a")
    by_name: Mapping[str, Part] = field(default_factory=dict)
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    note: str | None = None
    amount: float | tuple[str, ...] = 0.5
    is_done: bool = False
    extra: Any = None
    by_number: Mapping[int, float] = field(default_factory=dict)


names = st.text(max_size=5)
parts = st.builds(Part, names, st.floats(allow_nan=False, allow_infinity=False))
wholes = st.builds(
    Whole,
    st.integers(-(2**62), 2**62),
    st.lists(parts, max_size=3).map(tuple),
    st.tuples(st.integers(0, 9), names),
    st.dictionaries(names, parts, max_size=3),
    st.sampled_from(Colour),
    st.sampled_from(["fast", "slow"]),
    st.none() | names,
    st.floats(0, 1) | st.lists(names, max_size=2).map(tuple),
    st.booleans(),
    st.none() | names,
    st.dictionaries(st.integers(-(2**62), 2**62), st.floats(0, 1), max_size=3),
)


@given(wholes)
def test_a_record_survives_json(whole: Whole) -> None:
    assert from_data(Whole, json.loads(json.dumps(to_data(whole)))) == whole


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], ": expected a table, got []"),
        ({}, "count: is missing"),
        ({"count": "1"}, "count: expected a whole number, got '1'"),
        ({"count": True}, "count: expected a whole number, got True"),
        ({"count": 1.0}, "count: expected a whole number, got 1.0"),
        ({"count": 2**63}, "count: expected a number of at most 18 digits"),
        (
            {"count": 1, "parts": "ab"},
            "parts: expected a list of paths or tables with a path, got 'ab'",
        ),
        ({"count": 1, "parts": [{"name": 1}]}, "parts.name: expected a string, got 1"),
        ({"count": 1, "pair": [1]}, "pair: expected a pair of whole numbers, got [1]"),
        (
            {"count": 1, "by_name": {"a": 1}},
            "by_name.a: expected a path or a table with a path, got 1",
        ),
        ({"count": 1, "colour": "green"}, "colour: expected red | blue, got 'green'"),
        ({"count": 1, "colour": [1]}, "colour: expected red | blue, got [1]"),
        (
            {"count": 1, "mode": "fats"},
            "mode: expected one of 'fast', 'slow', got 'fats'; did you mean 'fast'?",
        ),
        ({"count": 1, "note": 3}, "note: expected a string or nothing, got 3"),
        ({"count": 1, "amount": [1]}, "amount: expected a string, got 1"),
        (
            {"count": 1, "amount": float("nan")},
            "amount: expected a number or a list of strings, got nan",
        ),
        (
            {"count": 1, "by_number": {"2": 0.5, "1_0": 0.5}},
            "by_number.1_0: expected a whole number as the key",
        ),
        (
            {"count": 1, "by_number": {str(2**63): 0.5}},
            f"by_number.{2**63}: expected a number of at most 18 digits",
        ),
    ],
)
def test_the_first_field_that_does_not_fit_is_named(data: object, sentence: str) -> None:
    with pytest.raises(BadField) as caught:
        from_data(Whole, data)
    assert str(caught.value) == sentence


def test_an_unknown_key_is_refused_with_the_valid_ones_or_ignored() -> None:
    with pytest.raises(UnknownField) as caught:
        from_data(Part, {"name": "a", "wieght": 2}, prefix="part.")
    assert caught.value.key == "part.wieght"
    assert caught.value.valid == ("name", "weight")
    assert from_data(Part, {"name": "a", "wieght": 2}, ignore_unknown=True) == Part("a")


def test_infinity_is_read_only_where_it_is_allowed() -> None:
    data = {"name": "a", "weight": float("inf")}
    with pytest.raises(BadField, match="weight"):
        from_data(Part, data)
    assert from_data(Part, data, finite=False).weight == float("inf")


R = TypeVar("R")


@dataclass(frozen=True)
class Done(Generic[R]):
    report: R
    hashes: tuple[int, ...] = ()


def test_a_type_variable_takes_anything_and_hashes_take_64_bits() -> None:
    data = {"report": {"a": [1]}, "hashes": [(1 << 64) - 1]}
    done = from_data(Done, data, largest=1 << 64)
    assert (done.report, done.hashes) == ({"a": [1]}, ((1 << 64) - 1,))
    with pytest.raises(BadField, match="18 digits"):
        from_data(Done, data)


def test_types_are_named_as_a_user_would() -> None:
    assert type_name(dict[str, float]) == "a table of numbers"
    assert type_name(tuple[Whole, ...]) == "a list of tables"
