"""Where everything of a run lies below `run.dir`, and the lock that lets one command at it.

    runs/demo/
      config.json               the resolved config of the newest command
      elmwright.log             everything, Ray's and MLflow's chatter included
      corpus/                   MANIFEST.json, vocab.txt, shards/*.tar, source/
      train/                    journal.jsonl, attempt.json, result.json, checkpoints/step-*/
      bundle/                   what is published
      published.json            which registry version it became
      mlflow/                   mlflow.db and artifacts, when tracking.uri is empty
      scratch/                  caches and temporary files

The lock is `flock` on `run.lock`: the kernel drops it when its holder dies, however it dies, so a
killed run never has to be unlocked by hand. The file's text only tells who holds it.
"""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.config import RunConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import is_url


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    root: Path
    """run.dir, absolute: workers run in other folders."""
    corpus_dir: str = ""
    """corpus.dir, absolute or a URL, where the corpus is not in the run's folder."""
    scratch_dir: str = ""
    """run.scratch, absolute, where that is not in the run's folder."""

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        elsewhere = config.corpus.dir
        if elsewhere and not is_url(elsewhere):
            elsewhere = str(Path(elsewhere).expanduser().resolve())
        scratch = str(Path(config.run.scratch).expanduser().resolve())
        return cls(Path(config.run.dir).expanduser().resolve(), elsewhere, scratch)

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def log(self) -> Path:
        return self.root / "elmwright.log"

    @property
    def corpus(self) -> str:
        """The corpus folder, or its URL."""
        return self.corpus_dir.rstrip("/") or str(self.root / "corpus")

    @property
    def train(self) -> Path:
        return self.root / "train"

    @property
    def checkpoints(self) -> Path:
        return self.train / "checkpoints"

    @property
    def journal(self) -> Path:
        return self.train / "journal.jsonl"

    @property
    def attempt(self) -> Path:
        return self.train / "attempt.json"

    @property
    def stop_request(self) -> Path:
        return self.train / "stop"

    @property
    def result(self) -> Path:
        return self.train / "result.json"

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    @property
    def published(self) -> Path:
        return self.root / "published.json"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def scratch(self) -> Path:
        return Path(self.scratch_dir or self.root / "scratch")


def open_run_folder(config: RunConfig) -> RunFolder:
    """Create the run's folder, or say why it cannot be."""
    folder = RunFolder.of(config)
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        probe = folder.root / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"run.dir {folder.root} cannot be written ({error.strerror}); "
            "make it writable or choose another run.dir"
        ) from error
    return folder


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold the run for this process, and its corpus if that lies elsewhere on a disk; a second
    command is told who has it."""
    with _locked(folder.root / "run.lock"):
        if not folder.corpus_dir or is_url(folder.corpus_dir):
            yield
            return
        elsewhere = Path(folder.corpus)
        elsewhere.parent.mkdir(parents=True, exist_ok=True)
        with _locked(elsewhere.with_name(f".{elsewhere.name}.lock")):
            yield


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{path.parent} is in use by {_holder(path)}; wait for it or stop it first"
            ) from None
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join(["elmwright", *sys.argv[1:]]),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(about).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    try:
        about = json.loads(path.read_text())
        return (
            f"'{about['command']}' (process {about['pid']} on {about['host']}, "
            f"since {about['since']})"
        )
    except (OSError, ValueError, KeyError):
        return "another command"
