"""The kept recording of `elmwright run demo` in 80 columns shows everything, and nothing odd."""

import re

import pytest

from tests.terminal.record import COLUMNS, FRAMES, RULE, thinned

STAGES = (
    "starting Ray",
    "collecting text",
    "reading",
    "cleaning",
    "finding copies",
    "shuffling",
    "counting words",
    "writing shards",
    "writing report",
    "training",
    "writing bundle",
    "comparing",
    "checking bundle",
    "publishing",
)


@pytest.fixture(scope="module")
def frames() -> list[str]:
    """Of the recording that is in the repository: `python -m tests.terminal.record` makes it."""
    return FRAMES.read_text(encoding="utf-8").rstrip("\n").split(f"\n{RULE}\n")


def test_every_stage_is_seen_and_stays_as_one_line(frames: list[str]) -> None:
    last = frames[-1]
    for stage in STAGES:
        assert any(re.search(rf"(?m)^    {stage} +[━─]", frame) for frame in frames) or stage in (
            "starting Ray",
            "counting words",
            "writing report",
            "reading",
            "writing bundle",
            "checking bundle",
            "publishing",  # may be over in no time
        ), stage
        assert len(re.findall(rf"(?m)^  ✓ {stage} ", last)) == 1, stage


def test_training_shows_time_left_perplexity_and_speed(frames: list[str]) -> None:
    training = [frame for frame in frames if re.search(r"(?m)^    training .* steps ", frame)]
    assert any("starting 2 processes" in frame for frame in training)
    assert any(re.search(r"steps +\d+ %  .*\d s left", frame) for frame in training)
    assert any(
        re.search(r"held-out perplexity [\d.,]+ · loss [\d.]+ · [\d,]+ tokens/s", frame)
        for frame in training
    )


def test_the_last_screen_says_what_was_made_how_good_it_is_and_what_is_next(
    frames: list[str],
) -> None:
    last = frames[-1]
    for part in (
        "Done in ",
        "  model ",
        "  registered ",
        "  report ",
        "Held-out perplexity ",
        "a unigram",
        "Next:",
        "report.html in a browser",
        "neighbours runs/demo",
        "elmwright ui runs/demo",
    ):
        assert part in last, part


def test_no_frame_has_wrong_plurals_tracebacks_or_codes(frames: list[str]) -> None:
    for frame in frames:
        assert max(map(len, frame.split("\n"))) <= COLUMNS
        for odd in (
            "1 bundle",
            "1 version",
            "Traceback",
            "0:00:00",
            " 1/1 ",
            "key range",
            "union",
            " 0 s left",
            "\x1b",
        ):
            assert odd not in frame, odd


def test_frames_that_differ_in_numbers_only_are_one() -> None:
    frames = ["a ━━── 10/20  1 min 5 s left", "a ━━━─ 11/20  4 s left", "b", "b", "b 1", "b 2"]
    assert thinned(frames) == [frames[0], "b", "b 1", "b 2"]
