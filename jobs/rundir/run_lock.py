"""One command at a time in a run: its lock, on a disk or in a store.

On a disk the lock is the file `run.lock` (file_lock.py), which the kernel unlocks when its holder
dies. Its text names the holder. In a store, which has no locks, it is a lease (lease.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright.jobs.rundir.file_lock import refusing_lock
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.lease import leased, this_process
from elmwright.jobs.rundir.moved_run import correct_locked_database
from elmwright.pipeline.storage.files import at, join


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Lock the run, and its corpus if that is elsewhere on a disk; UserError names another holder.

    A run that was moved is corrected first (moved_run.py).
    """
    lock = join(folder.root, "run.lock")
    with leased(lock, this_process()) if folder.is_in_store else refusing_lock(Path(lock)):
        if not folder.is_in_store:
            correct_locked_database(folder.mlflow / "mlflow.db")
        if not folder.corpus_dir or at(folder.corpus_dir).is_url:
            yield
            return
        elsewhere = Path(folder.corpus)
        elsewhere.parent.mkdir(parents=True, exist_ok=True)
        with refusing_lock(elsewhere.with_name(f".{elsewhere.name}.lock")):
            yield
