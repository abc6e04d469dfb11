"""The parts of the report's page: safe text, numbers as people read them, tables, and the style.

The text of a corpus is hostile, so everything that comes from it passes through `shown`: cut, made
visible, escaped. The page is one file without scripts or outside resources, and its policy forbids
both, so that even a mistake here could load or run nothing.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence

# Controls, invisible and direction-changing characters, surrogates and non-characters. Without
# them made visible, U+202E could turn a line round, and half a surrogate pair could not be written.
# The joiners U+200C and U+200D stay, because Persian and Indic words are spelled with them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e0fff"
    + "".join(chr(plane << 16 | last) for plane in range(1, 17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_TOWER = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
"""Marks piled on one letter until they cover the lines above it."""


def shown(text: object, limit: int = 80, *, lines: bool = False) -> str:
    """Foreign text, fit for any place in the page, attributes included.

    At most `limit` characters and three times as many bytes; with `lines`, line breaks stay.
    """
    raw = str(text)
    length = limit
    while True:
        cut = raw[:length] + ("…" if len(raw) > length else "")
        cut = _TOWER.sub(r"\1", _HIDDEN.sub(_visible, cut.replace("\r\n", "\n")))
        escaped = html.escape(cut if lines else cut.replace("\n", "␊").replace("\t", " "))
        if len(escaped.encode()) <= 3 * limit + 8:
            return escaped
        length = length * 3 // 4


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def number(value: float) -> str:
    """A count in full: 1,234,567."""
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def compact(value: float) -> str:
    """A count in short: 1.23 M."""
    if not math.isfinite(value):
        return "–"
    for unit, name in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:.3g}{name}" if abs(value) < 999.5 * unit else f"{value:,.0f}"
    return number(value)


def percent(share: float) -> str:
    """A share, never rounded down to nothing or up to all."""
    if not math.isfinite(share):
        return "–"
    if 0 < share < 0.0001:
        return "&lt; 0.01 %"
    if 0.9999 < share < 1:
        return "&gt; 99.99 %"
    digits = 0 if share in (0, 1) else 2 if share < 0.01 or share > 0.99 else 1
    return f"{100 * share:.{digits}f} %"


def ratio(part: float, whole: float) -> float:
    """part / whole, and 0 where there is no whole."""
    return part / whole if whole > 0 else 0.0


def decimal(value: float) -> str:
    """A measured number, such as a perplexity, to four digits."""
    return (
        (number(value) if abs(value) >= 1000 else f"{value:.4g}") if math.isfinite(value) else "–"
    )


def size(count: int) -> str:
    """Bytes, in the unit that fits."""
    power = min(4, max(0, count.bit_length() - 1) // 10)
    return (
        f"{count / 1024**power:,.{0 if power == 0 else 1}f} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"
    )


def duration(seconds: float) -> str:
    """A time, in the units that fit."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02} s"
        if minutes < 100
        else f"{minutes // 60} h {minutes % 60:02} min"
    )


