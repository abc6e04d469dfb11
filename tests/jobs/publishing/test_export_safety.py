"""What an export must not do: lose files, mix bundles, say what was not so, blame the disk."""

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.bundles.bundle import SUMS, digest, verify_bundle
from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.publishing import export
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.publishing.model_card import model_card
from elmwright.jobs.publishing.training_facts import TrainingFacts
from elmwright.jobs.rundir.work_folder import alone_in
from elmwright.pipeline.errors import Code, UserError
from tests.support import saved
from tests.support.hostile import waiting_at_most
from tests.support.mistakes import mistake
from tests.support.places import ROOT
from tests.support.tiny import manifest


def changed(trained: Path, home: Path, **settings: Any) -> Path:
    """A copy of the run whose newest command had other settings, section_key=value."""
    run = home / "run"
    shutil.copytree(trained, run, symlinks=True)
    saved = json.loads((run / "config.json").read_text())
    for name, value in settings.items():
        section, _, key = name.partition("_")
        saved[section][key] = value
    (run / "config.json").write_text(json.dumps(saved))
    return run


def test_force_replaces_no_folder_that_only_looks_like_a_bundle(
    trained: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / SUMS).write_text(f"{'0' * 64}  debian.iso\n")
    (downloads / "thesis.txt").write_text("years of work")
    mixed = tmp_path / "mixed"
    shutil.copytree(bundle, mixed)
    (mixed / "notes.txt").write_text("what I found")
    deep = tmp_path / "deep"
    shutil.copytree(bundle, deep)
    (deep / "training.svg").unlink()
    (deep / "training.svg").mkdir()
    (deep / "training.svg" / "all.svg").write_text("<svg/>")
    for folder, why in (
        (downloads, "is not a bundle"),
        (mixed, "notes.txt does not belong"),
        (deep, "training.svg does not belong"),
    ):
        before = sorted(folder.rglob("*"))
        assert main(["export", str(trained), "-o", str(folder), "--force"]) == 2
        assert why in capsys.readouterr().err
        assert sorted(folder.rglob("*")) == before


