"""`prune` removes what a run can make again, and nothing that it needs."""

import json
import os
import shutil
from pathlib import Path

import pytest

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints, newest_valid
from elmwright.jobs.cli.command import main
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.upkeep.list_runs import measure
from elmwright.jobs.upkeep.prune import prune, spare_checkpoints
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.verify_corpus import verify_corpus
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake
from tests.support.tiny import damage


@pytest.fixture
def run(trained: Path, corpus: Path, tmp_path: Path) -> RunFolder:
    """A copy of a finished run, with its corpus inside. Of its checkpoints 20 is the newest and
    the result, 12 the best of those measured in passing, and 18 is spare."""
    root = tmp_path / "runs" / "tiny"
    shutil.copytree(trained, root, symlinks=False)
    shutil.rmtree(root / "corpus", ignore_errors=True)
    shutil.copytree(corpus, root / "corpus")
    # As in a real run, shards have a second name in the work folder.
    for shard in (root / "corpus" / "shards").iterdir():
        for other in (root / "corpus" / "work").rglob(shard.name):
            other.unlink()
            os.link(shard, other)
    config = at(root / "config.json").read_json() or {}
    config["run"].update(dir=str(root), scratch=str(root / "scratch"))
    config["corpus"]["dir"] = ""
    at(root / "config.json").write_json(config)
    return RunFolder.at(root)


def steps(run: RunFolder) -> list[int]:
    return [info.step for info in list_checkpoints(run.checkpoints)]


def test_what_is_needed_stays_and_the_rest_goes(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(run.root)
    monkeypatch.chdir(root.parents[1])
    (run.scratch / "blocks").mkdir(parents=True)
    (run.scratch / "blocks" / "cached").write_bytes(b"x" * 50_000)
    (run.scratch / "thesis.txt").write_text("of the user")
    (Path(run.checkpoints) / ".writing-step-00000021").mkdir()
    (root / "run.lock").write_text("{}")
    before = measure(root)[0]

    assert main(["prune", "tiny", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert measure(root)[0] == before
    assert steps(run) == [12, 18, 20]
    for name in ("corpus/work", "step-00000018", "scratch/blocks", ".writing-step-00000021"):
        assert name in told
    assert "step-00000012" not in told
    assert "would be freed" in told
    assert max(map(len, told.splitlines())) <= 80

    assert main(["prune", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    freed = before - measure(root)[0]
    # The journal grew by a line, the lock file shrank: blocks of the disk, no more.
    assert abs(found["bytes"] - freed) <= 8192
    assert found["bytes"] > 50_000
    assert steps(run) == [12, 20]
    assert not (root / "corpus" / "work").exists()
    assert not (run.scratch / "blocks").exists()
    assert (run.scratch / "thesis.txt").read_text() == "of the user"
    assert not list(Path(run.checkpoints).glob(".writing-*"))
    assert verify_corpus(Manifest.load(run.corpus), run.corpus) == []
    newest = newest_valid(run.checkpoints, pytest.fail)
    assert newest is not None
    assert newest.step == 20
    export_run(str(root), "result", str(root / "again"), overrides=[])
    last = list(read_journal(run.journal, 0))[-1][0]
    assert (last.kind, last.step) == ("pruned", 18)

    assert main(["prune", str(root)]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_files_with_a_name_elsewhere_free_nothing(run: RunFolder) -> None:
    root = Path(run.root)
    shards = sum(path.stat().st_size for path in (root / "corpus" / "shards").iterdir())
    (work,) = (r for r in prune(run, dry_run=True) if r.path.name == "work")
    everything = measure(root / "corpus" / "work")[0]
    assert shards > 0
    assert 0 < work.bytes <= everything - shards


def test_a_run_in_use_is_not_touched(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(run):
        assert main(["prune", run.root]) == 2
    assert "in use by" in capsys.readouterr().err
    assert steps(run) == [12, 18, 20]


def test_an_unfinished_corpus_keeps_its_work(run: RunFolder) -> None:
    Path(run.corpus, "MANIFEST.json").unlink()
    assert not [r for r in prune(run, dry_run=True) if r.path.name == "work"]


def test_a_corpus_elsewhere_is_left_alone(run: RunFolder) -> None:
    shared = RunFolder(run.root, run.scratch, run.corpus)
    assert not [r for r in prune(shared, dry_run=True) if r.path.name == "work"]


def test_a_scratch_folder_elsewhere_is_left_alone_and_in_ours_only_the_cache_goes(
    run: RunFolder, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    for place in (shared, run.scratch):
        for name in ("blocks", "checkpoints", "rank-0", "fetched-data"):
            (place / name).mkdir(parents=True)
    stray = Path(run.checkpoints) / ".writing-old"
    stray.write_text("a file")
    found = prune(RunFolder(run.root, shared))
    assert not [removal for removal in found if removal.path.is_relative_to(shared)]
    assert len(list(shared.iterdir())) == 4
    assert not stray.exists()
    prune(run)
    assert sorted(path.name for path in run.scratch.iterdir()) == [
        "checkpoints",
        "fetched-data",
        "rank-0",
    ]


def test_with_a_damaged_newest_checkpoint_none_is_removed(run: RunFolder) -> None:
    assert [info.step for info in spare_checkpoints(run)] == [18]
    damage(Path(run.checkpoints, "step-00000020", "model.safetensors"), "flip")
    assert spare_checkpoints(run) == []


def test_what_training_ended_with_and_what_is_kept_for_good_stays(run: RunFolder) -> None:
    _, spare, _ = list_checkpoints(run.checkpoints)
    at(run.result).write_json(
        {**(at(run.result).read_json() or {}), "checkpoint_sha256": spare.sha256}
    )
    assert spare_checkpoints(run) == []
    at(run.result).write_json({})
    assert [info.step for info in spare_checkpoints(run)] == [18]
    config = at(run.config).read_json() or {}
    config["checkpoint"]["keep_every_steps"] = 9
    at(run.config).write_json(config)
    assert spare_checkpoints(run) == []


def test_the_lock_still_tells_which_command_ran_last(run: RunFolder) -> None:
    lock = Path(run.root, "run.lock")
    lock.write_text(json.dumps({"command": "elmwright train tiny.toml"}))
    prune(run)
    assert json.loads(lock.read_text()) == {"command": "elmwright train tiny.toml"}


def test_a_run_in_a_store_is_refused() -> None:
    with mistake("run-state"):
        prune(RunFolder("s3://bucket/runs/x", Path("x")))
