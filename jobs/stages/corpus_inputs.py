"""Checks the inputs of a corpus before anything is started.

Only the first records of a few files are read, so it takes well under a second, plus the time of an
object store to answer. Broken records later in a file are reported when the corpus is built.
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
"""Records per file, and files, that are searched for text."""
COLUMNS = 64
"""Parquet files whose columns are checked."""


def check_inputs(problems: Problems, config: RunConfig, folder: RunFolder) -> None:
    """Sources, held-out sets, evaluation files, vocabulary, languages, disk."""
    corpus = config.corpus
    for key, code in (("language", corpus.language), *(("languages", c) for c in corpus.languages)):
        if wrong := code_problem(code):
            problems.note(f"corpus.{key}: {wrong}")
    train = find_train(problems, corpus, folder.corpus)
    heldout = find_heldout(problems, corpus)
    evaluation = problems.catch(evaluation_files, corpus) or []
    vocab = problems.catch(vocab_file, config.vocab.file) or []
    if vocab:
        problems.catch(load_vocab, config.vocab.file)
    problems.note(_sentencepiece_problem(corpus))
    before = len(problems)
    problems.catch(sources.check_readable, [*train, *heldout, *evaluation])
    if len(problems) == before:
        if train and not any(source.path == EMBEDDED for source in corpus.sources):
            problems.note(_too_little(train, config))
            problems.note(problems.catch(_field_problem, train, corpus))
            for file in [file for file in train if file.format == "parquet"][:COLUMNS]:
                problems.catch(_check_columns, file, corpus)
        _check_heldout(problems, heldout, corpus)
    problems.catch(check_claim, folder.corpus)
    problems.catch(check_space, [*train, *heldout, *evaluation, *vocab], folder.corpus)


def find_train(problems: Problems, corpus: CorpusConfig, folder: str) -> list[SourceFile]:
    """The files of every source; a source that is not found is noted as a problem."""
    unique: dict[str, SourceFile] = {}
    for index, source in enumerate(corpus.sources):
        alone = replace(corpus, sources=(source,), heldout={})
        for file in problems.catch(find_inputs, folder, alone) or []:
            unique.setdefault(file.path, replace(file, source=index, number=len(unique)))
    return list(unique.values())


def find_heldout(problems: Problems, corpus: CorpusConfig) -> list[SourceFile]:
    """The files of held-out sets that are given as files."""

    def expand(name: str, path: str) -> list[SourceFile]:
        stats = sources.expand(path, f"corpus.heldout.{name}")
        return [sources.source_file(stat, 0, name, corpus) for stat in stats]

    files: list[SourceFile] = []
    for name, paths in corpus.heldout.items():
        for path in () if isinstance(paths, float) else paths:
            files += problems.catch(expand, name, path) or []
    return files


def _sentencepiece_problem(corpus: CorpusConfig) -> str:
    pieces = corpus.sentencepiece
    if corpus.tokenizer != "sentencepiece" or not pieces.byte_fallback or pieces.size >= 260:
        return ""
    return (
        f"corpus.sentencepiece.size = {pieces.size} is too small for the 256 bytes of "
        "byte_fallback and 3 marks; make it larger, such as 8000"
    )


def _too_little(train: Sequence[SourceFile], config: RunConfig) -> str:
    """A problem if the sources are smaller than a batch. A token has at least one byte, and
    compression is assumed to save at most 99 %."""
    size = sum(file.bytes for file in train)
    batch = config.train.lanes * config.train.window
    if not size:
        return "the sources hold no text (all files are empty); check corpus.sources"

    is_packed = any(compression(file.path) or file.format == "parquet" for file in train)
    if size * (100 if is_packed else 1) * 2 < batch:
        return (
            f"the sources have {size:,} bytes, less than one batch of train.lanes × train.window = "
            f"{batch:,} tokens; add text or make train.lanes smaller"
        )
    return ""


def _first_records(file: SourceFile, corpus: CorpusConfig) -> Iterator[Record]:
    plain = replace(corpus, strict=False, cut_documents=0)
    yield from islice(read(Piece(file, 0, -1), plain), RECORDS)


def _check_columns(file: SourceFile, corpus: CorpusConfig) -> None:
    """Refuse a Parquet file without a column of text."""
    next(_first_records(file, corpus), None)


def _field_problem(train: Sequence[SourceFile], corpus: CorpusConfig) -> str:
    """A problem if all sources are JSON, and no first record of a file has the text field."""
    tables = [file for file in train if file.format == "jsonl"]
    if len(tables) < len(train):
        return ""
    seen: list[tuple[SourceFile, Record]] = []
    for file in tables[:FILES]:
        for record in _first_records(file, corpus):
            if record.problem != NO_FIELD:
                return ""
            seen.append((file, record))
    if not seen:
        return ""
    file, record = seen[0]
    return (
        f'{file.path} has no text in the field "{file.text_field}" ({record.detail}; {len(seen)} '
        "records looked at); set corpus.text_field to the field that holds the text"
    )


def _check_heldout(problems: Problems, heldout: list[SourceFile], corpus: CorpusConfig) -> None:
    """Note held-out sets whose files are all empty."""
    has_text = {file.path: problems.catch(_has_text, file, corpus) for file in heldout[:FILES]}
    for name in dict.fromkeys(file.split for file in heldout):
        paths = [file.path for file in heldout if file.split == name]
        if all(has_text.get(path) is False for path in paths):
            which = paths[0] if len(paths) == 1 else f"each of the {len(paths)} files"
            problems.note(f"{which} of corpus.heldout.{name} holds no text; check it")


def _has_text(file: SourceFile, corpus: CorpusConfig) -> bool:
    """Whether a held-out file has text; a broken record among the first is an error."""
    records = list(_first_records(file, corpus))
    broken = next((record for record in records if record.text is None), None)
    if broken:
        detail = f" ({broken.detail})" if broken.detail else ""
        raise UserError(
            "source",
            f"{file.path} of corpus.heldout.{file.split}: {broken.problem}{detail}; a held-out set "
            "is read whole, so mend or remove it",
        )
    return bool(records)
