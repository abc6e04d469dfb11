"""Where each file of a run is stored below `run.dir`.

    runs/demo/
      config.json               the resolved config of the newest command
      elmwright.log             everything, including messages of Ray and MLflow
      corpus/                   MANIFEST.json, vocab.txt, shards/*.tar, source/
      train/                    journal.jsonl, attempt.json, result.json, checkpoints/step-*/
      bundle/                   the model to publish
      published.json            its version in the registry
      tracking.json             its MLflow run, and how much of the journal that has
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
    remote: bool
    config: str
    published: str
    tracking: str
    corpus: str
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
        remote, local, train = at(root).is_url, at(root).local(scratch), join(root, "train")
        vars(self).update(
            root=root,
            scratch=scratch,
            corpus_dir=corpus_dir,
            remote=remote,
            config=join(root, "config.json"),
            published=join(root, "published.json"),
            tracking=join(root, "tracking.json"),
            corpus=corpus_dir.rstrip("/") or join(root, "corpus"),
            train=train,
            checkpoints=join(train, "checkpoints"),
            journal=join(train, "journal" if remote else "journal.jsonl"),
            attempt=join(train, "attempt.json"),
            stop_request=join(train, "stop"),
            result=join(train, "result.json"),
            log=local / "elmwright.log",
            bundle=local / "bundle",
            mlflow=local / "mlflow",
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
        """The run in a folder, by its own config.json."""
        root = at(place).resolved()
        saved = at(join(root, "config.json")).read_json() or {}
        run = saved.get("run", {})
        home = str(run.get("dir") or "")
        scratch = run.get("scratch") or join(root, "scratch")
        if home and scratch.startswith(f"{home.rstrip('/')}/"):
            scratch = join(root, scratch[len(home.rstrip("/")) + 1 :])
        scratch = from_project(root, home, scratch)
        if at(scratch).is_relative:  # the run was moved out of its project
            scratch = str(at(join(root, "scratch")).local(Path(scratch)))
        corpus = saved.get("corpus", {}).get("dir", "")
        if corpus:
            corpus = at(from_project(root, home, corpus)).resolved()
        return cls(root, Path(at(scratch).resolved()), corpus)


def from_project(root: str, home: str, place: str) -> str:
    """A path of a config, as seen from the current folder.

    Relative paths start at the folder of the command, which is found by removing run.dir from the
    end of the run's path.
    """
    if at(place).is_relative and home and not at(root).is_url and root.endswith(f"/{Path(home)}"):
        return join(root[: -len(str(Path(home))) - 1], place)
    return place


def open_run_folder(config: RunConfig) -> RunFolder:
    """Create the run's folder; UserError if it cannot be written."""
    folder = RunFolder.of(config)
    if folder.remote:
        check_has_server(config, folder)
        at(join(folder.root, ".writable")).write_bytes(b"")  # raises if the store refuses
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


def check_has_server(config: RunConfig, folder: RunFolder) -> None:
    """Refuse a run in a store without an MLflow server."""
    if folder.remote and not config.tracking.uri:
        raise UserError(
            "tracking-server",
            f"run.dir {folder.root} is in an object store, where MLflow cannot keep a database; "
            "set tracking.uri to an MLflow server",
        )
