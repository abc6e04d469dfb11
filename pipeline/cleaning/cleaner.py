"""A batch of documents through every rule: repaired, split, tokenised once and judged.

Documents go through text functions one by one (`repair`, `words`, `language`), then through the
word rules all at once (`gopher`), then line by line (`web_rules`). No result depends on the other
documents of the batch.

Every word that was read is accounted for: it is kept, removed with a part of a document, or dropped
with a document.
"""

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from elmwright.pipeline.cleaning import gopher, language, repair, web_rules, words
from elmwright.pipeline.cleaning.countable import LETTER
from elmwright.pipeline.cleaning.document import Document, replace_lines, size
from elmwright.pipeline.cleaning.tokens import Reader, Tokens
from elmwright.pipeline.config import CorpusConfig

SENTENCE_RULE = "min_sentence_words"


@dataclass(frozen=True, eq=False)
class Cleaned:
    """A cleaned batch. Lists have an item for each document, in the order of the input."""

    verdicts: list[str | None]
    """The rule that dropped the document; None if it is kept."""
    details: list[str]
    """What that rule saw."""
    texts: list[str]
    """Tokenised sentences, one per line; "" if dropped."""
    words: list[str]
    """The same in words, even if `texts` are sentencepiece pieces: the keys of documents must not
    depend on the sentencepiece model."""
    lines: list[list[int]]
    """Sentences of each line (paragraph) of a kept document."""
    sentences_read: list[int]
    """Sentences before any rule."""
    words_read: list[int]
    """Words before any rule."""
    lost: list[dict[str, tuple[int, int]]]
    """Sentences and words that rules removed from a document."""
    languages: list[str]
    """Detected language; "" if not detected."""
    repaired: Counter[str]
    """How many documents were repaired or masked, by kind."""
    tokens: Tokens
    """The words of kept documents, in order; never sentencepiece pieces."""


def rule_names(config: CorpusConfig) -> tuple[str, ...]:
    """Every rule that can act, in the order in which they act."""
    names = [repair.EMPTY]
    names += ["boilerplate"] * config.boilerplate
    names += ["languages"] * bool(config.languages)
    if "gopher-repetition" in config.rules:
        names += [f"gopher_repetition.{name}" for name in gopher.REPETITION]
    if "gopher-quality" in config.rules:
        names += [f"gopher_quality.{name}" for name in gopher.QUALITY]
    if "c4" in config.rules:
        names += [f"c4.{name}" for name in (*web_rules.C4_LINES, *web_rules.C4_DOCUMENTS)]
    if "fineweb" in config.rules:
        names += [f"fineweb.{name}" for name in web_rules.FINEWEB]
    names += [SENTENCE_RULE] * (config.min_sentence_words > 1)
    names += ["min_words"] * (config.min_words > 1)
    return (*names, "max_words", *["min_letter_share"] * (config.min_letter_share > 0))


