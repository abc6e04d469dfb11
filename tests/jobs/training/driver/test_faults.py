"""What goes wrong in two weeks on a cluster: full disks, missing processes, damaged checkpoints,
another number of processes. The result must be as if nothing had happened."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints, verify_checkpoint
from elmwright.jobs.checkpoints.contents import read_result
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop.exchange import PeerLost, Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.training.loop.training_step import Process
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake
from tests.support.servers import free_port
from tests.support.tiny import damage, write_config
from tests.support.tiny_runs.training import losses, prepare, process, weights

pytestmark = pytest.mark.slow(24)

LONG = 200
"""Steps of the runs whose curves are compared."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on its own small disk, with space for one and a half checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_does_not_stop_training_and_earlier_checkpoints_stay(
    corpus: Path, tmp_path: Path, small_disk: Path
) -> None:
    (tmp_path / "whole").mkdir()
    config, whole = prepare(tmp_path / "whole", corpus)
    train(config, whole, begin_attempt(whole.attempt), Ranks())

    (tmp_path / "run").mkdir()
    config, run = prepare(tmp_path / "run", corpus, checkpoint_keep_last=1)
    Path(run.checkpoints).symlink_to(small_disk)
    room = small_disk / "something-else"
    first = list_checkpoints(whole.checkpoints)[0]
    room.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - int(first.bytes * 1.7))))
    with mistake("disk-full", "step 20", "No space left"):
        train(config, run, begin_attempt(run.attempt), Ranks())
    records = [record for record, _ in read_journal(run.journal, 0)]
    warned = [record.step for record in records if record.kind == "warning"]
    saved = [record.step for record in records if record.kind == "checkpoint"]
    assert saved == [3]
    assert warned == [6, 9, 12, 15, 18, 20], "a warning each time"
    assert list(losses(run)) == list(range(1, 21)), "training continued"
    verify_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    room.unlink()
    train(config, run, begin_attempt(run.attempt), Ranks())
    assert weights(run) == weights(whole)


def hang(rank: int, world: int, config_path: str, port: int) -> None:
    """Like `process`, but rank 1 hangs at its fifth step."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=5),
    )
    config = load_config(config_path)
    folder = RunFolder.of(config)
    real = loop.make_step

    def step(process: Process, *rest: object) -> object:
        if process.trainer.step == 5 and rank == 1:
            signal.pause()
        return real(process, *rest)  # type: ignore[arg-type]

    loop.make_step = step  # type: ignore[assignment]
    try:
        train(config, folder, 1, Ranks(rank, world))
    except PeerLost as error:
        Path(folder.root, f"lost-{rank}").write_text(str(error))
        os._exit(3)


def test_a_hanging_process_is_named_after_the_timeout(corpus: Path, tmp_path: Path) -> None:
    _, run = prepare(tmp_path, corpus, train_processes=3, train_lanes=6, eval_lanes=6)
    begin_attempt(run.attempt)
    port = free_port()
    started = mp.spawn(hang, (3, str(tmp_path / "tiny.toml"), port), nprocs=3, join=False)
    for number in (0, 2):
        started.processes[number].join(120)
    os.kill(started.processes[1].pid, signal.SIGKILL)
    for number in (0, 2):
        message = Path(run.root, f"lost-{number}").read_text()
        assert "; rank 1 is missing, last seen in step 5" in message or (
            number == 2 and "rank 0" in message  # it was the first to leave
        )


def score_alone(rank: int, world: int, config_path: str, port: int, model: str) -> None:
    """Score one set of weights on several processes."""
    from elmwright.jobs.training.loop.evaluate import evaluate
    from elmwright.jobs.training.loop.heldout_pass import HeldOut
    from elmwright.model.formats.folder import load_folder
    from elmwright.pipeline.format.manifest import Manifest

    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    folder = RunFolder.of(load_config(config_path))
    loaded = load_folder(model, with_softmax=True)
    assert loaded.softmax is not None
    manifest, ranks = Manifest.load(folder.corpus), Ranks(rank, world)
    heldout = HeldOut(loaded.bilm, loaded.softmax, folder.corpus, manifest, 4, 10, ranks)
    score = evaluate(heldout, "heldout")
    if rank == 0:
        at(f"{folder.root}/score-{world}.json").write_json(to_data(score.saved))
    if world > 1:
        dist.destroy_process_group()


def test_an_evaluation_is_the_same_for_any_number_of_processes(
    corpus: Path, tmp_path: Path
) -> None:
    config, run = prepare(tmp_path, corpus, train_max_steps=3)
    train(config, run, begin_attempt(run.attempt), Ranks())
    model = list_checkpoints(run.checkpoints)[-1].path
    for world in (1, 2):
        port = free_port()
        mp.spawn(score_alone, (world, str(tmp_path / "tiny.toml"), port, model), nprocs=world)
    one, two = (at(f"{run.root}/score-{world}.json").read_json() or {} for world in (1, 2))
    assert two["perplexity"] == pytest.approx(one["perplexity"], rel=1e-6)
    assert two["carried_perplexity"] == pytest.approx(one["carried_perplexity"], rel=1e-6)
    assert (two["tokens"], two["characters"]) == (one["tokens"], one["characters"])


def spawned(world: int, path: Path) -> None:
    port = free_port()
    mp.spawn(process, (world, str(path), port), nprocs=world)


@pytest.mark.heavy
def test_two_processes_then_one_then_four_follow_the_undisturbed_curve(
    corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    averaging = {"train_average_steps": LONG // 3}
    config, whole = prepare(tmp_path / "whole", corpus, train_max_steps=LONG, **averaging)
    train(config, whole, begin_attempt(whole.attempt), Ranks())

    (tmp_path / "parts").mkdir()
    _, run = prepare(tmp_path / "parts", corpus)
    for world, until in ((2, 70), (1, 130), (4, LONG)):
        path = write_config(
            tmp_path / "parts",
            tmp_path / "text.txt",
            train_processes=world,
            train_max_steps=until,
            tracking_every_steps=1,
            **averaging,
        )
        at(run.attempt).write_json({"attempt": 1})
        spawned(world, path)
    expected, found = losses(whole), losses(run)
    assert list(found) == list(range(1, LONG + 1))
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-5), step
    of_whole, of_parts = read_result(whole.result), read_result(run.result)
    assert of_whole is not None
    assert of_parts is not None
    for name, score in of_whole.evaluation.items():  # of the averages
        assert of_parts.evaluation[name].perplexity == pytest.approx(score.perplexity, rel=1e-5)


@pytest.mark.parametrize("how", ["truncate", "flip", "delete"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    corpus: Path, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One run for each kind of damage, every file of the newest checkpoint in turn."""
    (tmp_path / "whole").mkdir()
    config, whole = prepare(tmp_path / "whole", corpus)
    train(config, whole, begin_attempt(whole.attempt), Ranks())
    names = sorted(
        path.name for path in Path(list_checkpoints(whole.checkpoints)[-1].path).iterdir()
    )
    assert len(names) == 8
    for name in names:
        run = RunFolder(str(tmp_path / f"{how}-{name}"), tmp_path / "scratch")
        shutil.copytree(whole.root, run.root, symlinks=True)
        Path(run.result).unlink()
        file = Path(list_checkpoints(run.checkpoints)[-1].path, name)
        damage(file, how)
        caplog.clear()
        train(config, run, begin_attempt(run.attempt), Ranks())
        skipped = [r.message for r in caplog.records if "checkpoint skipped" in r.message]
        assert len(skipped) == 1
        assert name in skipped[0]
        assert weights(run) == weights(whole)
        assert losses(run) == losses(whole)
