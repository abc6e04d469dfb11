"""What a corpus is built from, looked at before anything is started.

No text is read but the first records of a few files, so it takes well under a second, plus what an
object store takes to answer. What cannot be known before the work is done (a record in the middle
of a file) is reported by the stage that meets it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.problems import Problems
from elmwright.pipeline.build.corpus_folder import check_claim, check_space
from elmwright.pipeline.build.up_to_date import evaluation_files, find_inputs, vocab_file
from elmwright.pipeline.cleaning.language import code_problem
from elmwright.pipeline.config import EMBEDDED, CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.vocab import load_vocab
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.decode import compression
from elmwright.pipeline.reading.readers import read
from elmwright.pipeline.reading.record import NO_FIELD, Record
from elmwright.pipeline.reading.sources import Piece, SourceFile

RECORDS, FILES = 50, 8
"""First records, and files, that are looked at to see whether there is text in the named field."""
COLUMNS = 64
"""Parquet files whose columns are looked at."""


def check_inputs(problems: Problems, config: RunConfig, folder: RunFolder) -> None:
    """Sources, held-out sets, evaluation files, vocabulary, languages, disk."""
    corpus = config.corpus
    for key, code in (("language", corpus.language), *(("languages", c) for c in corpus.languages)):
        if wrong := code_problem(code):
            problems.note(f"corpus.{key}: {wrong}")
    train = find_train(problems, corpus, folder.corpus)
    given = find_given(problems, corpus)
    evaluation = problems.of(evaluation_files, corpus) or []
    vocab = problems.of(vocab_file, config.vocab.file) or []
    if vocab:
        problems.of(load_vocab, config.vocab.file)
    problems.note(_sentencepiece_problem(corpus))
    before = len(problems)
    problems.of(sources.check_readable, [*train, *given, *evaluation])
    if len(problems) == before:
        if train and not any(source.path == EMBEDDED for source in corpus.sources):
            problems.note(_too_little(train, config))
            problems.note(problems.of(_field_problem, train, corpus))
            for file in [file for file in train if file.format == "parquet"][:COLUMNS]:
                problems.of(_check_columns, file, corpus)
        _check_given(problems, given, corpus)
    problems.of(check_claim, folder.corpus)
    problems.of(check_space, [*train, *given, *evaluation, *vocab], folder.corpus)


def find_train(problems: Problems, corpus: CorpusConfig, folder: str) -> list[SourceFile]:
    """The files of every source that can be found, with a problem for each that cannot."""

    def one(index: int) -> list[SourceFile]:
        alone = replace(corpus, sources=(corpus.sources[index],), heldout={})
        found = find_inputs(folder, alone)
        return [replace(file, source=index) for file in found]

    found = [problems.of(one, index) or [] for index in range(len(corpus.sources))]
    unique: dict[str, SourceFile] = {}
    for file in (file for some in found for file in some):
        unique.setdefault(file.path, replace(file, number=len(unique)))
    return list(unique.values())


def find_given(problems: Problems, corpus: CorpusConfig) -> list[SourceFile]:
    """The files of held-out sets that are given as files."""

    def one(name: str, path: str) -> list[SourceFile]:
        stats = sources.expand(path, f"corpus.heldout.{name}")
        return [sources.source_file(stat, 0, name, corpus) for stat in stats]

    named = [(n, path) for n, e in corpus.heldout.items() if not isinstance(e, float) for path in e]
    return [file for name, path in named for file in problems.of(one, name, path) or []]


def _sentencepiece_problem(corpus: CorpusConfig) -> str:
    pieces = corpus.sentencepiece
    if corpus.tokenizer != "sentencepiece" or not pieces.byte_fallback or pieces.size >= 260:
        return ""
    return (
        f"corpus.sentencepiece.size = {pieces.size} has no room for the 256 bytes of "
        "byte_fallback and 3 marks; make it larger, such as 8000"
    )


def _too_little(train: Sequence[SourceFile], config: RunConfig) -> str:
    """A token is a byte at least; what is compressed is taken to unfold to 100 times its size."""
    section = config.train
    size = sum(file.bytes for file in train)
    if not size:
        return "the sources hold no text (all files are empty); check corpus.sources"

    packed = any(compression(file.path) or file.format == "parquet" for file in train)
    if size * (100 if packed else 1) * 2 < section.lanes * section.window:
        return (
            f"the sources have {size:,} bytes, less than one batch of train.lanes × train.window = "
            f"{section.lanes * section.window:,} tokens; add text or make train.lanes smaller"
        )
    return ""


def _first_records(file: SourceFile, corpus: CorpusConfig) -> Iterator[Record]:
    plain = replace(corpus, strict=False, cut_documents=0)
    yield from islice(read(Piece(file, 0, -1), plain), RECORDS)


def _check_columns(file: SourceFile, corpus: CorpusConfig) -> None:
    """Reading a Parquet file begins with its column of text, and refuses one without it."""
    next(_first_records(file, corpus), None)


def _field_problem(train: Sequence[SourceFile], corpus: CorpusConfig) -> str:
    """Records of JSON are all there is, and none of the first of any file has the named field."""
    tables = [file for file in train if file.format == "jsonl"]
    if len(tables) < len(train):
        return ""
    seen = 0
    said: tuple[SourceFile, Record] | None = None
    for file in tables[:FILES]:
        for record in _first_records(file, corpus):
            if record.problem != NO_FIELD:
                return ""
            said = said or (file, record)
            seen += 1
    if said is None:
        return ""
    file, record = said
    return (
        f'{file.path} has no text in the field "{file.text_field}" ({record.detail}; {seen} '
        "records looked at); set corpus.text_field to the field that holds the text"
    )


def _check_given(problems: Problems, given: list[SourceFile], corpus: CorpusConfig) -> None:
    """Held-out sets that are given as files; one of several files may be empty, not all."""
    looked = {file.path: problems.of(_has_text, file, corpus) for file in given[:FILES]}
    for name in dict.fromkeys(file.split for file in given):
        mine = [file.path for file in given if file.split == name]
        if all(looked.get(path) is False for path in mine):
            which = mine[0] if len(mine) == 1 else f"each of the {len(mine)} files"
            problems.note(f"{which} of corpus.heldout.{name} holds no text; check it")


def _has_text(file: SourceFile, corpus: CorpusConfig) -> bool:
    """A held-out set is taken whole or not at all: a first record that is broken refuses it."""
    found = list(_first_records(file, corpus))
    broken = next((record for record in found if record.text is None), None)
    if broken:
        detail = f" ({broken.detail})" if broken.detail else ""
        raise UserError(
            "source",
            f"{file.path} of corpus.heldout.{file.split}: {broken.problem}{detail}; a held-out set "
            "is read whole, so mend or remove it",
        )
    return bool(found)