class Cleaner:
    """Applies the rules of one config. It gets faster with every batch."""

    def __init__(
        self, config: CorpusConfig, *, model: Path | None = None, filters: bool = True
    ) -> None:
        """Without `filters`, documents are only repaired, split and tokenised (held-out files).
        `model` is a sentencepiece model. Without one, a config with the sentencepiece tokeniser
        gives sentences unchanged, as text to train the model on."""
        language.check(config.languages)
        self._config = config
        self._filters = filters
        kind = "whitespace" if config.tokenizer == "whitespace" else "ptb"
        self._reader = _reader(kind, config.language)
        self._encode: Callable[[str], str] | None = None
        if config.tokenizer == "sentencepiece":
            self._encode = words.sentencepiece(model) if model else words.whitespace

    def clean(self, texts: Sequence[str]) -> Cleaned:
        """A batch after all rules."""
        # There are no reference cycles here, and searching for them takes a tenth of the time.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            return self._clean(texts)
        finally:
            if is_collecting:
                gc.enable()

    def _clean(self, texts: Sequence[str]) -> Cleaned:
        self._reader.refresh()
        repaired: Counter[str] = Counter()
        documents, cut = [], []
        for text in texts:
            normal, changes = repair.repaired(text, self._config)
            repaired.update(changes)
            lines: list[str] = []
            if self._filters and self._config.boilerplate:
                normal, lines = repair.without_boilerplate(normal)
            documents.append(self._split(normal))
            if lines:
                cut.append((documents[-1], lines))
        tokens = self._tokenise(documents)
        for document, lines in cut:
            [removed] = self._read_anew(["\n\n".join(lines)])
            document.lose("boilerplate", *size(removed.output))
        read = [_read(document) for document in documents]
        for document in documents:
            document.drop_if_empty()
        if self._filters:
            self._judge(documents, tokens)
        kept = [n for n, document in enumerate(documents) if document.verdict is None]
        tokens = self._kept_tokens(documents, tokens, kept)
        if self._filters:
            tokens = self._judge_size([documents[n] for n in kept], tokens)
        return Cleaned(
            verdicts=[document.verdict for document in documents],
            details=[document.detail for document in documents],
            texts=["" if document.verdict else document.output for document in documents],
            words=["" if document.verdict else document.words for document in documents],
            lines=[[] if document.verdict else document.counts for document in documents],
            sentences_read=[sentences for sentences, _ in read],
            words_read=[n_words for _, n_words in read],
            lost=[document.lost for document in documents],
            languages=[document.language for document in documents],
            repaired=repaired,
            tokens=tokens,
        )

    def _split(self, text: str) -> Document:
        config = self._config
        parts = words.split(text, config.sentences, config.language, config.paragraphs)
        return Document(text, parts.sentences, parts.counts, parts.spans)

    def _tokenise(self, documents: Sequence[Document]) -> Tokens:
        has_counts = self._filters and "gopher-quality" in self._config.rules
        sentences = [document.sentences for document in documents]
        texts, tokens = self._reader.read(sentences, counts=has_counts)
        for document, text in zip(documents, texts, strict=True):
            document.words = text
            self._add_pieces(document)
        return tokens

    def _add_pieces(self, document: Document) -> None:
        if self._encode:
            document.pieces = "\n".join(map(self._encode, document.sentences))

    def _read_anew(self, texts: list[str]) -> list[Document]:
        documents = [self._split(text) for text in texts]
        for document in documents:
            document.words = self._reader.text(document.sentences)
            self._add_pieces(document)
        return documents

    def _judge(self, documents: list[Document], tokens: Tokens) -> None:
        config = self._config
        if config.languages:
            for document in documents:
                if document.verdict is None:
                    self._judge_language(document)
        texts = [document.text for document in documents]
        if "gopher-repetition" in config.rules:
            drops = gopher.repetition(texts, tokens, config.gopher_repetition)
            for document, drop in zip(documents, drops, strict=True):
                document.drop(drop, "gopher_repetition.")
        if "gopher-quality" in config.rules:
            drops = gopher.quality(texts, tokens, config.gopher_quality)
            for document, drop in zip(documents, drops, strict=True):
                document.drop(drop, "gopher_quality.")
        for document in documents:
            if document.verdict is None:
                self._judge_lines(document)
                self._judge_sentences(document)

    def _judge_language(self, document: Document) -> None:
        languages, threshold = self._config.languages, self._config.language_threshold
        document.language, reason = language.judge(document.text, languages, threshold)
        if reason:
            document.drop(("languages", reason))

    def _judge_lines(self, document: Document) -> None:
        config, lines = self._config, document.text.split("\n")
        newlines = len(lines) - 1
        if "c4" in config.rules:
            result = web_rules.c4_lines(lines, config.c4)
            document.drop(result.drop, "c4.")
            if document.verdict:
                return
            if result.touched:
                named = {line: f"c4.{rule}" for line, rule in result.touched.items()}
                replace_lines(document, result.lines, named, self._read_anew)
            lines = [line for line in result.lines if line]
            newlines = len(lines) - 1
            # Every line counts as a sentence, even if several were treated as wrapped text.
            n_sentences = max(sum(document.counts), len(lines))
            if n_sentences < config.c4.min_sentences:
                document.drop(("min_sentences", f"{n_sentences} sentences left"), "c4.")
        if "fineweb" in config.rules:
            filled = [line for line in lines if line]
            n_words = size(document.words)[1]
            document.drop(web_rules.fineweb(filled, newlines, n_words, config.fineweb), "fineweb.")

    def _judge_sentences(self, document: Document) -> None:
        config = self._config
        if config.languages and config.language_unit == "sentence" and not document.verdict:
            lines = document.words.split("\n")
            foreign = [language.is_foreign(line, config.languages) for line in lines]
            document.keep([not is_foreign for is_foreign in foreign], "languages")
        if config.min_sentence_words > 1 and document.words and not document.verdict:
            lines = document.words.split("\n")
            least = config.min_sentence_words
            document.keep([line.count(" ") + 1 >= least for line in lines], SENTENCE_RULE)
        document.drop_if_empty()

    def _kept_tokens(
        self, documents: Sequence[Document], tokens: Tokens, kept: Sequence[int]
    ) -> Tokens:
        """The words of the kept documents, after rules have removed parts of them."""
        if not any(documents[n].changed for n in kept):
            return tokens.take(kept)
        number = tokens.lexicon.number
        rows = [
            np.fromiter(map(number, documents[n].words.split()), np.int32)
            if documents[n].changed
            else tokens.ids[tokens.offsets[n] : tokens.offsets[n + 1]]
            for n in kept
        ]
        offsets = np.cumsum([0, *(row.size for row in rows)])
        return Tokens(np.concatenate(rows), offsets, tokens.lexicon)

    def _judge_size(self, documents: Sequence[Document], tokens: Tokens) -> Tokens:
        """The words of the documents that pass the last rules."""
        config = self._config
        letters = tokens.total((tokens.lexicon.facts.flags[tokens.ids] & LETTER) != 0)
        sizes = tokens.sizes
        for document, count, lettered in zip(
            documents, sizes.tolist(), letters.tolist(), strict=True
        ):
            if count < config.min_words:
                document.drop(("min_words", f"{count} words"))
            elif count > config.max_words:
                document.drop(("max_words", f"{count} words"))
            elif lettered / count < config.min_letter_share:
                document.drop(("min_letter_share", f"{lettered} of {count} words hold a letter"))
        return tokens.take([n for n, document in enumerate(documents) if not document.verdict])


@lru_cache(maxsize=4)
def _reader(tokenizer: str, language: str) -> Reader:
    """The reader of all cleaners in a process, so that every task but the first starts warm."""
    return Reader(words.chunk_rules(tokenizer, language), words.divided(tokenizer, language))


def _read(document: Document) -> tuple[int, int]:
    """Sentences and words before any rule."""
    rows = [size(document.output), *document.lost.values()]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)
