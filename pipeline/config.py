"""Settings of the training data: the `[corpus]`, `[vocab]` and `[shards]` sections of a run config.

The string under each field is its documentation; `elmwright config --explain` prints it. The
published rule sets (`gopher_quality` and so on) are applied only if `corpus.rules` names them.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from elmwright.pipeline.bounds import Bound, Count, Natural, Share

MAX_BLOCK_STEPS = 1 << 22
"""The largest block_steps. Such a block takes 84 MB of memory: five rows of 4-byte numbers."""
BlockSteps = Annotated[
    int, Bound(f"from 1 to {MAX_BLOCK_STEPS:,}", lambda value: 1 <= value <= MAX_BLOCK_STEPS)
]
EMBEDDED = "embedded:docstrings"
"""The source that needs no download: docstrings of the Python code on this machine."""

RuleSet = Literal["gopher-repetition", "gopher-quality", "c4", "fineweb"]
"""The published rule sets, in the order in which they are applied."""


@dataclass(frozen=True)
class Source:
    """One entry of `corpus.sources`: a path, or a table with settings of this source."""

    path: str = ""
    """A file, folder or glob, on a disk or below s3:// or gs://, or "embedded:docstrings"."""
    name: str = ""
    """Its name in the report; by default its path."""
    weight: float = 1.0
    """How often a document is used: 0.1 keeps every tenth (by its hash), 2.5 uses each twice and
    every second one a third time. Held-out documents are never repeated."""
    format: Literal["auto", "text", "jsonl", "parquet", "warc", "html"] = "auto"
    """Format of the files; "auto" decides by their endings and reads unknown ones as text."""
    documents: Literal["", "blank-line", "line", "file"] = ""
    """Replaces corpus.documents for this source."""
    text_field: str = ""
    """Replaces corpus.text_field for this source."""
    encoding: str = ""
    """Replaces corpus.encoding for this source."""
    licence: str = ""
    """Licence of the text, for the report and the model card."""

    @classmethod
    def from_text(cls, path: str) -> "Source":
        """A source with only a path."""
        return cls(path=path)


@dataclass(frozen=True)
class Pieces:
    """How a sentencepiece model is trained; the same text gives the same model everywhere."""

    size: Count = 8000
    """Number of pieces."""
    model: Literal["unigram", "bpe"] = "unigram"
    """Kind of model."""
    byte_fallback: bool = False
    """Encode characters that the model does not know as bytes, so that nothing is unknown."""
    normalisation: Literal["nfkc", "none"] = "nfkc"
    """sentencepiece's own normalisation, in addition to corpus.normalise: NFKC, which makes `ﬁ` of
    two letters `fi`, `²` of a raised two `2`, and full-width letters ordinary, or none, which keeps
    every character. It is stored in the model, so text is always read as in training."""
    sample: Count = 200_000
    """Largest number of sentences to train on, chosen by their hash."""


@dataclass(frozen=True)
class GopherQuality:
    """The published Gopher quality rules."""

    min_words: Natural = 50
    """Documents with fewer words are dropped; punctuation does not count."""
    max_words: int = 100_000
    """Documents with more words are dropped; punctuation does not count."""
    min_word_length: float = 3.0
    """Smallest mean length of the words in characters; punctuation does not count."""
    max_word_length: float = 10.0
    """Largest mean length."""
    max_symbol_share: float = 0.1
    """Largest number of `#`, and of ellipses, per word (including punctuation)."""
    max_bullet_lines: float = 0.9
    """Largest share of lines that begin with a bullet."""
    max_ellipsis_lines: float = 0.3
    """Largest share of lines that end in an ellipsis."""
    min_letter_words: float = 0.8
    """Smallest share of words (including punctuation) that contain a letter."""
    min_stop_words: Natural = 2
    """How many of the/be/to/of/and/that/have/with must occur; 0 for languages other than
    English."""


@dataclass(frozen=True)
class GopherRepetition:
    """The published Gopher repetition rules."""

    max_duplicate_lines: float = 0.3
    """Largest share of lines that repeat another."""
    max_duplicate_paragraphs: float = 0.3
    """Largest share of paragraphs that repeat another."""
    max_duplicate_line_characters: float = 0.2
    """Largest share of characters in repeated lines."""
    max_duplicate_paragraph_characters: float = 0.2
    """Largest share of characters in repeated paragraphs."""
    max_top_ngrams: tuple[float, ...] = (0.20, 0.18, 0.16)
    """Largest share of characters in the most frequent 2-, 3- and 4-gram."""
    max_duplicate_ngrams: tuple[float, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)
    """Largest share of characters in repeated 5- to 10-grams."""


