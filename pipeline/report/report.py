"""`report.html`: one page that shows what became of the text, and which setting to turn next.

Cleaning is a dozen thresholds, and the only way to set them well is to look at what they drop. So
the page leads with the funnel and real examples under each rule, and every chart says what to look
for and names its setting. It is one file without scripts or outside resources (its policy forbids
both), made from the manifest and the statistics alone: equal corpora give equal pages, but for the
times. Everything from the corpus is hostile and goes through `page.shown`; lists are cut, so that
the page stays below a megabyte whatever the corpus.
"""

import math
from collections.abc import Mapping

from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.report import charts
from elmwright.pipeline.report.charts import barred
from elmwright.pipeline.report.funnel_section import ends, funnel, settings
from elmwright.pipeline.report.page import (
    compact,
    decimal,
    duration,
    figure,
    left_out,
    note,
    number,
    page,
    percent,
    ratio,
    shown,
    size,
    table,
)
from elmwright.pipeline.report.statistics import LONGEST_SENTENCE, Statistics

MAX_SOURCES, MAX_ROWS = 200, 40
"""Sources, and rows of any other table, that are shown; the rest is only counted."""


def render(manifest: Manifest, statistics: Statistics, *, title: str) -> str:
    """The page. Pure: the same corpus gives the same page."""
    sections: list[tuple[str, str]] = [
        ("Sets", _sets(manifest)),
        ("Funnel", funnel(manifest, statistics)),
        ("Sources", _sources(statistics)),
        ("Lengths", _lengths(statistics)),
        ("Languages", _languages(statistics)),
        ("Duplicates", _duplicates(statistics)),
        ("Vocabulary", _vocabulary(manifest, statistics)),
        ("Long words", _long_words(manifest, statistics)),
        ("Repairs", _repairs(statistics)),
        ("Quarantine", _quarantine(statistics)),
        ("Speed", _speed(manifest, statistics)),
        ("Settings", settings(manifest)),
    ]
    footer = (
        f"<p>Made by {shown(manifest.created_by)} from the manifest and the statistics of the "
        "corpus. The same text and settings give the same page, but for the times.</p>"
    )
    return page(f"{shown(title)}: corpus report", _headline(manifest, title), sections, footer)


def _headline(manifest: Manifest, title: str) -> str:
    read, kept = ends(manifest)
    cards = [
        ("Words kept", compact(kept.words), number(kept.words)),
        (
            "Share of words",
            percent(ratio(kept.words, read.words)),
            f"of {compact(read.words)} read",
        ),
        ("Documents", _short(kept.documents), f"of {_short(read.documents)} read"),
        ("Sentences", _short(kept.sentences), f"of {_short(read.sentences)} read"),
        ("Vocabulary", _short(manifest.vocab.size), "words"),
    ]
    for name, perplexity in list(manifest.unigram_perplexity.items())[:3]:
        cards.append(("Unigram perplexity", decimal(perplexity), f"to beat on {shown(name, 30)}"))
    tiles = "".join(
        f"<div><dt>{name}</dt><dd><b>{value}</b><small>{aside}</small></dd></div>"
        for name, value, aside in cards
    )
    return (
        f'<p class="kicker">Corpus report</p><h1>{shown(title, 120)}</h1>'
        f'<dl class="tiles">{tiles}</dl>'
        f'<p class="print">Fingerprint <code>{shown(manifest.fingerprint)}</code></p>'
    )


def _short(value: int) -> str:
    """A count in full as long as it fits a tile."""
    return number(value) if value < 1e6 else compact(value)


def _sets(manifest: Manifest) -> str:
    rows = [
        (
            f"<b>{shown(name, 60)}</b>",
            number(split.documents),
            number(split.sentences),
            number(split.words),
            number(split.blocks),
            percent(split.unk_share),
            decimal(manifest.unigram_perplexity.get(name, math.nan)),
        )
        for name, split in list(manifest.splits.items())[:MAX_ROWS]
    ]
    head = "Set|Documents|Sentences|Words|Blocks|&lt;UNK&gt;|Unigram perplexity"
    return (
        note(
            "Unigram perplexity is that of a model that knows only how often train has each word: "
            "a model that does not get below it has learned nothing. If &lt;UNK&gt; takes more "
            "than a percent or two, lower <code>vocab.min_count</code> or raise "
            "<code>vocab.max_size</code>."
        )
        + table(head, rows)
        + left_out(len(manifest.splits) - MAX_ROWS, "sets")
    )


