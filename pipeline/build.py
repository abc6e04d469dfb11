"""Build a corpus: the driver that strings the stages together with Ray tasks.

Harvest (for the embedded source) → clean and tokenise → drop duplicates and held-out overlap →
count words, choose the vocabulary → shuffle and pack into shards → manifest, written last.

A task takes paths and writes paths; the driver holds only names and counts. When a task is done it
leaves a completion mark with its counts; a killed build, called again, passes over what is marked
and ends with the same bytes. Marks live in a work folder named by the digest of the settings, the
inputs and their division into tasks, so that marks of other settings are never mistaken for ours.
Every order comes from a keyed hash or from a document's place, never from arrival, so the number of
workers does not matter either.

In a corpus folder: `MANIFEST.json vocab.txt counts.npy shards/ source/` (the frozen harvest), and
while building `work/`, for intermediate tables.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from elmwright.pipeline import harvest, sources
from elmwright.pipeline.config import EMBEDDED, CorpusConfig, ShardsConfig, VocabConfig
from elmwright.pipeline.current import corpus_key, find_inputs, is_current, settings_of
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.manifest import (
    NAME,
    SHARDS,
    FunnelStep,
    Input,
    Manifest,
    Shard,
    Split,
    Vocab,
    canonical,
)
from elmwright.pipeline.progress import Progress, silent
from elmwright.pipeline.storage import free_bytes, sha256_bytes, sha256_file
from elmwright.pipeline.tasks import Report, Runner, task

WORK = "work"
PIECES = "sentencepiece.model"
DISK_FACTOR = 3
"""Bytes of disk asked for a byte of input before a build begins: a rough guess, not measured."""


def build_corpus(
    corpus: CorpusConfig,
    vocab: VocabConfig,
    shards: ShardsConfig,
    *,
    seed: int,
    folder: Path,
    progress: Progress = silent,
    in_flight: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Build the corpus, or finish one that was interrupted. Ray must have been started.

    Raises `UserError` for what is the user's to put right and `Interrupted` after `stop()`.
    """
    folder = Path(folder).absolute()
    key = corpus_key(corpus, vocab, shards, seed)
    manifest = is_current(folder, key, corpus)
    if manifest is None:
        # From here on the folder holds no finished corpus, whatever it held before.
        (folder / NAME).unlink(missing_ok=True)
        runner = Runner(folder / WORK, progress, in_flight, stop)
        if EMBEDDED in corpus.sources and harvest.frozen_parts(folder) is None:
            _harvest(folder, runner)
        manifest = _Build(corpus, vocab, shards, seed, folder, runner).run(key)
        manifest.save(folder)
    _sweep(folder, manifest)
    return manifest


def _harvest(folder: Path, runner: Runner) -> None:
    groups = harvest.group_modules(harvest.list_modules())
    # A killed harvest is begun again: the packages may have changed in between.
    runner.open(sha256_bytes(canonical(groups)))
    parts = [harvest.part_path(folder, number) for number in range(len(groups))]
    pairs = zip(groups, parts, strict=True)
    tasks = [task(f"harvest-{n:05d}", harvest.harvest_group, *p) for n, p in enumerate(pairs)]
    reports = runner.run("harvest", tasks, "groups of modules")
    names = ("modules", "skipped", "documents")
    harvest.finish(folder, parts, {name: sum(r[name] for r in reports) for name in names})


