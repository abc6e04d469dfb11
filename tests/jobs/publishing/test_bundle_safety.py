"""A bundle that was damaged, forged or not signed is refused, and the file is named."""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmwright.jobs.bundles import bundle as bundle_format
from elmwright.jobs.bundles.bundle import SIGNATURE, SUMS, digest, verify_bundle, write_sums
from elmwright.jobs.cli.command import main
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.pretrained import Elmo
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.location import Location
from tests.support.bundles import contents, copy
from tests.support.mistakes import mistake


def test_any_changed_byte_of_any_file_is_found_and_the_file_named(
    bundle: Path, tmp_path: Path
) -> None:
    draw = random.Random(7)
    damaged = copy(bundle, tmp_path / "bundle")
    for name, data in contents(bundle).items():
        for at in {0, len(data) - 1, *(draw.randrange(len(data)) for _ in range(6))}:
            changed = bytearray(data)
            changed[at] ^= 1 << draw.randrange(8)
            (damaged / name).write_bytes(changed)
            for check in (lambda: verify_bundle(damaged), lambda: resolve(str(damaged))):
                with pytest.raises(UserError) as refused:
                    check()
                # A changed list may list a file that has not changed.
                assert name in str(refused.value)
        (damaged / name).write_bytes(data)
    verify_bundle(damaged)


def test_a_file_that_was_verified_and_then_changed_is_read_again(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its size and its time of modification were put back."""
    mine = copy(bundle, tmp_path / "bundle")
    weights = mine / "model.safetensors"
    monkeypatch.setattr(bundle_format, "SETTLED_NS", 20_000_000)
    before = weights.stat()
    newest = max(path.stat().st_ctime_ns for path in mine.iterdir())
    while time.time_ns() < newest + 50_000_000:
        time.sleep(0.01)
    verify_bundle(mine)
    with monkeypatch.context() as patch:
        patch.setattr(Location, "sha256", lambda self: pytest.fail(f"{self.path} is read"))
        verify_bundle(mine)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = weights.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with mistake("file-damaged", "model.safetensors"):
        verify_bundle(mine)


@pytest.mark.parametrize("line", ["../../etc/passwd", "/etc/passwd", "evil.pkl", "a/b"])
def test_a_list_that_names_other_files_is_refused(bundle: Path, tmp_path: Path, line: str) -> None:
    hostile = copy(bundle, tmp_path / "bundle")
    with (hostile / SUMS).open("a") as file:
        file.write(f"{'0' * 64}  {line}\n")
    with mistake("file-damaged", SUMS):
        Elmo.from_pretrained(hostile)


def test_a_pickle_a_link_or_a_missing_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    hostile = copy(bundle, tmp_path / "bundle")
    (hostile / "model.pkl").write_bytes(b"\x80\x04.")
    with mistake("file-damaged", "model.pkl"):
        Elmo.from_pretrained(hostile)
    (hostile / "model.pkl").unlink()
    (hostile / "vocab.txt").unlink()
    with mistake("file-damaged", "vocab.txt"):
        Elmo.from_pretrained(hostile)
    (hostile / "vocab.txt").symlink_to(bundle / "vocab.txt")
    with mistake("file-damaged", "vocab.txt"):
        Elmo.from_pretrained(hostile)
    (hostile / "vocab.txt").unlink()
    shutil.copyfile(bundle / "vocab.txt", hostile / "vocab.txt")
    (hostile / "model.safetensors").write_bytes(b"\x80\x04\x95" + b"x" * 40)
    write_sums(hostile)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        Elmo.from_pretrained(hostile)


def _external_storage(file: h5py.File) -> None:
    shape = file["char_embed"].shape
    del file["char_embed"]
    file.create_dataset("char_embed", shape, "f4", external=[("/etc/passwd", 0, 1 << 20)])


def _external_link(file: h5py.File) -> None:
    del file["char_embed"]
    file["char_embed"] = h5py.ExternalLink("/tmp/other.hdf5", "/char_embed")  # noqa: S108


def _virtual(file: h5py.File) -> None:
    shape = file["char_embed"].shape
    del file["char_embed"]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.hdf5", "x", shape)  # noqa: S108
    file.create_virtual_dataset("char_embed", layout)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.create_dataset("extra", data=np.zeros(3, np.float32)),
        lambda file: file.create_group("empty"),
        lambda file: file.__setitem__("soft", h5py.SoftLink("/char_embed")),
        lambda file: file["CNN"].__setitem__("again", file["CNN"]),
        _external_link,
        _external_storage,
        _virtual,
    ],
    ids=["dataset", "group", "soft link", "cycle", "external link", "external data", "virtual"],
)
def test_weights_with_anything_else_in_them_are_refused(
    bundle: Path, tmp_path: Path, change: Callable[[h5py.File], object]
) -> None:
    """Although their digest is right: whoever made the file wrote the list, too."""
    hostile = copy(bundle, tmp_path / "bundle")
    with h5py.File(hostile / "weights.hdf5", "r+") as file:
        change(file)
    write_sums(hostile)
    with pytest.raises(UserError, match=r"weights\.hdf5"):
        Elmo.from_pretrained(hostile)


def test_a_signed_bundle_loads_where_a_signature_is_required_and_only_if_nothing_was_changed(
    trained: Path,
    bundle: Path,
    tmp_path: Path,
    keys: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private, public = keys
    signed = tmp_path / "signed"
    assert main(["export", str(trained), "-o", str(signed), "--sign", str(private)]) == 0
    assert main(["verify", str(signed), "--key", str(public)]) == 0
    assert main(["verify", str(signed)]) == 0
    assert digest(signed) == digest(bundle)  # who signed it does not make it another model
    Elmo.from_pretrained(signed, require_signature=public)

    # Changed by someone who can write the list, but not sign.
    (signed / "README.md").write_text("Trust me.")
    write_sums(signed)
    verify_bundle(signed)
    assert main(["verify", str(signed), "--key", str(public)]) == 2
    assert "does not verify" in capsys.readouterr().err
    with mistake("untrusted", "model.sig"):
        Elmo.from_pretrained(signed, require_signature=public)
    with mistake("signature"):
        Elmo.from_pretrained(bundle, require_signature=public)
    (signed / SIGNATURE).write_text("{}")
    write_sums(signed)
    with mistake("untrusted", "model.sig"):
        Elmo.from_pretrained(signed, require_signature=public)
    text = tmp_path / "text.txt"
    text.write_text("A word")
    monkeypatch.delenv("ELMWRIGHT_REQUIRE_SIGNATURE", raising=False)
    arguments = ["embed", str(bundle), str(text), "-o", str(tmp_path / "out.hdf5")]
    monkeypatch.setenv("ELMWRIGHT_REQUIRE_SIGNATURE", "")
    assert main([*arguments, "--require-signature", str(public)]) == 2
    assert "is not signed" in capsys.readouterr().err


def test_a_key_that_is_none_is_the_users_to_hear_of(
    bundle: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    from elmwright.jobs.bundles.signing import sign, verify_signature

    private, public = keys
    with mistake("signature"):
        sign(bundle, public)
    with mistake("file-missing"):
        sign(bundle, tmp_path / "absent")
    signed = copy(bundle, tmp_path / "signed")
    sign(signed, private)
    write_sums(signed)
    with mistake("signature"):
        verify_signature(signed, bundle / "README.md")
