"""Keys to sign bundles with, where the libraries for it are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private and a public key, as openssl makes them."""
    pytest.importorskip("model_signing.signing")
    pytest.importorskip("OpenSSL")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private)]
    show = ["openssl", "ec", "-in", str(private), "-pubout", "-out", str(public)]
    for command in (make, show):
        subprocess.run(command, check=True, capture_output=True)
    return private, public
