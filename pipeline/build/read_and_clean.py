"""The first steps of a build, as Ray tasks: digests, n-grams, sentencepiece, cleaned parts.

Each function makes the tasks of one step, runs them, and says in one sentence what is wrong with
the user's text if nothing comes out. A task gets only what its result depends on: a chunk without
its place among the others, and the settings that matter when it is cleaned. So its output stays
valid when anything else in the config changes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from elmwright.pipeline.build.ray_tasks import Runner, task
from elmwright.pipeline.build.results import Results
from elmwright.pipeline.build.stages import clean, prepare, select
from elmwright.pipeline.build.stages.select import Part
from elmwright.pipeline.cleaning.funnel import READ, ZERO
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.sources import Chunk, SourceFile
from elmwright.pipeline.storage.files import at

FILES_PER_DIGEST = 64


def digest_inputs(
    runner: Runner, results: Results
) -> Callable[[Sequence[SourceFile]], list[SourceFile]]:
    """Note the sha256 of inputs on disks in `results`; objects in a store are not read twice.

    Returns a function that adds the digests to files.
    """
    local = [file for file in results.files if not at(file.path).is_url]
    groups = [local[n : n + FILES_PER_DIGEST] for n in range(0, len(local), FILES_PER_DIGEST)]
    tasks = [
        task(
            "digests",
            prepare.digest_files,
            [file.path for file in group],
            [(file.bytes, file.mtime_ns) for file in group],
        )
        for group in groups
    ]
    digests = [digest for group in runner.run("digests", tasks) for digest in group.sha256]
    of = dict(zip((file.path for file in local), digests, strict=True))
    results.digests = [of.get(file.path, "") for file in results.files]
    return lambda some: [replace(file, sha256=of.get(file.path, "")) for file in some]


def find_ngrams(
    runner: Runner,
    corpus: CorpusConfig,
    inputs: dict[str, list[SourceFile]],
    evaluation: Sequence[SourceFile],
) -> str | None:
    """The file of n-grams that documents of train must not hold, if there is anything to avoid."""
    given = [file for split, some in inputs.items() if split != "train" for file in some]
    if corpus.heldout_overlap == "keep":
        given = []
    n = corpus.decontaminate_ngram
    if not (evaluation or given) or n < 1:
        return None
    chunks = [_anonymous(chunk) for chunk in sources.cut([*evaluation, *given], corpus)]
    # What is broken here would quietly leave text in train that must not be there.
    config = replace(_cleaning(corpus), strict=True)
    make = task("ngrams", prepare.make_ngrams, chunks, config)
    ngram_set = runner.run("n-grams", [make])[0]
    if evaluation and not ngram_set.ngrams:
        raise UserError(
            "no-text",
            f"the files of corpus.decontaminate hold no text of {n} words; check them, or "
            "lower corpus.decontaminate_ngram",
        )
    return ngram_set.name


def learn_pieces(
    runner: Runner, corpus: CorpusConfig, chunks: Sequence[Chunk], seed: int, shares: list[float]
) -> str:
    """The sentencepiece model of the text that `shares`, the held-out ones, leave to train."""
    config = _cleaning(corpus)
    limit = select.find_limits(shares, [])[-1] if shares else 0
    tasks = [
        task("sample", prepare.sample_chunk, _anonymous(chunk), config, seed, limit)
        for chunk in chunks
        if chunk[0].file.split == "train"
    ]
    samples = runner.run("sample", tasks)
    if not any(sample.sentences for sample in samples):
        raise UserError(
            "no-text",
            "no sentence is left to train sentencepiece on; see which rule drops them with "
            "elmwright corpus CONFIG --sample 1000",
        )
    names = [sample.name for sample in samples]
    train = task("pieces", prepare.train_pieces, names, config)
    return runner.run("sentencepiece", [train])[0].name


def clean_chunks(
    runner: Runner,
    corpus: CorpusConfig,
    chunks: Sequence[Chunk],
    known: str | None,
    results: Results,
    *,
    has_heldout: bool,
) -> None:
    """Clean every chunk, without what shares `known` n-grams, and note its parts in `results`."""
    signatures = corpus.dedup == "near" or has_heldout
    tasks = []
    for chunk in chunks:
        given = chunk[0].file.split != "train"
        one = task(
            "clean",
            clean.clean_chunk,
            _anonymous(chunk),
            # A held-out set is taken whole or not at all.
            replace(_cleaning(corpus), strict=True) if given else _cleaning(corpus),
            given=given,
            model=results.model,
            known=None if given else known,
            signatures=signatures,
            save_dropped=corpus.save_documents != "none" and not given,
        )
        tasks.append(one)
    for chunk, one, cleaned in zip(chunks, tasks, runner.run("clean", tasks), strict=True):
        results.cleaned.append((chunk, one.out, cleaned))
        file = chunk[0].file
        names = tuple(dict.fromkeys(piece.file.name for piece in chunk))
        weight = corpus.sources[file.source].weight if file.split == "train" else 1.0
        for clean_part in cleaned.parts:
            number = len(results.parts)
            part = Part(number, clean_part.name, file.split, file.number, file.source, weight)
            results.parts.append((part, names))
        if file.split == "train":
            results.funnel.merge(cleaned.funnel)
    if not any(part.split == "train" for part, _ in results.parts):
        raise UserError("no-text", _why_empty(results))
    for name, entry in corpus.heldout.items():
        given = not isinstance(entry, float)
        if given and not any(part.split == name for part, _ in results.parts):
            raise UserError(
                "no-text", f"the files of corpus.heldout.{name} hold no text; check them"
            )


def _why_empty(results: Results) -> str:
    """The sentence for a user whose text is all gone: nothing read, all broken, or one rule."""
    counts = dict(results.funnel.counts)
    read = counts.pop(READ, ZERO)
    if not read[0]:
        return "the sources hold no text; check corpus.sources and corpus.documents"
    rule = max(counts, key=lambda name: counts[name][0])
    if rule == "broken":
        reasons: Counter[str] = Counter()
        for _, _, cleaned in results.cleaned:
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
    """A chunk without its place among the others: its outputs stay good when that changes."""
    return tuple(
        replace(piece, file=replace(piece.file, number=0, source=0, split="")) for piece in chunk
    )


_AFTER_CLEANING = (
    "sources dir heldout heldout_overlap decontaminate documents text_field encoding dedup "
    "dedup_lines save_documents keep_work chunk_mb"
).split()


def _cleaning(corpus: CorpusConfig) -> CorpusConfig:
    """The settings that matter when a chunk is cleaned; the others as they are by default."""
    default = CorpusConfig()
    unused = [
        name
        for name in ("gopher_repetition", "gopher_quality", "c4", "fineweb")
        if name.replace("_", "-") not in corpus.rules
    ]
    changes: dict[str, Any] = {name: getattr(default, name) for name in (*_AFTER_CLEANING, *unused)}
    return replace(corpus, **changes)
