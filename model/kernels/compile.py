"""Compiles `kernels.c` once per machine, and keeps the library in the user's cache.

The file's name has the digest of the source, the flags and `CC`, and the kind of processor, so a
cache that several machines share has one for each, and a new version of Elmwright compiles again.
A library is only loaded if nobody else can write to its folder, and if it is whole: its digest is
behind it in the file, which the loader ignores. A damaged one would end the process without a word.

OpenMP comes from torch: the library is linked without an OpenMP of its own, and finds torch's when
it is loaded, so both use the same threads.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
NATIVE, TORCH = "c-1", "torch"
"""Names of the kernels, which checkpoints record. The number of the first is raised when a result
of kernels.c changes."""
VARIABLE = "ELMWRIGHT_KERNELS"
"""Set to "torch", it switches the kernels in C off."""
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-std=gnu11", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-fast-math", "-ffp-contract=off"),  # else results would depend on the compiler
)
LEVELS = {
    "x86-64-v4": (
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"},
        "-mprefer-vector-width=512",
    ),
    "x86-64-v3": ({"avx2", "fma", "bmi2", "f16c"}, ""),
}
"""Kinds of x86 processors by their instructions, best first. Without fused multiply-add in the
processor the kernels would be slow, so older ones have none."""
COMPILE_SECONDS = 120
_DIGEST = hashlib.sha256().digest_size


class NoKernels(Exception):  # noqa: N818 - a state of the machine, which is reported
    """Why there are no kernels in C on this machine."""


def library_path() -> Path:
    """The compiled library, which is compiled now if it is not there."""
    if os.environ.get(VARIABLE, NATIVE) == TORCH:
        raise NoKernels(f"{VARIABLE} is {TORCH}")
    flags, chosen = [*FLAGS, *_processor_flags()], os.environ.get("CC", "")
    made_of = SOURCE.read_bytes() + " ".join([*flags, chosen]).encode()
    folder = _cache_folder()
    name = f"kernels-{platform.machine()}-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    library = folder / name
    if not _is_whole(library):
        _compile(library, flags, chosen.split())
    return library


def load_library() -> ctypes.CDLL:
    """The library, loaded."""
    path = library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernels(f"{path} cannot be loaded ({error})") from error


@cache
def _processor_flags() -> list[str]:
    """The compiler's flags for this processor."""
    machine = platform.machine()
    if machine in ("aarch64", "arm64"):
        return []  # fused multiply-add is part of the architecture
    info = Path("/proc/cpuinfo")
    present = set(info.read_text().split()) if info.is_file() else set()
    for level, (needed, more) in LEVELS.items():
        if machine in ("x86_64", "AMD64") and needed <= present:
            return [f"-march={level}", *more.split()]
    raise NoKernels(f"this {machine} processor has no fused multiply-add")


def _cache_folder() -> Path:
    """A folder of this user's that nobody else can write to."""
    for place in (_user_folder, _temporary_folder):
        try:
            folder = place()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            facts = folder.stat()
        except (OSError, RuntimeError):  # no home folder is a RuntimeError
            continue
        is_private = facts.st_uid == os.getuid() and not facts.st_mode & (
            stat.S_IWGRP | stat.S_IWOTH
        )
        if is_private and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise NoKernels("there is no private cache folder to compile them into")


def _user_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "elmwright", "kernels")


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir(), f"elmwright-kernels-{os.getuid()}")


def _is_whole(library: Path) -> bool:
    """Whether the file ends with the digest of what is before."""
    if not library.is_file():
        return False
    content = library.read_bytes()
    return content[-_DIGEST:] == hashlib.sha256(content[:-_DIGEST]).digest()


def _compile(library: Path, flags: list[str], chosen: list[str]) -> None:
    """Compile into a file beside it, and move that into place, so a kill leaves nothing half
    written and processes that compile at the same time do not disturb each other."""
    chosen = chosen or [next((name for name in COMPILERS if shutil.which(name)), "")]
    if not chosen[0]:
        raise NoKernels(f"there is no C compiler ({', '.join(COMPILERS)})")
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        compiled, linked = Path(work, "kernels.o"), Path(work, "kernels.so")
        _call([*chosen, *flags, "-c", str(SOURCE), "-o", str(compiled)])
        _call([*chosen, "-shared", str(compiled), "-o", str(linked), "-lm"])
        content = linked.read_bytes()
        linked.write_bytes(content + hashlib.sha256(content).digest())
        linked.replace(library)


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=COMPILE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(f"{command[0]} cannot compile them ({error})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NoKernels(f"{command[0]} cannot compile them ({lines[0]:.200})")
