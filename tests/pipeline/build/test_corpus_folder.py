"""The space of a corpus folder is checked on disks only."""

import pytest

from elmwright.pipeline.build.corpus_folder import check_space
from elmwright.pipeline.storage.object_store import StoreLocation


def test_folder_in_a_store_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: StoreLocation) -> None:
        pytest.fail("a folder in a store may have millions of files")

    monkeypatch.setattr(StoreLocation, "list_files", fail)
    check_space([], "s3://bucket/corpus")
