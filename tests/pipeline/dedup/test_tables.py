"""Tables on disk: whole or refused, and each task reads only its own range."""

import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pyarrow
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.dedup import tables
from elmwright.pipeline.storage.disk import DiskLocation
from elmwright.pipeline.storage.files import at
from tests.support.hostile import refusals

ROW = np.dtype([("hi", "<u8"), ("row", "<u4"), ("side", "u1")])
PART = np.dtype([("part", "<u4"), ("row", "<u4")])


def _table(keys):
    table = np.zeros(len(keys), ROW)
    table["hi"] = np.sort(np.array(keys, np.uint64))
    table["row"] = np.arange(len(keys))
    return table


def _random(rows):
    return _table(np.random.default_rng(rows).integers(0, 2**64, rows, np.uint64))


def _load_range(path, number, count):
    return tables.load_rows(path, ROW, "hi", *tables.hash_range(number, count))


@pytest.fixture
def reads(monkeypatch):
    """How many bytes each read of a table got."""
    sizes = []
    open_file = DiskLocation.arrow_file

    class Counting:
        def __init__(self, file):
            self.size, self.seek, self.file = file.size, file.seek, file

        def read_buffer(self, nbytes=None):
            data = self.file.read_buffer(nbytes)
            sizes.append(data.size)
            return data

    @contextmanager
    def counted(location):
        with open_file(location) as file:
            yield Counting(file)

    monkeypatch.setattr(DiskLocation, "arrow_file", counted)
    return sizes


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**52, 2**63]), max_size=50))
def test_the_ranges_together_are_the_table(tmp_path_factory, keys):
    path = str(tmp_path_factory.mktemp("tables") / "x")
    table = _table(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_FEWEST_ROWS", 1)
        patch.setattr(tables, "_ROW_BATCHES", 7)
        tables.save_rows(path, table)
    assert np.array_equal(tables.load_rows(path, ROW), table)
    for n in (1, 2, 3, 64, 4096):
        width = -(-(2**64) // n)
        numbers = sorted({0, n - 1, *(int(key) // width for key in table["hi"])})
        shares = [_load_range(path, number, n) for number in numbers]
        assert np.array_equal(np.concatenate(shares), table)
        for number, share in zip(numbers, shares, strict=True):
            assert all(number * width <= key < (number + 1) * width for key in share["hi"].tolist())


@given(st.lists(st.integers(0, 2**64 - 1), max_size=300), st.sampled_from([1, 2, 5]))
@settings(max_examples=30)
def test_texts_are_read_by_range_with_their_numbers(tmp_path_factory, keys, count):
    path = str(tmp_path_factory.mktemp("tables") / "x")
    order = np.sort(np.array(keys, np.uint64))
    texts = ["ä 0", "b\n1", ""]
    text_of = np.arange(len(order)) % 3
    numbers = np.arange(len(order), dtype=np.uint32)
    tables.save_texts(path, {"order": order, "number": numbers}, texts, text_of, "order")
    parts = [
        tables.load_texts(path, "order", *tables.hash_range(number, count))
        for number in range(count)
    ]
    columns = [number for columns, _ in parts for number in columns["number"].tolist()]
    assert columns == numbers.tolist()
    assert [text for _, some in parts for text in some] == [texts[n] for n in text_of]
    assert tables.load_texts(path)[1] == [texts[n] for n in text_of]


def test_a_part_has_its_texts_and_their_lines(tmp_path):
    path = str(tmp_path / "x")
    tables.save_table(path, tables.table_of_texts(["a\nb", "c"], [[1, 1], [1]]))
    assert tables.load_texts(path) == ({}, ["a\nb", "c"])
    assert tables.load_lines(path) == [[1, 1], [1]]


def test_a_range_of_a_large_table_is_read_without_the_rest(tmp_path, reads):
    path, table = str(tmp_path / "x"), _random(1_000_000)
    tables.save_rows(path, table)
    for n_reducers in (16, 64):
        reads.clear()
        share = _load_range(path, 5, n_reducers)
        assert len(reads) == 2
        assert share.nbytes <= reads[1] < 1.25 * share.nbytes


@pytest.mark.parametrize("n_reducers", [1, 16, 1024])
def test_a_share_keeps_no_other_rows_in_memory(tmp_path, n_reducers):
    path = str(tmp_path / "x")
    tables.save_rows(path, _random(100_000))
    share = _load_range(path, n_reducers // 2, n_reducers)
    assert len(share)
    held = share
    while isinstance(held.base, np.ndarray):
        held = held.base
    assert held.base is None
    assert held.nbytes == share.nbytes


def test_a_range_that_is_not_one_of_them_is_refused():
    for number, count in ((5, 4), (4, 4), (-1, 4), (0, 0)):
        with pytest.raises(ValueError, match=f"range {number} is not one of {count}"):
            tables.hash_range(number, count)


def test_a_small_table_is_one_read(tmp_path, reads):
    path = str(tmp_path / "x")
    tables.save_rows(path, _random(1000))
    _load_range(path, 1, 2)
    assert len(reads) == 1


@pytest.mark.parametrize("n_parts", [1, 7, 5000, 100_000])
def test_a_part_finds_its_rows(tmp_path, reads, n_parts):
    path, rng = str(tmp_path / "x"), np.random.default_rng(n_parts)
    table = np.zeros(60_000, PART)
    table["part"] = np.sort(rng.integers(0, n_parts, len(table)))
    table["row"] = np.arange(len(table))
    tables.save_rows(path, table, "part")
    for part in (0, n_parts // 2, n_parts - 1, n_parts + 5, 2**31):
        reads.clear()
        rows = tables.load_rows(path, PART, "part", part, part + 1)
        assert np.array_equal(rows, table[table["part"] == part])
        assert len(reads) <= 2


def test_a_table_without_rows_is_a_table(tmp_path):
    path = str(tmp_path / "x")
    tables.save_rows(path, np.zeros(0, ROW))
    assert len(tables.load_rows(path, ROW)) == 0
    assert len(_load_range(path, 3, 4)) == 0
    tables.save_rows(path, np.zeros(0, PART), "part")
    assert len(tables.load_rows(path, PART, "part", 0, 1)) == 0


def test_unsorted_rows_are_not_written(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(ValueError, match="not sorted"):
        tables.save_rows(str(path), _random(10)[::-1])
    assert not path.exists()


def test_any_changed_or_missing_byte_is_noticed(tmp_path):
    path, table = tmp_path / "damaged", _random(3)
    tables.save_rows(str(path), table)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            tables.load_rows(str(path), ROW)
        with pytest.raises(ValueError, match="damaged"):
            _load_range(str(path), 0, 1)
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            tables.load_rows(str(path), ROW)
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match="damaged"):
        tables.load_rows(str(path), ROW)


def test_a_file_that_cannot_be_read_does_not_kill_the_process(tmp_path):
    """It is cut after it was opened. Mapped into memory, reading it would be a SIGBUS."""
    path = str(tmp_path / "x")
    tables.save_rows(path, _random(100_000))
    program = (
        "import os, sys\n"
        "from elmwright.pipeline.storage.files import at\n"
        "with at(sys.argv[1]).arrow_file() as file:\n"
        "    os.truncate(sys.argv[1], 0)\n"
        "    print(len(file.read_buffer(10_000).to_pybytes()))\n"
    )
    command = [sys.executable, "-c", program, path]
    assert subprocess.check_output(command, text=True) == "0\n"


def test_a_table_that_claims_more_rows_than_it_has_takes_no_memory(tmp_path):
    path = str(tmp_path / "x")
    rows = np.zeros(10, [("part", "<u4"), ("x", "<u8")])
    tables.save_rows(path, rows, "part")
    good = at(path).read_bytes()
    size = int.from_bytes(good[-16:-8], "little")
    footer = pyarrow.ipc.read_schema(pyarrow.py_buffer(good[-16 - size : -16]))
    end = int.from_bytes(footer.metadata[b"index"][8:16], "little")

    def sealed(batch, end, key=b"part"):
        index = np.array([[0, end, xxhash.xxh3_64_intdigest(batch)]], "<u8").tobytes()
        return closed(batch, footer.with_metadata({"key": key, "index": index}))

    def closed(batch, schema):
        data = schema.serialize().to_pybytes()
        seal = np.array([len(data), xxhash.xxh3_64_intdigest(data)], "<u8").tobytes()
        return batch + data + seal

    assert sealed(good[:end], end) == good
    cases = [
        (f"ends at {claim}", sealed(good[:end], claim)) for claim in (10**12, 2**63, 2**64 - 1)
    ]
    for place in range(0, end, 4):
        for claim in (2**31 - 1, 2**32 - 1):
            batch = good[:place] + claim.to_bytes(4, "little") + good[place + 4 : end]
            cases.append((f"{claim} at {place}", sealed(batch, end)))
    cases += [("no key", sealed(good[:end], end, b"")), ("empty", b""), ("zeros", bytes(1000))]
    cases += [
        ("no metadata", closed(good[:end], footer.remove_metadata())),
        ("no index", closed(good[:end], footer.with_metadata({"key": "part"}))),
    ]
    wrong, refused = refusals(
        cases,
        at(path).write_bytes,
        lambda: (
            tables.load_rows(path, rows.dtype),
            tables.load_rows(path, rows.dtype, "part", 0, 1),
        ),
        path,
        (ValueError,),
    )
    assert wrong == []
    assert refused > 0.3 * len(cases), "what changes only numbers in the rows is not noticed"


def test_a_table_of_another_kind_is_refused(tmp_path):
    path = str(tmp_path / "x")
    tables.save_rows(path, _random(5))
    with pytest.raises(ValueError, match="not sorted by part"):
        tables.load_rows(path, PART, "part", 0, 1)
    renamed = np.dtype([("hi", "<u8"), ("side", "<u4"), ("row", "u1")])
    for dtype in (PART, renamed):
        with pytest.raises(tables.DamagedError, match="no column") as error:
            tables.load_rows(path, dtype)
        assert error.value.path == path
    for load in (tables.load_texts, tables.load_lines, tables.load_table):
        with pytest.raises(tables.DamagedError, match="no column"):
            load(path)


def test_ranges_are_a_power_of_two_that_keeps_shares_small():
    assert [tables.count_ranges(rows) for rows in (0, 1, 4_000_000, 4_000_001)] == [1, 1, 1, 2]
    assert tables.count_ranges(9, 2) == 8
    assert tables.count_ranges(10**12) == 4096


@pytest.mark.usefixtures("s3")
def test_tables_work_the_same_in_a_store():
    table = _random(50_000)
    tables.save_rows("s3://bucket/tables/keys", table)
    assert np.array_equal(tables.load_rows("s3://bucket/tables/keys", ROW), table)
    shares = [_load_range("s3://bucket/tables/keys", n, 4) for n in range(4)]
    assert np.array_equal(np.concatenate(shares), table)
    rows = np.zeros(90, PART)
    rows["part"] = np.arange(90) // 3
    tables.save_rows("s3://bucket/tables/parts", rows, "part")
    assert len(tables.load_rows("s3://bucket/tables/parts", PART, "part", 7, 8)) == 3
