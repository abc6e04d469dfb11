"""What a replay refuses, before anything is loaded."""

import shutil
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.cluster import connection
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.upkeep.replay_plan import plan_replay
from tests.support.mistakes import mistake
from tests.support.tiny import damage, elmwright, imported
from tests.support.tiny_runs.resealed import change_state, change_train, checkpoint


def test_checkpoints_that_cannot_be_replayed_are_refused(run: Path) -> None:
    folder = RunFolder.at(run)
    with mistake("checkpoint-missing", "step 7", "12, 18, 20"):
        plan_replay(folder, "7")
    with mistake("checkpoint-missing", "step latest"):
        plan_replay(folder, "latest")
    with mistake("checkpoint-missing", "after step 20", "12, 18"):
        plan_replay(folder, "20")
    for step in (12, 18):
        shutil.rmtree(checkpoint(run, step))
    with mistake("checkpoint-missing", "only the checkpoint of step 20"):
        plan_replay(folder)
    shutil.rmtree(checkpoint(run, 20))
    with mistake("checkpoint-missing", "has no checkpoints"):
        plan_replay(folder)


def test_a_corpus_that_is_missing_or_another_one_is_refused(run: Path) -> None:
    change_state(checkpoint(run, 20), {"corpus_fingerprint": "0" * 64})
    with mistake("run-changed", "corpus", "step-00000020"):
        plan_replay(RunFolder.at(run))
    (run / "corpus").unlink()
    with mistake("corpus-missing", "corpus"):
        plan_replay(RunFolder.at(run))


def test_a_machine_that_is_too_small_or_without_gpus_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "cores", lambda: 2)
    change_train(checkpoint(run, 20), {"threads": 3})
    with mistake("capacity", "needs 3 CPUs", "there are 2"):
        plan_replay(RunFolder.at(run))
    change_train(checkpoint(run, 20), {"threads": 1})
    change_state(checkpoint(run, 20), {"device": "cuda", "machine": "one with a GPU"})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with mistake("device", "1 GPU", "one with a GPU"):
        plan_replay(RunFolder.at(run))
    change_state(checkpoint(run, 20), {"processes": 2})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with mistake("capacity", "2 GPUs", "finds 1"):
        plan_replay(RunFolder.at(run))


def test_a_checkpoint_that_training_went_back_behind_is_refused(run: Path) -> None:
    """It was written before, so what follows it on the disk does not follow from it."""
    change_state(checkpoint(run, 20), {"skipped": [16, 17]})
    with mistake("run-state", "before step 18", "step-00000018"):
        plan_replay(RunFolder.at(run))
    change_state(checkpoint(run, 20), {"skipped": [18]})
    plan_replay(RunFolder.at(run))


def test_a_checkpoint_with_numerics_of_another_version_is_refused(run: Path) -> None:
    change_state(checkpoint(run, 20), {"numerics": 99})
    with mistake("format", "step-00000020", "numerics 99", "version of elmwright that wrote it"):
        plan_replay(RunFolder.at(run))
    change_state(checkpoint(run, 20), {"numerics": 1})
    plan_replay(RunFolder.at(run))


def test_a_checkpoint_without_a_readable_state_is_refused(run: Path) -> None:
    damage(checkpoint(run, 20) / "state.json", "truncate")
    with mistake("file-damaged", "state.json", "step-00000020"):
        plan_replay(RunFolder.at(run))


def test_only_a_run_can_be_replayed(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run / "corpus"), "--replay"]) == 2
    assert "is not a run's folder" in capfd.readouterr().err


def test_a_mistake_is_reported_without_loading_torch_or_ray(run: Path) -> None:
    done = elmwright("verify", run, "--replay", "20", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 2
    assert not {"torch", "ray", "mlflow"} & imported(done.stderr)
