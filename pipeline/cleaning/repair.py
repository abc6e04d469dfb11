"""Repairs the text of a document before its words are counted.

`repaired` undoes wrong decodings first, because they are recognised by control characters, which
`normalise` removes ("â\\x80\\x99" was a quote). Then it brings the text into the normal form, on
which every later rule relies, straightens quotes and masks private data.

The normal form is Unicode NFC with lines separated by a line feed, no spaces at the ends of a line,
no two spaces in a row and no invisible characters. Most of it is done on UTF-8 bytes, at about
65 MB/s. All expressions take time linear in the text.
"""

import re
import unicodedata
from ipaddress import IPv4Address

from ftfy import fix_encoding

from elmwright.pipeline.config import CorpusConfig

EMPTY = "empty"
"""The rule that drops documents without any word."""

EMAIL, IP, PHONE = "email@example.com", "192.0.2.1", "555-0100"
"""Replacements for private data, reserved for examples (RFC 2606, RFC 5737)."""

_BREAKS = b"\x0b\x0c\x1c\x1d\x1e"
_REMOVED = bytes({*range(32), 127} - {*b"\t\n", *_BREAKS})
_REPLACED = bytes.maketrans(_BREAKS + b"\t", b"\n" * len(_BREAKS) + b" ")
# C1 controls, next line, no-break space, soft hyphen; then in U+2000..206F spaces, zero-width
# spaces, directional marks and separators. The joiners U+200C and U+200D stay, because Persian and
# Indic words are spelled with them.
_ODD_LATIN = re.compile(rb"\xc2[\x80-\xa0\xad]")
_ODD_GENERAL = re.compile(rb"\xe2(?:\x80[\x80-\x8b\x8e\x8f\xa8-\xaf]|\x81[\x9f-\xaf])")
_ODD_REST = {b"\xef\xbb\xbf": b"", b"\xe3\x80\x80": b" ", b"\xe1\x9a\x80": b" "}
_CONTROLS = dict.fromkeys({*range(32), 127} - {ord("\n")}, " ")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANKS = re.compile(rb" {2,}")

_QUOTES = {"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'", "‚": "'"}
_QUOTES |= {"–": "-", "—": "-", "―": "-", "‐": "-", "‑": "-", "−": "-"}

# A UTF-8 character read as Windows-1252 or Latin-1: a letter for the lead byte, then a character
# for each continuation byte. The last two alternatives are common characters read as Mac Roman.
_NEXT_BYTE = (
    r"[\x80-\xbf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013\u2014"
    r"\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
)
_MOJIBAKE = re.compile(
    rf"[\xc2-\xdf]{_NEXT_BYTE}|[\xe0-\xef]{_NEXT_BYTE}{{2}}|\xf0{_NEXT_BYTE}{{3}}|‚Ä[ôúùìî¶¢]|√[©®¢°]"
)
# A quick test on bytes, because a search for a pattern with a literal first byte is fast.
_SUSPECT = re.compile(rb"\xc3[\x82-\xb0][\xc2-\xcb\xe2]")
_SUSPECT_MAC = "‚Ä".encode(), "√".encode() + b"\xc2"


def repaired(text: str, config: CorpusConfig) -> tuple[str, list[str]]:
    """The text in its normal form, and the repairs made: "mojibake" or kinds of private data."""
    changes = []
    if config.mojibake:
        before, text = text, fix_mojibake(text)
        if text != before:
            changes.append("mojibake")
    text = normalise(text) if config.normalise else tidied(text)
    if config.quotes == "straight":
        text = straighten(text)
    for kind in config.mask:
        before, text = text, mask(text, kind)
        if text != before:
            changes.append(kind)
    return text, changes


def normalise(text: str) -> str:
    """The text in normal form; lone surrogates become U+FFFD."""
    try:
        data = text.encode()
    except UnicodeEncodeError:  # JSON can escape a lone surrogate
        data = _SURROGATE.sub("\ufffd", text).encode()
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data = _plain(data)
    if b"  " in data:
        data = _BLANKS.sub(b" ", data)
    data = data.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" \n")
    return unicodedata.normalize("NFC", data.decode())


def plain(character: str) -> str:
    """What `normalise` makes of a character by itself: a blank, a line break, nothing, or itself.

    Composition of characters (NFC) and runs of blanks are not its concern."""
    if character == "\r":
        return "\n"
    return _plain(_SURROGATE.sub("\ufffd", character).encode()).decode()


def tidied(text: str) -> str:
    """The text with single spaces between words, without control characters and lone surrogates.

    Later rules rely on this. Words are not changed."""
    text = _SURROGATE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = text.translate(_CONTROLS).split("\n")
    return "\n".join(" ".join(line.split()) for line in lines).strip("\n")


def _plain(data: bytes) -> bytes:
    """UTF-8 text with plain blanks and line breaks, and without invisible characters."""
    data = data.translate(_REPLACED, _REMOVED)
    if not data.isascii():
        data = _ODD_LATIN.sub(_plain_latin, data)
        data = _ODD_GENERAL.sub(_plain_general, data)
        for odd, plain in _ODD_REST.items():
            data = data.replace(odd, plain)
    return data


def _plain_latin(match: re.Match[bytes]) -> bytes:
    return {0x85: b"\n", 0xA0: b" "}.get(match[0][1], b"")


def _plain_general(match: re.Match[bytes]) -> bytes:
    character = ord(match[0].decode())
    if character in (0x2028, 0x2029):
        return b"\n"
    return b" " if character <= 0x200A or character in (0x202F, 0x205F) else b""


