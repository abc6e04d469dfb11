"""The code, the packages and the machine that something was made with."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from elmwright import __version__
from elmwright.jobs.environment.checkout import checkout, commit_of, git_state
from elmwright.jobs.environment.wheel import content_version, package_files

PACKAGES = (
    "torch ray mlflow numpy pyarrow safetensors h5py sentencex sentencepiece xxhash webdataset"
).split()


def environment() -> dict[str, Any]:
    """Code, packages and machine."""
    return {
        "elmwright": __version__,
        "code": content_version(package_files()),
        "git": own_git(),
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


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # only needed for development, or for another stage
    return found


def own_git() -> dict[str, Any] | None:
    """Commit and cleanliness of the checkout this code runs from, if it is one."""
    return commit_of(git_state(checkout()))
