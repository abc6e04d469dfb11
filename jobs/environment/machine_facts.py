"""The code, the packages and the machine that a result was made with."""

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from elmwright import __version__
from elmwright.jobs.environment.checkout import Commit, checkout, commit_of, git_state
from elmwright.jobs.environment.wheel import content_version, package_files

PACKAGES = (
    "torch ray mlflow numpy pyarrow safetensors h5py sentencex sentencepiece xxhash webdataset"
).split()


@dataclass(frozen=True)
class Environment:
    """Code, packages and machine, as provenance.json and MLflow have them."""

    elmwright: str
    """Version of this package."""
    code: str
    """The version with a digest of the files."""
    git: Commit | None
    """The commit of the checkout that this code runs from, if it is one."""
    python: str
    platform: str
    machine: str
    """The processor, and the GPUs if torch sees any."""
    packages: dict[str, str]
    """Versions of the packages that results depend on."""


def environment() -> Environment:
    """The environment of this process."""
    return Environment(
        elmwright=__version__,
        code=content_version(package_files()),
        git=own_git(),
        python=platform.python_version(),
        platform=platform.platform(),
        machine=machine(),
        packages=_versions(PACKAGES),
    )


def libraries() -> dict[str, str]:
    """The versions of the packages that compute a training step, on which exact resume depends."""
    return {"elmwright": __version__, **_versions(["numpy", "torch"])}


def _versions(names: list[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):  # needed for development or other stages only
            versions[name] = metadata.version(name)
    return versions


def machine() -> str:
    """This machine in a few words: its processor, and its GPUs if torch sees any."""
    import torch

    name = platform.processor() or platform.machine()
    with suppress(FileNotFoundError):
        if found := re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M):
            name = found[1].strip()
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return ", ".join([f"{os.cpu_count()} × {name}", *gpus])


def bf16_instructions() -> bool | None:
    """Whether the processor multiplies matrices of bfloat16 itself; None if it does not say."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return None
    words = set(info.read_text().split())
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & words)


def own_git() -> Commit | None:
    """The commit of the checkout that this code runs from, if it is one."""
    return commit_of(git_state(checkout()))