def _sources(statistics: Statistics) -> str:
    found = sorted(statistics.sources, key=lambda source: -source.words)
    rows = []
    for source in found[:MAX_SOURCES]:
        share = ratio(source.kept_words, source.words)
        rows.append(
            (
                f"<b>{shown(source.name, 60)}</b>",
                shown(source.licence, 40) or "–",
                f"{source.weight:g}",
                number(source.files),
                size(source.bytes),
                number(source.documents),
                number(source.words),
                barred(share, percent(share)),
                number(source.broken),
            )
        )
    head = "Source|Licence|Weight|Files|Size|Documents|Words|Words kept|Broken records"
    if not rows:
        return ""
    return (
        note(
            "A source that keeps much less than the others is another kind of text: look at its "
            "examples in the funnel, or give it a smaller <code>weight</code> in "
            "<code>corpus.sources</code>."
        )
        + table(head, rows, texts=2)
        + left_out(len(found) - MAX_SOURCES, "sources")
    )


def _lengths(statistics: Statistics) -> str:
    sizes = {n: c for n, c in statistics.document_words.items() if 0 <= n < 63 and c > 0}
    lengths = {n: c for n, c in statistics.sentence_words.items() if 0 < n <= LONGEST_SENTENCE}
    body = ""
    if sizes:
        steps = range(min(sizes), max(sizes) + 1)
        names = [(compact(2**n), f"{number(2**n)} to {number(2 ** (n + 1) - 1)}") for n in steps]
        values = [sizes.get(n, 0) for n in steps]
        body += figure(
            "Words in a document",
            charts.columns(
                [(name, value) for (name, _), value in zip(names, values, strict=True)],
                named=range(0, len(values), math.ceil(len(values) / 8)),
                label="Kept documents by their number of words",
                x="words in a document, doubling",
                y="documents",
            ),
            "A pile at the left is scraps: raise <code>corpus.min_words</code> (or "
            "<code>corpus.gopher_quality.min_words</code>); a long tail is joined files: see "
            "<code>corpus.documents</code>.",
            table(
                "Words|Documents",
                [(name, number(value)) for (_, name), value in zip(names, values, strict=True)],
            ),
        )
    if lengths:
        named = [
            (f"{n}+" if n == LONGEST_SENTENCE else str(n), lengths.get(n, 0))
            for n in range(1, LONGEST_SENTENCE + 1)
        ]
        body += figure(
            "Words in a sentence",
            charts.columns(
                named,
                label="Kept sentences by their number of words",
                x="words in a sentence",
                y="sentences",
                named=range(9, LONGEST_SENTENCE, 10),
            ),
            "A spike at one or two is list items and headings: raise "
            "<code>corpus.min_sentence_words</code>; a spike at 100+ is text the splitter did not "
            "understand: see <code>corpus.language</code> and <code>corpus.sentences</code>.",
            table("Words|Sentences", [(name, number(value)) for name, value in named]),
        )
    return f'<div class="pair">{body}</div>' if body else ""


def _languages(statistics: Statistics) -> str:
    total = sum(statistics.languages.values())
    if not statistics.languages:
        return ""
    return note(
        "Detected languages of the documents read, “un” where none could be told. If one you "
        "want is thin, lower <code>corpus.language_threshold</code>; if one you do not want "
        "is left, judge sentences too: <code>corpus.language_unit</code>."
    ) + _counted("Language|Documents|Share", statistics.languages, total)


def _duplicates(statistics: Statistics) -> str:
    groups: dict[int, list[int]] = {}
    for documents, count in statistics.clusters.items():
        if documents > 1:
            found = groups.setdefault(documents.bit_length(), [0, 0])
            found[0] += count
            found[1] += (documents - 1) * count
    if not groups:
        return ""
    dropped = sum(copies for _, copies in groups.values())
    rows = [
        (
            f"{number(2 ** (bits - 1))} to {number(2**bits - 1)}",
            number(groups[bits][0]),
            number(groups[bits][1]),
            _shared(ratio(groups[bits][1], dropped)),
        )
        for bits in sorted(groups)[:MAX_ROWS]
    ]
    return note(
        f"{number(statistics.duplicate_pairs)} links between near-duplicates made "
        f"{number(sum(count for count, _ in groups.values()))} groups, of which one document each "
        "stays. Few huge groups are templates, and worth a look in the examples; if different "
        "texts are grouped, raise <code>corpus.minhash.rows</code>, if copies are left, raise "
        "<code>corpus.minhash.bands</code>."
    ) + table("Documents in a group|Groups|Copies|Share of copies", rows)


