"""The page of results, and the table of the benches."""

import json
from pathlib import Path

import pytest

from tests.support.docs import results
from tests.support.places import ROOT


def test_the_page_of_results_is_what_its_records_give() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page(), (
        "run: python -m tests.support.docs.results"
    )


def test_every_record_is_of_a_bench_that_exists_and_of_committed_code() -> None:
    for path in results.RECORDS.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert (ROOT / "tests" / "bench" / f"bench_{path.stem.split('-')[0]}.py").is_file()
        assert record["is_judged"]
        assert record["command"].startswith("python tests/bench/bench_")
        assert "/" not in record["command"].removeprefix("python tests/bench/")
        assert record["bars"]


def test_a_bar_that_fails_is_shown_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {
        "command": "python tests/bench/bench_x.py",
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "has_changes": False,
        "processor": "2 × Processor",
        "flags": ["avx2"],
        "is_judged": True,
        "bars": [
            {
                "name": "speed",
                "ours": "3",
                "peer": "1",
                "value": 3.0,
                "bar": "at least 4",
                "holds": False,
            }
        ],
    }
    path = tmp_path / "x.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    text = results.section(path)
    assert "`python tests/bench/bench_x.py`, 2026-01-02, commit 012345678," in text
    assert "| speed | 3 | 1 | 3 | at least 4 | **fails** |" in text