def test_two_exports_to_one_place_do_not_mix(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "bundle"
    inside, go_on = threading.Event(), threading.Event()
    real = export.measure

    def slow(*arguments: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(export, "measure", slow)
    first = threading.Thread(
        target=export_run, args=(str(trained), "20", str(target)), kwargs={"overrides": []}
    )
    first.start()
    try:
        assert inside.wait(60)
        with mistake("busy", "bundle"):
            export_run(str(trained), "12", str(target), overrides=[])
    finally:
        go_on.set()
        first.join()
    verify_bundle(target)
    assert json.loads((target / "config.json").read_text())["step"] == 20
    assert os.listdir(tmp_path) == ["bundle"]


def test_what_a_killed_export_left_is_cleared_and_what_it_had_moved_is_put_back(
    trained: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, work = tmp_path / "bundle", tmp_path / ".writing-bundle"
    shutil.copytree(bundle, work / "old")  # killed between the two renames
    (work / "new").mkdir()
    (work / "new" / "model.safetensors").write_text("half")

    def fail(*_: Any) -> None:
        raise UserError("output", "no more")

    with monkeypatch.context() as now:
        now.setattr(export, "measure", fail)
        with mistake("output"):
            export_run(str(trained), "12", str(target), overrides=[])
    verify_bundle(target)
    assert digest(target) == digest(bundle)
    assert os.listdir(tmp_path) == ["bundle"]
    export_run(str(trained), "12", str(target), overrides=[], force=True)
    assert json.loads((target / "config.json").read_text())["step"] == 12


def test_a_lock_whose_folder_was_just_removed_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command finishes between our opening of the lock and our asking for it."""
    import fcntl

    work, removed = tmp_path / "work", []
    real = fcntl.flock

    def finish_first(lock: Any, how: int) -> None:
        if not removed:
            shutil.rmtree(work)
            removed.append(work)
        real(lock, how)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    with alone_in(work, tmp_path / "out"):
        assert removed
        with mistake("busy", "out"), alone_in(work, tmp_path / "out"):
            pass


def test_work_folder_that_cannot_exist_is_not_waited_for(tmp_path: Path) -> None:
    lock = alone_in(Path("/proc/none/work"), tmp_path / "out")
    with waiting_at_most(10), pytest.raises(FileNotFoundError), lock:
        pass


def test_settings_changed_since_do_not_change_the_bundle(
    trained: Path, bundle: Path, tmp_path: Path
) -> None:
    run = changed(
        trained,
        tmp_path,
        train_processes=1,
        train_threads=2,
        train_device="cpu",
        train_max_steps=9000,
        eval_lanes=2,
        eval_max_tokens=7,
    )
    again, _ = export_run(str(run), "20", str(tmp_path / "again"), overrides=[])
    assert digest(again) == digest(bundle)
    card = (again / "README.md").read_text(encoding="utf-8")
    assert "| 1 process of 1 thread, device `cpu`, " in card  # what the checkpoint says
    partly, _ = export_run(str(run), "18", str(tmp_path / "partly"), overrides=[])
    assert json.loads((partly / "config.json").read_text())["eval_lanes"] == 4


def test_a_run_of_the_first_version_is_described_as_it_began() -> None:
    """Its checkpoints lack settings that later versions added, some with another default."""
    home = ROOT / "tests" / "fixtures" / "compat" / "0.1"
    checkpoint = home / "finished" / "train" / "checkpoints" / "step-00000400"
    trained, _ = export._as_trained(load_config(str(home / "tiny.toml")), checkpoint)
    assert (trained.train.reset_states, trained.train.softmax_init) == ("never", "zero")


def test_the_card_counts_the_tokens_of_accumulated_windows() -> None:
    config = load_config("demo", ["train.lanes=8", "train.window=10", "train.accumulate=3"])
    card = model_card(
        config,
        manifest(),
        1000,
        {},
        TrainingFacts((), (), (), "fresh", 0, 0, 240),
        state=saved.state(processes=2, device="cuda", machine="a computer"),
        has_softmax=True,
        weights="last",
        has_curve=False,
    )
    assert "1,000 steps of 240 tokens" in card
    assert "| tokens read | 240,000: 1,000 steps of 240 |" in card
    assert "| 2 processes of 1 thread, device `cuda`, a computer |" in card


def test_a_bundle_can_be_exported_and_signed_where_signatures_are_required(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    private, public = keys
    monkeypatch.setenv("ELMWRIGHT_REQUIRE_SIGNATURE", str(public))
    signed = tmp_path / "signed"
    arguments = ["export", str(trained), "--step", "best", "-o", str(signed)]
    assert main([*arguments, "--sign", str(private)]) == 0
    assert main(["eval", str(signed), "--corpus", str(trained)]) == 0
    assert re.search(
        r"heldout: perplexity [\d.]+ \(.*; [\d.]+ with states carried over\), ",
        " ".join(capsys.readouterr().out.split()),
    )


@pytest.fixture
def unevaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("evaluated before the mistake was seen")

    monkeypatch.setattr(export, "measure", never)
    return


def test_a_key_that_cannot_sign_is_told_before_the_work(
    trained: Path, tmp_path: Path, keys: tuple[Path, Path], unevaluated: None
) -> None:
    codes: dict[Path, Code] = {tmp_path / "absent": "file-missing", keys[1]: "signature"}
    for key, code in codes.items():
        with mistake(code, str(key)):
            export_run(str(trained), "12", str(tmp_path / "x"), overrides=[], key=str(key))
    assert not list(tmp_path.glob("*x*"))


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "Input/output"),
    ],
)
def test_only_an_error_of_the_disk_is_told_as_one(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    def fail(path: Path, *_: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(export, "write_options", fail)
    with pytest.raises(OSError if number == errno.EIO else UserError, match=sentence):
        export_run(str(trained), "12", str(tmp_path / "bundle"), overrides=[])
    assert not list(tmp_path.iterdir())
    assert list_checkpoints(trained / "train" / "checkpoints")