def _vocabulary(manifest: Manifest, statistics: Statistics) -> str:
    counts = [(rank, count) for rank, count in statistics.zipf if rank >= 1 and count >= 1]
    covered = [(n, share) for n, share in statistics.coverage if n >= 1 and 0 <= share <= 1]
    body = ""
    if len(counts) > 1:
        top = counts[0][0] * counts[0][1]
        x = charts.Axis(1, max(rank for rank, _ in counts), "rank of a word by frequency", log=True)
        y = charts.Axis(1, max(count for _, count in counts), "occurrences in train", log=True)
        body += figure(
            "Zipf curve",
            charts.curve(
                counts,
                x,
                y,
                label="Occurrences of train words by rank",
                ideal=[(1, min(top, y.high)), (min(x.high, top), max(1, top / x.high))],
                ideal_name="1/rank",
            ),
            "Close to straight beside the dashed line (1/rank) is natural text; a step is "
            "boilerplate that repeats (<code>corpus.dedup_lines</code>), a long flat end is noise "
            "(<code>vocab.min_count</code>).",
            table("Rank|Occurrences", [(number(a), number(b)) for a, b in charts.thin(counts)]),
        )
    if len(covered) > 1:
        words = manifest.vocab.size
        x = charts.Axis(
            1, max(n for n, _ in covered), "most frequent words in the vocabulary", log=True
        )
        body += figure(
            "Coverage",
            charts.curve(
                covered,
                x,
                charts.Axis(0, 1, "share of train covered", share=True),
                label="Share of train words covered by a vocabulary of each size",
                mark=(words, f"yours: {compact(words)}"),
            ),
            "Where the curve is flat, more words cost memory and softmax time for little: choose "
            "<code>vocab.max_size</code> and <code>vocab.min_count</code> at the bend.",
            table("Vocabulary|Share", [(number(a), percent(b)) for a, b in charts.thin(covered)]),
        )
    return f'<div class="pair">{body}</div>' if body else ""


def _long_words(manifest: Manifest, statistics: Statistics) -> str:
    settings = sorted(statistics.truncated)[:MAX_ROWS]
    most = max(statistics.truncated.values(), default=0.0)
    rows = [
        (
            number(chars),
            decimal(1e6 * statistics.truncated[chars]),
            barred(
                ratio(statistics.truncated[chars], most),
                percent(statistics.truncated[chars]),
                "lose",
            ),
        )
        for chars in settings
    ]
    return note(
        f"{percent(manifest.long_words)} of the train words have more than 48 UTF-8 bytes, and a "
        "model reads a word only up to its <code>max_chars</code>. Choose the smallest that loses "
        "next to nothing: the spelling network's cost grows with it."
    ) + (table("max_chars|Words cut per million|Share of train words", rows) if rows else "")


def _repairs(statistics: Statistics) -> str:
    changed = {name: count for name, count in statistics.repaired.items() if count}
    if not changed:
        return ""
    return note(
        "Documents that were kept but changed: wrong encodings "
        "(<code>corpus.mojibake</code>, <code>corpus.encoding</code>), personal data "
        "(<code>corpus.mask</code>) and long ones cut into pieces "
        "(<code>corpus.cut_documents</code>). Many in one source are a sign to set its "
        "<code>encoding</code>."
    ) + _counted("Repair|Documents|Share of repairs", changed, sum(changed.values()))


def _quarantine(statistics: Statistics) -> str:
    broken = {reason: count for reason, count in statistics.quarantine.items() if count}
    if not broken:
        return note("Every file and record could be read.")
    return note(
        "Broken records and files, listed with their places in <code>quarantine.jsonl</code>. "
        "Many of one kind point to a wrong <code>format</code>, <code>text_field</code> or "
        "<code>encoding</code> of a source; <code>corpus.strict</code> stops at the first."
    ) + _counted("Reason|Records|Share", broken, sum(broken.values()), kind="lose")


def _speed(manifest: Manifest, statistics: Statistics) -> str:
    read, _ = ends(manifest)
    longest = max((stage.seconds for stage in statistics.stages), default=0.0)
    rows = []
    for stage in statistics.stages[:MAX_ROWS]:
        words = read.words * ratio(stage.ran, stage.tasks)
        times = (
            (
                barred(ratio(stage.seconds, longest), duration(stage.seconds)),
                duration(stage.cpu_seconds),
                compact(ratio(words, stage.seconds)),
                f"{number(stage.peak_mb)} MB",
            )
            if stage.ran
            else ("kept from before", "–", "–", "–")
        )
        rows.append((shown(stage.name), f"{number(stage.ran)} of {number(stage.tasks)}", *times))
    if not rows:
        return ""
    return (
        note(
            "Of the newest build; words per second counts the words read. A stage whose CPU time "
            "is little more than its time used one core: give smaller tasks "
            "(<code>corpus.chunk_mb</code>), which also lowers its memory."
        )
        + table("Stage|Tasks run|Time|CPU time|Words per second|Peak memory", rows)
        + left_out(len(statistics.stages) - MAX_ROWS, "stages")
    )


def _counted(head: str, counts: Mapping[str, int], total: int, kind: str = "keep") -> str:
    """A table of counts, the largest first."""
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return table(
        head,
        [
            (shown(name), number(count), _shared(ratio(count, total), kind))
            for name, count in rows[:MAX_ROWS]
        ],
    ) + left_out(len(rows) - MAX_ROWS, "kinds")


def _shared(share: float, kind: str = "keep") -> str:
    return barred(share, percent(share), kind)
