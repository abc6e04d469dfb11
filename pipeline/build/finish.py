"""The end of a build: put its results in their place, write the report, then the manifest.

Tasks leave everything in the work folder. Here the vocabulary, the shards and the lists get their
names in the corpus folder (links on a disk, copies in a store), what was counted becomes statistics
and a report, and only then is the manifest written: until that moment there is no corpus.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from elmwright.pipeline.build.ray_tasks import task
from elmwright.pipeline.build.results import WORK, Built
from elmwright.pipeline.build.stages import keep
from elmwright.pipeline.build.up_to_date import settings_of
from elmwright.pipeline.cleaning.cleaner import rule_names
from elmwright.pipeline.cleaning.funnel import BROKEN, DECONTAMINATE, KEPT, READ, WEIGHT
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
from elmwright.pipeline.storage import files

PIECES = "sentencepiece.model"
REPORT, STATISTICS = "report.html", "statistics.json"
QUARANTINE, DECONTAMINATED = "quarantine.jsonl", "decontaminated.jsonl"
DOCUMENTS = "documents"


def finish(built: Built, key: str) -> Manifest:
    """Put everything in its place and write report and manifest."""
    _check_funnel(built)
    work, folder, found = built.runner.work, built.folder, built.found
    for old in (QUARANTINE, DECONTAMINATED, *([] if found.model else [PIECES])):
        files.remove(files.join(folder, old))
    _lists(built)
    _documents(built)
    for file in ("vocab.txt", "counts.npy"):
        files.place(files.join(work, f"{found.vocab['name']}.{file}"), files.join(folder, file))
    extra = {}
    if found.model:
        files.place(files.join(work, found.model), files.join(folder, PIECES))
        extra[PIECES] = files.sha256(files.join(folder, PIECES))
    splits = _splits(built)
    vocab = found.vocab
    manifest = Manifest(
        created_by=f"elmwright {version('elmwright')}",
        key=key,
        block_steps=built.shards.block_steps,
        splits=splits,
        vocab=Vocab(
            "vocab.txt", vocab["sha256"], vocab["size"], "counts.npy", vocab["counts_sha256"]
        ),
        funnel=_funnel(built),
        inputs=tuple(
            _input(folder, file, digest)
            for file, digest in zip(found.files, found.digests, strict=True)
        ),
        long_words=vocab["truncated"][_key(vocab["truncated"], 50)],
        unigram_perplexity=found.perplexity,
        config=json.loads(
            canonical(settings_of(built.corpus, built.vocab, built.shards, built.seed))
        ),
        extra_files=extra,
    )
    gathered = gather(built)
    files.write_bytes(files.join(folder, STATISTICS), statistics.to_json(gathered))
    page = render(manifest, gathered, title=_title(folder)).encode()
    files.write_bytes(files.join(folder, REPORT), page)
    manifest.save(folder)
    return manifest


def _title(folder: str) -> str:
    """What a report is headed: the run's folder, or the corpus's own."""
    *before, last = folder.rstrip("/").split("/")
    return before[-1] if last == "corpus" and before and before[-1] else last


def _key(table: dict[Any, Any], number: int) -> Any:
    """JSON turns the numbers of a table into text; a fresh report still has numbers."""
    return number if number in table else str(number)


def _check_funnel(built: Built) -> None:
    missing = built.found.funnel.missing()
    if any(missing):
        raise AssertionError(f"the funnel does not add up: {missing} {built.found.funnel.counts}")


def _lists(built: Built) -> None:
    """Put the quarantine and the list of decontaminated documents together."""
    for name, counted in ((QUARANTINE, "reasons"), (DECONTAMINATED, "shared")):
        ending = name.removesuffix(".jsonl")
        outs = [f"{out}.{ending}.jsonl" for _, out, r in built.found.cleaned if r[counted]]
        if outs:
            gather_them = task("lists", keep.gather_lists, outs)
            made = built.runner.run(ending, [gather_them])[0]["name"]
            target = files.join(built.folder, name)
            files.place(files.join(built.runner.work, made), target)


def _documents(built: Built) -> None:
    """Put documents that were asked for in their place, and remove those of earlier settings."""
    folder = files.join(built.folder, DOCUMENTS)
    names = [name for _, _, r in built.found.cleaned for name in r["documents"]]
    names += [name for _, r in built.found.kept for name in r["documents"]]
    wanted = {files.join(folder, name.replace("/", "-")): name for name in names}
    for file in files.list_folder(folder):
        if file.path not in wanted:
            files.remove(file.path)
    for target, name in wanted.items():
        files.place(files.join(built.runner.work, name), target)


def _splits(built: Built) -> dict[str, Split]:
    """The shards of each split, put in their place."""
    splits: dict[str, list[Shard]] = {}
    for name, one, report in built.found.shards:
        shards = splits.setdefault(name, [])
        before = sum(shard.documents for shard in shards)
        shard = replace(Shard(**report["shard"]), first_document=before)
        for file, digest in ((shard.tar, shard.sha256), (shard.index, shard.index_sha256)):
            source = files.join(built.runner.work, one.out, file.partition("/")[2])
            if files.sha256(source) != digest:
                built.runner.forget(one)
                raise UserError(
                    "file-damaged",
                    f"{source} was damaged after it was written; run the same command again to "
                    "make it anew",
                )
            files.place(source, files.join(built.folder, file))
        shards.append(shard)
    return {name: Split(name, tuple(shards)) for name, shards in splits.items()}


def _funnel(built: Built) -> tuple[FunnelStep, ...]:
    counts = built.found.funnel.counts
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
    return tuple(FunnelStep(rule, *counts.get(rule, (0, 0, 0))) for rule in ordered)


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
    found = built.found
    train = [
        (chunk, report) for chunk, _, report in found.cleaned if chunk[0].file.split == "train"
    ]
    splits = [split for _, report in found.kept for split in report["splits"].values()]
    vocab = found.vocab
    return Statistics(
        sources=_sources(built),
        examples=statistics.examples_of(
            statistics.merge_examples(
                *(report["examples"] for _, report in train),
                *(report["examples"] for _, report in found.kept),
            )
        ),
        quarantine=_sum(report["reasons"] for _, report in train),
        languages=_sum(report["languages"] for _, report in train),
        document_words=_numbers(split["document_words"] for split in splits),
        sentence_words=_numbers(split["sentence_words"] for split in splits),
        clusters=_numbers([found.near.get("clusters", {})]),
        duplicate_pairs=found.near.get("edges", 0),
        zipf=tuple((int(a), int(b)) for a, b in vocab["zipf"]),
        coverage=tuple((int(a), float(b)) for a, b in vocab["coverage"]),
        truncated={int(chars): share for chars, share in vocab["truncated"].items()},
        repaired=_sum(report["repaired"] for _, report in train),
        stages=tuple(built.runner.times),
    )


def _sum(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _numbers(tables: Iterable[dict[Any, int]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for table in tables:
        total.update({int(key): count for key, count in table.items()})
    return dict(sorted(total.items()))


def _sources(built: Built) -> tuple[SourceCount, ...]:
    found = built.found
    counts = []
    for number, source in enumerate(built.corpus.sources):
        mine = [
            report
            for chunk, _, report in found.cleaned
            if chunk[0].file.split == "train" and chunk[0].file.source == number
        ]
        kept = [
            report["kept"]
            for part, report in found.kept
            if part.split == "train" and part.source == number
        ]
        own = [f for f in found.files if f.split == "train" and f.source == number]
        counts.append(
            SourceCount(
                name=source.name or source.path,
                licence=source.licence,
                weight=source.weight,
                files=len(own),
                bytes=sum(file.bytes for file in own),
                documents=sum(r["funnel"].get(READ, [0, 0, 0])[0] for r in mine),
                words=sum(r["funnel"].get(READ, [0, 0, 0])[2] for r in mine),
                kept_documents=sum(k[0] for k in kept),
                kept_words=sum(k[2] for k in kept),
                broken=sum(sum(r["reasons"].values()) for r in mine),
            )
        )
    return tuple(counts)


def sweep(folder: str, manifest: Manifest, *, keep_work: bool) -> None:
    """Remove shards of earlier settings, and the work folder unless it is to stay."""
    if not keep_work:
        files.remove_folder(files.join(folder, WORK))
    ours = {files.join(folder, file) for file, _ in manifest.files()}
    for file in files.list_folder(files.join(folder, SHARDS)):
        if file.path not in ours:
            files.remove(file.path)
