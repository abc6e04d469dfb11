"""The end of a build: place its results in the corpus folder, write the report, then the manifest.

Tasks write to the work folder. From there the vocabulary, the shards and the lists are linked (on a
disk) or copied (in a store) into the corpus folder. The manifest is written last, because it marks
the corpus as finished.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import TypeVar

from elmwright.pipeline.build.ray_tasks import task
from elmwright.pipeline.build.stages import keep
from elmwright.pipeline.build.state import WORK, Build
from elmwright.pipeline.build.up_to_date import settings_of
from elmwright.pipeline.cleaning.cleaner import rule_names
from elmwright.pipeline.cleaning.funnel import BROKEN, DECONTAMINATE, KEPT, READ, WEIGHT, ZERO
from elmwright.pipeline.cleaning.words import VERSION
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


def finish(build: Build, key: str) -> Manifest:
    """Place all results in the corpus folder, write the report and the manifest, and return it."""
    missing = build.funnel.missing()
    if any(missing):
        raise AssertionError(f"the funnel does not add up: {missing} {build.funnel.counts}")
    folder = build.folder
    _place_lists(build)
    _place_documents(build)
    vocab = build.vocab_files
    for file in ("vocab.txt", "counts.npy"):
        _place(build, f"{vocab.name}.{file}", file)
    extra_files = {}
    if build.model:
        _place(build, build.model, PIECES)
        extra_files[PIECES] = at(join(folder, PIECES)).sha256()
    else:
        at(join(folder, PIECES)).remove()
    settings = settings_of(build.corpus, build.vocab, build.shards, build.seed)
    manifest = Manifest(
        created_by=f"elmwright {version('elmwright')}",
        key=key,
        block_steps=build.shards.block_steps,
        splits=_place_shards(build),
        vocab=Vocab("vocab.txt", vocab.sha256, vocab.size, "counts.npy", vocab.counts_sha256),
        funnel=_funnel(build),
        inputs=tuple(_input(folder, file) for file in build.files),
        long_words=vocab.truncated[50],
        unigram_perplexity=build.perplexity,
        config=json.loads(canonical(settings)),
        rules=VERSION,
        extra_files=extra_files,
    )
    counts = _statistics(build)
    at(join(folder, STATISTICS)).write_bytes(statistics.to_json(counts))
    page = render(manifest, counts, title=_title(folder)).encode()
    at(join(folder, REPORT)).write_bytes(page)
    manifest.save(folder)
    return manifest


def _title(folder: str) -> str:
    """The title of a report: the name of the run's folder, or of the corpus folder."""
    *before, last = folder.rstrip("/").split("/")
    return before[-1] if last == "corpus" and before and before[-1] else last


def _place(build: Build, source: str, target: str) -> None:
    """Link or copy a file of the work folder into the corpus folder."""
    at(join(build.folder, target)).copy_from(at(join(build.runner.work, source)))


def _place_lists(build: Build) -> None:
    """Write the lists of broken and of decontaminated documents, if they have any lines."""
    prefixes = {
        QUARANTINE: [out for _, out, chunk in build.cleaned if chunk.reasons],
        DECONTAMINATED: [out for _, out, chunk in build.cleaned if chunk.shared],
    }
    for name, outs in prefixes.items():
        at(join(build.folder, name)).remove()
        if outs:
            lists = task("lists", keep.gather_lists, [f"{out}.{name}" for out in outs])
            joined = build.runner.run(name.removesuffix(".jsonl"), [lists])[0].name
            _place(build, joined, name)


def _place_documents(build: Build) -> None:
    """Place saved documents in the corpus folder, and remove those of earlier settings."""
    names = [name for _, _, chunk in build.cleaned for name in chunk.documents]
    names += [name for _, part in build.kept for name in part.documents]
    targets = {f"{DOCUMENTS}/{name.replace('/', '-')}": name for name in names}
    for file in at(join(build.folder, DOCUMENTS)).list_files():
        if sources.relative_to(build.folder, file.path) not in targets:
            at(file.path).remove()
    for target, name in targets.items():
        _place(build, name, target)


