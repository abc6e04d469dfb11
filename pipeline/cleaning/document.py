"""A document while it is cleaned, and how a rule removes a part of it.

Sentences, their words and their paragraphs are kept in parallel, so that a rule can remove lines or
sentences and account for every word.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, pairwise

Drop = tuple[str, str]
"""The rule that drops a document, and what it saw."""


@dataclass(eq=False)
class Document:
    text: str
    """In normal form."""
    sentences: list[str]
    """As in the text."""
    counts: list[int]
    """Number of sentences in each paragraph."""
    spans: list[tuple[int, int]]
    """Lines of each paragraph: the first, and the one after the last."""
    words: str = ""
    """The tokenised sentences, one per line, as the rules see them."""
    pieces: str | None = None
    """What is written instead of `words` with the sentencepiece tokeniser: its pieces, or plain
    sentences to train its model on."""
    verdict: str | None = None
    """The rule that dropped it; None if it is kept so far."""
    detail: str = ""
    """What that rule saw."""
    language: str = ""
    """Detected language."""
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rule → number of sentences and of words that it has removed."""
    changed: bool = False
    """Whether anything was removed since it was tokenised."""

    @property
    def output(self) -> str:
        """The sentences as they will be written."""
        return self.words if self.pieces is None else self.pieces

    def drop(self, drop: Drop | None, prefix: str = "") -> None:
        """Drop the document by a rule, unless an earlier rule has dropped it.

        `prefix` is written before the rule's name, and names its rule set: "c4." for example.
        """
        if drop and self.verdict is None:
            self.verdict, self.detail = prefix + drop[0], drop[1]

    def drop_if_empty(self) -> None:
        """Drop a document without words, by the rule that removed most of them."""
        if not self.words:
            rule = max(self.lost, key=lambda name: self.lost[name][1], default="empty")
            self.drop((rule, "nothing left" if self.lost else ""))

    def lose(self, rule: str, sentences: int, words: int) -> None:
        """Record how many sentences and words a rule removed."""
        before = self.lost.get(rule, (0, 0))
        self.lost[rule] = before[0] + sentences, before[1] + words

    def keep(self, chosen: Sequence[bool], rule: str) -> None:
        """Keep only the chosen sentences, and record the others as removed by `rule`."""
        if all(chosen):
            return
        is_lost = [not keep for keep in chosen]
        lost = list(compress(self.output.split("\n"), is_lost))
        self.lose(rule, *size("\n".join(lost)))
        ends = accumulate(self.counts, initial=0)
        counts = [sum(chosen[start:end]) for start, end in pairwise(ends)]
        self.spans = [span for span, count in zip(self.spans, counts, strict=True) if count]
        self.counts = [count for count in counts if count]
        self.sentences = list(compress(self.sentences, chosen))
        self.words = "\n".join(compress(self.words.split("\n"), chosen))
        if self.pieces is not None:
            self.pieces = "\n".join(compress(self.pieces.split("\n"), chosen))
        self.changed = True


def size(text: str) -> tuple[int, int]:
    """The number of sentences and of words in a tokenised text."""
    if not text:
        return 0, 0
    breaks = text.count("\n")
    return breaks + 1, breaks + text.count(" ") + 1


Tokenise = Callable[[list[str]], list[Document]]
"""A function that splits texts into sentences and tokenises them."""


def replace_lines(
    document: Document,
    new_lines: Sequence[str | None],
    rules: Mapping[int, str],
    tokenise: Tokenise,
) -> None:
    """Replace the lines of a document with `new_lines`, in which a dropped line is None.

    `rules` names the rule that changed or dropped a line, by the line's number. Paragraphs without
    such lines stay as they are. Others are split and tokenised again, with blank lines for dropped
    ones, so that their neighbours do not become one sentence. If several rules changed a paragraph,
    its loss is shared among them in proportion to the characters that each removed.
    """
    old_lines = document.text.split("\n")
    fragments = {}
    for number, (first, last) in enumerate(document.spans):
        if any(line in rules for line in range(first, last)):
            fragments[number] = "\n".join(line or "" for line in new_lines[first:last])
    filled = [number for number, text in fragments.items() if text.strip("\n")]
    replaced = dict(zip(filled, tokenise([fragments[number] for number in filled]), strict=True))
    columns = document.sentences, document.words.split("\n"), document.output.split("\n")
    merged: tuple[list[str], list[str], list[str]] = ([], [], [])
    counts, spans = [], []
    ends = accumulate(document.counts, initial=0)
    for number, (start, end) in enumerate(pairwise(ends)):
        part = [column[start:end] for column in columns]
        span = document.spans[number]
        if number in fragments:
            new = replaced.get(number, _NOTHING)
            before = size("\n".join(part[2]))
            after = size(new.output)
            part = [new.sentences, _lines(new.words), _lines(new.output)]
            lost = before[0] - after[0], before[1] - after[1]
            removed: Counter[str] = Counter()
            for line in range(*span):
                if line in rules:
                    removed[rules[line]] += len(old_lines[line]) - len(new_lines[line] or "")
            _share_loss(document, lost, removed)
            counts += new.counts
            spans += [span] * len(new.counts)
        else:
            counts.append(end - start)
            spans.append(span)
        for column, values in zip(merged, part, strict=True):
            column.extend(values)
    document.sentences, document.counts, document.spans = merged[0], counts, spans
    document.words = "\n".join(merged[1])
    if document.pieces is not None:
        document.pieces = "\n".join(merged[2])
    document.changed = True


_NOTHING = Document("", [], [], [])


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _share_loss(document: Document, lost: tuple[int, int], removed: Mapping[str, int]) -> None:
    """Record a paragraph's lost sentences and words, by the characters that each rule removed."""
    total = max(1, sum(removed.values()))
    *smaller, largest = sorted(removed, key=removed.__getitem__)
    for rule in smaller:
        sentences, words = (round(part * removed[rule] / total) for part in lost)
        document.lose(rule, sentences, words)
        lost = lost[0] - sentences, lost[1] - words
    document.lose(largest, *lost)
