"""What goes wrong around a registry: files lost or exchanged, two commands at once, nonsense."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.bundles.bundle import SUMS, verify_bundle, write_sums
from elmwright.jobs.bundles.model_folder import cached
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.publishing.gate import bits_per_character
from elmwright.jobs.publishing.promotion import promote, publish_bundle, rollback
from elmwright.jobs.publishing.publish import is_published, publish
from elmwright.jobs.registry.contract import Registry
from elmwright.jobs.registry.plain_folder import FolderRegistry
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.using.pretrained import Elmo
from elmwright.pipeline.storage.disk import sha256_bytes
from tests.support.mistakes import mistake
from tests.support.servers import missing
from tests.support.tiny import write_config, write_text
from tests.support.tiny_runs.registries import another, change

pytestmark = pytest.mark.slow(7)


def folders(shelf: FolderRegistry) -> set[str]:
    return {path.name for path in Path(shelf.uri, "tiny").iterdir() if path.is_dir()}


def test_a_lost_index_costs_a_sentence_and_no_bundle(tmp_path: Path, bundle: Path) -> None:
    shelf = FolderRegistry(str(tmp_path / "shelf"))
    for number in range(2):
        publish_bundle(shelf, another(bundle, tmp_path / str(number), number), "tiny", "candidate")
    index = tmp_path / "shelf" / "tiny" / "index.json"
    kept, before = index.read_bytes(), folders(shelf)
    index.unlink()
    for command in (
        lambda: publish_bundle(shelf, bundle, "tiny", "candidate"),
        lambda: promote(shelf, "tiny", 1, "champion"),
    ):
        with mistake("file-damaged", "index.json", "(2)"):
            command()
    assert folders(shelf) == before
    index.write_bytes(kept)
    assert publish_bundle(shelf, bundle, "tiny", "candidate") == 3


def test_what_a_killed_first_publish_left_on_a_shelf_is_removed(
    tmp_path: Path, bundle: Path, worse_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = FolderRegistry(str(tmp_path / "shelf"))

    real = FolderRegistry._store

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def killed_afterwards(self: FolderRegistry, *args: Any) -> None:
        real(self, *args)
        raise KeyboardInterrupt

    for step, end in (("_store", killed_afterwards), ("_change", killed)):
        with monkeypatch.context() as patch:
            patch.setattr(FolderRegistry, step, end)
            with pytest.raises(KeyboardInterrupt):
                publish_bundle(shelf, bundle, "tiny", "candidate")
        assert shelf.versions("tiny") == []
        assert len(folders(shelf)) == 1
    assert publish_bundle(shelf, worse_bundle, "tiny", "candidate") == 1
    assert folders(shelf) == {shelf.versions("tiny")[0].about.folder}


def test_publishing_the_folder_of_a_version_keeps_it(tmp_path: Path, bundle: Path) -> None:
    shelf = FolderRegistry(str(tmp_path / "shelf"))
    publish_bundle(shelf, bundle, "tiny", "candidate")
    stored = shelf.fetch("tiny", 1)
    index = stored.parent / "index.json"
    index.write_text(json.dumps({"format": 1, "versions": {}, "aliases": {}}))  # an old backup
    elsewhere = another(bundle, stored.parent / ("0" * 32))
    with mistake("argument", str(elsewhere)):
        publish_bundle(shelf, elsewhere, "tiny", "candidate")
    verify_bundle(elsewhere)
    (tmp_path / "link").symlink_to(stored)
    assert publish_bundle(shelf, tmp_path / "link", "tiny", "candidate") == 1
    verify_bundle(shelf.fetch("tiny", 1))


def test_a_bundle_or_checkpoint_that_lost_its_list_is_damaged(
    tmp_path: Path, bundle: Path, trained: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(bundle, mine)
    (mine / SUMS).unlink()
    for gone in ("README.md", "provenance.json"):
        with mistake("file-damaged", SUMS):
            resolve(str(mine))
        shutil.move(mine / gone, tmp_path / gone)
        with mistake("file-damaged", SUMS):
            resolve(str(mine))
        shutil.move(tmp_path / gone, mine / gone)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(sorted((trained / "train" / "checkpoints").iterdir())[-1], checkpoint)
    (checkpoint / "MANIFEST.json").unlink()
    with mistake("file-damaged", "MANIFEST.json"):
        resolve(str(checkpoint))


def test_a_cached_folder_that_lost_its_list_or_has_another_is_fetched_again(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path))
    other = another(bundle, tmp_path / "other")

    def download(folder: Path) -> None:
        shutil.copytree(bundle, folder, dirs_exist_ok=True)

    key = sha256_bytes((bundle / SUMS).read_bytes())
    place = cached(key, download)
    (place / SUMS).unlink()
    (place / "vocab.txt").write_text("changed")
    verify_bundle(cached(key, download))
    shutil.copytree(other, place, dirs_exist_ok=True)
    assert (cached(key, download) / SUMS).read_bytes() == (bundle / SUMS).read_bytes()
    with mistake("untrusted"):
        cached("0" * 64, download)


def test_of_two_promotions_at_once_none_is_lost_and_none_is_judged_by_an_old_holder(
    registry: Registry, bundle: Path, worse_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_bundle(registry, worse_bundle, "tiny", "candidate")
    publish_bundle(registry, bundle, "tiny", "candidate")
    real = type(registry).history
    others: list[Callable[[], object]] = []

    def and_then_another(self: Registry, name: str, alias: str) -> list[int]:
        found = real(self, name, alias)
        if others:
            others.pop()()  # between our look and our move
        return found

    monkeypatch.setattr(type(registry), "history", and_then_another)
    others.append(lambda: promote(registry, "tiny", 1, "champion"))
    promote(registry, "tiny", 2, "champion", force=True)
    assert registry.history("tiny", "champion") == [1, 2]
    others.append(lambda: promote(registry, "tiny", 1, "champion", force=True))
    with mistake("alias", "version 1"):
        rollback(registry, "tiny", "champion")
    others.append(lambda: promote(registry, "tiny", 1, "new"))
    with mistake("alias", "version 1"):
        promote(registry, "tiny", 2, "new")
    assert registry.history("tiny", "champion") == [1, 2, 1]


def test_publishing_to_an_alias_with_a_holder_goes_through_the_gate(
    registry: Registry, bundle: Path, worse_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--name", "tiny", "--alias", "champion", "--to", registry.uri]
    assert main(["publish", str(bundle), *to]) == 0
    assert main(["publish", str(worse_bundle), *to]) == 2
    output = capsys.readouterr().err
    assert "version 2 of tiny is published, but champion was not moved" in output
    assert "is worse than version 1" in output
    assert registry.history("tiny", "champion") == [1]
    assert main(["publish", str(worse_bundle), *to, "--force"]) == 0
    assert registry.history("tiny", "champion") == [1, 2]
    assert main(["publish", str(bundle), *to]) == 0  # better, and known already
    assert registry.history("tiny", "champion") == [1, 2, 1]


def test_a_folder_as_registry_is_one_for_models_and_for_verify_too(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = FolderRegistry(str(tmp_path))
    publish_bundle(shelf, bundle, "tiny", "candidate")
    Elmo.from_pretrained("models:/tiny@candidate", tracking_uri=str(tmp_path))
    assert main(["verify", f"{tmp_path}/tiny@candidate"]) == 0
    assert main(["verify", f"{tmp_path}/tiny/1"]) == 0
    (shelf.fetch("tiny", 1) / "vocab.txt").write_text("changed")
    assert main(["verify", f"{tmp_path}/tiny@candidate"]) == 2
    assert "vocab.txt does not match its digest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("config.json", lambda saved: saved.pop("step")),
        ("config.json", lambda saved: saved.update(step="20")),
        ("config.json", lambda saved: saved.update(evaluation={"heldout": {"perplexity": -1}})),
        ("config.json", lambda saved: saved.update(heldout_sha256=[])),
        ("provenance.json", lambda saved: saved.pop("corpus_fingerprint")),
        ("provenance.json", None),
    ],
)
def test_a_bundle_that_says_nonsense_about_itself_is_not_published(
    tmp_path: Path, bundle: Path, name: str, how: Callable[[Any], object] | None
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(bundle, mine)
    if how is None:
        (mine / name).write_text("[]")
    else:
        change(mine / name, how)
    write_sums(mine)
    with mistake("file-damaged", name):
        publish_bundle(FolderRegistry(str(tmp_path / "shelf")), mine, "tiny", "candidate")


@pytest.mark.parametrize("missing", ["signed", "vocab_sha256", "heldout_sha256", "created"])
def test_an_index_that_lacks_something_is_damaged(
    tmp_path: Path, bundle: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_bundle(FolderRegistry(str(tmp_path)), bundle, "tiny", "candidate")
    change(tmp_path / "tiny" / "index.json", lambda index: index["versions"]["1"].pop(missing))
    assert main(["versions", "tiny", "--to", str(tmp_path)]) == 2
    assert "index.json is damaged" in capsys.readouterr().err
    assert main(["promote", "tiny", "²", "--alias", "champion", "--to", str(tmp_path)]) == 2
    assert "not the number of a version" in capsys.readouterr().err


def test_a_password_is_not_written_down(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path, write_text(tmp_path / "text.txt"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    config = load_config(str(path))
    folder = RunFolder.of(config)
    shutil.copytree(bundle, folder.bundle)
    monkeypatch.setattr("elmwright.jobs.publishing.publish.read_run_id", lambda _: "a run")
    monkeypatch.setattr("elmwright.jobs.publishing.publish.publish_bundle", lambda *_: 1)
    publish(config, folder)
    assert "secret" not in Path(folder.published).read_text()
    assert is_published(config, folder)


def test_a_required_signature_is_required_for_one_command(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELMWRIGHT_REQUIRE_SIGNATURE", raising=False)
    (tmp_path / "text.txt").write_text("The cat\n")
    command = ["embed", str(bundle), str(tmp_path / "text.txt"), "-o", str(tmp_path / "out.npz")]
    assert main([*command, "--require-signature", str(tmp_path / "key.pub")]) == 2
    assert "ELMWRIGHT_REQUIRE_SIGNATURE" not in os.environ


def test_a_bundle_that_does_not_say_how_it_tokenises_scores_no_text(
    bundle: Path, tmp_path: Path
) -> None:
    mine = another(bundle, tmp_path / "mine")
    change(mine / "config.json", lambda saved: saved.pop("tokenizer"))
    change(mine / "config.json", lambda saved: saved.pop("tokenisation"))
    (tmp_path / "text.txt").write_text("The cat\n")
    with mistake("file-damaged", "config.json", "tokenizer"):
        bits_per_character(mine, tmp_path / "text.txt")


def test_where_servers_are_what_is_tested_a_missing_one_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELMWRIGHT_SERVERS", "required")
    with pytest.raises(pytest.fail.Exception):
        missing("PostgreSQL is not installed")
    monkeypatch.setenv("ELMWRIGHT_SERVERS", "")
    with pytest.raises(pytest.skip.Exception):
        missing("PostgreSQL is not installed")
