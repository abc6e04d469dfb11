"""The end of a build: put its results in their place, write the report, then the manifest.

Tasks leave everything in the work folder. Here the vocabulary, the shards and the lists get their
names in the corpus folder (links on a disk, copies in a store), what was counted becomes statistics
and a report, and only then is the manifest written: until that moment there is no corpus.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TypeVar

from elmwright.pipeline.build.ray_tasks import task
from elmwright.pipeline.build.results import WORK, Built
from elmwright.pipeline.build.stages import keep
from elmwright.pipeline.build.up_to_date import settings_of
from elmwright.pipeline.cleaning.cleaner import rule_names
from elmwright.pipeline.cleaning.funnel import BROKEN, DECONTAMINATE, KEPT, READ, WEIGHT, ZERO
from elmwright.pipeline.dedup import keys
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import (
    SHARDS,
    FunnelStep,
    Input,
    Manifest,
    Shard,
    Split,
    Vocab,
    canonical,
)
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.report import statistics
from elmwright.pipeline.report.report import render
from elmwright.pipeline.report.statistics import SourceCount, Statistics
from elmwright.pipeline.storage.files import at, join

PIECES = "sentencepiece.model"
REPORT, STATISTICS = "report.html", "statistics.json"
QUARANTINE, DECONTAMINATED = "quarantine.jsonl", "decontaminated.jsonl"
DOCUMENTS = "documents"
K = TypeVar("K", int, str)


def finish(built: Built, key: str) -> Manifest:
    """Put everything in its place and write report and manifest."""
    _check_funnel(built)
    work, folder, results = built.runner.work, built.folder, built.results
    for old in (QUARANTINE, DECONTAMINATED, *([] if results.model else [PIECES])):
        at(join(folder, old)).remove()
    _lists(built)
    _documents(built)
    for file in ("vocab.txt", "counts.npy"):
        at(join(folder, file)).copy_from(at(join(work, f"{results.vocab.name}.{file}")))
    extra = {}
    if results.model:
        at(join(folder, PIECES)).copy_from(at(join(work, results.model)))
        extra[PIECES] = at(join(folder, PIECES)).sha256()
    splits = _splits(built)
    vocab = results.vocab
    manifest = Manifest(
        created_by=f"elmwright {version('elmwright')}",
        key=key,
        block_steps=built.shards.block_steps,
        splits=splits,
        vocab=Vocab("vocab.txt", vocab.sha256, vocab.size, "counts.npy", vocab.counts_sha256),
        funnel=_funnel(built),
        inputs=tuple(
            _input(folder, file, digest)
            for file, digest in zip(results.files, results.digests, strict=True)
        ),
        long_words=vocab.truncated[50],
        unigram_perplexity=results.perplexity,
        config=json.loads(
            canonical(settings_of(built.corpus, built.vocab, built.shards, built.seed))
        ),
        extra_files=extra,
    )
    gathered = gather(built)
    at(join(folder, STATISTICS)).write_bytes(statistics.to_json(gathered))
    page = render(manifest, gathered, title=_title(folder)).encode()
    at(join(folder, REPORT)).write_bytes(page)
    manifest.save(folder)
    return manifest


def _title(folder: str) -> str:
    """The title of a report: the name of the run's folder, or of the corpus folder."""
    *before, last = folder.rstrip("/").split("/")
    return before[-1] if last == "corpus" and before and before[-1] else last


def _check_funnel(built: Built) -> None:
    missing = built.results.funnel.missing()
    if any(missing):
        raise AssertionError(f"the funnel does not add up: {missing} {built.results.funnel.counts}")


def _lists(built: Built) -> None:
    """Put the quarantine and the list of decontaminated documents together."""
    cleaned = built.results.cleaned
    _join(built, QUARANTINE, [out for _, out, chunk in cleaned if chunk.reasons])
    _join(built, DECONTAMINATED, [out for _, out, chunk in cleaned if chunk.shared])


def _join(built: Built, name: str, outs: Sequence[str]) -> None:
    if outs:
        lists = task("lists", keep.gather_lists, [f"{out}.{name}" for out in outs])
        joined = built.runner.run(name.removesuffix(".jsonl"), [lists])[0].name
        at(join(built.folder, name)).copy_from(at(join(built.runner.work, joined)))


def _documents(built: Built) -> None:
    """Put saved documents in their place, and remove those of earlier settings."""
    folder = join(built.folder, DOCUMENTS)
    names = [name for _, _, chunk in built.results.cleaned for name in chunk.documents]
    names += [name for _, part in built.results.kept for name in part.documents]
    wanted = {join(folder, name.replace("/", "-")): name for name in names}
    for file in at(folder).list_files():
        if file.path not in wanted:
            at(file.path).remove()
    for target, name in wanted.items():
        at(target).copy_from(at(join(built.runner.work, name)))


