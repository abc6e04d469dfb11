"""The report: a page worth looking at that no corpus, however hostile, can break out of."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from elmwright.pipeline.format.manifest import FunnelStep, Split
from elmwright.pipeline.report.numbers import compact, decimal, duration, percent, size
from elmwright.pipeline.report.page import visible_text
from elmwright.pipeline.report.report import render
from elmwright.pipeline.report.statistics import (
    Example,
    SourceCount,
    StageTime,
    Statistics,
    to_json,
)
from tests.support.corpus.demo_report import demo_manifest, demo_statistics
from tests.support.corpus.read_statistics import read_statistics

TAGS = set(
    "html head meta link title style body header main footer nav section div p h1 h2 h3 dl dt dd "
    "ul ol li a b small code span details summary figure figcaption pre table thead tbody tr th td "
    "svg rect path text".split()
)
VOID = {"meta", "link"}
ATTRIBUTES = set(
    "lang charset http-equiv content name rel href class id role aria-label scope dir viewbox "
    "preserveaspectratio x y width height d text-anchor".split()
)
PAYLOADS = [
    "</style><script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "'><svg/onload=alert(1)>",
    "</title></textarea></pre></details><!--",
    "&lt;script&gt;&#60;b&#62; & more",
    "abc\u202egpj.exe\u2066\u2069\u200f",
    "a\x00b\x07c\x1b[31m\x9b",
    "half \ud83d a pair \udc00",
    "\ufdd0\uffff\U0010ffff\ufeff\u2028",
    "e" + "\u0301" * 500,
    "x" * 1_000_000,
    "\"'<>&" * 200_000,
    "\u202e" * 1_000_000,
    "🌳" * 1_000_000,
    "\n" * 10_000,
    "",
]


class Checker(HTMLParser):
    """Notes every tag, that each is closed in its turn, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.attributes.extend(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data[:50]}")


def check(text: str) -> Checker:
    assert len(text.encode()) < 1_000_000
    checker = Checker(text)
    assert checker.open == []
    assert set(checker.seen) <= TAGS
    names = {name for name, _ in checker.attributes}
    assert names <= ATTRIBUTES, names - ATTRIBUTES
    links = {value for name, value in checker.attributes if name == "href"}
    assert all(link == "data:," or re.fullmatch("#[a-z-]+", link) for link in links)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    return checker


def test_page_of_a_large_corpus_shows_every_section(tmp_path):
    text = render(demo_manifest(), demo_statistics(), title="English news and web, 2024")
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    checker = check(text)
    words = " ".join(checker.text)
    for sentence in (
        "English news and web, 2024",
        "corpus.gopher_quality.min_words = 50",
        "Zipf curve",
        "Dropped nothing:",
        "kept from before",
        "news-crawl",
        "CC BY 4.0",
        demo_manifest().fingerprint,
        "mean word length 11.8",
        "yours: 243 k",
        "[corpus.minhash]",
    ):
        assert sentence in words, sentence
    assert "&lt;b&gt;Donau" in text
    assert checker.seen["section"] == 12


def test_every_drawing_is_named_and_every_chart_has_its_numbers():
    text = render(demo_manifest(), demo_statistics(), title="t")
    drawings = re.findall("<svg[^>]*>", text)
    assert all('role="img"' in tag and re.search('aria-label="[^"]+"', tag) for tag in drawings)
    charts = text.split('<svg class="chart"')[1:]
    assert len(charts) == 4
    for chart in charts:
        assert "<details><summary>The numbers</summary>" in chart.split('<div class="figure">')[0]


def test_the_page_loads_and_runs_nothing():
    text = render(demo_manifest(), demo_statistics(), title="t")
    assert (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">" in text
    )
    assert not re.search(r"(?i)<script|https?:|url\(|@import|\son\w+=|javascript:", text)


def test_the_same_corpus_gives_the_same_page():
    manifest, statistics = demo_manifest(), demo_statistics()
    first = render(manifest, statistics, title="t")
    assert render(manifest, read_statistics(to_json(statistics)), title="t") == first


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_hostile_text_stays_text_in_every_place(payload):
    statistics = demo_statistics()
    statistics = replace(
        statistics,
        sources=(replace(statistics.sources[0], name=payload, licence=payload),),
        examples={payload: (Example(payload, 1, payload, payload),) * 4},
        quarantine={payload: 3},
        languages={payload: 7},
        repaired={payload: 1},
        stages=(replace(statistics.stages[0], name=payload),),
    )
    manifest = demo_manifest()
    manifest = replace(
        manifest,
        created_by=payload,
        funnel=(
            manifest.funnel[0],
            FunnelStep(payload, 1, 2, 3),
            FunnelStep(payload + "idle"),
            manifest.funnel[-1],
        ),
        # Half a pair cannot be in a split's name: its fingerprint, hence its manifest, fails first.
        splits={_whole(payload): manifest.splits["train"]},
        unigram_perplexity={_whole(payload): 900.0},
        config={"corpus": {payload: payload, "table": {payload: [payload, {payload: payload}]}}},
    )
    checker = check(render(manifest, statistics, title=payload))
    assert checker.seen["style"] == checker.seen["body"] == 1
    assert "script" not in checker.seen


