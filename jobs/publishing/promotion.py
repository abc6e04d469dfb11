"""Publishing a bundle under an alias, promoting a version, and undoing a promotion.

Promotion has a gate (gate.py): a version that is worse than the one it would replace is refused.
An alias is moved from where it points at that moment, so simultaneous promotions are both
remembered, and none is decided by a comparison with a version that the alias no longer points to.
"""

from pathlib import Path

from elmwright.jobs.bundles.bundle import verify_bundle
from elmwright.jobs.publishing.gate import compare
from elmwright.jobs.registry.contract import (
    CANDIDATE,
    HISTORY,
    Change,
    Registry,
    Version,
    check_alias,
    check_name,
    describe_bundle,
    get_version,
    get_versions,
)
from elmwright.pipeline.errors import UserError


def publish_bundle(
    registry: Registry, bundle: Path, name: str, alias: str, *, force: bool = False
) -> int:
    """Publish a bundle as a version, once, and move the alias to it; the version's number.

    `candidate` has not been compared yet. People rely on every other alias, so it moves from one
    version to another only through the gate, as in `promote`.
    """
    check_name(name)
    check_alias(alias)
    verify_bundle(bundle)
    version = registry.publish(bundle, describe_bundle(bundle), name)
    if alias == CANDIDATE:
        registry.point(name, alias, _append(version))
        return version
    try:
        promote(registry, name, version, alias, force=force)
    except UserError as error:
        raise error.saying(
            f"version {version} of {name} is published, but {alias} was not moved: {error} "
            f"(elmwright promote {name} {version} --alias {alias})"
        ) from error
    return version


def promote(
    registry: Registry, name: str, version: int, alias: str, *, force: bool = False, on: str = ""
) -> str:
    """Point an alias to a version that is no worse than its present one; a sentence."""
    check_alias(alias)
    new = get_version(registry, name, version)
    registry.fetch(name, version)  # an alias never points to a version that does not verify
    holder = registry.history(name, alias)[-1:]
    if holder == [version]:
        return f"{alias} is version {version} of {name} already"
    if force:
        registry.point(name, alias, _append(version))
        return f"{alias} is now version {version} of {name}"
    reason = f" ({_judge(registry, name, alias, holder[0], new, on)})" if holder else ""
    # The comparison was with this holder, and does not hold for a later one.
    registry.point(name, alias, _only_from(holder, alias, lambda history: [*history, version]))
    return f"{alias} is now version {version} of {name}{reason}"


def _judge(registry: Registry, name: str, alias: str, holder: int, new: Version, text: str) -> str:
    for old in registry.versions(name):
        if old.version == holder:
            return compare(registry, name, old, new, text)
    raise UserError(
        "not-comparable",
        f"{alias} of {name} points to version {holder}, which was not published by this version of "
        "elmwright, so nothing is known to compare with; --force promotes it anyway",
    )


def rollback(registry: Registry, name: str, alias: str) -> str:
    """Point an alias to where it pointed before; a sentence."""
    check_alias(alias)
    existing = {version.version for version in get_versions(registry, name)}

    def go_back(history: list[int]) -> list[int]:
        return [version for version in history[:-1] if version in existing]

    history = registry.history(name, alias)
    earlier = go_back(history)
    if not earlier:
        raise UserError(
            "alias", f"{alias} of {name} has pointed to nothing else; promote a version instead"
        )
    registry.fetch(name, earlier[-1])
    registry.point(name, alias, _only_from(history[-1:], alias, go_back))
    return f"{alias} is version {earlier[-1]} of {name} again (was {history[-1]})"


def _append(version: int) -> Change:
    """A move to this version from wherever the alias points."""

    def change(history: list[int]) -> list[int]:
        return history if history[-1:] == [version] else [*history, version][-HISTORY:]

    return change


def _only_from(holder: list[int], alias: str, move: Change) -> Change:
    """A move that was decided while the alias pointed to `holder`, and is refused elsewhere."""

    def change(history: list[int]) -> list[int]:
        if history[-1:] != holder:
            now = f"now points to version {history[-1]}" if history else "now points nowhere"
            raise UserError(
                "alias",
                f"{alias} was moved by another command and {now}; run the same command again if "
                "that is still what you want",
            )
        return move(history)[-HISTORY:]

    return change