def straighten(text: str) -> str:
    """The text with typographic quotes and dashes replaced by ASCII quotes and hyphens."""
    if text.isascii():
        return text
    for odd, plain in _QUOTES.items():
        text = text.replace(odd, plain)
    return text


def fix_mojibake(text: str) -> str:
    """The text with wrong decodings undone in the lines where ftfy, too, finds one."""
    if text.isascii():
        return text
    data = text.encode("utf-8", "surrogatepass")
    if not (_SUSPECT.search(data) or any(suspect in data for suspect in _SUSPECT_MAC)):
        return text

    lines = text.split("\n")
    return "\n".join(fix_encoding(line) if _MOJIBAKE.search(line) else line for line in lines)


_EMAIL = re.compile(
    r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[a-zA-Z\d](?:[a-zA-Z\d-]{0,62})\.){1,6}[a-zA-Z]{2,24}(?![\w-])"
)
_IP = re.compile(r"(?<![\w.-])(?:[1-9]\d{0,2}|0)(?:\.(?:[1-9]\d{0,2}|0)){3}(?![\w-]|\.\d)")
_VERSION = re.compile(r"(?:version|release|ver\.?|section|chapter|firmware|build|v\.?) \Z", re.I)
_PHONE = re.compile(
    r"(?<![\w.,/+-])(?:"
    r"\+\d{1,3}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]?\d{2,4}){2,4}"
    r"|(?:1[ .-])?\(\d{3}\) ?\d{3}[ .-]\d{4}"
    r"|(?:1[.-])?\d{3}([.-])\d{3}\1\d{4}"
    r")(?![\w/-]|[.,]\d)"
)


# Quick tests: the expressions above are slow, because a look-behind is tried at every character.
_LIKE_IP = re.compile(r"\d\.\d{1,3}\.\d{1,3}\.\d")
_LIKE_PHONE = re.compile(r"[+(]\d|\d{3}[.-]\d{3}[.-]\d{4}")


def mask(text: str, kind: str) -> str:
    """The text with private data of one kind ("email", "ip" or "phone") replaced."""
    if kind == "email":
        return _EMAIL.sub(EMAIL, text) if "@" in text else text
    if kind == "ip":
        return _IP.sub(_masked_ip, text) if _LIKE_IP.search(text) else text
    return _PHONE.sub(_masked_phone, text) if _LIKE_PHONE.search(text) else text


def _masked_ip(match: re.Match[str]) -> str:
    """`IP`, or the match itself if it is in a private network or a version such as 1.2.3.4."""
    address = match[0]
    before = match.string[max(0, match.start() - 12) : match.start()]
    parts = [int(part) for part in address.split(".")]
    if len(address) < 11 or max(parts) > 255 or _VERSION.search(before):
        return address
    return IP if IPv4Address(address).is_global else address


def _masked_phone(match: re.Match[str]) -> str:
    return PHONE if 8 <= sum(map(str.isdigit, match[0])) <= 15 else match[0]


_MENU_WORDS = frozenset(
    "a about account accept advertise advertisement all and archive archives back blog browse "
    "careers cart categories category close comment comments contact content cookie cookies "
    "copyright disclaimer download email e-mail english facebook faq faqs feed feedback flickr "
    "follow forum forums google help home in instagram jobs latest leave legal like linkedin "
    "links loading log login logout main map menu more navigation news newsletter next now of "
    "older on our out page permalink pin pinterest policy popular post posts press previous "
    "print privacy products read recent reddit register related reply rss save search services "
    "settings share shop sign site sitemap skip store submit subscribe tag tags terms this to "
    "toggle top tumblr tweet twitter uncategorized up us use whatsapp youtube".split()
)
_WORDS = re.compile(r"[\w'’-]+")
_NOTICE = re.compile(
    r"\A\W*(?:©|\(c\) |copyright\b).{0,80}(?:\b\d{4}\b|reserved)|© ?\d{4}\b|\ball rights reserved\b"
    r"|\b(?:uses?|using|accept|use of|our|manage|enable) (?:\w{1,12} )?cookies?\b"
    r"|\bcookie (?:policy|settings|preferences|consent|notice)\b"
    r"|\bterms (?:of|and) (?:use|service|conditions)\b.{0,40}\bprivacy\b|\bprivacy policy\b"
)
_HINTS = ("copyright", "©", "(c)", "reserved", "cookie", "privacy")
_BEGINNINGS = (
    "share this",
    "share on ",
    "share via ",
    "follow us",
    "like us on",
    "sign up for",
    "subscribe to our",
    "click here to",
    "please enable javascript",
    "powered by ",
    "filed under",
    "posted in ",
    "posted by ",
    "posted on ",
    "tagged with",
    "you must be logged in",
    "this entry was posted",
)


def is_boilerplate(line: str) -> bool:
    """Whether a line of a web page is not prose: a short notice of a known kind, or only words of
    menus and buttons."""
    if not line or len(line) > 300:
        return False
    lower = line.lower()
    if lower.startswith(_BEGINNINGS):
        return True
    if any(hint in lower for hint in _HINTS) and _NOTICE.search(lower):
        return True
    if len(line) > 100 or line[-1] in ".?!:;,":
        return False
    words = _WORDS.findall(lower)
    return bool(words) and all(word in _MENU_WORDS for word in words)


def without_boilerplate(text: str) -> tuple[str, list[str]]:
    """The text with every boilerplate line emptied, and those lines."""
    lines = text.split("\n")
    dropped = [line for line in lines if is_boilerplate(line)]
    if not dropped:
        return text, []
    boilerplate = frozenset(dropped)
    return "\n".join("" if line in boilerplate else line for line in lines).strip("\n"), dropped
