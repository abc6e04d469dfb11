"""Build a corpus: the driver that strings the stages together with Ray tasks.

Harvest (for the embedded source) → digests of the inputs → n-grams of evaluation files and of
held-out sets from files → pieces (sentencepiece only) → clean and tokenise → find copies,
near-copies and held-out overlap → drop them, shuffle and count → vocabulary → shards → unigram
perplexity of the held-out sets → report → manifest, written last.

A task takes names and writes names (`ray_tasks.py`); the driver holds only names and counts. Every
order comes from a keyed hash or from a document's place, never from arrival, so neither the number
of workers nor a kill matters. Outputs are named by what they depend on and, unless
`corpus.keep_work` is off, stay in the work folder: the next build, with one threshold changed or
one source added, runs only what is affected.

In a corpus folder: `MANIFEST.json vocab.txt counts.npy shards/ report.html statistics.json`,
`sentencepiece.model` where that tokenises, `quarantine.jsonl` and `decontaminated.jsonl` where they
have lines, `documents/` if asked for, `source/` (the frozen harvest), `work/`, and two hidden
files: `.elmwright-corpus` (corpus_folder.py) and `.inputs.json` (up_to_date.py).
"""

from collections.abc import Callable
from pathlib import Path

from elmwright.pipeline.build.corpus_folder import check_space, claim
from elmwright.pipeline.build.finish import finish, sweep
from elmwright.pipeline.build.ray_tasks import Runner, Task, task
from elmwright.pipeline.build.read_and_clean import (
    clean_chunks,
    digest_inputs,
    find_ngrams,
    learn_pieces,
)
from elmwright.pipeline.build.results import WORK, Built, Results
from elmwright.pipeline.build.stages import keep, pack, select
from elmwright.pipeline.build.stages.repeats import Lost, count_pieces, find_repeats
from elmwright.pipeline.build.stages.select import Sides
from elmwright.pipeline.build.up_to_date import (
    corpus_key,
    evaluation_files,
    find_inputs,
    is_current,
    vocab_file,
)
from elmwright.pipeline.cleaning.funnel import READ
from elmwright.pipeline.config import EMBEDDED, CorpusConfig, ShardsConfig, VocabConfig
from elmwright.pipeline.dedup.tables import count_ranges
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import NAME, Manifest
from elmwright.pipeline.progress import Progress, plural, silent
from elmwright.pipeline.reading import harvest, sources
from elmwright.pipeline.storage.files import at, join


