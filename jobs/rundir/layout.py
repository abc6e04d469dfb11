"""Where each file of a run is stored below `run.dir`.

    runs/demo/
      config.json               the resolved config of the newest command
      elmwright.log             everything, including messages of Ray and MLflow
      corpus/                   MANIFEST.json, vocab.txt, shards/*.tar, source/
      train/                    journal.jsonl, attempt.json, result.json, checkpoints/step-*/
      bundle/                   the model to publish
      published.json            its version in the registry
      tracking.json             the MLflow run, and how much of the journal it has received
      mlflow/                   mlflow.db and artifacts, when tracking.uri is empty
      scratch/                  caches and temporary files

`run.dir` may be a URL (`s3://bucket/runs/demo`). Then the log and the bundle are in `run.scratch`
of the machine that runs the command, with a copy of the bundle in `run.dir`, and the journal is a
folder of segments (journal.py).
"""

import os
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.config.sections import RunConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join


@dataclass(frozen=True, init=False)
class RunFolder:
    """The paths of a run: strings if they may be URLs, `Path` if they are always on a disk."""

    root: str
    scratch: Path
    corpus_dir: str
    """The setting corpus.dir; "" if the corpus is in `root`."""
    is_in_store: bool
    """Whether `root` is a URL. The cluster may be remote in either case."""
    config: str
    published: str
    tracking: str
    corpus: str
    """The folder of the corpus, wherever it is."""
    train: str
    checkpoints: str
    journal: str
    attempt: str
    stop_request: str
    result: str
    log: Path
    bundle: Path
    mlflow: Path

    def __init__(self, root: str, scratch: Path, corpus_dir: str = "") -> None:
        """`root` is run.dir, `scratch` run.scratch, and `corpus_dir` corpus.dir, "" if the corpus
        is in the run's folder. All are absolute, because workers run in other folders."""
        is_in_store, train = at(root).is_url, join(root, "train")
        disk = at(root).local(otherwise=scratch)
        vars(self).update(
            root=root,
            scratch=scratch,
            corpus_dir=corpus_dir,
            is_in_store=is_in_store,
            config=join(root, "config.json"),
            published=join(root, "published.json"),
            tracking=join(root, "tracking.json"),
            corpus=corpus_dir.rstrip("/") or join(root, "corpus"),
            train=train,
            checkpoints=join(train, "checkpoints"),
            journal=join(train, "journal" if is_in_store else "journal.jsonl"),
            attempt=join(train, "attempt.json"),
            stop_request=join(train, "stop"),
            result=join(train, "result.json"),
            log=disk / "elmwright.log",
            bundle=disk / "bundle",
            mlflow=disk / "mlflow",
        )

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        return cls(
            at(config.run.dir).resolved(),
            Path(at(config.run.scratch).resolved()),
            at(config.corpus.dir).resolved() if config.corpus.dir else "",
        )

    @classmethod
    def at(cls, place: str | Path) -> "RunFolder":
        """The run in a folder, which may have been moved there, by its own config.json."""
        root = at(place).resolved()
        saved = at(join(root, "config.json")).read_json() or {}
        run = saved.get("run", {})
        run_dir = str(run.get("dir") or "")
        scratch = run.get("scratch") or join(root, "scratch")
        if run_dir and scratch.startswith(f"{run_dir.rstrip('/')}/"):
            scratch = join(root, scratch[len(run_dir.rstrip("/")) + 1 :])
        scratch = from_project(root, run_dir, scratch)
        if at(scratch).is_relative and not at(root).is_url:  # moved out of its project
            scratch = join(root, "scratch")
        corpus = saved.get("corpus", {}).get("dir", "")
        if corpus:
            corpus = at(from_project(root, run_dir, corpus)).resolved()
        return cls(root, Path(at(scratch).resolved()), corpus)


def from_project(root: str, run_dir: str, path: str) -> str:
    """A path of a run's config, absolute if possible.

    Relative paths start at the project, the folder that the command was run in. It is what is left
    of the run's path `root` without `run_dir` at its end. If `root` does not end so, the run was
    moved, and the path is returned unchanged.
    """
    end = f"/{Path(run_dir)}"
    if at(path).is_relative and run_dir and not at(root).is_url and root.endswith(end):
        return join(root.removesuffix(end), path)
    return path


def open_run_folder(config: RunConfig) -> RunFolder:
    """Create the run's folder; UserError if it cannot be written."""
    folder = RunFolder.of(config)
    check_has_server(config, folder)
    places = {folder.log.parent}
    if folder.is_in_store:
        at(join(folder.root, ".writable")).write_bytes(b"")  # raises if the store refuses
    else:
        places.add(Path(folder.train))
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            file = place / f".writable-{os.getpid()}"
            file.touch()
            file.unlink()
        except OSError as error:
            name = "run.scratch" if folder.is_in_store else "run.dir"
            raise UserError(
                "output",
                f"{name} {place} cannot be written ({error.strerror}); "
                f"make it writable or choose another {name}",
            ) from error
    return folder


def check_has_server(config: RunConfig, folder: RunFolder) -> None:
    """Refuse a run in an object store whose config names no MLflow server."""
    if folder.is_in_store and not config.tracking.uri:
        raise UserError(
            "tracking-server",
            f"run.dir {folder.root} is in an object store, where MLflow cannot keep a database; "
            "set tracking.uri to an MLflow server",
        )