class _Build:
    """One build: its settings, and what its stages have found so far."""

    def __init__(
        self,
        corpus: CorpusConfig,
        vocab: VocabConfig,
        shards: ShardsConfig,
        seed: int,
        folder: Path,
        runner: Runner,
    ) -> None:
        self.corpus, self.vocab, self.shards = corpus, vocab, shards
        self.seed, self.folder, self.runner = seed, folder, runner
        self.funnel: dict[str, list[int]] = {}

    def run(self, key: str) -> Manifest:
        """All stages, to the manifest."""
        from elmwright.pipeline import stages

        files = [
            file
            for split, paths in find_inputs(self.folder, self.corpus).items()
            for file in sources.stat_files(paths, split)
        ]
        self._check_space(files)
        chunks = sources.cut(files, self.corpus)
        plan = [key, [asdict(piece) for chunk in chunks for piece in (*chunk, chunk[0])]]
        self.work = self.runner.open(sha256_bytes(canonical(plan)))

        digests = self._digests(files)
        model = self._sentencepiece(chunks)
        parts = self._clean(chunks, model)
        limit = self._heldout_limit(parts)
        kept = self._keep(parts, limit)
        sentences = sum(r["splits"]["train"]["sentences"] for r in kept if "train" in r["splits"])
        if not sentences:
            raise UserError(
                "nothing is left to train on after duplicates and held-out text were dropped; "
                "give more text or a smaller corpus.heldout_fraction"
            )
        words = [r["words"] for r in kept]
        make = task("vocab", stages.make_vocab, words, self.vocab, sentences, str(self.folder))
        found = self.runner.run("vocabulary", [make], "vocabulary")[0]
        splits = self._shards(kept, found["sha256"])
        perplexity = self._unigram(splits)
        extra = {PIECES: sha256_file(self.folder / PIECES)} if model else {}
        return Manifest(
            created_by=f"elmwright {version('elmwright')}",
            key=key,
            block_steps=self.shards.block_steps,
            splits=splits,
            vocab=Vocab(
                "vocab.txt", found["sha256"], found["size"], "counts.npy", found["counts_sha256"]
            ),
            funnel=self._funnel_steps(),
            inputs=tuple(self._input(f, d) for f, d in zip(files, digests, strict=True)),
            long_words=found["long_words"],
            unigram_perplexity=perplexity,
            config=json.loads(
                canonical(settings_of(self.corpus, self.vocab, self.shards, self.seed))
            ),
            extra_files=extra,
        )

    def _check_space(self, files: Sequence[sources.SourceFile]) -> None:
        size = sum(
            file.bytes * (sources.EXPANSION if file.path.endswith(sources.COMPRESSED) else 1)
            for file in files
        )
        needed, free = DISK_FACTOR * size, free_bytes(self.folder)
        if needed > free:
            raise UserError(
                f"building the corpus in {self.folder} needs about {needed / 1e9:.1f} GB of disk "
                f"and {free / 1e9:.1f} GB are free; free some or choose another run.dir"
            )

    def _digests(self, files: Sequence[sources.SourceFile]) -> list[str]:
        from elmwright.pipeline import stages

        group = 64
        paths = [file.path for file in files]
        tasks = [
            task(f"digest-{begin:07d}", stages.digest_files, paths[begin : begin + group])
            for begin in range(0, len(paths), group)
        ]
        reports = self.runner.run("digests", tasks, "groups of files")
        return [digest for report in reports for digest in report["sha256"]]

    def _sentencepiece(self, chunks: Sequence[sources.Chunk]) -> str | None:
        from elmwright.pipeline import stages

        if self.corpus.tokenizer != "sentencepiece":
            return None
        limit = 0 if self.corpus.heldout else stages.heldout_limit(self.corpus.heldout_fraction)
        samples = [
            (chunk, str(self.work / f"sample-{n:05d}.txt"))
            for n, chunk in enumerate(chunks)
            if chunk[0].file.split == "train"
        ]
        tasks = [
            task(Path(o).stem, stages.sample_chunk, c, self.corpus, self.seed, limit, o)
            for c, o in samples
        ]
        self.runner.run("sample", tasks, "chunks")
        model = str(self.folder / PIECES)
        paths = [path for _, path in samples]
        train = task("pieces", stages.train_pieces, paths, self.corpus, model)
        self.runner.run("sentencepiece", [train], "model")
        return model

    def _clean(self, chunks: Sequence[sources.Chunk], model: str | None) -> list[Report]:
        """The parts of all chunks, each with its side: `train` or a given held-out set."""
        from elmwright.pipeline import stages

        tasks = []
        for number, chunk in enumerate(chunks):
            name = f"clean-{number:05d}"
            out = str(self.work / name)
            args = (chunk, self.corpus, self.seed, model, out)
            tasks.append(task(name, stages.clean_chunk, *args))
        parts: list[Report] = []
        for report in self.runner.run("clean", tasks, "chunks"):
            parts.extend({**part, "side": report["split"]} for part in report["parts"])
            if report["split"] == "train":
                self._count(report["funnel"])
        if not any(part["side"] == "train" for part in parts):
            raise UserError(self._why_empty())
        return parts

    def _why_empty(self) -> str:
        read = self.funnel.pop("read", [0, 0, 0])
        if not read[0]:
            return "the sources hold no text; check corpus.sources and corpus.documents"
        rule = max(self.funnel, key=lambda name: self.funnel[name][0])
        return (
            f"nothing is left of {read[0]} documents after cleaning; the rule {rule!r} dropped "
            f"most of them ({self.funnel[rule][0]}); relax it"
        )

    def _count(self, steps: dict[str, list[int]]) -> None:
        for rule, counts in steps.items():
            known = self.funnel.setdefault(rule, [0, 0, 0])
            self.funnel[rule] = [a + b for a, b in zip(known, counts, strict=True)]

    def _heldout_limit(self, parts: Sequence[Report]) -> int:
        """The hash below which documents are held out: at least one, if one was asked for."""
        from elmwright.pipeline import stages

        if self.corpus.heldout or self.corpus.heldout_fraction <= 0:
            return 0
        documents = sum(part["documents"] for part in parts)
        smallest = min(part["smallest"] for part in parts)
        limit = stages.heldout_limit(self.corpus.heldout_fraction)
        return max(limit, smallest + 1) if documents > 1 else limit

    def _keep(self, parts: Sequence[Report], limit: int) -> list[Report]:
        """Find what is repeated or shared, drop it, and shuffle and count the rest."""
        from elmwright.pipeline import dedup, stages

        corpus, numbered = self.corpus, list(enumerate(parts))
        own = [(n, f"{p['name']}.keys.npy", False) for n, p in numbered if p["side"] == "train"]
        documents = sum(p["documents"] for p in parts if p["side"] == "train")
        document_losers: list[str] = []
        if corpus.dedup != "none":
            document_losers = self._reduce(dedup.DOCUMENT, own, documents, once=True, given=False)
        sentence_losers: list[str] = []
        if corpus.dedup == "sentence" or corpus.heldout or limit:
            tasks, tables = [], []
            for n, p in numbered:
                out = str(self.work / f"sentences-{n:05d}.npy")
                tables.append((n, out, p["side"] != "train"))
                args = (n, p["name"], document_losers)
                rest = {"side": p["side"], "seed": self.seed, "limit": limit, "out": out}
                tasks.append(task(f"sentences-{n:05d}", stages.sentence_keys, *args, **rest))
            keys = sum(r["keys"] for r in self.runner.run("sentences", tasks, "parts"))
            once, given = corpus.dedup == "sentence", bool(corpus.heldout)
            sentence_losers = self._reduce(dedup.SENTENCE, tables, keys, once=once, given=given)
        tasks = [
            task(
                f"keep-{n:05d}",
                stages.keep_part,
                n,
                p["name"],
                document_losers,
                sentence_losers,
                corpus,
                side=p["side"],
                seed=self.seed,
                limit=limit,
                by_sentence=self.shards.shuffle == "sentence",
                steps=self.shards.block_steps,
                out=str(self.work / f"keep-{n:05d}"),
            )
            for n, p in numbered
        ]
        reports = self.runner.run("shuffle", tasks, "parts")
        for report in reports:
            self._count(report["funnel"])
        return reports

    def _reduce(
        self,
        unit: str,
        tables: list[tuple[int, str, bool]],
        keys: int,
        *,
        once: bool,
        given: bool,
    ) -> list[str]:
        from elmwright.pipeline import dedup

        count = dedup.reducers(keys)
        outs = [str(self.work / f"{unit}-{n:05d}.npy") for n in range(count)]
        how = {"unit": unit, "once": once, "given": given}
        tasks = [
            task(f"{unit}-{n:05d}", dedup.reduce_keys, tables, n, count, **how, out=out)
            for n, out in enumerate(outs)
        ]
        self.runner.run(unit.replace("_", " "), tasks, "key ranges")
        return outs

    def _shards(self, kept: Sequence[Report], vocab_sha256: str) -> dict[str, Split]:
        from elmwright.pipeline import stages

        steps = self.shards.block_steps
        names = sorted(
            {name for r in kept for name in r["splits"]}, key=lambda name: (name != "train", name)
        )
        tasks, split_of = [], []
        for name in names:
            mine = [r["splits"][name] for r in kept if name in r["splits"]]
            total = sum(m["words"] + m["sentences"] for m in mine)
            count = max(1, -(-total // (steps * self.shards.blocks_per_shard)))
            for number in range(count):
                one = task(
                    f"shard-{name}-{number:05d}",
                    stages.make_shard,
                    [m["path"] for m in mine],
                    name,
                    number,
                    count,
                    steps=steps,
                    vocab_file=str(self.folder / "vocab.txt"),
                    vocab_sha256=vocab_sha256,
                    folder=str(self.folder / SHARDS),
                )
                tasks.append(one)
                split_of.append(name)
        reports = self.runner.run("shards", tasks, "shards")
        splits: dict[str, Split] = {}
        for name in names:
            shards: list[Shard] = []
            for split, report in zip(split_of, reports, strict=True):
                if split == name and report["shard"]:
                    before = sum(shard.documents for shard in shards)
                    shards.append(replace(Shard(**report["shard"]), first_document=before))
            splits[name] = Split(name, tuple(shards))
        return splits

    def _unigram(self, splits: dict[str, Split]) -> dict[str, float]:
        from elmwright.pipeline import stages

        heldout = [split for split in splits.values() if split.name != "train"]
        tasks = [
            task(f"unigram-{s.name}", stages.unigram, str(self.folder), [x.tar for x in s.shards])
            for s in heldout
        ]
        reports = self.runner.run("unigram", tasks, "held-out sets")
        return {s.name: r["perplexity"] for s, r in zip(heldout, reports, strict=True)}

    def _funnel_steps(self) -> tuple[FunnelStep, ...]:
        from elmwright.pipeline import clean, dedup

        rules = ("read", *clean.RULES, *dedup.RULES, "kept")
        return tuple(FunnelStep(rule, *self.funnel.get(rule, (0, 0, 0))) for rule in rules)

    def _input(self, file: sources.SourceFile, digest: str) -> Input:
        path = Path(file.path)
        inside = path.is_relative_to(self.folder)
        name = path.relative_to(self.folder).as_posix() if inside else file.path
        return Input(name, file.bytes, file.mtime_ns, digest)


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove what only the build needed, and shards of earlier settings."""
    shutil.rmtree(folder / WORK, ignore_errors=True)
    ours = {file for file, _ in manifest.files()}
    for path in (folder / SHARDS).iterdir():
        if f"{SHARDS}/{path.name}" not in ours:
            path.unlink()