def build_corpus(
    corpus: CorpusConfig,
    vocab: VocabConfig,
    shards: ShardsConfig,
    *,
    seed: int,
    folder: str | Path,
    progress: Progress = silent,
    in_flight: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """The manifest of the corpus, which is built, or finished if a build was interrupted, unless it
    is up to date. Ray must have been started.

    Raises `UserError` for what is the user's to put right and `Interrupted` after `stop()`.
    """
    where = at(folder).absolute()
    key = corpus_key(corpus, vocab, shards, seed)
    manifest = is_current(where, key, corpus, vocab.file)
    if manifest is None:
        claim(where)
        # From here on the folder holds no finished corpus, whatever it held before.
        at(join(where, NAME)).remove()
        runner = Runner(join(where, WORK), progress, in_flight, stop)
        if _wants_harvest(corpus) and harvest.frozen_parts(where) is None:
            _harvest(where, runner)
        built = Build(corpus, vocab, shards, seed, where, runner).run()
        with runner.stage("writing report", 2) as stage:
            manifest = finish(built, key)
            runner.prune()
            stage.result = "report.html"
    sweep(where, manifest, keep_work=corpus.keep_work)
    return manifest


def _wants_harvest(corpus: CorpusConfig) -> bool:
    return any(source.path == EMBEDDED for source in corpus.sources)


def _harvest(folder: str, runner: Runner) -> None:
    groups = harvest.group_modules(harvest.list_modules())
    tasks = [task("harvest", harvest.harvest_group, group) for group in groups]
    with runner.stage("collecting text", 1) as stage:
        counts = runner.run("harvest", tasks)
        documents = harvest.finish(folder, runner.work, [one.out for one in tasks], counts)
        stage.result = plural(documents, "document")


class Build:
    """One build: its settings, and its stages in the order in which they run."""

    def __init__(
        self,
        corpus: CorpusConfig,
        vocab: VocabConfig,
        shards: ShardsConfig,
        seed: int,
        folder: str,
        runner: Runner,
    ) -> None:
        """Settings as in `build_corpus`; `folder` is absolute or a URL."""
        self.corpus, self.vocab, self.shards = corpus, vocab, shards
        self.seed, self.folder, self.runner = seed, folder, runner
        self.results = Results()
        self.shares = {n: s for n, s in sorted(corpus.heldout.items()) if isinstance(s, float)}
        self.has_given = len(self.shares) < len(corpus.heldout)
        self.has_heldout = self.has_given or any(self.shares.values())

    def run(self) -> Built:
        """All stages, up to the shards."""
        inputs = find_inputs(self.folder, self.corpus)
        evaluation = evaluation_files(self.corpus)
        read = [file for split_files in inputs.values() for file in split_files]
        self.results.files = [*read, *evaluation, *vocab_file(self.vocab.file)]
        check_space(self.results.files, self.folder)
        stage = self.runner.stage
        with stage("reading", 2) as line:
            known_files = digest_inputs(self.runner, self.results)
            inputs = {split: known_files(some) for split, some in inputs.items()}
            evaluation = known_files(evaluation)
            chunks = sources.cut(known_files(read), self.corpus)
            known = find_ngrams(self.runner, self.corpus, inputs, evaluation)
            line.result = plural(len(self.results.files), "file")
        if self.corpus.tokenizer == "sentencepiece":
            with stage("learning pieces", 2) as line:
                shares = list(self.shares.values())
                self.results.model = learn_pieces(
                    self.runner, self.corpus, chunks, self.seed, shares
                )
                line.result = plural(self.corpus.sentencepiece.size, "piece")
        with stage("cleaning", 1) as line:
            clean_chunks(
                self.runner, self.corpus, chunks, known, self.results, has_heldout=self.has_heldout
            )
            line.result = plural(self.results.funnel.counts[READ][0], "document")
        with stage("finding copies", count_pieces(self.corpus, self.has_heldout)) as line:
            sides = self._sides()
            lost = find_repeats(
                self.runner, self.corpus, [part for part, _ in self.results.parts], sides
            )
            line.result = f"in {plural(self._documents(), 'document')}"
        with stage("shuffling", 1) as line:
            self._keep(sides, lost)
            tables = [table for _, part in self.results.kept for table in part.splits.values()]
            line.result = plural(sum(table.sentences for table in tables), "sentence")
        with stage("counting words", 2) as line:
            self._make_vocab()
            line.result = f"vocabulary of {self.results.vocab.size:,}"
        with stage("writing shards", 2) as line:
            self._pack()
            line.result = plural(len(self.results.shards), "shard")
        return Built(
            self.corpus, self.vocab, self.shards, self.seed, self.folder, self.runner, self.results
        )

    def _documents(self) -> int:
        """Documents of train that the rules have left."""
        return sum(
            part.documents
            for chunk, _, cleaned in self.results.cleaned
            for part in cleaned.parts
            if chunk[0].file.split == "train"
        )

    def _sides(self) -> Sides:
        """How documents are held out by hash: at least one document for each share."""
        names = [part.name for part, _ in self.results.parts if part.split == "train"]
        documents = self._documents()
        shares = [share for share in self.shares.values() if share > 0]
        held = tuple(name for name, share in self.shares.items() if share > 0)
        smallest: tuple[int, ...] = ()
        if shares and len(shares) < documents < 100 / min(shares):
            look = task("smallest", select.smallest_hashes, names, self.seed)
            smallest = self.runner.run("held-out", [look])[0].smallest
        return Sides(self.seed, held, select.find_limits(shares, smallest))

    def _keep(self, sides: Sides, lost: Lost) -> None:
        """Drop what is repeated or shared, and shuffle and count the rest."""
        corpus, results = self.corpus, self.results
        results.near = lost.near
        by_sentence = self.shards.shuffle == "sentence"
        repeats = by_sentence and corpus.dedup_lines != "sentence"
        tasks = [
            task(
                "keep",
                keep.keep_part,
                part,
                lost.documents,
                lost.lines,
                lost.sentences,
                sides,
                by_sentence=by_sentence,
                copies_left=corpus.dedup == "none" or repeats,
                save_documents=corpus.save_documents if part.split == "train" else "none",
                file_names=names,
            )
            for part, names in results.parts
        ]
        kept = self.runner.run("shuffle", tasks)
        results.kept = list(zip([part for part, _ in results.parts], kept, strict=True))
        for part in kept:
            results.funnel.merge(part.funnel)
        if not any("train" in part.splits for part in kept):
            raise UserError(
                "no-text",
                "nothing is left to train on after duplicates and held-out text were dropped; "
                "give more text or hold out less (corpus.heldout)",
            )

    def _make_vocab(self) -> None:
        kept = [part for _, part in self.results.kept]
        names = [part.counts for part in kept if part.counts]
        count = count_ranges(sum(part.types for part in kept), pack.TYPES_PER_RANGE)
        tasks = [task("counts", pack.count_range, names, number, count) for number in range(count)]
        ranges = self.runner.run("word counts", tasks)
        sentences = sum(part.splits["train"].sentences for part in kept if "train" in part.splits)
        given = ""
        if self.vocab.file:
            given = self.results.digests[-1] or at(self.vocab.file).sha256()
        make = task(
            "vocab",
            pack.make_vocab,
            [words.name for words in ranges],
            [words.lengths for words in ranges],
            self.vocab,
            sentences,
            given,
        )
        self.results.vocab = self.runner.run("vocabulary", [make])[0]

    def _pack(self) -> None:
        results, steps = self.results, self.shards.block_steps
        splits = {name for _, part in results.kept for name in part.splits}
        tasks: list[Task[pack.PackedShard]] = []
        split_of: list[str] = []
        for name in sorted(splits, key=lambda name: (name != "train", name)):
            tables = [part.splits[name] for _, part in results.kept if name in part.splits]
            total = sum(table.words + table.sentences for table in tables)
            count = max(1, -(-total // (steps * self.shards.blocks_per_shard)))
            names = [table.name for table in tables]
            for number in range(count):
                tasks.append(
                    task(
                        "shards",
                        pack.make_shard,
                        names,
                        name,
                        number,
                        count,
                        steps=steps,
                        vocab_name=results.vocab.name,
                        vocab_sha256=results.vocab.sha256,
                    )
                )
                split_of.append(name)
        packed = self.runner.run("shards", tasks)
        results.shards = [
            (split, one, result.shard)
            for split, one, result in zip(split_of, tasks, packed, strict=True)
            if result.shard
        ]
        counts = f"{results.vocab.name}.counts.npy"
        heldout = sorted(splits - {"train"})
        measure = [task("unigram", pack.unigram, counts, self.tars(name)) for name in heldout]
        unigrams = self.runner.run("unigram", measure)
        results.perplexity = {
            name: unigram.perplexity for name, unigram in zip(heldout, unigrams, strict=True)
        }

    def tars(self, split: str) -> list[str]:
        """The shards of a split, relative to the work folder."""
        return [
            f"{one.out}/{shard.name}.tar"
            for name, one, shard in self.results.shards
            if name == split
        ]