@dataclass(frozen=True)
class C4:
    """The published C4 rules: lines are dropped first, then documents."""

    terminal_punctuation: bool = True
    """Drop lines that do not end in . ? ! " or ', or that end in an ellipsis."""
    min_line_words: Natural = 3
    """Drop lines of fewer words (split at white space)."""
    max_word_length: int = 1000
    """Drop lines with a longer word."""
    javascript: bool = True
    """Drop lines that mention javascript."""
    policy: bool = True
    """Drop lines with phrases of cookie banners and terms of use."""
    citations: bool = True
    """Strip `[1]`, `[edit]` and `[citation needed]`."""
    lorem_ipsum: bool = True
    """Drop documents with "lorem ipsum"."""
    curly_bracket: bool = True
    """Drop documents with a curly bracket."""
    min_sentences: Natural = 5
    """Drop documents with fewer remaining sentences."""


@dataclass(frozen=True)
class FineWeb:
    """The published FineWeb rules."""

    min_terminal_lines: float = 0.12
    """Smallest share of lines that end in terminal punctuation."""
    max_short_lines: float = 0.67
    """Largest share of lines of at most `short_line` characters."""
    short_line: int = 30
    """Length of a short line in characters."""
    max_duplicate_characters: float = 0.01
    """Largest share of characters in repeated lines."""
    max_newlines: float = 0.3
    """Largest number of line breaks per word."""


@dataclass(frozen=True)
class MinHash:
    """Near-duplicates: documents that share a band of a MinHash signature are linked."""

    bands: Annotated[int, Bound("from 1 to 255", lambda value: 1 <= value <= 255)] = 14
    """Number of bands in a signature."""
    rows: Count = 8
    """Hashes in a band. 14 bands of 8 link documents of Jaccard similarity 0.5 with a probability
    of 5 %, of 0.75 with 77 %, of 0.9 with 99.96 %."""
    ngram: Count = 5
    """Words in a shingle; capitals and punctuation do not matter."""


@dataclass(frozen=True)
class CorpusConfig:
    """Where the text comes from and how it is cleaned, split and tokenised."""

    sources: tuple[Source, ...] = ()
    """What to read: paths (files, folders, globs; text, .jsonl, .parquet, .warc, .arc, .html, each
    also .gz, .bz2, .xz or .zst; on a disk, s3:// or gs://), "embedded:docstrings" for the
    documentation already on this machine, or tables such as
    {path = "news/*.jsonl.gz", weight = 0.5, licence = "CC BY 4.0"}."""
    dir: str = ""
    """Where to build the corpus, if not in run.dir: a folder that every worker can use, or s3://…"""
    heldout: dict[str, tuple[str, ...] | float] = field(default_factory=lambda: {"heldout": 0.01})
    """Held-out sets by name: a share of the documents, split off by content hash
    ({valid = 0.01, test = 0.01}), or separate files ({valid = ["valid.txt"]}), which are never
    filtered. Text of train that is also in these files is removed (see heldout_overlap)."""
    heldout_overlap: Literal["drop", "keep"] = "drop"
    """What to do with text of train that is also in a held-out set given as files: drop it from
    train, or keep it, as some benchmarks require."""
    decontaminate: tuple[str, ...] = ()
    """Evaluation files: documents that share an n-gram with them are removed and listed in
    decontaminated.jsonl. The same is done for held-out sets given as files, unless heldout_overlap
    is "keep"."""
    decontaminate_ngram: Natural = 13
    """Words in an n-gram of decontaminate; capitals and punctuation do not matter."""
    documents: Literal["blank-line", "line", "file"] = "blank-line"
    """What separates documents in plain text: an empty line, a line break, or the file's end."""
    text_field: str = "text"
    """The field of a JSON Lines record, or the column of a Parquet file, that holds the text."""
    encoding: str = "auto"
    """Encoding of the sources: "auto" detects it for each file that is not UTF-8."""
    strict: bool = False
    """Stop at the first broken file or record, instead of counting it, noting it in
    quarantine.jsonl and continuing."""
    max_document_mb: Count = 32
    """The largest document in megabytes; larger ones count as broken, to limit memory."""
    cut_documents: Annotated[
        int, Bound("0, or at least 500 characters", lambda value: value == 0 or value >= 500)
    ] = 0
    """Longer documents are cut into pieces of at most this many characters before any other rule,
    if possible at the ends of paragraphs; 0 cuts none. Useful for novels, which would otherwise be
    held out as a whole: 10000 characters are a few pages."""
    normalise: bool = True
    """Normalise text: Unicode NFC, no invisible characters, all blanks as spaces. If false, only
    control characters and white space are cleaned up, as for a benchmark whose words must not
    change."""
    quotes: Literal["keep", "straight"] = "keep"
    """Keep typographic quotes and dashes, or write them as ' " and -."""
    mojibake: bool = True
    """Repair text that was decoded with the wrong encoding (“doesnâ€™t” becomes “doesn’t”)."""
    boilerplate: bool = False
    """Drop lines that are navigation, cookie notices, share buttons or copyright lines."""
    languages: tuple[str, ...] = ()
    """Keep only documents in these languages (codes such as "en"); empty keeps all, without
    detection."""
    language_threshold: Annotated[
        float, Bound("above 0 and at most 1", lambda value: 0 < value <= 1)
    ] = 0.65
    """Smallest share of a document in one of `languages`."""
    language_unit: Literal["document", "sentence"] = "document"
    """Drop only documents in other languages, or also sentences of at least 5 words in the
    documents that are left."""
    rules: tuple[RuleSet, ...] = ()
    """Published rule sets to apply: "gopher-repetition", "gopher-quality", "c4", "fineweb", in
    this order. Each has its own table of settings, such as [corpus.gopher_quality]."""
    gopher_repetition: GopherRepetition = field(default_factory=GopherRepetition)
    """Thresholds of "gopher-repetition"."""
    gopher_quality: GopherQuality = field(default_factory=GopherQuality)
    """Thresholds of "gopher-quality"."""
    c4: C4 = field(default_factory=C4)
    """Switches and thresholds of "c4"."""
    fineweb: FineWeb = field(default_factory=FineWeb)
    """Thresholds of "fineweb"."""
    mask: tuple[Literal["email", "ip", "phone"], ...] = ()
    """Replace e-mail addresses, IP addresses and telephone numbers with fixed harmless ones."""
    sentences: Literal["split", "line"] = "split"
    """Find sentence boundaries in the text, or treat every line as one sentence."""
    paragraphs: Literal["wrapped", "line"] = "wrapped"
    """What a line break means when sentences are found: "wrapped" treats it as a blank within
    wrapped text, which is text with hardly any line of 120 characters or more between two blank
    lines; "line" makes every line a paragraph. Set it for text with one paragraph per line, such
    as dialogue or titles, where a sentence may end without a final mark."""
    language: str = "en"
    """Language code for sentence splitting, abbreviations and ordinals."""
    tokenizer: Literal["ptb", "whitespace", "sentencepiece"] = "ptb"
    """How sentences become words: Penn Treebank style, already tokenised (split at white space),
    or subword pieces trained on this corpus."""
    sentencepiece: Pieces = field(default_factory=Pieces)
    """How the pieces are trained when tokenizer = "sentencepiece"."""
    min_words: Natural = 1
    """Documents with fewer words are dropped."""
    max_words: int = 1_000_000
    """Documents with more words are dropped."""
    min_letter_share: Share = 0.0
    """Documents with a smaller share of words that contain a letter are dropped (0 keeps all)."""
    min_sentence_words: Natural = 1
    """Sentences with fewer words are dropped."""
    dedup: Literal["none", "document", "near"] = "near"
    """Drop repeated documents: none, exact copies, or near-copies too (MinHash)."""
    dedup_lines: Literal["none", "line", "sentence"] = "none"
    """After dedup, drop lines (paragraphs), or sentences, that occur earlier in any document."""
    minhash: MinHash = field(default_factory=MinHash)
    """Parameters of near-duplicate search."""
    save_documents: Literal["none", "dropped", "all"] = "none"
    """Write documents to documents/*.jsonl.zst with the rule that dropped them, to help
    tune the rules."""
    keep_work: bool = True
    """Keep intermediate tables, so that after a change of a setting or source only the
    affected steps run again. They take about three times the size of the text."""
    chunk_mb: Count = 16
    """Megabytes of input per task."""

    def __post_init__(self) -> None:
        """Turn bare paths into sources, as in a config file."""
        sources = (Source(s) if isinstance(s, str) else s for s in self.sources)
        object.__setattr__(self, "sources", tuple(sources))


