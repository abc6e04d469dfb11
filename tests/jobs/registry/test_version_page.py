"""The pages and pictures that people look at: what they say, and how they look in a browser."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.publishing.model_card import model_card
from elmwright.jobs.publishing.training_facts import TrainingFacts, training_facts, training_svg
from elmwright.jobs.rundir.journal_records import Evaluation, Metrics
from elmwright.jobs.using.neighbours import Neighbours, Occurrence, as_table, write_page
from elmwright.pipeline.report.report import render
from tests.support import saved
from tests.support.browser import ask, complaints, needs_chromium
from tests.support.corpus.demo_report import demo_manifest, demo_statistics
from tests.support.tiny import manifest

pytestmark = pytest.mark.slow(11)

SVG = "{http://www.w3.org/2000/svg}"
OVERFLOW = "[innerWidth, document.documentElement.scrollWidth]"


def facts(**changes: object) -> TrainingFacts:
    made = TrainingFacts(
        losses=tuple((step, 9 - 4 * step / 1000) for step in range(10, 1001, 10)),
        heldout=((250, 900.0), (500, 310.0), (750, 205.0), (1000, 146.65)),
        heldout_tokens=(19_068, 19_068, 19_068, 85_247),
        heldout_states="fresh",
        seconds=220.0,
        tokens_per_s=5800.0,
        tokens_per_step=1280,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def drawn(picture: str | None) -> tuple[list[str], ElementTree.Element]:
    """Its texts, and the picture."""
    assert picture
    root = ElementTree.fromstring(picture)  # noqa: S314 - ours
    return [node.text or "" for node in root.iter(f"{SVG}text")], root


def lines(root: ElementTree.Element, kind: str) -> list[list[tuple[float, float]]]:
    paths = [n.get("d", "") for n in root.iter(f"{SVG}path") if n.get("class") == kind]
    found = [re.findall(r"(-?[\d.]+) (-?[\d.]+)", path) for path in paths if "L" in path]
    return [[(float(x), float(y)) for x, y in path] for path in found]


def test_the_picture_says_what_is_compared_with_what() -> None:
    texts, root = drawn(training_svg(facts(), "valid", 539.12))
    for text in (
        "Held-out perplexity (lower is better)",
        "the model on 19,068 tokens of the set valid, full softmax",
        "after 1,000 steps on 85,247 tokens: 146.7",
        "word frequencies alone (unigram model): 539.1",
        "Training loss",
        "nats per token, sampled softmax: not comparable with the perplexity above",
        "training tokens",
        "1,000 steps of 1,280 tokens",
    ):
        assert text in texts
    assert root.find(f"{SVG}title") is not None
    assert root.get("aria-label") == "Held-out perplexity and training loss by training tokens"


def test_the_picture_says_full_softmax_and_first_tokens_where_that_is_so() -> None:
    texts, _ = drawn(training_svg(facts(), "valid", 539.12, total=85_247, full=True))
    assert "the model on the first 19,068 tokens of the set valid, full softmax" in texts
    assert "after 1,000 steps on 85,247 tokens: 146.7" in texts
    assert "nats per token, full softmax" in texts


def test_the_two_curves_have_axes_of_their_own_that_begin_where_it_matters() -> None:
    texts, root = drawn(training_svg(facts(), "valid", 539.12))
    (held,), (loss,) = lines(root, "curve"), lines(root, "loss")
    assert max(y for _, y in held) < min(y for _, y in loss)  # one panel above the other
    assert held[0][1] < held[1][1] < held[2][1] < held[3][1]
    assert {"200", "500"} <= set(texts)  # a log axis of round values
    assert "0" not in texts[: texts.index("500")]
    assert [text for text in texts if text in {"4", "5", "9", "10"}] == ["5", "9"]  # 5.00 … 8.96
    # The dashed line is where its value belongs, between 900 and 310.
    (base,) = (
        n.get("d", "")
        for n in root.iter(f"{SVG}path")
        if n.get("class") == "base" and "h24" not in n.get("d", "")
    )
    assert held[0][1] < float(base.split()[1].split("H")[0]) < held[1][1]


def test_the_picture_can_be_read_anywhere_and_loads_nothing() -> None:
    picture = training_svg(facts(), "<b>&", 539.12)
    _, root = drawn(picture)
    assert picture == training_svg(facts(), "<b>&", 539.12)
    assert "prefers-color-scheme:dark" in picture
    paper = root.find(f"{SVG}rect")
    assert paper is not None
    assert (paper.get("class"), paper.get("width")) == ("paper", root.get("width"))
    assert "svg{background:var(--paper)}" in picture
    assert "the set &lt;b&gt;&amp;, full" in picture
    assert not re.search(r"(?i)url\(|@import|href|<script|<image", picture)


def test_a_picture_of_what_there_is() -> None:
    none = facts(heldout=(), heldout_tokens=())
    texts, root = drawn(training_svg(none, "valid", 539.12))
    assert "nats per token, sampled softmax" in texts
    assert not lines(root, "curve")
    once = facts(heldout=((1000, 146.65),), heldout_tokens=(85_247,))
    assert drawn(training_svg(once, "valid"))[0] == texts  # one dot alone says nothing
    texts, root = drawn(training_svg(once, "valid", 539.12))
    assert "after 1,000 steps on 85,247 tokens: 146.7" in texts
    assert not any("the model on" in text for text in texts)
    assert training_svg(facts(losses=((10, 9.0),)), "valid") is None
    flat = facts(
        losses=((10, 5.0), (20, 5.0)), heldout=((10, 5.0), (40, 5.0)), heldout_tokens=(0, 0)
    )
    texts, root = drawn(training_svg(flat, "valid"))
    assert "the model of the set valid, full softmax" in texts
    (held,) = lines(root, "curve")
    assert held[1][0] > held[0][0]  # an evaluation after the last loss is not pushed back


def test_perplexities_that_are_no_numbers_are_not_drawn() -> None:
    records = [
        Evaluation(step=5, values={"valid/fresh_perplexity": float("inf")}),
        Evaluation(step=9, values={"valid/fresh_perplexity": 7.0, "valid/tokens": 50}),
        Evaluation(step=10, values={"other/fresh_perplexity": 8.0}),
    ]
    found = training_facts(records, 10, 20, "valid")
    assert (found.heldout, found.heldout_tokens) == (((9, 7.0),), (50,))


def test_a_curve_has_perplexities_of_one_kind_and_names_it_if_states_were_carried_over() -> None:
    """A run that an earlier version began, before and after it was resumed."""
    losses = [Metrics(step=step, values={"train/loss": 5.0}) for step in (1, 2, 3, 4)]
    before = [Evaluation(step=n, values={"valid/perplexity": 60.0 - n}) for n in (1, 2)]
    after = [
        Evaluation(step=n, values={"valid/perplexity": 50.0, "valid/fresh_perplexity": 70.0 - n})
        for n in (3, 4)
    ]
    old = training_facts([*losses, *before], 4, 20, "valid")
    assert (old.heldout, old.heldout_states) == (((1, 59.0), (2, 58.0)), "carried")
    texts, root = drawn(training_svg(old, "valid"))
    assert "Held-out perplexity, states carried over (lower is better)" in texts
    assert "states carried over" in str(root.get("aria-label"))
    both = training_facts([*losses, *before, *after], 4, 20, "valid")
    assert (both.heldout, both.heldout_states) == (((3, 67.0), (4, 66.0)), "fresh")
    texts, _ = drawn(training_svg(both, "valid"))
    assert "Held-out perplexity (lower is better)" in texts


def test_the_card_tells_the_result_first_and_what_it_means() -> None:
    card = model_card(
        load_config("demo", ["train.negatives=2"]),
        replace(manifest(), unigram_perplexity={"heldout": 539.12}),
        1000,
        {"heldout": saved.score(tokens=85_247)},
        facts(),
        has_softmax=True,
        weights="last",
        has_curve=True,
        state=saved.state(machine="a | computer"),
    )
    first = card[: card.index("## How to load it")]
    assert "perplexity on the held-out set `heldout` is **146.7**" in first
    assert "(unigram) has 539.1." in first
    assert "| heldout | 146.65 | 150.10 | 143.30 | 144.20 | 539.12 | 85,247 | 3.66% |" in card
    assert "with fresh states" in card
    assert "| backward | states carried over | unigram model |" in card
    assert "lower is better" in card
    assert "cannot be compared with the held-out perplexity" in card
    assert "| ran on | 1 process of 1 thread, device `cpu`, a \\| computer |" in card
    for table in re.findall(r"(?:^\|.*\|\n)+", card, re.MULTILINE):
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1, table


def test_the_card_says_full_softmax_and_first_tokens_where_that_is_so() -> None:
    text = manifest()
    text = replace(text, splits={**text.splits, "heldout": text.splits["train"]})
    whole = text.splits["heldout"].steps

    def card(negatives: int) -> str:
        return model_card(
            load_config("demo", [f"train.negatives={negatives}"]),
            replace(text, unigram_perplexity={"heldout": 539.12}),
            1000,
            {"heldout": saved.score(tokens=whole - 1)},
            facts(),
            has_softmax=True,
            weights="last",
            has_curve=True,
            state=saved.state(machine="a"),
        )

    full, sampled = card(text.vocab.size), card(text.vocab.size - 1)
    assert "| softmax | full |" in full
    assert "training loss is that of the full softmax" in full
    assert "cannot be compared with the held-out" not in full
    assert "| softmax | sampled, " in sampled
    assert f"perplexity on the first {whole - 1:,} tokens of the held-out set" in full
    assert f"Scored: the first {whole - 1:,} tokens of the {whole:,} of `heldout`." in full


def neighbours(layer: str = "top") -> Neighbours:
    words = ("It", "may", "raise", "an", "exception", "x" * 300)
    near = [Occurrence(0.99 - n / 100, n, 2, (*words, str(n))) for n in range(10)]
    return Neighbours("raise", words, 2, layer, 107, near)


def test_the_neighbours_page_says_what_is_compared(tmp_path: Path) -> None:
    write_page(neighbours(), "text.txt", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "compared with 107 other places in <code>text.txt</code>: the 10 nearest" in page
    assert "vectors in the top layer, where 1 is equal" in page
    assert "<nav" not in page  # one section needs no table of contents
    assert "Cosine</th>" in page
    write_page(neighbours("1"), "text.txt", tmp_path / "page.html")
    assert "vectors in layer 1, where" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, Path]:
    report = tmp_path / "report.html"
    report.write_text(render(demo_manifest(), demo_statistics(), title="News and web, 2024"))
    source = "s3://bucket/" + "very/" * 30 + "long.txt"
    write_page(neighbours(), source, tmp_path / "neighbours.html")
    return {"report": report, "neighbours": tmp_path / "neighbours.html"}


@needs_chromium
@pytest.mark.parametrize("name", ["report", "neighbours"])
def test_a_page_fits_a_phone_and_a_desk_and_says_nothing_to_the_console(
    pages: dict[str, Path], name: str
) -> None:
    assert complaints(pages[name]) == []
    for width in (400, 1280):
        inner, needed = ask(pages[name], OVERFLOW, width=width)
        assert inner == width
        assert needed <= width


@needs_chromium
def test_the_browser_sees_what_overflows_and_what_is_refused(tmp_path: Path) -> None:
    """The two tests above could not fail if this did not hold."""
    page = tmp_path / "page.html"
    page.write_text(
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'"><title>t</title>'
        '<script src="x.js"></script><svg width="1500" height="9"></svg>'
    )
    assert complaints(page)
    assert ask(page, OVERFLOW, width=400)[1] >= 1500


CONTRAST = """(() => {
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(v => {
    const c = v / 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const worst = {};
  for (const name of ['body', '.note', 'th', '.chart text', 'a', 'mark']) {
    const node = document.querySelector(name); if (!node) continue;
    const style = getComputedStyle(node), box = style.backgroundColor;
    const under = name == 'mark' ? light(box) : paper;
    const ink = light(name == '.chart text' ? style.fill : style.color);
    worst[name] = (Math.max(ink, under) + .05) / (Math.min(ink, under) + .05); }
  return [paper, worst]; })()"""


@needs_chromium
@pytest.mark.parametrize("name", ["report", "neighbours"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(
    pages: dict[str, Path], name: str, dark: bool
) -> None:
    paper, contrasts = ask(pages[name], CONTRAST, width=1280, dark=dark)
    assert (paper < 0.1) == dark
    assert ("mark" if name == "neighbours" else ".chart text") in contrasts
    assert min(contrasts.values()) >= 4.5, contrasts  # WCAG AA


TEXTS = """(() => {
  const picture = document.querySelector('svg').viewBox.baseVal;
  return [picture.width, picture.height, [...document.querySelectorAll('text')].map(node => {
    const b = node.getBBox(); return [node.textContent, b.x, b.y, b.x + b.width, b.y + b.height];
  })]; })()"""


@needs_chromium
@pytest.mark.parametrize("largest", [900.0, 54_321.0])
def test_no_text_of_the_picture_is_cut_off_or_covers_another(
    tmp_path: Path, largest: float
) -> None:
    made = facts(
        heldout=((250, largest), (1000, 146.65)),
        heldout_tokens=(1_000_000, 85_000_247),
        tokens_per_step=3_200_000,
    )
    page = tmp_path / "page.html"
    page.write_text(f"<title>t</title>{training_svg(made, 'h' * 60, 98_765.4)}")
    width, height, texts = ask(page, TEXTS, width=1280)
    assert len(texts) > 15
    for n, (text, left, top, right, bottom) in enumerate(texts):
        assert left >= 0 and top >= 0 and right <= width and bottom <= height, text  # noqa: PT018
        for other, x, y, to_x, to_y in texts[:n]:
            apart = right <= x or to_x <= left or bottom <= y + 4 or to_y <= top + 4
            assert apart, (text, other)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_neighbours_fit_the_terminal_and_keep_what_is_near_the_word(width: int) -> None:
    words = tuple("one two three four five six seven eight nine ten eleven twelve".split() * 2)
    near = [Occurrence(0.9, 4, position, words) for position in (0, 5, 23)]
    result = Neighbours("six", words, 5, "top", 3, near)
    table = as_table(result, width=width)
    assert max(map(len, table.split("\n"))) <= width
    rows = table.split("\n")[3:]
    assert [re.findall(r"\[(\w+)\]", row) for row in rows] == [["one"], ["six"], ["twelve"]]
    assert "five [six] seven" in rows[1]
    assert all(row.count("…") in (1, 2) for row in rows if width < 120)
    whole = as_table(result)
    assert " ".join((*words[:5], "[six]", *words[6:18])) in whole
    assert "… …" not in table
