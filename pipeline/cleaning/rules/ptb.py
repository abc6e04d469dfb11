"""Words in the style of the Penn Treebank, version 2.

- Punctuation and symbols are words; characters are kept as they are (no `` '' or -LRB-).
- `don't` is `do n't`, `it's` is `it 's`, `I'd've` is `I 'd 've`; in English also `can not`,
  `gon na`, `do nt`, `'t is`. `'em` and `'90s` are words.
- Hyphens, full stops, underscores and apostrophes inside a word stay: `well-known`, `os.path`,
  `o'clock`; so do `AT&T` and `w/o`, but `and / or` are three words.
- Numbers keep their separators: `1,000.5`, `12:30`, `08/16/2000`, `1.5e-10`, `+44`. A unit is a
  word of its own: `5 pm`, `35 mm`.
- A URL, an e-mail address, a smiley, an emoji with all that belongs to it, an arrow, and a run of
  one symbol (`====`) or of final marks (`?!`, `...`) are one word each.
- The full stop of an abbreviation stays with it except at the end of a sentence. Abbreviations
  depend on the language (`abbreviations.py`), as do ordinals (`1. Januar`).

The rules were made on the train part of the UD English Web Treebank, whose hyphenated words are
split: there we keep to Penn. They work on single chunks between white space, so that
`tokens.Reader` can remember the words of every chunk. All expressions take linear time.
"""

import re
import unicodedata
from functools import lru_cache

from elmwright.pipeline.cleaning.rules import abbreviations

_EDGES = "'’‘—–“”„«»\"()[],;:!?.…"
"""Marks that never are a part of the word beside them, but for the full stop after it."""
_APOSTROPHE_BEFORE = frozenset("s re ve ll d m t em tis twas til cause bout n".split())
"""What an apostrophe may begin as a word of its own."""
_WITHIN = frozenset(",;:?!")
"""Marks that show that the sentence continues after a full stop, or ends with another mark."""
_ENDINGS = frozenset("s re ve ll d m".split())
"""What may follow an apostrophe as a word of its own."""
_RICH = frozenset("/@:;=<>^&+$_`")
"""Characters of URLs, addresses, smileys and so on. Chunks without them need fewer rules."""
_NUMBER = re.compile(r"\$?\d+(?:[.,]\d+)*\Z")
_JOINED = re.compile(r"[A-Z]\.[A-Z][a-z]{2,}\Z")
_DIVIDED = (
    "can not|gon na|got ta|wan na|gim me|lem me|do nt|does nt|did nt|is nt|are nt|was nt|were nt|"
    "has nt|have nt|had nt|could nt|would nt|should nt|ai nt|i ve|you re|you ve|they re|they ve|"
    "that s|what s|there s|here s|it ll|you ll|they ll"
).split("|")
"""English words that are two."""
_NO_CONTRACTIONS = frozenset({"nl"})
"""Languages in which an apostrophe and `s` are a plural: `foto's`."""


