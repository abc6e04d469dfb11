"""A tiny run of every stage, started as a command so that it can be killed."""

import subprocess
import time
from pathlib import Path

from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.pipeline.storage.files import at
from tests.support.tiny import command, write_config, write_text

STEPS = 240


class Run:
    """A tiny run: its config file and its folder."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.home = folder
        settings = {"train_max_steps": STEPS, "checkpoint_every_steps": 20, "eval_every_steps": 80}
        self.config = write_config(folder, write_text(folder / "text.txt"), **settings, **changes)
        self.folder = folder / "run"

    def start(self, *more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command("run", self.config, *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for_corpus(self, process: "subprocess.Popen[str]") -> None:
        """Until the work on the corpus has begun."""
        for _ in range(1200):
            if list((self.folder / "corpus").rglob("*.done.json")):
                return
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.02)
        raise AssertionError("no work on the corpus within half a minute")

    def forget_corpus(self) -> None:
        """Let the next command work on the corpus again, also where one has just finished it."""
        (self.folder / "corpus" / "MANIFEST.json").unlink(missing_ok=True)
        for mark in (self.folder / "corpus").rglob("*.done.json"):
            mark.unlink()

    def wait_for_step(self, step: int, process: "subprocess.Popen[str]") -> None:
        journal = self.folder / "train" / "journal.jsonl"
        for _ in range(6000):
            if any(record.step >= step for record, _ in read_journal(journal, 0)):
                return
            if process.poll() is not None:
                assert process.returncode == 0, process.stdout and process.stdout.read()
                return
            time.sleep(0.05)
        raise AssertionError(f"step {step} was not reached in five minutes")

    def digests(self) -> dict[str, str]:
        names = ("model.safetensors", "softmax.safetensors", "weights.hdf5", "vocab.txt")
        return {name: at(self.folder / "bundle" / name).sha256() for name in names}

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder / 'mlflow' / 'mlflow.db'}"


def training_process(driver: int) -> int:
    """A Ray Train worker below the driver's process tree."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                names[int(entry.name)] = (entry / "cmdline").read_text()
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            parents[int(entry.name)] = int(status[1])
    for process, name in names.items():
        if "RayTrainWorker" in name:
            ancestor = process
            while ancestor in parents and ancestor != driver:
                ancestor = parents[ancestor]
            if ancestor == driver:
                return process
    raise AssertionError("no training process found")
