"""The space of a corpus folder is checked, on disks only."""

from pathlib import Path

import pytest

from elmwright.pipeline.build.corpus_folder import check_space
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.disk import DiskLocation
from elmwright.pipeline.storage.object_store import StoreLocation
from tests.support.mistakes import mistake


def test_a_disk_that_is_too_small_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [SourceFile("text.txt", 0, 5000, 0, "train")]
    corpus = str(tmp_path / "corpus")
    check_space(inputs, corpus)
    monkeypatch.setattr(DiskLocation, "free_bytes", lambda _self: 10_000)
    with mistake("disk-full", corpus):
        check_space(inputs, corpus)


def test_a_folder_in_a_store_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have millions of files."""
    listed: list[str] = []
    monkeypatch.setattr(StoreLocation, "list_files", lambda self: listed.append(self.path) or [])
    monkeypatch.setattr(StoreLocation, "free_bytes", lambda _self: 0)
    check_space([], "s3://bucket/corpus")
    assert listed == []
