"""Signed bundles: who made this, provable by a key.

`model-signing` (the OpenSSF's format, key mode, elliptic curves) signs every file of a bundle
except SHA256SUMS; SHA256SUMS in turn lists the signature. The package comes with the extra
`elmwright[signing]`, because it brings some 20 others, for ways of signing that are not used here.
The key's password, if it has one, is read from ELMWRIGHT_SIGNING_PASSWORD.
"""

import os
from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle import SIGNATURE, SUMS, read_sums
from elmwright.pipeline.errors import UserError

PASSWORD = "ELMWRIGHT_SIGNING_PASSWORD"  # noqa: S105 - the variable's name


def sign(folder: Path, key: Path) -> None:
    """Write the signature of all files that are in the folder now."""
    _signer(key).sign(folder, folder / SIGNATURE)


def check_signing_key(key: Path) -> None:
    """Say now, not after the work, that this key cannot sign."""
    _signer(key)


def _signer(key: Path) -> Any:
    library = _library()
    _check_key(key)
    try:
        config = library.signing.Config().use_elliptic_key_signer(
            private_key=key, password=os.environ.get(PASSWORD)
        )
    except (ValueError, TypeError) as error:
        raise UserError(
            "signature",
            f"{key} cannot be used to sign ({error}); give an elliptic-curve private key in PEM, "
            f"and its password, if it has one, in {PASSWORD}",
        ) from error
    return config.set_hashing_config(_hashing(library))


def verify_signature(folder: Path, key: Path) -> None:
    """Is every file of this verified bundle as the holder of the private key signed it?"""
    library = _library()
    _check_key(key)
    if SIGNATURE not in read_sums(folder):
        raise UserError(
            "signature", f"{folder} is not signed; get a signed bundle, or do not ask for it"
        )
    try:
        config = library.verifying.Config().use_elliptic_key_verifier(public_key=key)
    except (ValueError, TypeError) as error:
        raise UserError(
            "signature", f"{key} is not an elliptic-curve public key in PEM ({error})"
        ) from error
    try:
        # The hashing is said here, not taken from the signature: it decides what is covered.
        config.set_hashing_config(_hashing(library)).verify(folder, folder / SIGNATURE)
    except Exception as error:
        # The library raises whatever its parsers raise on a damaged signature; all mean "no".
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            "untrusted",
            f"{folder / SIGNATURE} does not verify with {key} ({reason}); do not trust this bundle",
        ) from error


def _hashing(library: Any) -> Any:
    return library.hashing.Config().set_ignored_paths(
        paths=[SUMS, SIGNATURE], ignore_git_paths=False
    )


def _check_key(key: Path) -> None:
    if not key.is_file():
        raise UserError("file-missing", f"there is no key {key}")


def _library() -> Any:
    try:
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise UserError(
            "environment",
            f"signatures need the package model-signing ({error}); "
            "install it with: pip install 'elmwright[signing]'",
        ) from error
    return model_signing
