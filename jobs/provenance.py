"""provenance.json: what made a bundle. The only file of a bundle that knows the time."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from elmwright import __version__
from elmwright.jobs.config import RunConfig
from elmwright.jobs.config_file import config_hash, to_dict
from elmwright.jobs.hiding import store_all, without_secret
from elmwright.jobs.runbook import left_in
from elmwright.jobs.wheel import content_version, package_files
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.manifest import Manifest

PACKAGES = (
    "torch ray mlflow numpy pyarrow safetensors h5py sentencex sentencepiece xxhash webdataset"
).split()


def provenance(
    config: RunConfig,
    manifest: Manifest,
    *,
    run: str,
    step: int,
    sha256: str,
    run_id: str,
    tracking_uri: str,
) -> dict[str, Any]:
    """Code, config, corpus, checkpoint, tracking, packages, seeds, machine and time.

    `run` is run.dir, where the submissions of a run that was sent to a cluster lie.
    """
    return {
        **environment(),
        "git": git_state() or submitted_git(run),
        "exported": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": store_all(to_dict(config)),
        "config_sha256": config_hash(config),
        "seeds": {"run.seed": config.run.seed},
        "corpus_fingerprint": manifest.fingerprint,
        "corpus_created_by": manifest.created_by,
        "corpus_words": manifest.splits["train"].words,
        "checkpoint_step": step,
        "checkpoint_sha256": sha256,
        "mlflow_run_id": run_id,
        "mlflow_tracking_uri": relative_uri(without_secret(tracking_uri), run),
    }


def environment() -> dict[str, Any]:
    """Code, packages and machine."""
    return {
        "elmwright": __version__,
        "code": content_version(package_files()),
        "git": git_state(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": machine(),
        "packages": _versions(),
    }


def machine() -> str:
    """This machine in a few words: its processor, and its GPUs if torch sees any."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    import torch

    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return ", ".join([f"{os.cpu_count()} × {name}", *gpus])


def relative_uri(uri: str, run: str) -> str:
    """A URI as the files of a run name it: its own SQLite file relative to the run's folder."""
    prefix = f"sqlite:///{run.rstrip('/')}/"
    return f"sqlite:///{uri[len(prefix) :]}" if uri.startswith(prefix) else uri


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # only needed for development, or for another stage
    return found


def git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the checkout this code runs from, if it is one."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not (here.parent / ".git").exists():
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def submitted_git(run: str) -> dict[str, Any] | None:
    """Commit and cleanliness that a submission of this run came from, if it brought this very code.

    A job runs from files that were sent, not from a checkout; their digest is in the version.
    """
    own = content_version(package_files())
    try:
        jobs = left_in(run)  # of a copy too: its training may have been the original's
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None  # a note that cannot be read must not keep a trained model from its bundle
    for job in reversed(jobs):
        sent = job.submission
        if sent.version == own and sent.git:
            commit, changes, _ = sent.git.partition("+changes")
            return {"commit": commit, "dirty": bool(changes), "submission": sent.id}
    return None
