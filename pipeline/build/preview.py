"""Estimates how much text there is, how long documents are and in which language, from a sample.

Sizes come from the file system. Everything else is estimated from a sample of at most `DOCUMENTS`
documents and about `CHARACTERS` characters, taken from pieces all over the input (`sample.py`).
This takes a second at most, whatever the size of the corpus.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elmwright.pipeline.build.sample import take_documents
from elmwright.pipeline.cleaning import language
from elmwright.pipeline.cleaning.cleaner import Cleaner
from elmwright.pipeline.cleaning.words import coverage
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.reading.decode import compression
from elmwright.pipeline.reading.sources import EXPANSION, SourceFile

DOCUMENTS = 400
CHARACTERS = 1_500_000
"""The last document of a sample is read to its end, so there may be more."""
CLEANED = 400_000
"""Characters of a sample that are cleaned, to count words and sentences."""
SENTENCES = 3_000
"""Sentences that are kept, to measure the speed of training on them."""
MARKUP = 6
"""About how many bytes of a web page or archive contain one byte of text."""


@dataclass(frozen=True)
class Preview:
    """Facts about a sample, and estimates for all of the text."""

    documents: int
    """Documents in the sample."""
    broken: dict[str, int]
    """Records that could not be read, by problem."""
    detail: str
    """The file and the error of the first of them."""
    whole: bool
    """Whether the sample is all of the text."""
    kept: float
    """Share of the cleaned part's words that the rules keep."""
    languages: dict[str, float]
    """Code → share of the characters, the largest first."""
    longest: int
    """Characters of the longest document."""
    steps: int
    """About how many words and sentences all sources have after the rules."""
    text_bytes: int
    """About how many bytes of text all sources have."""
    alphabet: int
    """Distinct characters that sentencepiece would need to spell the sample."""
    sentences: tuple[str, ...]
    """Some sentences, their words separated by spaces."""


def text_bytes(file: SourceFile) -> int:
    """About how many bytes of text a file has."""
    size = file.bytes * (EXPANSION if compression(file.path) else 1)
    return size // MARKUP if file.format in ("html", "warc", "arc") else size


def preview_text(files: Sequence[SourceFile], config: CorpusConfig, seed: int = 1) -> Preview:
    """Facts and estimates about the train files, from a sample of them."""
    texts: list[str] = []
    broken: Counter[str] = Counter()
    detail, size, whole = "", 0, True
    config = replace(config, strict=False)
    for file, record in take_documents(files, config, DOCUMENTS + 1, seed):
        if size > CHARACTERS or len(texts) >= DOCUMENTS:
            whole = False
            break
        if record.text is None:
            broken[record.problem] += 1
            detail = detail or f"{file.path}: {record.detail}"
        else:
            texts.append(record.text)
            size += len(record.text)
    kept, steps, sentences = _clean(texts, config)
    total = sum(map(text_bytes, files))
    return Preview(
        documents=len(texts) + sum(broken.values()),
        broken=dict(broken),
        detail=detail,
        whole=whole,
        kept=kept,
        languages=_languages(texts),
        longest=max(map(len, texts), default=0),
        steps=round(steps * total),
        text_bytes=total,
        alphabet=_alphabet(texts, coverage(config.language)),
        sentences=sentences,
    )


def _languages(texts: Sequence[str]) -> dict[str, float]:
    """Code → share of the characters. Text of an unknown language is left out."""
    sizes: defaultdict[str, float] = defaultdict(float)
    for text in texts:
        for code, share in language.detect(text)[1].items():
            if code != language.UNKNOWN:
                sizes[code.partition("-")[0]] += share * len(text)
    total = sum(sizes.values())
    ordered = sorted(sizes, key=sizes.__getitem__, reverse=True)
    return {code: sizes[code] / total for code in ordered} if total else {}


def _alphabet(texts: Sequence[str], share: float) -> int:
    """How many of the most frequent characters make up this share of the text."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update("".join(unicodedata.normalize("NFKC", text).split()))
    needed, seen = share * sum(counts.values()), 0
    for number, (_, count) in enumerate(counts.most_common()):
        if seen >= needed:
            return number
        seen += count
    return len(counts)


def _clean(texts: Sequence[str], config: CorpusConfig) -> tuple[float, float, tuple[str, ...]]:
    """The share of words kept, the steps (words and sentences) per byte read, some sentences."""
    if config.tokenizer == "sentencepiece":  # there is no model yet
        config = replace(config, tokenizer="ptb")
    chosen, size = [], 0
    for text in texts:
        if size >= CLEANED:
            break
        chosen.append(text[: max(1000, CLEANED - size)])
        size += len(chosen[-1])
    read_bytes = sum(len(text.encode("utf-8", "replace")) for text in chosen)
    if not read_bytes:
        return 0.0, 0.0, ()
    cleaned = Cleaner(config).clean(chosen)
    kept = [text for text in cleaned.texts if text]
    sentences = [sentence for text in kept for sentence in text.split("\n")]
    words = sum(sentence.count(" ") + 1 for sentence in sentences)
    share = words / max(1, sum(cleaned.words_read))
    return share, (words + len(sentences)) / read_bytes, tuple(sentences[:SENTENCES])
