"""The gate compares perplexities only if the text was read in the same way."""

from typing import cast

import pytest

from elmwright.jobs.publishing.gate import compare
from elmwright.jobs.registry.contract import About, Registry, Version
from tests.support.mistakes import mistake

NO_REGISTRY = cast(Registry, None)
"""Perplexities are compared without the files of a version."""


def version(number: int, fresh: float | None, carried: float | None) -> Version:
    about = About(
        digest=str(number),
        step=1,
        perplexity={} if carried is None else {"heldout": carried},
        vocab_sha256="v",
        heldout_sha256={"heldout": "h"},
        corpus_fingerprint="c",
        run_id="",
        signed=False,
        fresh_perplexity={} if fresh is None else {"heldout": fresh},
    )
    return Version(number, "today", about)


@pytest.mark.parametrize(
    ("old", "new", "decided_by"),
    [
        ((50.0, 60.0), (49.0, 70.0), "held-out perplexity on heldout: 49.0000, version 1 has 50"),
        ((None, 60.0), (90.0, 59.0), "(states carried over): 59.0000, version 1 has 60.0000"),
        ((20.0, 60.0), (None, 59.0), "(states carried over): 59.0000, version 1 has 60.0000"),
        ((None, 60.0), (None, 59.0), "(states carried over): 59.0000, version 1 has 60.0000"),
    ],
)
def test_like_is_compared_with_like(
    old: tuple[float | None, float], new: tuple[float | None, float], decided_by: str
) -> None:
    assert decided_by in compare(NO_REGISTRY, "tiny", version(1, *old), version(2, *new), "")
    assert ("carried" in decided_by) == (None in (old[0], new[0]))


@pytest.mark.parametrize(
    ("old", "new"),
    [((50.0, 60.0), (51.0, 10.0)), ((None, 60.0), (10.0, 61.0)), ((None, 60.0), (None, 61.0))],
)
def test_a_worse_version_is_refused_by_the_perplexity_that_both_have(
    old: tuple[float | None, float], new: tuple[float | None, float]
) -> None:
    with mistake("worse", "version 2 of tiny", "--force"):
        compare(NO_REGISTRY, "tiny", version(1, *old), version(2, *new), "")


@pytest.mark.parametrize(
    ("old", "new"), [((None, 60.0), (10.0, None)), ((60.0, None), (None, 10.0))]
)
def test_fresh_and_carried_are_never_compared_with_each_other(
    old: tuple[float | None, float | None], new: tuple[float | None, float | None]
) -> None:
    with mistake("not-comparable", "--on", "--force"):
        compare(NO_REGISTRY, "tiny", version(1, *old), version(2, *new), "")