def test_invisible_characters_are_made_visible_and_long_text_is_cut():
    assert visible_text("a\u202eb\x00c\ud800") == "a⟨U+202E⟩b␀c⟨U+D800⟩"
    assert visible_text("a\r\nb\tc") == "a␊b c"
    assert visible_text("a\r\nb\rc", lines=True) == "a\nb␍c"
    assert visible_text("\u0646\u0645\u06cc\u200c\u062f\u0627\u0646\u0645").count("\u200c") == 1
    assert visible_text("y" * 100, 10) == "y" * 10 + "…"
    assert visible_text("木" * 80) == "木" * 80
    assert len(visible_text("\u202e" * 1000, 100).encode()) <= 308


def test_text_is_escaped_once():
    text = render(demo_manifest(), demo_statistics(), title='<a href="x">\'&amp;')
    assert "<h1>&lt;a href=&#34;x&#34;&gt;&#39;&amp;amp;</h1>" in text


def test_the_page_stays_below_a_megabyte_whatever_the_corpus():
    worst = "\"'<>&" * 200
    shard = demo_manifest().splits["train"].shards[0]
    manifest = replace(
        demo_manifest(),
        funnel=tuple(FunnelStep(f"{n}{worst}", 10**15, 10**15, 10**15) for n in range(1000)),
        splits={f"{n}{worst}": Split("x", (shard,)) for n in range(1000)},
        unigram_perplexity={f"{n}{worst}": 1e9 for n in range(1000)},
        config={"corpus": {f"{n}{worst}": worst for n in range(1000)}},
    )
    counts = {f"{n}{worst}": 10**15 for n in range(1000)}
    statistics = Statistics(
        sources=tuple(
            SourceCount(f"{n}{worst}", worst, 1e-300, *[10**15] * 7) for n in range(1000)
        ),
        examples={
            step.rule: (Example(worst, 10**15, worst, worst),) * 50 for step in manifest.funnel
        },
        quarantine=counts,
        languages=counts,
        repaired=counts,
        document_words=dict.fromkeys(range(10000), 10**15),
        sentence_words=dict.fromkeys(range(10000), 10**15),
        clusters={2**n: 10**15 for n in range(1, 1000)},
        duplicate_pairs=10**18,
        zipf=tuple((n, 10**15) for n in range(1, 100_000)),
        coverage=tuple((n, 0.123456) for n in range(1, 100_000)),
        truncated=dict.fromkeys(range(1000), 0.5),
        stages=tuple(StageTime(f"{n}{worst}", 9, 9, 1e9, 1e9, 1e9) for n in range(1000)),
    )
    text = render(manifest, statistics, title=worst)
    check(text)
    assert "800 more sources are not shown" in text
    assert "948 more rules are not shown" in text


def test_empty_statistics_give_a_short_page_without_charts():
    nothing = Statistics((), {}, {}, {}, {}, {}, {}, 0, (), (), {}, {}, ())
    bare = replace(demo_manifest(), funnel=(), splits={}, unigram_perplexity={}, config={})
    checker = check(render(bare, nothing, title=""))
    assert "svg" not in checker.seen
    words = " ".join(checker.text)
    assert "Every file and record could be read." in words
    assert "Languages" not in words


def test_page_is_rendered_for_nan_infinity_and_zero():
    statistics = replace(
        demo_statistics(),
        document_words={0: 1},
        sentence_words={100: 1},
        clusters={0: 5, 1: 5, 2: 1},
        zipf=((1, 1), (2, 1)),
        coverage=((1, 0.0), (2, float("nan"))),
        truncated={50: 0.0},
        languages={"en": 0},
        stages=(StageTime("read", 0, 0, 0.0, 0.0, 0.0), StageTime("sort", 1, 1, 0, 0, 0)),
    )
    manifest = replace(
        demo_manifest(),
        funnel=(FunnelStep("read"), FunnelStep("weight", -5, -50, -500), FunnelStep("kept", 5)),
        unigram_perplexity={"valid": float("nan"), "gone": float("inf")},
        long_words=float("nan"),
    )
    checker = check(render(manifest, statistics, title="odd"))
    assert "added" in " ".join(checker.text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (compact(9_999), "9,999"),
        (compact(12_345), "12.3 k"),
        (compact(1_284_000_000), "1.28 B"),
        (percent(0), "0 %"),
        (percent(1e-9), "< 0.01 %"),
        (percent(0.123), "12.3 %"),
        (percent(0.99999), "> 99.99 %"),
        (size(1536), "1.5 KB"),
        (size(512), "512 B"),
        (duration(12.34), "12.3 s"),
        (duration(200), "3 min 20 s"),
        (duration(7500), "2 h 05 min"),
        (decimal(887.44), "887.4"),
    ],
)
def test_numbers_are_written_as_people_read_them(text, expected):
    assert text == expected


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
