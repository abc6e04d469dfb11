"""Tables on disk: whole or refused, and each task reads only its own slice."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.dedup import key_tables
from elmwright.pipeline.storage.disk import DiskLocation

ROW = np.dtype([("hi", "<u8"), ("row", "<u4"), ("side", "u1")])
PART = np.dtype([("part", "<u4"), ("row", "<u4")])


def _table(keys):
    table = np.zeros(len(keys), ROW)
    table["hi"] = np.sort(np.array(keys, np.uint64))
    table["row"] = np.arange(len(keys))
    return table


def _random(rows):
    return _table(np.random.default_rng(rows).integers(0, 2**64, rows, np.uint64))


@pytest.fixture
def reads(monkeypatch):
    """How many bytes each range read asked for and got."""
    seen = []
    read_range = DiskLocation.read_range

    def counted(self, begin, end):
        data = read_range(self, begin, end)
        seen.append(len(data))
        return data

    monkeypatch.setattr(DiskLocation, "read_range", counted)
    monkeypatch.setattr(DiskLocation, "read_bytes", None)
    return seen


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**52, 2**63]), max_size=50))
def test_the_shares_of_all_reducers_are_the_table(tmp_path_factory, keys):
    path = str(tmp_path_factory.mktemp("tables") / "x")
    table = _table(keys)
    key_tables.save(path, table)
    assert np.array_equal(key_tables.load(path), table)
    for n in (1, 2, 64, 4096):
        step = 2**64 // n
        wanted = sorted({0, n - 1, *(int(key) // step for key in table["hi"])})
        shares = [key_tables.load_range(path, reducer, n) for reducer in wanted]
        assert np.array_equal(np.concatenate(shares), table)
        for reducer, share in zip(wanted, shares, strict=True):
            assert all(reducer * step <= key < (reducer + 1) * step for key in share["hi"].tolist())


def test_a_reducer_of_a_large_table_reads_the_index_and_its_share_alone(tmp_path, reads):
    path, table = str(tmp_path / "x"), _random(200_000)
    key_tables.save(path, table)
    share = key_tables.load_range(path, 5, 16)
    assert len(reads) == 2
    assert reads[1] == share.nbytes < table.nbytes / 10


def test_a_small_table_is_one_read(tmp_path, reads):
    path = str(tmp_path / "x")
    key_tables.save(path, _random(1000))
    key_tables.load_range(path, 1, 2)
    assert len(reads) == 1


@pytest.mark.parametrize("n_parts", [1, 7, 5000, 100_000])
def test_a_part_finds_its_rows(tmp_path, reads, n_parts):
    path, rng = str(tmp_path / "x"), np.random.default_rng(n_parts)
    table = np.zeros(60_000, PART)
    table["part"] = np.sort(rng.integers(0, n_parts, len(table)))
    table["row"] = np.arange(len(table))
    key_tables.save(path, table, "part")
    for part in (0, n_parts // 2, n_parts - 1, n_parts + 5, 2**31):
        reads.clear()
        assert np.array_equal(key_tables.load_part(path, part), table[table["part"] == part])
        assert len(reads) <= 2


def test_a_table_without_rows_is_a_table(tmp_path):
    path = str(tmp_path / "x")
    key_tables.save(path, np.zeros(0, ROW))
    assert key_tables.load(path).dtype == ROW
    assert len(key_tables.load_range(path, 3, 4)) == 0
    key_tables.save(path, np.zeros(0, PART), "part")
    assert len(key_tables.load_part(path, 0)) == 0


def test_what_is_not_sorted_or_not_plain_is_not_written(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(ValueError, match="not sorted"):
        key_tables.save(str(path), _random(10)[::-1])
    for bad in ("O", "<f8", "S4"):
        with pytest.raises(ValueError, match="columns"):
            key_tables.save(str(path), np.zeros(1, [("hi", "<u8"), ("bad", bad)]))
    assert not path.exists()


def test_any_changed_or_missing_byte_is_noticed(tmp_path):
    path, table = tmp_path / "damaged", _random(3)
    key_tables.save(str(path), table)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    ends = len(whole) - table.nbytes
    places = [*range(200), *rng.integers(0, len(whole), 100), *range(ends - 20, len(whole))]
    for place in map(int, places):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            key_tables.load(str(path))
        with pytest.raises(ValueError, match="damaged"):
            key_tables.load_range(str(path), 0, 1)
    for size in (0, 7, 20, 100, ends - 1, ends, len(whole) - 1):
        path.write_bytes(whole[:size])
        for read in (key_tables.load, lambda name: key_tables.load_range(name, 0, 1)):
            with pytest.raises(ValueError, match="damaged"):
                read(str(path))
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match="damaged"):
        key_tables.load(str(path))


def test_a_header_that_asks_for_objects_is_refused(tmp_path):
    path = tmp_path / "x"
    about = json.dumps({"dtype": [["hi", "|O"]], "key": "hi", "shift": 52, "buckets": 1}).encode()
    path.write_bytes(
        key_tables.MAGIC + bytes(8) + len(about).to_bytes(8, "little") + about + bytes(99)
    )
    with pytest.raises(ValueError, match="damaged"):
        key_tables.load(str(path))


def test_a_table_is_asked_for_what_it_is_sorted_by(tmp_path):
    path = str(tmp_path / "x")
    key_tables.save(path, _random(5))
    with pytest.raises(ValueError, match="sorted by hi"):
        key_tables.load_part(path, 0)
    for reducer, n in ((0, 3), (2, 2), (-1, 4), (0, 8192), (0, 0)):
        with pytest.raises(ValueError, match="reducer"):
            key_tables.load_range(path, reducer, n)
    key_tables.save(path, np.zeros(5, PART), "part")
    with pytest.raises(ValueError, match="sorted by part"):
        key_tables.load_range(path, 0, 1)


def test_reducers_are_a_power_of_two_that_keeps_shares_small():
    assert [key_tables.reducers(rows) for rows in (0, 1, 4_000_000, 4_000_001)] == [1, 1, 1, 2]
    assert key_tables.reducers(9, 2) == 8
    assert key_tables.reducers(10**12) == 4096


@pytest.mark.usefixtures("s3")
def test_tables_work_the_same_in_a_store():
    table = _random(50_000)
    key_tables.save("s3://bucket/tables/keys", table)
    assert np.array_equal(key_tables.load("s3://bucket/tables/keys"), table)
    shares = [key_tables.load_range("s3://bucket/tables/keys", n, 4) for n in range(4)]
    assert np.array_equal(np.concatenate(shares), table)
    rows = np.zeros(90, PART)
    rows["part"] = np.arange(90) // 3
    key_tables.save("s3://bucket/tables/parts", rows, "part")
    assert len(key_tables.load_part("s3://bucket/tables/parts", 7)) == 3
