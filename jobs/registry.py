"""Versions of a model and the aliases that move over them: what is the same in every registry.

There are two kinds: MLflow (mlflow_registry.py) and a plain folder or S3 prefix with an index
(shelf.py). Both keep versions that never change, each with what its bundle says about itself, and
for every alias the versions it has pointed to, so that a promotion can be taken back.

Promotion has a gate (gate.py): a version that is worse than the one it would replace is refused.
An alias moves on from where it points at that moment, so of two promotions at once neither is
lost, and none is decided by a comparison with a version that no longer holds the alias.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elmwright.jobs.bundle import SIGNATURE, digest_of, read_sums
from elmwright.jobs.hiding import hide
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import is_url
from elmwright.pipeline.untrusted import read_object

CANDIDATE = "candidate"
"""The alias of what was published last; the only one without a gate."""
HISTORY = 100
"""Moves of an alias that are remembered."""

Change = Callable[[list[int]], list[int]]
"""From the versions an alias has pointed to, to the same after a move."""


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

    def point(self, name: str, alias: str, change: Change) -> None:
        """Let an alias point to the last of what `change` makes of its history, and remember all.

        The history is read right before, where possible under a lock that keeps others away.
        """

    def fetch(self, name: str, version: int) -> Path:
        """The bundle of a version as a local folder, verified to be the one that was published."""


def open_registry(uri: str) -> Registry:
    """What `--to` means: an MLflow tracking URI, or else a folder or s3:// prefix."""
    if re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri):
        from elmwright.jobs.mlflow_registry import MlflowRegistry

        return MlflowRegistry(uri)
    if "://" in uri and not is_url(uri):
        raise UserError(
            f"{hide(uri)!r} is no registry: give an MLflow server (http://…, sqlite:///…), a "
            "folder, or an s3:// prefix"
        )
    from elmwright.jobs.shelf import Shelf

    return Shelf(uri)


def about(bundle: Path) -> dict[str, Any]:
    """What a verified bundle says about itself, for the registry and for the gate."""
    sums = read_sums(bundle)
    try:
        config = read_object(bundle / "config.json")
        made_by = read_object(bundle / "provenance.json")
        scores = config.get("evaluation") or {}
        facts = {
            "digest": digest_of(sums),
            "step": config["step"],
            "perplexity": {split: score["perplexity"] for split, score in scores.items()},
            "vocab_sha256": config["vocab"]["sha256"],
            "heldout_sha256": config["heldout_sha256"],
            "corpus_fingerprint": made_by["corpus_fingerprint"],
            "run_id": made_by["mlflow_run_id"],
            "signed": SIGNATURE in sums,
        }
        check_about(facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the config.json or provenance.json of {bundle} is not as export writes it "
            f"({error!r:.200}); export again"
        ) from error
    return facts


def check_about(facts: dict[str, Any]) -> None:
    """Is this what `about` returns? An index or a tag may be anything; `ValueError` if so."""
    texts = [facts[key] for key in ("digest", "vocab_sha256", "corpus_fingerprint", "run_id")]
    heldout, perplexity = facts["heldout_sha256"], facts["perplexity"]
    for kind, values in (
        (str, [*texts, *heldout, *heldout.values(), *perplexity]),
        (int, [facts["step"]]),
        (bool, [facts["signed"]]),
        ((int, float), perplexity.values()),
    ):
        for value in values:
            if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
                raise ValueError(f"{value!r:.100} is in the wrong place")
    if not all(value > 0 for value in perplexity.values()):
        raise ValueError("a perplexity is no positive number")


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


def publish_bundle(
    registry: Registry, bundle: Path, name: str, alias: str, *, force: bool = False
) -> int:
    """Make a bundle a version, once, and let the alias point to it; the version's number.

    `candidate` is what is not judged yet. Every other alias has people behind it, and moves from
    one version to another only through the gate, as in `promote`.
    """
    check_name(name)
    check_alias(alias)
    version = registry.publish(bundle, name)
    if alias == CANDIDATE:
        registry.point(name, alias, _append(version))
        return version
    try:
        promote(registry, name, version, alias, force=force)
    except UserError as error:
        raise UserError(
            f"version {version} of {name} is published, but {alias} was not moved: {error} "
            f"(elmwright promote {name} {version} --alias {alias})"
        ) from error
    return version


def promote(
    registry: Registry, name: str, version: int, alias: str, *, force: bool = False, on: str = ""
) -> str:
    """Let an alias point to a version that is no worse than the one it points to; a sentence."""
    check_alias(alias)
    new = get_version(registry, name, version)
    registry.fetch(name, version)  # nobody is sent to a version that does not verify
    holder = registry.history(name, alias)[-1:]
    if holder == [version]:
        return f"{alias} is version {version} of {name} already"
    if force:
        registry.point(name, alias, _append(version))
        return f"{alias} is now version {version} of {name}"
    reason = f" ({_judge(registry, name, alias, holder[0], new, on)})" if holder else ""
    # What was judged is this version against that holder, not against one of a moment later.
    registry.point(name, alias, _after(holder, alias, lambda history: [*history, version]))
    return f"{alias} is now version {version} of {name}{reason}"


def _judge(registry: Registry, name: str, alias: str, holder: int, new: Version, text: str) -> str:
    from elmwright.jobs.gate import compare

    for old in registry.versions(name):
        if old.version == holder:
            return compare(registry, name, old, new, text)
    raise UserError(
        f"{alias} of {name} points to version {holder}, which was not published by this version of "
        "elmwright, so nothing is known to compare with; --force promotes all the same"
    )


def rollback(registry: Registry, name: str, alias: str) -> str:
    """Let an alias point to where it pointed before; a sentence."""
    check_alias(alias)
    there = {version.version for version in get_versions(registry, name)}
    history = registry.history(name, alias)
    earlier = _earlier(history, there)
    if not earlier:
        raise UserError(f"{alias} of {name} has pointed to nothing else; promote a version instead")
    registry.fetch(name, earlier[-1])
    registry.point(name, alias, _after(history[-1:], alias, lambda now: _earlier(now, there)))
    return f"{alias} is version {earlier[-1]} of {name} again (was {history[-1]})"


def _earlier(history: list[int], there: set[int]) -> list[int]:
    return [version for version in history[:-1] if version in there]


def _append(version: int) -> Change:
    """Wherever the alias points: on to this version."""

    def change(history: list[int]) -> list[int]:
        return history if history[-1:] == [version] else [*history, version][-HISTORY:]

    return change


def _after(holder: list[int], alias: str, move: Change) -> Change:
    """A move that was decided while the alias pointed to `holder`, and holds only there."""

    def change(history: list[int]) -> list[int]:
        if history[-1:] != holder:
            now = f"now points to version {history[-1]}" if history else "now points nowhere"
            raise UserError(
                f"{alias} was moved by another command and {now}; run the same command again if "
                "that is still what you want"
            )
        return move(history)[-HISTORY:]

    return change


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
    match = re.fullmatch(r"([^/@]+)(?:@([\w-]+)|/([0-9]+))", reference)
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
