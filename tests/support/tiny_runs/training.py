"""A training run without Ray: its folder, the processes of it, and what came out."""

from pathlib import Path

import torch.distributed as dist

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from tests.support.tiny import write_config

STEPS = 20


def prepare(folder: Path, corpus: Path, **changes: object) -> tuple[RunConfig, RunFolder]:
    """A run folder around that corpus."""
    settings = {"train_max_steps": STEPS, "train_processes": 1, "tracking_every_steps": 1}
    path = write_config(folder, folder / "text.txt", **{**settings, **changes})
    config = load_config(str(path))
    run = RunFolder.of(config)
    Path(run.train).mkdir(parents=True)
    Path(run.corpus).symlink_to(corpus)
    return config, run


def losses(run: RunFolder) -> dict[int, float]:
    records = [record for record, _ in read_journal(run.journal, 0) if record.kind == "metrics"]
    return {record.step: record.values["train/loss"] for record in records}


def weights(run: RunFolder) -> str:
    return list_checkpoints(run.checkpoints)[-1].sha256


def process(rank: int, world: int, config_path: str, port: int, attempt: int = 1) -> None:
    """One of several training processes, as torchrun would start it."""
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    config = load_config(config_path)
    train(config, RunFolder.of(config), attempt, Ranks(rank, world))
    dist.destroy_process_group()
