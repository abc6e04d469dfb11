"""Where the kernels come from, and what happens where there are none."""

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elmwright.model.kernels import compile as module
from elmwright.model.kernels import native
from elmwright.model.kernels.compile import NoKernels, library_path
from elmwright.model.kernels.native import Native

pytestmark = pytest.mark.slow(15)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_temporary_folder", lambda: tmp_path / "temporary")
    monkeypatch.delenv(module.VARIABLE, raising=False)
    return tmp_path / "cache" / "elmwright" / "kernels"


def reason():
    with pytest.raises(NoKernels) as caught:
        library_path()
    return str(caught.value)


def test_the_library_is_compiled_once(cache):
    path = library_path()
    assert path.parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    before = path.stat().st_mtime_ns
    assert library_path() == path
    assert path.stat().st_mtime_ns == before
    assert [file.name for file in cache.iterdir()] == [path.name], "nothing else is left behind"


def test_another_source_is_another_library(cache, tmp_path, monkeypatch):
    first = library_path()
    changed = tmp_path / "kernels.c"
    changed.write_text(module.SOURCE.read_text() + "\n/* changed */\n")
    monkeypatch.setattr(module, "SOURCE", changed)
    assert library_path() != first


def test_processes_that_compile_at_once_all_get_it(cache):
    code = "from elmwright.model.kernels.native import kernel_name; print(kernel_name())"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    names = [process.communicate()[0].strip() for process in processes]
    assert names == [module.NATIVE] * 3
    assert len(list(cache.iterdir())) == 1


def test_without_a_compiler_there_are_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler" in reason()


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    failing = tmp_path / "broken"
    failing.write_text("#!/bin/sh\necho 'kernels.c:1: no such thing' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    assert reason().endswith("cannot compile them (kernels.c:1: no such thing)")


def test_a_compiler_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in reason()


def test_a_folder_that_others_can_write_to_is_not_used(cache, tmp_path):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert library_path().parent == tmp_path / "temporary"
    (tmp_path / "temporary").chmod(0o777)
    assert "private" in reason()


def test_a_processor_without_fused_multiply_add_has_none(monkeypatch):
    module._processor_flags.cache_clear()
    monkeypatch.setattr(module, "LEVELS", {"x86-64-v9": ({"no such instruction"}, "")})
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    assert "fused multiply-add" in reason()
    module._processor_flags.cache_clear()


@pytest.mark.parametrize("kept", [0, 100, 4096, -1])
def test_a_damaged_library_is_compiled_again(kept):
    """One that was cut off would end the process with a bus error."""
    whole = library_path().read_bytes()
    library_path().write_bytes(whole[:kept])
    assert library_path().read_bytes() == whole
    assert Native.of(module.load_library())


def test_a_compiler_that_writes_nothing_or_nonsense_means_none(monkeypatch, tmp_path):
    code = "from elmwright.model.kernels.native import why_not_native; print(why_not_native())"
    for script in ("exit 0", r"printf '\377\376' >&2; exit 1"):
        lazy = tmp_path / "lazy"
        lazy.write_text(f"#!/bin/sh\n{script}\n")
        lazy.chmod(0o755)
        assert "compile" in run("-c", code, CC=str(lazy))


def test_another_library_under_our_name_means_none(monkeypatch):
    monkeypatch.setattr(native, "load_library", lambda: ctypes.CDLL(None))
    native._loaded.cache_clear()
    try:
        assert "cannot be compiled or loaded" in native.why_not_native()
    finally:
        native._loaded.cache_clear()


def test_without_a_home_folder_the_temporary_one_is_used(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert library_path().parent == tmp_path / "temporary"


def test_a_full_disk_means_none(monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.tempfile, "TemporaryDirectory", full)
    native._loaded.cache_clear()
    try:
        assert "No space left" in native.why_not_native()
    finally:
        native._loaded.cache_clear()


def test_another_compiler_by_name_is_another_library(monkeypatch):
    first = library_path()
    monkeypatch.setenv("CC", "gcc -ffast-math")
    assert library_path() != first


def run(*words: str, **variables: str) -> str:
    environment = os.environ | variables
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def test_the_variable_switches_them_off():
    code = (
        "from elmwright.model.kernels.native import kernel_name, why_not_native;"
        "print(kernel_name(), why_not_native())"
    )
    assert run("-c", code, ELMWRIGHT_KERNELS="torch") == "torch ELMWRIGHT_KERNELS is torch\n"
    assert run("-c", code).split()[0] == module.NATIVE


def test_the_source_is_part_of_the_package():
    assert module.SOURCE.is_file()
    assert "kernels.c" in Path("pyproject.toml").read_text()
