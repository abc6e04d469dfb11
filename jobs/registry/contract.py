"""What every registry does, and what is the same in all of them.

There are two kinds: MLflow (mlflow_registry.py) and a plain folder or S3 prefix with an index
(plain_folder.py). Both keep versions that never change, each with the facts of its bundle, and for
every alias the versions it has pointed to, so that a promotion can be undone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from elmwright.jobs.bundles.bundle import SIGNATURE, digest, digest_of, read_sums
from elmwright.jobs.bundles.bundle_json import read_bundle_config, read_origin
from elmwright.jobs.checkpoints.contents import Scores
from elmwright.jobs.rundir.metrics import Regime
from elmwright.pipeline.errors import UserError

CANDIDATE = "candidate"
"""The alias of the version that was published last; the only one without a gate."""
HISTORY = 100
"""Moves of an alias that are remembered."""

Change = Callable[[list[int]], list[int]]
"""From the versions that an alias has pointed to, to the same list after a move."""


@dataclass(frozen=True)
class About:
    """Facts of a bundle by which versions are recognised and compared."""

    digest: str
    """Identifies the bundle: one bundle is one version."""
    step: int
    """Updates made."""
    perplexity: dict[str, float]
    """Held-out set → perplexity with states carried over from sentence to sentence, the only one
    of earlier versions. Sets without it are left out."""
    vocab_sha256: str
    """Digest of the vocabulary: perplexities can be compared only if it is equal."""
    heldout_sha256: dict[str, str]
    """Held-out set → digest of what was scored of it."""
    corpus_fingerprint: str
    """Of the corpus it was trained on."""
    run_id: str
    """The MLflow run that made it; empty if there is none."""
    signed: bool
    """Whether it has a signature."""
    fresh_perplexity: dict[str, float] = field(default_factory=dict, kw_only=True)
    """Held-out set → perplexity with fresh states for every sentence; empty where an earlier
    version published."""

    def __post_init__(self) -> None:
        if not all(v > 0 for v in (*self.perplexity.values(), *self.fresh_perplexity.values())):
            raise ValueError("a perplexity is not a positive number")

    @property
    def shown_perplexity(self) -> tuple[dict[str, float], Regime]:
        """The perplexities to show: fresh ones, where they were measured."""
        if self.fresh_perplexity:
            return self.fresh_perplexity, "fresh"
        return self.perplexity, "carried"


@dataclass(frozen=True)
class Version:
    """One published version."""

    version: int
    """Its number."""
    created: str
    """When it was published, UTC."""
    about: About
    """The facts of its bundle."""
    aliases: tuple[str, ...] = ()
    """Aliases that point to it now."""


class Registry(Protocol):
    """Where versions are stored."""

    uri: str
    """Its address, as a user writes it."""

    def publish(self, bundle: Path, about: About, name: str) -> int:
        """The number of this verified bundle's version, which is created if there is none."""

    def versions(self, name: str) -> list[Version]:
        """All versions, oldest first; none if there is no such name."""

    def history(self, name: str, alias: str) -> list[int]:
        """The versions that an alias has pointed to; the last is where it points now."""

    def point(self, name: str, alias: str, change: Change) -> None:
        """Replace the history of an alias by `change` of it, and point the alias to its last entry.

        The history is read immediately before, under a lock where the registry has one.
        """

    def fetch(self, name: str, version: int) -> Path:
        """The bundle of a version as a local folder, verified to be the one that was published."""


def describe_bundle(bundle: Path) -> About:
    """The facts of a verified bundle, for the registry and for the gate."""
    sums = read_sums(bundle)
    config = read_bundle_config(bundle)
    origin = read_origin(bundle)
    try:
        return About(
            digest=digest_of(sums),
            step=config.step,
            perplexity=_perplexities(config.evaluation, "carried"),
            fresh_perplexity=_perplexities(config.evaluation, "fresh"),
            vocab_sha256=config.vocab.sha256,
            heldout_sha256=config.heldout_sha256,
            corpus_fingerprint=origin.corpus_fingerprint,
            run_id=origin.mlflow_run_id,
            signed=SIGNATURE in sums,
        )
    except ValueError as error:
        raise UserError(
            "file-damaged",
            f"{bundle / 'config.json'} is not as export writes it ({error}); export again",
        ) from error


def _perplexities(scores: Scores, states: Regime) -> dict[str, float]:
    """The perplexity on each held-out set that was measured in this way."""
    known = {split: score.perplexity_with(states) for split, score in scores.items()}
    return {split: value for split, value in known.items() if value is not None}


def check_fetched(folder: Path, expected: About, name: str, version: int, source: str) -> Path:
    """`folder`, a verified bundle, if it is the one that was published as this version."""
    if digest(folder) != expected.digest:
        raise UserError(
            "untrusted",
            f"{source} is not the model that was published as version {version} of {name}; "
            "do not trust it",
        )
    return folder


def aliases_at(version: int, holders: dict[str, int]) -> tuple[str, ...]:
    """The aliases that point to a version, from where each of them points."""
    return tuple(sorted(alias for alias, holder in holders.items() if holder == version))


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
    versions = registry.versions(name)
    if not versions:
        raise UserError(
            "version-missing",
            f"{registry.uri} has no version of a model {name!r}; publish one first",
        )
    return versions


def get_version(registry: Registry, name: str, version: int) -> Version:
    versions = {known.version: known for known in get_versions(registry, name)}
    if version in versions:
        return versions[version]
    numbers = ", ".join(map(str, versions))
    raise UserError("version-missing", f"{name} has no version {version}; it has {numbers}")


def fetch_reference(registry: Registry, reference: str, model: str) -> Path:
    """The bundle of `NAME@ALIAS` or `NAME/VERSION`; the user wrote `model`."""
    match = re.fullmatch(r"([^/@]+)(?:@([\w-]+)|/([0-9]+))", reference)
    if not match:
        raise UserError("argument", f"{model!r} is not NAME@ALIAS or NAME/VERSION")
    name, alias, number = match.groups()
    if number:
        return registry.fetch(name, get_version(registry, name, int(number)).version)
    get_versions(registry, name)
    history = registry.history(name, alias)
    if not history:
        raise UserError(
            "version-missing",
            f"{model}: the model {name!r} has no alias {alias!r} in {registry.uri}",
        )
    return registry.fetch(name, history[-1])
