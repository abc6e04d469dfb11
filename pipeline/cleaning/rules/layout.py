"""Lines of mails and pages that were joined with blanks: where they began, a sentence ends.

A drawn line is one, and so are the name, the date and the time in the head of a mail. An address
ends one before a capital.
"""

import re

_LINE = re.compile(r"(?<!\S)([-=_*])\1{9,}(?!\S)")
_STAMP = re.compile(r"/\d\d?/\d\d(?:\d\d)? \d\d?:\d\d(?::\d\d)?(?: [AP]M)?(?!\S)")
_ADDRESS = {
    sign: re.compile(rf"{sign}\S{{1,300}}+(?<=[\w/#])(?= [A-Z][a-z'’]* )") for sign in ("://", "@")
}


def has_layout(text: str) -> bool:
    """Whether there may be an address, the head of a mail or a drawn line."""
    return (
        "/" in text
        or "@" in text
        or "=" in text
        or "_" in text
        or "*" in text
        or "----------" in text
    )


def with_layout(text: str) -> str:
    """A paragraph with line breaks where the lines of a mail or a page began."""
    if any(sign * 10 in text for sign in "-=_*"):
        text = _with_lines(text)
    if "/" in text:
        text = _with_stamps(text)
    return _with_addresses(text)


def _with_lines(text: str) -> str:
    """A paragraph in which lines drawn of characters are alone."""
    return _LINE.sub(r"\n\g<0>\n", text).replace(" \n", "\n").replace("\n ", "\n").strip("\n")


def _with_stamps(text: str) -> str:
    """A paragraph in which the head of a mail ends: a name, `10/20/2000 11:32 AM`."""
    parts, done = [], 0
    for match in _STAMP.finditer(text):
        begin = text.rfind(" ", done, match.start()) + 1
        if not text[begin : match.start()].isdigit():
            continue
        before = text[text.rfind(" ", done, max(done, begin - 1)) + 1 : begin - 1]
        has_name = before[:1].isupper() or "@" in before or before[-1:] in ('"', ">")
        if begin > done and has_name:
            parts.append(text[done : begin - 1])
            done = begin
        if has_name or text[match.end() + 1 : match.end() + 2].isupper():
            parts.append(text[done : match.end()])
            done = match.end() + 1
    return "\n".join([*parts, text[done:]]).rstrip("\n")


def _with_addresses(text: str) -> str:
    """A paragraph in which a URL or e-mail address ends a sentence before a capital."""
    for sign, address in _ADDRESS.items():
        if sign in text:
            text = address.sub(r"\g<0>\n", text).replace("\n ", "\n")
    return text