def _place_shards(build: Build) -> dict[str, Split]:
    """Place all shards in the corpus folder; return the splits."""
    splits: dict[str, list[Shard]] = {}
    for name, packing, shard in build.packed:
        shards = splits.setdefault(name, [])
        for file, digest in ((shard.tar, shard.sha256), (shard.index, shard.index_sha256)):
            source = f"{packing.out}/{file.partition('/')[2]}"
            path = join(build.runner.work, source)
            if at(path).sha256() != digest:
                build.runner.forget(packing)
                raise UserError(
                    "file-damaged",
                    f"{path} was damaged after it was written; run the same command again to "
                    "write it again",
                )
            _place(build, source, file)
        before = sum(earlier.documents for earlier in shards)
        shards.append(replace(shard, first_document=before))
    return {name: Split(name, tuple(shards)) for name, shards in splits.items()}


def _funnel(build: Build) -> tuple[FunnelStep, ...]:
    counts = build.funnel.counts
    rules = (READ, BROKEN, *rule_names(build.corpus), DECONTAMINATE, *keys.RULES, WEIGHT, *counts)
    ordered = sorted(dict.fromkeys((*rules, KEPT)), key=lambda rule: rule == KEPT)
    return tuple(FunnelStep(rule, *counts.get(rule, ZERO)) for rule in ordered)


def _input(folder: str, file: SourceFile) -> Input:
    """An input for the manifest, its path relative to the corpus if both are in one project.

    The project is the folder that the command was run in, which relative sources refer to.
    """
    name, project = sources.relative_to(folder, file.path), f"{os.getcwd()}/"
    if file.path.startswith(project) and folder.startswith(project):
        name = os.path.relpath(file.path, folder)
    return Input(name, file.bytes, file.mtime_ns, file.sha256)


def _statistics(build: Build) -> Statistics:
    train = [cleaned for _, cleaned in build.train_chunks]
    kept = [part for _, part in build.kept]
    tables = [table for part in kept for table in part.splits.values()]
    examples = statistics.merge_examples(
        *(cleaned.examples for cleaned in train), *(part.examples for part in kept)
    )
    vocab = build.vocab_files
    return Statistics(
        sources=tuple(_source_count(build, number) for number in range(len(build.corpus.sources))),
        examples=statistics.examples_of(examples),
        quarantine=_sum(cleaned.reasons for cleaned in train),
        languages=_sum(cleaned.languages for cleaned in train),
        document_words=_sum(table.document_words for table in tables),
        sentence_words=_sum(table.sentence_words for table in tables),
        clusters=_sum([build.near.clusters]),
        duplicate_pairs=build.near.edges,
        zipf=vocab.zipf,
        coverage=vocab.coverage,
        truncated=vocab.truncated,
        repaired=_sum(cleaned.repaired for cleaned in train),
        stages=tuple(build.runner.times),
    )


def _sum(tables: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _source_count(build: Build, number: int) -> SourceCount:
    source = build.corpus.sources[number]
    inputs = [file for file in build.files if file.split == "train" and file.source == number]
    chunks = [cleaned for chunk, cleaned in build.train_chunks if chunk[0].file.source == number]
    kept = [
        kept.kept for part, kept in build.kept if part.split == "train" and part.source == number
    ]
    return SourceCount(
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


def sweep(folder: str, manifest: Manifest, *, keep_work: bool) -> None:
    """Remove shards of earlier settings, and the work folder unless `keep_work`."""
    if not keep_work:
        at(join(folder, WORK)).remove_folder()
    current = {join(folder, file) for file, _ in manifest.files()}
    for file in at(join(folder, SHARDS)).list_files():
        if file.path not in current:
            at(file.path).remove()
