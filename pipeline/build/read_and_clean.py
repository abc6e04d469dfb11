"""The first steps of a build, as Ray tasks: digests, n-grams, sentencepiece, cleaned parts.

Each function makes the tasks of one step, runs them, and says what is wrong with the user's text if
nothing comes out. A task's arguments are only what its result depends on: a chunk without its place
among the others, and the settings that matter when it is cleaned. So its output stays valid when
anything else in the config changes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elmwright.pipeline.build.ray_tasks import Runner, task
from elmwright.pipeline.build.stages import clean, prepare, select
from elmwright.pipeline.build.stages.select import Part
from elmwright.pipeline.build.state import Build
from elmwright.pipeline.cleaning.funnel import BROKEN, READ, ZERO
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.sources import Chunk, SourceFile
from elmwright.pipeline.storage.files import at

FILES_PER_TASK = 64
"""Files whose digests one task computes."""


def add_digests(runner: Runner, inputs: Sequence[SourceFile]) -> list[SourceFile]:
    """The inputs with their sha256, except objects in a store, which would be read twice."""
    local = [file for file in inputs if not at(file.path).is_url]
    groups = [local[n : n + FILES_PER_TASK] for n in range(0, len(local), FILES_PER_TASK)]
    tasks = [
        task(
            "digests",
            prepare.digest_files,
            [file.path for file in group],
            [(file.bytes, file.mtime_ns) for file in group],
        )
        for group in groups
    ]
    sha256 = [digest for group in runner.run("digests", tasks) for digest in group.sha256]
    digests = dict(zip((file.path for file in local), sha256, strict=True))
    return [replace(file, sha256=digests.get(file.path, "")) for file in inputs]


def find_ngrams(
    runner: Runner,
    corpus: CorpusConfig,
    text_files: Sequence[SourceFile],
    eval_files: Sequence[SourceFile],
) -> str | None:
    """The file of n-grams that documents of train must not have, if there is anything to avoid."""
    heldout = [file for file in text_files if file.split != "train"]
    if corpus.heldout_overlap == "keep":
        heldout = []
    n = corpus.decontaminate_ngram
    if not (eval_files or heldout) or n < 1:
        return None
    chunks = [_anonymous(chunk) for chunk in sources.cut([*eval_files, *heldout], corpus)]
    # Strict, because the text of a record that is skipped here could stay in train unnoticed.
    config = replace(_cleaning_settings(corpus), strict=True)
    make = task("ngrams", prepare.make_ngrams, chunks, config)
    ngram_set = runner.run("n-grams", [make])[0]
    if eval_files and not ngram_set.entries:
        raise UserError(
            "no-text",
            f"the files of corpus.decontaminate hold no text of {n} words; check them, or "
            "lower corpus.decontaminate_ngram",
        )
    return ngram_set.name


def learn_pieces(build: Build, chunks: Sequence[Chunk]) -> None:
    """Train the sentencepiece model on a sample of train, without what is held out as a share."""
    config = _cleaning_settings(build.corpus)
    shares = list(build.shares.values())
    limit = select.find_limits(shares, [])[-1] if shares else 0
    tasks = [
        task("sample", prepare.sample_chunk, _anonymous(chunk), config, build.seed, limit)
        for chunk in chunks
        if chunk[0].file.split == "train"
    ]
    samples = build.runner.run("sample", tasks)
    if not any(sample.entries for sample in samples):
        raise UserError(
            "no-text",
            "no sentence is left to train sentencepiece on; see which rule drops them with "
            "elmwright corpus CONFIG --sample 1000",
        )
    train = task("pieces", prepare.train_pieces, [sample.name for sample in samples], config)
    build.model = build.runner.run("sentencepiece", [train])[0].name


def clean_chunks(build: Build, chunks: Sequence[Chunk], ngrams: str | None) -> None:
    """Clean every chunk, and drop documents that share an n-gram of the file `ngrams`."""
    corpus = build.corpus
    config = _cleaning_settings(corpus)
    tasks = []
    for chunk in chunks:
        is_heldout = chunk[0].file.split != "train"
        one = task(
            "clean",
            clean.clean_chunk,
            _anonymous(chunk),
            # A held-out set is taken whole or not at all.
            replace(config, strict=True) if is_heldout else config,
            given=is_heldout,
            model=build.model,
            known=None if is_heldout else ngrams,
            signatures=corpus.dedup == "near" or build.has_heldout,
            save_dropped=corpus.save_documents != "none" and not is_heldout,
        )
        tasks.append(one)
    results = build.runner.run("clean", tasks)
    for chunk, one, cleaned in zip(chunks, tasks, results, strict=True):
        build.cleaned.append((chunk, one.out, cleaned))
        file = chunk[0].file
        names = tuple(dict.fromkeys(piece.file.name for piece in chunk))
        weight = corpus.sources[file.source].weight if file.split == "train" else 1.0
        for clean_part in cleaned.parts:
            number = len(build.parts)
            part = Part(number, clean_part.name, file.split, file.number, file.source, weight)
            build.parts.append((part, names))
        if file.split == "train":
            build.funnel.merge(cleaned.funnel)
    splits = {part.split for part, _ in build.parts}
    if "train" not in splits:
        raise UserError("no-text", _why_empty(build))
    for name in corpus.heldout:
        if name not in build.shares and name not in splits:
            raise UserError(
                "no-text", f"the files of corpus.heldout.{name} hold no text; check them"
            )


def _why_empty(build: Build) -> str:
    """The sentence for a user whose text is all gone: nothing read, all broken, or one rule."""
    counts = dict(build.funnel.counts)
    read = counts.pop(READ, ZERO)
    if not read[0]:
        return "the sources hold no text; check corpus.sources and corpus.documents"
    rule = max(counts, key=lambda name: counts[name][0])
    if rule == BROKEN:
        reasons: Counter[str] = Counter()
        for _, _, cleaned in build.cleaned:
            reasons.update(cleaned.reasons)
        worst = max(reasons, key=lambda reason: reasons[reason])
        return (
            f"none of {read[0]} documents could be read ({worst}); check corpus.sources, "
            "corpus.text_field and the files themselves"
        )
    return (
        f"nothing is left of {read[0]} documents after cleaning; the rule {rule!r} dropped "
        f"most of them ({counts[rule][0]}); relax it"
    )


def _anonymous(chunk: Chunk) -> Chunk:
    """A chunk without its place among the others. Its outputs stay valid when that changes."""
    return tuple(
        replace(piece, file=replace(piece.file, number=0, source=0, split="")) for piece in chunk
    )


_NOT_FOR_CLEANING = (
    "sources dir heldout heldout_overlap decontaminate documents text_field encoding dedup "
    "dedup_lines save_documents keep_work chunk_mb"
).split()
"""Settings that do not change how a chunk is cleaned, or that its `SourceFile` has."""


def _cleaning_settings(corpus: CorpusConfig) -> CorpusConfig:
    """The settings that matter when a chunk is cleaned. The others are set to their defaults."""
    rules = ("gopher_repetition", "gopher_quality", "c4", "fineweb")
    unused = [name for name in rules if name.replace("_", "-") not in corpus.rules]
    default = CorpusConfig()
    ignored = (*_NOT_FOR_CLEANING, *unused)
    changes: dict[str, Any] = {name: getattr(default, name) for name in ignored}
    return replace(corpus, **changes)
