"""Where each file of a run is stored below `run.dir`.

    runs/demo/
      config.json               the resolved config of the newest command
      elmwright.log             everything, Ray's and MLflow's chatter included
      corpus/                   MANIFEST.json, vocab.txt, shards/*.tar, source/
      train/                    journal.jsonl, attempt.json, result.json, checkpoints/step-*/
      bundle/                   what is published
      published.json            which registry version it became
      mlflow/                   mlflow.db and artifacts, when tracking.uri is empty
      scratch/                  caches and temporary files

`run.dir` may be a URL (`s3://bucket/runs/demo`): then everything that others must see lies there,
and the log and the bundle lie in `run.scratch` of the machine that runs the command (a copy of the
bundle goes to `run.dir`).
"""

import os
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.config.sections import RunConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run: strings where it may be a URL, `Path` where it is always a disk."""

    root: str
    """run.dir: absolute, because workers run in other folders, or a URL."""
    scratch: Path
    """run.scratch, absolute, on the disk of whoever asks."""
    corpus_dir: str = ""
    """corpus.dir, absolute or a URL, where the corpus is not in the run's folder."""

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        return cls(
            at(config.run.dir).resolved(),
            Path(at(config.run.scratch).resolved()),
            at(config.corpus.dir).resolved() if config.corpus.dir else "",
        )

    @classmethod
    def at(cls, place: str | Path) -> "RunFolder":
        """The run whose folder this is, as its own config.json tells."""
        root = at(place).resolved()
        saved = at(join(root, "config.json")).read_json() or {}
        run = saved.get("run", {})
        home = str(run.get("dir") or "")
        scratch = run.get("scratch") or join(root, "scratch")
        if home and scratch.startswith(f"{home.rstrip('/')}/"):
            scratch = join(root, scratch[len(home.rstrip("/")) + 1 :])
        scratch = from_project(root, home, scratch)
        if at(scratch).is_relative:  # of a project that is not around the run any more
            scratch = str(at(join(root, "scratch")).local(Path(scratch)))
        corpus = saved.get("corpus", {}).get("dir", "")
        if corpus:
            corpus = at(from_project(root, home, corpus)).resolved()
        return cls(root, Path(at(scratch).resolved()), corpus)

    @property
    def remote(self) -> bool:
        """Whether the run lives in an object store."""
        return at(self.root).is_url

    @property
    def config(self) -> str:
        return join(self.root, "config.json")

    @property
    def log(self) -> Path:
        return self._local / "elmwright.log"

    @property
    def corpus(self) -> str:
        """The corpus folder, or its URL."""
        return self.corpus_dir.rstrip("/") or join(self.root, "corpus")

    @property
    def train(self) -> str:
        return join(self.root, "train")

    @property
    def checkpoints(self) -> str:
        return join(self.train, "checkpoints")

    @property
    def journal(self) -> str:
        """A file on a disk, a folder of segments in a store (journal.py)."""
        return join(self.train, "journal" if self.remote else "journal.jsonl")

    @property
    def attempt(self) -> str:
        return join(self.train, "attempt.json")

    @property
    def stop_request(self) -> str:
        return join(self.train, "stop")

    @property
    def result(self) -> str:
        return join(self.train, "result.json")

    @property
    def bundle(self) -> Path:
        return self._local / "bundle"

    @property
    def published(self) -> str:
        return join(self.root, "published.json")

    @property
    def tracking(self) -> str:
        """Which MLflow run this is and how much of the journal it has."""
        return join(self.root, "tracking.json")

    @property
    def mlflow(self) -> Path:
        return self._local / "mlflow"

    @property
    def _local(self) -> Path:
        return at(self.root).local(self.scratch)


def from_project(root: str, home: str, place: str) -> str:
    """A place that a config names, as seen from here.

    Relative places mean the folder of the command, which is known by where run.dir is from there.
    """
    if at(place).is_relative and home and not at(root).is_url and root.endswith(f"/{Path(home)}"):
        return join(root[: -len(str(Path(home))) - 1], place)
    return place


def open_run_folder(config: RunConfig) -> RunFolder:
    """Create the run's folder, or say why it cannot be."""
    folder = RunFolder.of(config)
    if folder.remote:
        if not config.tracking.uri:
            raise UserError(
                "tracking-server",
                f"run.dir {folder.root} is in an object store, where MLflow cannot keep a database;"
                " set tracking.uri to an MLflow server",
            )
        at(join(folder.root, ".writable")).write_bytes(b"")  # or the store says why not
    for local in {folder.log.parent} if folder.remote else {folder.log.parent, Path(folder.train)}:
        try:
            local.mkdir(parents=True, exist_ok=True)
            file = local / f".writable-{os.getpid()}"
            file.touch()
            file.unlink()
        except OSError as error:
            name = "run.scratch" if folder.remote else "run.dir"
            raise UserError(
                "output",
                f"{name} {local} cannot be written ({error.strerror}); "
                f"make it writable or choose another {name}",
            ) from error
    return folder