ADDED_LATER = {"cut_documents": 0, "paragraphs": "wrapped"}
"""Settings of `[corpus]` that earlier versions did not have, with the value that has no effect."""
PIECES_ADDED_LATER = {"normalisation": "nfkc"}
"""The same of `[corpus.sentencepiece]`."""


def as_settings(corpus: CorpusConfig) -> dict[str, object]:
    """The settings as plain data, for digests, without those added later that have no effect.

    So the digests of a corpus that an earlier version built, and of its work files, still match.
    """
    settings = asdict(corpus)
    settings["sentencepiece"] = _without(settings["sentencepiece"], PIECES_ADDED_LATER)
    return _without(settings, ADDED_LATER)


def _without(settings: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k not in added or v != added[k]}


@dataclass(frozen=True)
class VocabConfig:
    """Which words the softmax can predict. Inputs are characters, so they need no vocabulary."""

    file: str = ""
    """A vocabulary file to use instead of making one: one word per line, first <S>, </S>, <UNK>."""
    max_size: Annotated[
        int, Bound("at least 4: <S>, </S>, <UNK> and a word", lambda value: value >= 4)
    ] = 800_000
    """Largest number of words, `<S>`, `</S>` and `<UNK>` included."""
    min_count: Count = 3
    """Words seen less often in train become `<UNK>` as targets."""


@dataclass(frozen=True)
class ShardsConfig:
    """How the training data is stored."""

    block_steps: BlockSteps = 2560
    """Prediction steps in a block: a multiple of train.window, at most 4,194,304."""
    blocks_per_shard: Count = 512
    """Approximate number of blocks in a shard."""
    shuffle: Literal["document", "sentence"] = "document"
    """What is shuffled globally: documents (sentences keep their neighbours) or sentences."""
