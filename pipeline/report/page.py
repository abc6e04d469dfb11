"""Pages from templates, and foreign text made fit to read.

The text of a corpus is hostile. Jinja2 escapes all of it, and `visible_text` cuts it and makes its
invisible characters visible. A page is one file without scripts or outside resources, and its
policy forbids both, so even a mistake here could load or run nothing.
"""

import html
import math
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from elmwright.pipeline.report.charts import across, up
from elmwright.pipeline.report.numbers import (
    compact,
    decimal,
    duration,
    number,
    percent,
    ratio,
    short,
    size,
)

# Controls, invisible and direction-changing characters, surrogates and non-characters. If they were
# not made visible, U+202E could reverse a line, and a lone surrogate could not be written.
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


def render_page(template: Path, **values: object) -> str:
    """The page that a template makes of these values. It may import from `page.html`."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    for function in (across, clamp, compact, decimal, duration, number, percent, short, size, up):
        environment.filters[function.__name__] = function
    environment.filters["visible"] = visible_text
    environment.globals["ratio"] = ratio
    return environment.get_template(template.name).render(values)


def visible_text(text: object, limit: int = 80, *, lines: bool = False) -> str:
    """The beginning of a foreign text, with its hidden characters visible, still to be escaped.

    It has at most `limit` characters, and about 3 × `limit` bytes when it is escaped. With `lines`,
    line breaks stay.
    """
    raw = str(text)
    length = limit
    while True:
        cut = raw[:length] + ("…" if len(raw) > length else "")
        cut = _TOWER.sub(r"\1", _HIDDEN.sub(_code_point, cut.replace("\r\n", "\n")))
        if not lines:
            cut = cut.replace("\n", "␊").replace("\t", " ")
        if len(html.escape(cut).encode()) <= 3 * limit + 8:
            return cut
        length = length * 3 // 4


def _code_point(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def clamp(share: float) -> float:
    """A share that a bar can have, 0 to 1; 0 for what is not a number."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
