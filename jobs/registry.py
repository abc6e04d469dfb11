"""Versions of a model and the aliases that move over them: what is the same in every registry.

There are two kinds: MLflow (mlflow_registry.py) and a plain folder or S3 prefix with an index
(shelf.py). Both keep versions that never change, each with what its bundle says about itself, and
for every alias the versions it has pointed to, so that a promotion can be taken back.

Promotion has a gate (gate.py): a version that is worse than the one it would replace is refused.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elmwright.jobs.bundle import SIGNATURE, digest_of, read_sums
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import is_url

HISTORY = 100
"""Moves of an alias that are remembered."""


@dataclass(frozen=True)
class Version:
    """One published version."""

    version: int
    """Its number."""
    created: str
    """When it was published, UTC."""
    about: dict[str, Any]
    """What its bundle says: digest, step, perplexities, digests of vocabulary and held-out sets."""
    aliases: tuple[str, ...] = ()
    """Aliases that point to it now."""


class Registry(Protocol):
    """Where versions are kept."""

    uri: str
    """Where that is, as the user says it."""

    def publish(self, bundle: Path, name: str) -> int:
        """The number of the version that holds this bundle, which is made if there is none."""

    def versions(self, name: str) -> list[Version]:
        """All versions, oldest first; none if there is no such name."""

    def history(self, name: str, alias: str) -> list[int]:
        """The versions an alias has pointed to; the last is where it points now."""

    def point(self, name: str, alias: str, history: list[int]) -> None:
        """Let an alias point to the last of `history`, and remember the others."""

    def fetch(self, name: str, version: int) -> Path:
        """The bundle of a version as a local folder, verified to be the one that was published."""


def open_registry(uri: str) -> Registry:
    """What `--to` means: an MLflow tracking URI, or else a folder or s3:// prefix."""
    if re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri):
        from elmwright.jobs.mlflow_registry import MlflowRegistry

        return MlflowRegistry(uri)
    if "://" in uri and not is_url(uri):
        raise UserError(
            f"{uri!r} is no registry: give an MLflow server (http://…, sqlite:///…), a folder, or "
            "an s3:// prefix"
        )
    from elmwright.jobs.shelf import Shelf

    return Shelf(uri)


def about(bundle: Path) -> dict[str, Any]:
    """What a verified bundle says about itself, for the registry and for the gate."""
    sums = read_sums(bundle)
    config = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    made_by = json.loads((bundle / "provenance.json").read_text(encoding="utf-8"))
    scores = config.get("evaluation") or {}
    return {
        "digest": digest_of(sums),
        "step": config["step"],
        "perplexity": {split: score["perplexity"] for split, score in scores.items()},
        "vocab_sha256": config["vocab"]["sha256"],
        "heldout_sha256": config["heldout_sha256"],
        "corpus_fingerprint": made_by["corpus_fingerprint"],
        "run_id": made_by["mlflow_run_id"],
        "signed": SIGNATURE in sums,
    }


def check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w .-]{0,199}", name):
        raise UserError(
            f"{name!r} cannot be the name of a model; use letters, digits, '.', '-', '_' and "
            "spaces, and no slash"
        )


def check_alias(alias: str) -> None:
    if re.fullmatch(r"[vV]?\d+|latest", alias, re.IGNORECASE):
        raise UserError(f"the alias {alias!r} looks like a version; choose a word like champion")
    if not re.fullmatch(r"\w[\w-]{0,99}", alias):
        raise UserError(f"{alias!r} cannot be an alias; use letters, digits, '-' and '_'")


def publish_bundle(registry: Registry, bundle: Path, name: str, alias: str) -> int:
    """Make a bundle a version, once, and let the alias point to it; the version's number."""
    check_name(name)
    check_alias(alias)
    version = registry.publish(bundle, name)
    _move(registry, name, alias, version)
    return version


def _move(registry: Registry, name: str, alias: str, version: int) -> None:
    history = registry.history(name, alias)
    if history[-1:] != [version]:
        registry.point(name, alias, [*history, version][-HISTORY:])


def promote(
    registry: Registry, name: str, version: int, alias: str, *, force: bool = False, on: str = ""
) -> str:
    """Let an alias point to a version that is no worse than the one it points to; a sentence."""
    from elmwright.jobs.gate import compare

    check_alias(alias)
    new = get_version(registry, name, version)
    registry.fetch(name, version)  # nobody is sent to a version that does not verify
    history = registry.history(name, alias)
    if history[-1:] == [version]:
        return f"{alias} is version {version} of {name} already"
    reason = ""
    if history and not force:
        old = get_version(registry, name, history[-1])
        reason = f" ({compare(registry, name, old, new, on)})"
    registry.point(name, alias, [*history, version][-HISTORY:])
    return f"{alias} is now version {version} of {name}{reason}"


def rollback(registry: Registry, name: str, alias: str) -> str:
    """Let an alias point to where it pointed before; a sentence."""
    check_alias(alias)
    get_versions(registry, name)
    history = registry.history(name, alias)
    there = {version.version for version in registry.versions(name)}
    earlier = [version for version in history[:-1] if version in there]
    if not earlier:
        raise UserError(f"{alias} of {name} has pointed to nothing else; promote a version instead")
    registry.fetch(name, earlier[-1])
    registry.point(name, alias, earlier)
    return f"{alias} is version {earlier[-1]} of {name} again (was {history[-1]})"


def get_versions(registry: Registry, name: str) -> list[Version]:
    check_name(name)
    found = registry.versions(name)
    if not found:
        raise UserError(f"{registry.uri} has no version of a model {name!r}; publish one first")
    return found


def get_version(registry: Registry, name: str, version: int) -> Version:
    known = get_versions(registry, name)
    for found in known:
        if found.version == version:
            return found
    numbers = ", ".join(str(found.version) for found in known)
    raise UserError(f"{name} has no version {version}; it has {numbers}")


def find_version(registry: Registry, reference: str, said: str) -> tuple[str, int]:
    """`name@alias` or `name/3` → name and number."""
    match = re.fullmatch(r"([^/@]+)(?:@([\w-]+)|/(\d+))", reference)
    if not match:
        raise UserError(f"{said!r} is not NAME@ALIAS or NAME/VERSION")
    name, alias, number = match.groups()
    if number:
        get_version(registry, name, int(number))
        return name, int(number)
    get_versions(registry, name)
    history = registry.history(name, alias)
    if not history:
        raise UserError(f"{said}: the model {name!r} has no alias {alias!r} in {registry.uri}")
    return name, history[-1]
