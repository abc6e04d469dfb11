"""Versions of a model and the aliases that move over them: what is the same in every registry.

There are two kinds: MLflow (mlflow_registry.py) and a plain folder or S3 prefix with an index
(plain_folder.py). Both keep versions that never change, each with what its bundle says about
itself, and for every alias the versions it has pointed to, so that a promotion can be taken back.

Promotion and its gate are in `publishing/promotion.py`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elmwright.jobs.bundles.bundle import SIGNATURE, digest_of, read_sums
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data
from elmwright.pipeline.storage.untrusted import read_object

CANDIDATE = "candidate"
"""The alias of what was published last; the only one without a gate."""
HISTORY = 100
"""Moves of an alias that are remembered."""

Change = Callable[[list[int]], list[int]]
"""From the versions an alias has pointed to, to the same after a move."""


@dataclass(frozen=True)
class About:
    """What a bundle says about itself."""

    digest: str
    """Identifies the bundle: one bundle is one version."""
    step: int
    """Updates made."""
    perplexity: dict[str, float]
    """Held-out set → perplexity."""
    vocab_sha256: str
    """Digest of the vocabulary: perplexities compare only if it is equal."""
    heldout_sha256: dict[str, str]
    """Held-out set → digest of what was scored of it."""
    corpus_fingerprint: str
    """Of the corpus it was trained on."""
    run_id: str
    """The MLflow run that made it; empty if there is none."""
    signed: bool
    """Whether it has a signature."""

    def __post_init__(self) -> None:
        if not all(value > 0 for value in self.perplexity.values()):
            raise ValueError("a perplexity is no positive number")


@dataclass(frozen=True)
class Version:
    """One published version."""

    version: int
    """Its number."""
    created: str
    """When it was published, UTC."""
    about: About
    """What its bundle says."""
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

    def point(self, name: str, alias: str, change: Change) -> None:
        """Let an alias point to the last of what `change` makes of its history, and remember all.

        The history is read right before, where possible under a lock that keeps others away.
        """

    def fetch(self, name: str, version: int) -> Path:
        """The bundle of a version as a local folder, verified to be the one that was published."""


def about(bundle: Path) -> About:
    """What a verified bundle says about itself, for the registry and for the gate."""
    sums = read_sums(bundle)
    try:
        config = read_object(bundle / "config.json")
        origin = read_object(bundle / "provenance.json")
        scores = config.get("evaluation") or {}
        facts = {
            "digest": digest_of(sums),
            "step": config["step"],
            "perplexity": {split: score["perplexity"] for split, score in scores.items()},
            "vocab_sha256": config["vocab"]["sha256"],
            "heldout_sha256": config["heldout_sha256"],
            "corpus_fingerprint": origin["corpus_fingerprint"],
            "run_id": origin["mlflow_run_id"],
            "signed": SIGNATURE in sums,
        }
        return from_data(About, facts, finite=False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            "file-damaged",
            f"the config.json or provenance.json of {bundle} is not as export writes it "
            f"({error!r:.200}); export again",
        ) from error


def check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w .-]{0,199}", name):
        raise UserError(
            "argument",
            f"{name!r} cannot be the name of a model; use letters, digits, '.', '-', '_' and "
            "spaces, and no slash",
        )


def check_alias(alias: str) -> None:
    if re.fullmatch(r"[vV]?\d+|latest", alias, re.IGNORECASE):
        raise UserError(
            "argument", f"the alias {alias!r} looks like a version; choose a word like champion"
        )
    if not re.fullmatch(r"\w[\w-]{0,99}", alias):
        raise UserError(
            "argument", f"{alias!r} cannot be an alias; use letters, digits, '-' and '_'"
        )


def get_versions(registry: Registry, name: str) -> list[Version]:
    check_name(name)
    found = registry.versions(name)
    if not found:
        raise UserError(
            "version-missing",
            f"{registry.uri} has no version of a model {name!r}; publish one first",
        )
    return found


def get_version(registry: Registry, name: str, version: int) -> Version:
    known = get_versions(registry, name)
    for found in known:
        if found.version == version:
            return found
    numbers = ", ".join(str(found.version) for found in known)
    raise UserError("version-missing", f"{name} has no version {version}; it has {numbers}")


def find_version(registry: Registry, reference: str, said: str) -> tuple[str, int]:
    """`name@alias` or `name/3` → name and number."""
    match = re.fullmatch(r"([^/@]+)(?:@([\w-]+)|/([0-9]+))", reference)
    if not match:
        raise UserError("argument", f"{said!r} is not NAME@ALIAS or NAME/VERSION")
    name, alias, number = match.groups()
    if number:
        get_version(registry, name, int(number))
        return name, int(number)
    get_versions(registry, name)
    history = registry.history(name, alias)
    if not history:
        raise UserError(
            "version-missing",
            f"{said}: the model {name!r} has no alias {alias!r} in {registry.uri}",
        )
    return name, history[-1]