class Ptb:
    """Splits chunks of one language."""

    def __init__(self, language: str) -> None:
        known = abbreviations.of(language)
        self._abbreviations, self._capital = known.all, known.capital
        self._has_ordinals = language in abbreviations.ORDINALS
        self._is_contracted = language not in _NO_CONTRACTIONS
        self._plain, self._rich = _patterns()
        divided = {"im": "i m", "Im": "I m"}
        for two in _DIVIDED:
            for form in (two, two.capitalize(), two.upper()):
                divided[form.replace(" ", "")] = form
        self.divided = divided if language == "en" else {}

    def chunk(self, chunk: str, last: bool) -> str:
        """The words of a chunk without white space, which may be the last of its sentence.

        A chunk of letters is what `divided` says, or a word."""
        if chunk.isalpha():
            return self.divided.get(chunk, chunk)
        core = chunk.strip(_EDGES)
        word = core
        if core.isalpha():
            word = self.divided.get(core, core)
            if len(core) == 1 and core in "DOPpo" and chunk[0] in ":;=":
                return self._parts(chunk, last)
        elif _NUMBER.match(core):
            word = core.replace("$", "$ ")
        else:
            letters = core.replace("-", "").replace("'", "").replace("’", "")
            if not letters.isalpha() or len(core) - len(letters) > 1 or core[0] == "-":
                head, dash, tail = core.partition("—")
                if not (dash and head.isalpha() and tail.isalpha()):
                    return self._parts(chunk, last)
                word = f"{self.divided.get(head, head)} — {self.divided.get(tail, tail)}"
            elif core[-1] == "-":
                return self._parts(chunk, last)
            else:
                word = " ".join(self._contracted(core))
        if core is chunk:
            return word
        # Most of the rest are plain words among marks, which need no search.
        place = chunk.index(core)
        before, after = chunk[:place], chunk[place + len(core) :]
        if before and (
            "." in before
            or (before[-1] in "'’" and (core[0].isdigit() or core.lower() in _APOSTROPHE_BEFORE))
        ):
            return self._parts(chunk, last)
        has_stop = after == "." if len(after) < 2 else after[0] == "." != after[1]
        if has_stop and (self._is_short(core) or self._is_ordinal(core)):
            return self._parts(chunk, last)
        words = f"{_marks(before)} {word}" if before else word
        return f"{words} {_marks(after)}" if after else words

    def _parts(self, chunk: str, last: bool) -> str:
        """The words of any chunk."""
        words: list[str] = []
        is_rich = not _RICH.isdisjoint(chunk) or not (chunk.isascii() or max(chunk) < "\u2190")
        pieces = (self._rich if is_rich else self._plain).findall(chunk)
        for number, piece in enumerate(pieces):
            if piece[0] == "." and number:
                following = piece[1:] or "".join(pieces[number + 1 : number + 2])
                is_inside = not last or following[:1] in _WITHIN or piece == ".."
                rest = piece
                if (piece != "..." and following[:1] != ".") or piece == "..":
                    if is_inside and self._is_short(words[-1]):
                        words[-1] += "."
                        rest = piece[1:]
                    elif not last and chunk == words[-1] + "." and self._is_ordinal(words[-1]):
                        return chunk
                if rest:
                    words.append(rest)
            elif piece.isalpha():
                words.append(self.divided.get(piece, piece))
            else:
                self._add(words, piece)
        return " ".join(words)

    def _is_ordinal(self, word: str) -> bool:
        """Whether it is a number that a full stop makes an ordinal."""
        return self._has_ordinals and word.isdecimal() and len(word) < 3

    def _is_short(self, word: str) -> bool:
        """Whether it is an abbreviation, an initial, or letters with stops between them."""
        if word.lower() in self._abbreviations or word in self._capital:
            return True
        if len(word) == 1:
            return word.isalpha()
        if "." not in word:
            return False
        parts = word.split(".")
        is_lettered = all(part.isalpha() and len(part) < 4 for part in parts)
        return is_lettered and min(map(len, parts)) == 1

    def _add(self, words: list[str], piece: str) -> None:
        """Add a piece that is more than letters."""
        if "." in piece:
            head, _, rest = piece.partition(".")
            is_title = (
                len(head) > 1
                and head[0].isupper()
                and self._is_short(head)
                and not self._is_short(piece)
            )
            if (is_title and rest[:1].isalnum() and not rest[:1].islower()) or _JOINED.match(piece):
                words.append(f"{head}.")
                piece = rest
        words.extend(self._contracted(piece))

    def _contracted(self, word: str) -> list[str]:
        """A word and what an apostrophe joined to it: `I 'd 've`. Numbers keep theirs: `1960's`."""
        ends: list[str] = []
        place = max(word.rfind("'"), word.rfind("’"))
        while place > 0 and self._is_contracted:
            end = word[place + 1 :].lower()
            if end == "t" and word[place - 1] in "nN":
                place -= 1
            elif end not in _ENDINGS:
                break
            if not word[:place] or word[place - 1].isdigit():
                break
            ends.append(word[place:])
            word = word[:place]
            place = max(word.rfind("'"), word.rfind("’"))
        return [word, *reversed(ends)]


