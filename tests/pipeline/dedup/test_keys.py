"""Exact copies and held-out overlap: the same documents are dropped for any partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.dedup import keys as dedup
from elmwright.pipeline.dedup import tables


def _losers(folder, rows, parts, n_reducers, *, once, unit=dedup.DOCUMENT):
    """Text number, side → rule, of every row that loses; rows are (text, side), placed in order."""
    paths = []
    for part in sorted(set(parts)):
        own = [place for place, number in enumerate(parts) if number == part]
        table = np.zeros(len(own), dedup.KEY)
        keys = dedup.keys_of(rows[place][0] for place in own)
        table["hi"], table["lo"] = keys[:, 0], keys[:, 1]
        table["heldout"] = [rows[place][1] for place in own]
        table["offset"], table["row"] = own, np.arange(len(own))
        path = str(folder / f"keys-{part}")
        tables.save_rows(path, dedup.sort_table(table, dedup.ORDER))
        paths.append((part, path))
    outs = [str(folder / f"losers-{n}") for n in range(n_reducers)]
    for n, out in enumerate(outs):
        dedup.reduce_keys(paths, n, n_reducers, unit=unit, once=once, out=out)
    lost = {}
    for part in sorted(set(parts)):
        own = [place for place, number in enumerate(parts) if number == part]
        for loser in dedup.losers_of(part, outs):
            lost[own[loser["row"]]] = dedup.RULES[loser["rule"]]
    return lost


def _expected(rows, *, once, unit=dedup.DOCUMENT):
    lost = {}
    for place, (text, side) in enumerate(rows):
        sides = {other for same, other in rows if same == text}
        if side != 2 and (2 in sides or (side == 1 and 0 in sides)):
            lost[place] = dedup.OVERLAP
        elif side != 2 and once and (text, side) in rows[:place]:
            lost[place] = unit
    return lost


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 1, 2])), max_size=14)


@settings(max_examples=50)
@given(ROWS, st.data(), st.sampled_from([1, 2, 8]), st.booleans())
def test_who_loses_depends_on_keys_sides_and_places_alone(
    tmp_path_factory, rows, data, n_reducers, once
):
    parts = [data.draw(st.integers(0, 3)) for _ in rows]
    folder = tmp_path_factory.mktemp("dedup")
    assert _losers(folder, rows, parts, n_reducers, once=once) == _expected(rows, once=once)


def test_the_first_of_equal_lines_stays(tmp_path):
    rows = [("same", 0), ("other", 0), ("same", 0), ("same", 0)]
    lost = _losers(tmp_path, rows, [7, 7, 3, 7], 2, once=True, unit=dedup.LINE)
    assert lost == {2: dedup.LINE, 3: dedup.LINE}
    assert _losers(tmp_path, rows, [7, 7, 3, 7], 2, once=False) == {}


def test_given_held_out_rows_never_lose_and_the_others_do(tmp_path):
    rows = [("x", 0), ("x", 1), ("x", 2), ("x", 2), ("y", 0), ("y", 1), ("z", 1), ("z", 1)]
    lost = _losers(tmp_path, rows, [0] * 8, 1, once=True)
    assert lost == {0: dedup.OVERLAP, 1: dedup.OVERLAP, 5: dedup.OVERLAP, 7: dedup.DOCUMENT}


def test_equal_high_halves_are_not_equal_keys(tmp_path):
    table = np.zeros(4, dedup.KEY)
    table["hi"], table["lo"], table["row"] = 5, [1, 2, 2, 3], range(4)
    tables.save_rows(str(tmp_path / "keys"), table)
    out = str(tmp_path / "out")
    paths = [(0, str(tmp_path / "keys"))]
    dedup.reduce_keys(paths, 0, 1, unit=dedup.SENTENCE, once=True, out=out)
    assert dedup.losers_of(0, [out])["row"].tolist() == [2]


def test_a_rule_that_is_not_about_copies_is_refused(tmp_path):
    with pytest.raises(ValueError, match="dedup_near"):
        dedup.reduce_keys([], 0, 1, unit=dedup.NEAR, once=True, out=str(tmp_path / "x"))


def test_keys_never_change():
    """These numbers are part of the format: shuffles and held-out splits follow from them."""
    assert dedup.keys_of(["a"]).tolist() == [[0xA96FAF705AF16834, 0xE6C632B61E964E1F]]
    assert dedup.RULES.index(dedup.OVERLAP) == 4
