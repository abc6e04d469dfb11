"""Training runs for comparisons: `jobs/training/loop/train.py` itself, without Ray and MLflow.

The seconds of a run begin when its processes have started and end after its last step. So they
include checkpoints, and evaluations if there are any in between, but not the start of Python and
not the final evaluation.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.checkpoints.contents import NUMERICS, SavedScore, read_result
from elmwright.jobs.config.resume_settings import MEANT_WITHOUT
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import LOSS
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.starting import begin
from elmwright.jobs.training.loop.state import Trainer
from elmwright.pipeline.records import from_data

Patch = Callable[[RunConfig], None]
"""Changes the training of a process; a function of a module, because it is sent to the process."""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    score: SavedScore
    """On its held-out set, which is scored as a whole."""
    losses: dict[int, float]
    """Step → training loss, of the steps that the journal has."""
    checkpoint: Path
    steps: int
    wall: float
    """Seconds of the slowest process."""
    cpu: float
    """CPU seconds of all processes and their threads."""


def build_corpus(config: str, settings: list[str], corpus: Path) -> None:
    """`elmwright corpus` beside the folder `corpus`; does nothing if that is complete."""
    settings = [*settings, f"corpus.dir={corpus}", f"run.dir={corpus}-run"]
    command = [sys.executable, "-m", "elmwright.jobs.cli", "corpus", config, "--quiet"]
    for setting in settings:
        command += ["--set", setting]
    print(f"building {corpus.name}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=corpus.parent, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def former_settings() -> dict[str, str]:
    """The settings that early versions did not have, as what those versions did."""
    return {name: f"{name}={json.dumps(value)}" for name, value in MEANT_WITHOUT.items()}


def train_run(
    config: str,
    settings: list[str],
    folder: Path,
    numerics: int = NUMERICS,
    *,
    patch: Patch | None = None,
) -> Trained:
    """Train from the beginning, in a new folder that replaces an earlier one. `numerics` other than
    today's are those of runs that earlier versions began. `patch` is called in each process first:
    it changes how that process trains."""
    settings = [*settings, f"run.dir={folder}"]
    loaded = load_config(config, settings)
    shutil.rmtree(folder, ignore_errors=True)
    run = RunFolder.of(loaded)
    begin_attempt(run.attempt)
    world = loaded.train.processes
    arguments = (world, loaded, numerics, patch, _free_port())
    print(f"training {folder.name}: {loaded.train.max_steps:,} steps", file=sys.stderr, flush=True)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of our settings
    mp.spawn(_process, arguments, nprocs=world)

    result = read_result(run.result)
    assert result is not None, f"{run.result} is missing or damaged"
    (score,) = result.evaluation.values()
    assert score.states == "fresh", "the published perplexity is the fresh one"
    records = [record for record, _ in read_journal(run.journal, 0) if record.kind == "metrics"]
    seconds = [json.loads(_seconds_file(run, rank).read_text()) for rank in range(world)]
    return Trained(
        score=score,
        losses={record.step: record.values[LOSS.key] for record in records},
        checkpoint=Path(run.checkpoints, result.checkpoint),
        steps=result.step,
        wall=max(wall for wall, _ in seconds),
        cpu=sum(cpu for _, cpu in seconds),
    )


def evaluate(checkpoint: Path, corpus: Path) -> SavedScore:
    """`elmwright eval` of a model on the held-out set of a corpus, with the model's vocabulary."""
    command = [sys.executable, "-m", "elmwright.jobs.cli", "eval", str(checkpoint), "--json"]
    done = subprocess.run(
        [*command, "--corpus", str(corpus)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    (score,) = json.loads(done.stdout).values()
    return from_data(SavedScore, score)


class Stopwatch:
    """Measures the steps. `train` calls it as `drained` before each step, with the steps made, and
    during the final evaluation with numbers that begin at 0 again."""

    def __init__(self, max_steps: int, *, is_loud: bool) -> None:
        self.last_step, self.is_loud = max_steps - 1, is_loud
        self.step = -1
        self.began, self.ended = self._now(), (0.0, 0.0)

    def __call__(self, step: int) -> bool:
        if self.step == self.last_step and step == 0:
            self.stop()
        tenth = max(1, (self.last_step + 1) // 10)
        if self.is_loud and step and step > self.step and step % tenth == 0 and not self.ended[0]:
            minutes = (self._now()[0] - self.began[0]) / 60
            print(f"  step {step:,} after {minutes:.1f} min", file=sys.stderr, flush=True)
        self.step = step
        return False

    def stop(self) -> None:
        """End the measurement, if it has not ended."""
        if not self.ended[0]:
            self.ended = self._now()

    def seconds(self) -> tuple[float, float]:
        """Wall time and CPU time."""
        return self.ended[0] - self.began[0], self.ended[1] - self.began[1]

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.monotonic(), time.process_time()


def _process(
    rank: int, world: int, config: RunConfig, numerics: int, patch: Patch | None, port: int
) -> None:
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    if numerics != NUMERICS:

        def begin_earlier(*arguments: object) -> Trainer:
            trainer = begin(*arguments)  # type: ignore[arg-type]
            trainer.progress = replace(trainer.progress, numerics=numerics)
            return trainer

        loop.begin = begin_earlier  # type: ignore[assignment]
    if patch is not None:
        patch(config)
    run = RunFolder.of(config)
    watch = Stopwatch(config.train.max_steps, is_loud=rank == 0)
    loop.train(config, run, 1, Ranks(rank, world), drained=watch)
    watch.stop()
    _seconds_file(run, rank).write_text(json.dumps(watch.seconds()))
    if world > 1:
        dist.destroy_process_group()


def _seconds_file(run: RunFolder, rank: int) -> Path:
    return Path(run.train, f"seconds-{rank}.json")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
