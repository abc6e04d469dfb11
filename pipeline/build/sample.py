"""Tries the rules on a sample, in seconds and without Ray: `elmwright corpus CONFIG --sample 1000`.

Documents come from the beginnings of `PIECES` pieces of the input, chosen by hash. If those have
too few documents, further pieces are read. So a large corpus takes no longer than a small one. Only
rules about a single document are tried: near-copies and repeated sentences need the whole corpus.

Kept sentences are shown as the words that the config gives. Pieces of sentencepiece are those of
the model that a build with these settings has trained. Before it, a model is trained on the sample,
whose pieces are fewer and shorter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from elmwright.pipeline.build.finish import PIECES as PIECES_MODEL
from elmwright.pipeline.build.up_to_date import find_inputs
from elmwright.pipeline.cleaning import words
from elmwright.pipeline.cleaning.cleaner import Cleaner, rule_names
from elmwright.pipeline.cleaning.funnel import BROKEN, KEPT, READ, Counts, Funnel
from elmwright.pipeline.config import EMBEDDED, CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.lanes import keyed_hash
from elmwright.pipeline.format.manifest import finished_corpus
from elmwright.pipeline.reading import harvest, sources
from elmwright.pipeline.reading.readers import Record, read
from elmwright.pipeline.reading.sources import Piece, SourceFile
from elmwright.pipeline.report import statistics
from elmwright.pipeline.report.statistics import Example, Gathered
from elmwright.pipeline.storage.files import at, join

PIECES = 32
"""Pieces of input that are read at a time."""


@dataclass(frozen=True)
class Sample:
    """What the rules did to a sample."""

    funnel: Counts
    """Documents, sentences and words that were read, dropped by each rule in turn, and kept."""
    examples: dict[str, tuple[Example, ...]]
    """A few documents that each rule dropped."""
    kept: tuple[Example, ...]
    """A few kept documents, tokenised, a sentence per line."""
    pieces_of: str = ""
    """Whose pieces they are, where the tokeniser is sentencepiece: "corpus" or "sample"."""


def try_rules(config: CorpusConfig, folder: str, documents: int, seed: int) -> Sample:
    """Apply the rules to `documents` documents of the sources."""
    if any(s.path == EMBEDDED for s in config.sources) and not harvest.frozen_parts(folder):
        raise UserError(
            "setting",
            f'"{EMBEDDED}" is read when the corpus is built; build it once, then take samples',
        )
    train = [file for file in find_inputs(folder, config) if file.split == "train"]
    records = list(take_documents(train, config, documents, seed))
    if config.tokenizer != "sentencepiece":
        return _clean(records, config)
    with TemporaryDirectory() as scratch:
        model, pieces_of = Path(scratch, PIECES_MODEL), "corpus"
        trained = _model_of(folder, config)
        if trained is None:
            trained, pieces_of = _train_on(records, config), "sample"
        if not trained:
            return _clean(records, config)
        model.write_bytes(trained)
        return replace(_clean(records, config, model), pieces_of=pieces_of)


def _model_of(folder: str, config: CorpusConfig) -> bytes | None:
    """The sentencepiece model of the corpus in a folder, if it was trained with these settings."""
    manifest = finished_corpus(folder)
    if manifest is None or PIECES_MODEL not in manifest.extra_files:
        return None
    if manifest.config["corpus"].get("sentencepiece") != asdict(config.sentencepiece):
        return None
    return at(join(folder, PIECES_MODEL)).read_bytes()


def _train_on(records: Sequence[tuple[SourceFile, Record]], config: CorpusConfig) -> bytes:
    """A sentencepiece model of the sample; empty if there is too little text for one."""
    texts = [record.text for _, record in records if record.text is not None]
    cleaned = Cleaner(config).clean(texts).texts  # without a model: sentences as they are
    sentences = [sentence for text in cleaned if text for sentence in text.split("\n")]
    try:
        return words.train_sentencepiece(iter(sentences), config.sentencepiece, config.language)
    except RuntimeError:
        return b""


def take_documents(
    files: Sequence[SourceFile], config: CorpusConfig, documents: int, seed: int
) -> Iterator[tuple[SourceFile, Record]]:
    """Up to `documents` documents, from pieces of the files chosen by hash."""
    pieces = [piece for chunk in sources.cut(files, config) for piece in chunk]
    ordered = sorted(enumerate(pieces), key=lambda item: keyed_hash(seed, item[0]))
    taken = 0
    for begin in range(0, len(ordered), PIECES):
        chosen = [piece for _, piece in ordered[begin : begin + PIECES]]
        for item in _take_evenly(chosen, config, documents - taken):
            taken += 1
            yield item
        if taken >= documents:
            break


def _take_evenly(
    pieces: Sequence[Piece], config: CorpusConfig, documents: int
) -> Iterator[tuple[SourceFile, Record]]:
    """Up to `documents` documents, the same number from each piece that has enough."""
    readers = [(piece.file, iter(read(piece, config))) for piece in pieces]
    share = max(1, documents // max(1, len(readers)))
    left = documents
    while readers and left > 0:
        remaining = []
        for file, records in readers:
            taken = list(islice(records, min(share, left)))
            yield from ((file, record) for record in taken)
            left -= len(taken)
            if len(taken) == share:
                remaining.append((file, records))
        readers = remaining


def _clean(
    records: Sequence[tuple[SourceFile, Record]], config: CorpusConfig, model: Path | None = None
) -> Sample:
    """The result of cleaning. Examples are the first documents that each rule dropped, because
    `gather` gets an offset or number here in place of a hash."""
    funnel = Funnel()
    for rule in (READ, BROKEN, *rule_names(config)):
        funnel.add(rule, 0, 0, 0)
    dropped: Gathered = {}
    kept: list[Example] = []
    readable: list[Example] = []
    for file, record in records:
        if record.text is None:
            funnel.add(READ, 1, 0, 0)
            funnel.add(BROKEN, 1, 0, 0)
            example = Example(file.path, record.offset, record.problem, record.detail)
            statistics.gather(dropped, BROKEN, record.offset, example)
        else:
            readable.append(Example(file.path, record.offset, record.text))
    cleaned = Cleaner(config, model=model).clean([example.text for example in readable])
    for number, example in enumerate(readable):
        sentences, words = cleaned.sentences_read[number], cleaned.words_read[number]
        funnel.add(READ, 1, sentences, words)
        for rule, (lost_sentences, lost_words) in cleaned.lost[number].items():
            funnel.add(rule, 0, lost_sentences, lost_words)
            sentences, words = sentences - lost_sentences, words - lost_words
        verdict = cleaned.verdicts[number]
        funnel.add(verdict or KEPT, 1, sentences, words)
        if verdict:
            detailed = replace(example, detail=cleaned.details[number])
            statistics.gather(dropped, verdict, number, detailed)
        elif len(kept) < 3:
            kept.append(replace(example, text=cleaned.texts[number]))
    return Sample(funnel.counts, statistics.examples_of(dropped), tuple(kept))
