"""A corpus in a project that is moved or copied is known by its content, and nothing is redone."""

import errno
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from elmwright.pipeline.build.up_to_date import corpus_key, current_manifest
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.format.manifest import NAME, Manifest
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.corpus.corpora import SHARDS, VOCAB, make, some_text

pytestmark = pytest.mark.usefixtures("ray_here")

CONFIG = CorpusConfig(sources=("text",), heldout={"heldout": 0.1}, keep_work=True)
KEY = corpus_key(CONFIG, VOCAB, SHARDS, 7)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its text and a finished corpus; the current folder."""
    folder = tmp_path / "project"
    (folder / "text").mkdir(parents=True)
    (folder / "text" / "a.txt").write_text(some_text(200, 1))
    (folder / "text" / "b.txt").write_text(some_text(100, 2) + "\n\n\x00\x01 broken \x00")
    monkeypatch.chdir(folder)
    make(folder / "runs" / "demo" / "corpus", CONFIG)
    return folder


def corpus_of(project: Path) -> Path:
    return project / "runs" / "demo" / "corpus"


def copied(project: Path, name: str = "copy") -> Path:
    """As `cp -r` does it: every file has a new time."""
    target = project.with_name(name)
    subprocess.run(["cp", "-r", project, target], check=True)
    for file in target.rglob("*.txt"):
        os.utime(file)
    return target


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose content was read for a digest."""
    found: list[str] = []
    real = DiskLocation.sha256

    def counted(self: DiskLocation) -> str:
        found.append(self.path)
        return real(self)

    monkeypatch.setattr(DiskLocation, "sha256", counted)
    return found


def test_a_manifest_names_the_files_of_its_project_relative_to_itself(project: Path) -> None:
    manifest = Manifest.load(corpus_of(project))
    assert [item.path for item in manifest.inputs] == [
        "../../../text/a.txt",
        "../../../text/b.txt",
    ]
    assert str(project) not in (corpus_of(project) / NAME).read_text()
    quarantine = corpus_of(project) / "quarantine.jsonl"
    assert not quarantine.exists() or str(project) not in quarantine.read_text()


def test_a_moved_project_is_current_without_reading_a_file(
    project: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    target = project.with_name("moved")
    project.rename(target)
    monkeypatch.chdir(target)
    assert current_manifest(corpus_of(target), KEY, CONFIG) is not None
    assert read == []
    (target / "text" / "a.txt").write_text(some_text(200, 9))
    assert current_manifest(corpus_of(target), KEY, CONFIG) is None


@pytest.mark.parametrize("gone", [False, True])
def test_a_copy_is_known_by_its_content_which_is_read_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, read: list[str], gone: bool
) -> None:
    target = copied(project)
    if gone:
        shutil.rmtree(project)
    monkeypatch.chdir(target)
    fingerprint = Manifest.load(corpus_of(target)).fingerprint
    for _ in range(2):
        found = current_manifest(corpus_of(target), KEY, CONFIG)
        assert found is not None
        assert found.fingerprint == fingerprint
    assert read == [str(target / "text" / name) for name in ("a.txt", "b.txt")]
    same_size = (target / "text" / "b.txt").read_bytes()[:-1] + b"!"
    (target / "text" / "b.txt").write_bytes(same_size)
    assert current_manifest(corpus_of(target), KEY, CONFIG) is None, "changed after it was read"


def test_copy_of_a_manifest_with_absolute_paths_is_current(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions wrote them: the copy's own files count, not those of the original."""
    manifest = Manifest.load(corpus_of(project))
    inputs = tuple(
        replace(item, path=str(project / "text" / Path(item.path).name)) for item in manifest.inputs
    )
    replace(manifest, inputs=inputs).save(corpus_of(project))
    assert current_manifest(corpus_of(project), KEY, CONFIG) is not None
    target = copied(project)
    monkeypatch.chdir(target)
    assert current_manifest(corpus_of(target), KEY, CONFIG) is not None
    (target / "text" / "b.txt").rename(target / "text" / "c.txt")
    assert current_manifest(corpus_of(target), KEY, CONFIG) is None, "another name"


def test_read_only_corpus_is_current(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = copied(project)
    monkeypatch.chdir(target)

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(DiskLocation, "write_json", refused)
    assert current_manifest(corpus_of(target), KEY, CONFIG) is not None


def test_unfinished_build_in_a_copy_repeats_only_the_digests(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = copied(project)
    shutil.rmtree(project)
    monkeypatch.chdir(target)
    before = Manifest.load(corpus_of(target))
    (corpus_of(target) / NAME).unlink()
    work = corpus_of(target) / "work"
    marks = {path: path.stat().st_mtime_ns for path in work.rglob("*.done.json")}
    assert marks
    after = make(corpus_of(target), CONFIG)
    again = [
        path.parent.name
        for path in work.rglob("*.done.json")
        if marks.get(path) != path.stat().st_mtime_ns
    ]
    assert again == ["digests"]
    assert after.fingerprint == before.fingerprint