def table(head: str, rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """A table of escaped cells; `head` has its names separated by `|`, the first `texts` columns
    are text and the others numbers."""
    names = "".join(f'<th scope="col">{name}</th>' for name in head.split("|"))
    body = "".join(f"<tr>{_cells(row, texts)}</tr>\n" for row in rows)
    return (
        f'<div class="scroll"><table class="t{texts}"><thead><tr>{names}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], texts: int) -> str:
    return "".join(
        f'<td class="text">{cell}</td>' if n < texts else f"<td>{cell}</td>"
        for n, cell in enumerate(row)
    )


def note(text: str) -> str:
    """What to look for, in our own words."""
    return f'<p class="note">{text}</p>\n'


def details(summary: str, content: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{summary}</summary>{content}</details>\n"


def figure(title: str, drawing: str, look_for: str, numbers: str) -> str:
    """A chart, what to look for in it, and its numbers to unfold."""
    return (
        f'<div class="figure"><h3>{title}</h3>{drawing}{note(look_for)}'
        f"{details('The numbers', numbers)}</div>\n"
    )


def left_out(count: int, what: str) -> str:
    """How many did not fit, if any."""
    return f'<p class="idle">{number(count)} more {what} are not shown.</p>' if count > 0 else ""


def page(title: str, header: str, sections: Sequence[tuple[str, str]], footer: str) -> str:
    """The whole file: (name, content) of each section, all escaped; empty ones are left out."""
    present = [(name, name.lower().replace(" ", "-"), body) for name, body in sections if body]
    links = "".join(f'<li><a href="#{anchor}">{name}</a></li>' for name, anchor, _ in present)
    # One section needs no table of contents.
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n' if len(present) > 1 else ""
    parts = "\n".join(
        f'<section id="{anchor}"><h2>{name}</h2>\n{body}</section>'
        for name, anchor, body in present
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
{header}
{nav}</header>
<main>
{parts}
</main>
<footer>{footer}</footer>
</body>
</html>
"""


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root { --paper: #fbfaf6; --card: #fff; --ink: #20242a; --soft: #5a616b; --line: #e2ded3;
  --keep: #2b6e51; --track: #ece8dd; --lose: #b4531d; --lose2: #cf7f4c; --code: #f1eee5;
  --mark: #cfe8da; --shade: #0003; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --card: #1b1f23; --ink: #e7e5df; --soft: #a5abb3; --line: #32383e;
    --keep: #6cc199; --track: #2a3036; --lose: #ee8f58; --lose2: #b8663a; --code: #22272c;
    --mark: #1f4a38; --shade: #0009; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 72rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
h1, h2, h3 { font-family: "Iowan Old Style", "Palatino Linotype", Palatino, Georgia,
  "Liberation Serif", serif; font-weight: 600; line-height: 1.2; margin: 0; }
h1 { font-size: clamp(1.9rem, 5vw, 2.9rem); letter-spacing: -.01em; }
h2 { font-size: 1.65rem; margin-bottom: .35rem; }
h3 { font-size: 1.15rem; margin-bottom: .6rem; }
p { margin: .5rem 0; }
a { color: var(--keep); }
mark { background: var(--mark); color: inherit; border-radius: .25rem; padding: .08em .25em; }
.query { font-size: 1.15rem; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
code { font-size: .84em; background: var(--code); border-radius: .25rem; padding: .08em .35em; }
.kicker { margin: 0 0 .3rem; color: var(--keep); font-size: .8rem; font-weight: 650;
  letter-spacing: .12em; text-transform: uppercase; }
.tiles { display: flex; flex-wrap: wrap; gap: 1px; margin: 1.6rem 0 1rem; overflow: hidden;
  background: var(--line); border: 1px solid var(--line); border-radius: .6rem; }
.tiles div { flex: 1 1 8.6rem; background: var(--card); padding: .9rem 1rem; }
.tiles dt, .tiles small, .print { color: var(--soft); font-size: .83rem; }
.tiles dd { margin: 0; }
.tiles b { display: block; font-size: 1.7rem; font-weight: 600; line-height: 1.3; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: 1.4rem 0 0; padding: .8rem 0;
  list-style: none; border-block: 1px solid var(--line); font-size: .92rem; }
nav a { text-decoration: none; }
nav a:hover, nav a:focus { text-decoration: underline; }
section { padding-top: 2.6rem; }
.note { max-width: 46rem; color: var(--soft); font-size: .94rem; margin: 0 0 1rem; }
/* A shadow at an edge says that the table can be scrolled there: the covers move with the table. */
.scroll { --under: var(--paper); overflow-x: auto; margin: .6rem 0;
  background: linear-gradient(90deg, var(--under) 30%, transparent) 0 / 2.5rem 100% local,
    linear-gradient(-90deg, var(--under) 30%, transparent) 100% / 2.5rem 100% local,
    linear-gradient(90deg, var(--shade), transparent) 0 / .7rem 100% scroll,
    linear-gradient(-90deg, var(--shade), transparent) 100% / .7rem 100% scroll;
  background-repeat: no-repeat; }
.figure .scroll { --under: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .42rem .7rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 550; font-size: .82rem; vertical-align: bottom; }
td.text, th:first-child, .t2 th:nth-child(2) { text-align: left; }
td.text { white-space: normal; min-width: 6rem; unicode-bidi: isolate; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
.barred { display: flex; align-items: center; margin-left: auto; width: min(26rem, 40vw); }
.barred > span { flex: none; min-width: 5.6rem; padding-left: .7rem; } .t2 .barred { width: 11rem; }
.t2 td:first-child { min-width: 11rem; }
.bar { display: block; width: 100%; height: .6rem; background: var(--track); border-radius: .2rem; }
rect.keep { fill: var(--keep); } rect.lose { fill: var(--lose); } rect.lose2 { fill: var(--lose2); }
span.keep { color: var(--keep); } span.lose { color: var(--lose); }
.whole { margin: 1.2rem 0 1.6rem; } .whole .bar { height: 1.7rem; border-radius: .3rem; }
.whole p { display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: .9rem; }
.rules { list-style: none; margin: 0; padding: 0; }
.rules > li { padding: .8rem 0; border-top: 1px solid var(--line); break-inside: avoid; }
.rule { display: grid; grid-template-columns: minmax(0, 23rem) minmax(0, 1fr) 10rem;
  gap: 0 1.4rem; align-items: center; }
.rule p { margin: 0; } .rule p:last-child { text-align: right; }
.rule small, .rule code { display: block; width: fit-content; font-size: .8rem;
  color: var(--soft); }
.rule small { margin-left: auto; } .rule .bar { height: .85rem; }
.rule p b { font-weight: 600; unicode-bidi: isolate; }
.counts, .idle { color: var(--soft); font-size: .84rem; margin: .25rem 0 0; }
details { margin: .4rem 0; font-size: .92rem; }
summary { cursor: pointer; color: var(--keep); width: fit-content; font-size: .87rem; }
details figure { margin: .7rem 0; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card); overflow: hidden; }
figcaption { padding: .4rem .9rem; color: var(--soft); font-size: .8rem;
  border-bottom: 1px solid var(--line); unicode-bidi: isolate; }
figcaption b { color: var(--ink); font-weight: 600; }
pre { margin: 0; padding: .7rem .9rem; max-height: 15rem; overflow: auto; font-size: .82rem;
  line-height: 1.5; white-space: pre-wrap; unicode-bidi: isolate; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1.4rem; margin-top: 1rem; }
.figure { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.2rem .7rem; break-inside: avoid; }
.figure .note { font-size: .88rem; margin: .6rem 0; }
.figure .scroll { max-height: 20rem; overflow: auto; }
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font-size: 12px; fill: var(--soft); } .chart .named { fill: var(--lose); }
.grid { stroke: var(--line); fill: none; } .axis { stroke: var(--soft); fill: none; }
.curve { stroke: var(--keep); stroke-width: 2.4; fill: none; stroke-linejoin: round; }
.ideal { stroke: var(--soft); stroke-dasharray: 4 4; fill: none; }
.mark { stroke: var(--lose); stroke-dasharray: 2 3; stroke-width: 1.5; fill: none; }
footer { margin-top: 3.5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--soft); font-size: .84rem; }
@media (max-width: 40rem) {
  body { padding: 1.4rem 1rem 3rem; }
  .tiles div { flex-basis: 9rem; padding: .7rem .8rem; }
  .tiles b { font-size: 1.4rem; } .figure { padding: .9rem .8rem .5rem; }
  .rule { grid-template-columns: 1fr auto; }
  .rule .bar { grid-row: 2; grid-column: 1 / 3; margin-top: .4rem; }
  .rule code { font-size: .7rem; }
  th { white-space: normal; overflow-wrap: normal; } th, td { padding-inline: .45rem; }
  .barred, .t2 .barred { width: auto; }
  .barred .bar { display: none; } .barred > span { min-width: 0; margin-left: auto; }
  .t2 td:first-child { min-width: 9rem; }
  .chart text { font-size: 15px; } }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; background: #fff; } nav { display: none; }
  .bar, rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2, h3, .note { break-after: avoid; } pre, .scroll { max-height: none; overflow: visible; } }
"""
