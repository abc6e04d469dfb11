"""What a run would refuse later, found before anything is started, and said all at once.

`elmwright run` asks before the corpus is built, `elmwright check` whenever it is typed: both call
`preflight`. Nothing is written and no text is read but the first records of a few files, so it
takes well under a second, plus what MLflow or an object store takes to answer and, where
`train.init_from` names a model, what comparing that with its digests takes.

A problem is a sentence: what is wrong; what to do. What cannot be known before the work is done (a
record in the middle of a file, a cluster that loses machines, a vocabulary that comes out too
small for sentencepiece) is still said by the stage that meets it.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from elmwright.jobs.bundles.bundle import FILES as BUNDLE_FILES
from elmwright.jobs.bundles.bundle import OPTIONAL, SUMS
from elmwright.jobs.checkpoints.checkpoint import list_checkpoints, read_checked
from elmwright.jobs.cluster.connection import is_remote, local_cpus
from elmwright.jobs.config.resume_settings import changed_settings
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.store import sqlite_file
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.model.config import shape_problem
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
from elmwright.pipeline.storage import files
from elmwright.pipeline.storage.disk import explain

STAGES = ("corpus", "train", "export", "publish")
RECORDS, FILES = 50, 8
"""First records, and files, that are looked at to see whether there is text in the named field."""
COLUMNS = 64
"""Parquet files whose columns are looked at."""
T = TypeVar("T")


class Problems(list[str]):
    """Sentences, in the order in which they were found; none twice."""

    def of(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What the call returns, or None after noting why it refused."""
        try:
            return call(*arguments)
        except UserError as error:
            self.note(str(error))
        except OSError as error:
            reason = explain(error, Path(error.filename or "here"))
            reason = reason or f"a store or disk does not answer as it should ({error})"
            self.note(" ".join(reason.split())[:400])
        return None

    def note(self, problem: str | None) -> None:
        """Add a problem, if it is one and new."""
        if problem and problem not in self:
            self.append(problem)


def check_before(config: RunConfig, folder: RunFolder, pending: Collection[str]) -> None:
    """Raise all problems of the stages that are still to be done as one error."""
    if problems := preflight(config, folder, pending):
        raise UserError(told(problems))


def told(problems: Sequence[str]) -> str:
    """One problem as its sentence, several as a list."""
    if len(problems) == 1:
        return problems[0]
    return "\n".join((f"{len(problems)} things to put right:", *(f"  - {p}" for p in problems)))


def preflight(config: RunConfig, folder: RunFolder, pending: Collection[str] = STAGES) -> list[str]:
    """What the pending stages would refuse for a reason that can be known now."""
    problems = Problems()
    _places(problems, config, folder)
    if "corpus" in pending:
        _inputs(problems, config, folder)
    if "train" in pending:
        problems.note(_resume_problem(config, folder))
        _machine(problems, config)
        problems.of(find_init_from, config, folder)
    if "export" in pending and folder.bundle.is_dir():
        problems.note(_bundle_problem(folder.bundle))
    if "train" in pending or "publish" in pending:
        problems.of(_check_tracking, config, folder)
    return problems


def _places(problems: Problems, config: RunConfig, folder: RunFolder) -> None:
    """Folders that cannot be made or written."""
    places = {"run.scratch": str(folder.scratch)}
    if not folder.remote:
        places["run.dir"] = folder.root
    elif not config.tracking.uri:
        problems.note(
            f"run.dir {folder.root} is in an object store, where MLflow cannot keep a database; "
            "set tracking.uri to an MLflow server"
        )
    else:
        problems.of(files.exists, files.join(folder.root, ".writable"))
    if folder.corpus_dir and not files.is_url(folder.corpus_dir):
        places["corpus.dir"] = folder.corpus_dir
    said = set()
    for name, place in sorted(places.items()):
        reason, where = _unwritable(Path(place))
        if reason and where not in said:
            said.add(where)
            problems.note(
                f"{name} {place} cannot be written ({where} {reason}); make it writable or choose "
                f"another {name}"
            )


def _unwritable(place: Path) -> tuple[str, Path]:
    """Why a folder could not be made or written, and which one above it is the reason."""
    here = place
    while not here.exists() and here != here.parent:
        here = here.parent
    if not here.is_dir():
        return "is not a folder", here
    return ("" if os.access(here, os.W_OK | os.X_OK) else "is read-only for us"), here


def _inputs(problems: Problems, config: RunConfig, folder: RunFolder) -> None:
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
        found = find_inputs(folder, alone)["train"]
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
            f"{file.path} of corpus.heldout.{file.split}: {broken.problem}{detail}; a held-out set "
            "is read whole, so mend or remove it"
        )
    return bool(found)


def _resume_problem(config: RunConfig, folder: RunFolder) -> str:
    """What differs from the training that checkpoints were written by."""
    for info in reversed(list_checkpoints(folder.checkpoints)):
        if saved := read_checked(info.path, "config.json"):
            return changed_settings(saved["run_config"], to_dict(config))
    return ""


def _machine(problems: Problems, config: RunConfig) -> None:
    """Cores and GPUs of this machine, where it is the one that trains."""
    if is_remote(config):
        return
    wanted, there = config.train.processes * config.train.threads, local_cpus(config)
    if wanted > there:
        problems.note(
            f"train.processes × train.threads needs {wanted} CPUs, but there are {there} here; "
            "lower one of them, or raise cluster.cpus to run several on a core"
        )
    if config.train.device == "cuda" and not has_gpu():
        problems.note(
            'train.device = "cuda", but this machine has no NVIDIA GPU (or no driver for it); '
            'set it to "cpu" or "auto"'
        )


def has_gpu() -> bool:
    """Whether the kernel knows an NVIDIA GPU: its own, or that of the Windows it runs in."""
    devices = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    return bool(devices) or Path("/dev/dxg").exists()


def find_init_from(config: RunConfig, folder: RunFolder) -> Path | None:
    """The model to start from: there, whole, and of this config's shape; None if none is needed."""
    if not config.train.init_from or list_checkpoints(folder.checkpoints):
        return None  # a checkpoint of this run comes first

    try:
        path = resolve(config.train.init_from)
    except UserError as error:
        if is_remote(config):
            return None  # the machines that train may see what this one does not
        raise UserError(f"train.init_from: {error}") from error
    from elmwright.model.formats.folder import read_shape

    if problem := shape_problem(config.model, read_shape(path)):
        raise UserError(problem)
    return path


def _bundle_problem(bundle: Path) -> str:
    """A bundle is replaced as a whole, so export refuses if anything else is beside its files."""
    for path in sorted(bundle.iterdir()):
        if path.name not in (*BUNDLE_FILES, *OPTIONAL, SUMS) or path.is_dir():
            return f"{path} does not belong to a bundle, so {bundle} is not replaced; move it away"
    return ""


def _check_tracking(config: RunConfig, folder: RunFolder) -> None:
    """MLflow can be spoken to, or is only silent for the moment."""
    uri = tracking_uri(config, folder)
    check_server(uri)
    database = sqlite_file(uri)
    if database is None or not config.tracking.uri:
        return
    reason, where = _unwritable(database.parent)
    if reason:
        raise UserError(
            f"tracking.uri names {database}, which cannot be written ({where} {reason}); make it "
            "writable or choose another"
        )