@lru_cache(maxsize=1 << 12)
def _marks(marks: str) -> str:
    """The words of a chunk of marks."""
    return " ".join(_patterns()[1].findall(marks))


_UNITS = "am|pm|AM|PM|[kKmM]|bn|mm|MM|cm|km|kg|mg|lbs?|ft|k?Hz|[MG]Hz|mph"
_SMILEY = (
    r">?[:;]['’]?[-^o]?[()\[\]|/\\*]+(?!\w)|(?<!\S)=-?[()]+(?!\w)|(?<!\w)[:;=]-?[DPpO](?!\w)"
    r"|\([-^o]?[:;=](?!\S)|(?<!\w)D:(?!\w)|\^[_.o]?\^|-_+-|<3(?!\w)"
)
_SITES = "com|org|net|edu|gov|info|io|de|uk|fr|es|it|pt|nl|no|ru|eu"


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Expressions whose matches together are the whole chunk: for chunks without any character of
    `_RICH` and without emoji, and for all."""
    # Python's \w lacks combining marks, without which Devanagari or Thai words would fall apart.
    marks = "".join(
        chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c)).startswith("M")
    )
    letter = rf"[\w\u200c\u200d{marks}]"
    emoji = r"[\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\U0001f000-\U0001faff]"
    after = "[\ufe0f\U0001f3fb-\U0001f3ff]*"
    ends = r"[^\s.,;:!?'\"’”»)\]}>]"
    rich = (
        rf"(?:https?|ftp)://\S*{ends}|www\.\S*{ends}"
        rf"|(?<![\w.-])\w[\w-]{{0,40}}(?:\.[\w-]{{1,40}}){{0,4}}\.(?:{_SITES})/\S*{ends}"
        r"|(?:mailto:)?\w[\w.+%-]{0,63}@[\w-]+(?:\.[\w-]+)*|(?<!\w)@[^\W\d]\w*(?:\.\w+)*"
        # Emoji: a flag, a key, or pictures joined to one.
        r"|[\U0001f1e6-\U0001f1ff]{2}|[#*0-9]\ufe0f?\u20e3"
        rf"|{emoji}{after}(?:\u200d{emoji}{after})*"
        rf"|{_SMILEY}"
        r"|\d{1,4}(?:/\d{1,4}){1,2}(?:-\d+)*(?![\w/])|(?<=\$)\d+(?=[bBt](?!\w))"
        r"|(?<![\w+])\+\d+(?:[-.,]\d+)*(?!\w)"
        r"|(?<!\w)(?:[A-Z]{1,4}&[A-Z]{1,4}|[a-z]&[a-z]|[A-Za-z]/[A-Za-z])(?![\w/])"
        r"|<?[-=]{1,60}>|<[-=]{1,60}|[<>!:]=|`s(?!\w)|"
    )
    runs = "|".join(rf"\{mark}{{2,}}" for mark in "-=*+~#<>^|&%$@;:/\\'’‘`–—")
    plain = (
        r"\d+(?:[.,]\d+)*[eE][+-]?\d+(?!\w)|(?<![\w.])\.\d+(?!\w)"
        rf"|\d+(?:[.,:]\d+)+|\d+(?=(?:{_UNITS})(?!\w))"
        r"|(?<!\w)['’](?:\d\ds?|s|re|ve|ll|d|m|t|em|til|cause|bout|n)(?![\w'’])"
        r"|['’]t(?=(?:is|was)(?!\w))"
        rf"|{letter}+(?:[-.'’‐‑]{letter}+)*"
        r"|^\.[A-Za-z]\w*|\.{3,}|[.…!?]{2,}|[‘’]{2}"
        rf"|{runs}|\S[{marks}]*"
    )
    return re.compile(plain), re.compile(rich + plain)