def _splits(built: Built) -> dict[str, Split]:
    """The shards of each split, put in their place."""
    splits: dict[str, list[Shard]] = {}
    for name, one, shard in built.results.shards:
        shards = splits.setdefault(name, [])
        for file, digest in ((shard.tar, shard.sha256), (shard.index, shard.index_sha256)):
            source = join(built.runner.work, one.out, file.partition("/")[2])
            if at(source).sha256() != digest:
                built.runner.forget(one)
                raise UserError(
                    "file-damaged",
                    f"{source} was damaged after it was written; run the same command again to "
                    "make it anew",
                )
            at(join(built.folder, file)).copy_from(at(source))
        before = sum(earlier.documents for earlier in shards)
        shards.append(replace(shard, first_document=before))
    return {name: Split(name, tuple(shards)) for name, shards in splits.items()}


def _funnel(built: Built) -> tuple[FunnelStep, ...]:
    counts = built.results.funnel.counts
    rules = (
        READ,
        BROKEN,
        *rule_names(built.corpus),
        DECONTAMINATE,
        *keys.RULES,
        WEIGHT,
        KEPT,
    )
    rules = (*rules, *(rule for rule in counts if rule not in rules))
    ordered = sorted(rules, key=lambda rule: rule == KEPT)
    return tuple(FunnelStep(rule, *counts.get(rule, ZERO)) for rule in ordered)


def _input(folder: str, file: SourceFile, digest: str) -> Input:
    """An input as the manifest names it: relative to the corpus, if both are in one project.

    The project is the folder that the command was run in, which relative sources refer to.
    """
    name, project = sources.relative_to(folder, file.path), f"{os.getcwd()}/"
    if file.path.startswith(project) and folder.startswith(project):
        name = os.path.relpath(file.path, folder)
    return Input(name, file.bytes, file.mtime_ns, digest)


def gather(built: Built) -> Statistics:
    """The statistics of a build."""
    results = built.results
    train = [cleaned for chunk, _, cleaned in results.cleaned if chunk[0].file.split == "train"]
    tables = [table for _, part in results.kept for table in part.splits.values()]
    vocab = results.vocab
    return Statistics(
        sources=_sources(built),
        examples=statistics.examples_of(
            statistics.merge_examples(
                *(cleaned.examples for cleaned in train),
                *(part.examples for _, part in results.kept),
            )
        ),
        quarantine=_sum(cleaned.reasons for cleaned in train),
        languages=_sum(cleaned.languages for cleaned in train),
        document_words=_sum(table.document_words for table in tables),
        sentence_words=_sum(table.sentence_words for table in tables),
        clusters=_sum([results.near.clusters]),
        duplicate_pairs=results.near.edges,
        zipf=vocab.zipf,
        coverage=vocab.coverage,
        truncated=vocab.truncated,
        repaired=_sum(cleaned.repaired for cleaned in train),
        stages=tuple(built.runner.times),
    )


def _sum(tables: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _sources(built: Built) -> tuple[SourceCount, ...]:
    results = built.results
    counts = []
    for number, source in enumerate(built.corpus.sources):
        chunks = [
            cleaned
            for chunk, _, cleaned in results.cleaned
            if chunk[0].file.split == "train" and chunk[0].file.source == number
        ]
        kept = [
            kept_part.kept
            for part, kept_part in results.kept
            if part.split == "train" and part.source == number
        ]
        inputs = [f for f in results.files if f.split == "train" and f.source == number]
        counts.append(
            SourceCount(
                name=source.name or source.path,
                licence=source.licence,
                weight=source.weight,
                files=len(inputs),
                bytes=sum(file.bytes for file in inputs),
                documents=sum(chunk.funnel.get(READ, ZERO)[0] for chunk in chunks),
                words=sum(chunk.words for chunk in chunks),
                kept_documents=sum(documents for documents, _, _ in kept),
                kept_words=sum(words for _, _, words in kept),
                broken=sum(sum(chunk.reasons.values()) for chunk in chunks),
            )
        )
    return tuple(counts)


def sweep(folder: str, manifest: Manifest, *, keep_work: bool) -> None:
    """Remove shards of earlier settings, and the work folder unless it is to stay."""
    if not keep_work:
        at(join(folder, WORK)).remove_folder()
    ours = {join(folder, file) for file, _ in manifest.files()}
    for file in at(join(folder, SHARDS)).list_files():
        if file.path not in ours:
            at(file.path).remove()
