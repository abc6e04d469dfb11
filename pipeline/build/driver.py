"""Build a corpus: the driver that runs the stages in order as Ray tasks.

Harvest (for the embedded source) → digests of the inputs → n-grams of evaluation files and of
held-out sets from files → pieces (sentencepiece only) → clean and tokenise → find copies,
near-copies and held-out overlap → drop them, shuffle and count → vocabulary → shards → unigram
perplexity of the held-out sets → report → manifest, written last.

A task reads and writes files, and hands the driver their names and counts (`ray_tasks.py`). Every
order comes from a keyed hash or from a document's place, never from arrival, so neither the number
of workers nor a kill matters. Outputs are named by what they depend on and, unless
`corpus.keep_work` is off, stay in the work folder. The next build, with one threshold changed or
one source added, runs only what is affected.

A corpus folder has `MANIFEST.json vocab.txt counts.npy shards/ report.html statistics.json`,
`sentencepiece.model` if that is the tokeniser, `quarantine.jsonl` and `decontaminated.jsonl` unless
they would be empty, `documents/` if requested, `source/` (the frozen harvest), `work/`, and two
hidden files: `.elmwright-corpus` (corpus_folder.py) and `.inputs.json` (up_to_date.py).
"""

from collections.abc import Callable
from pathlib import Path

from elmwright.pipeline.build.corpus_folder import check_space, claim
from elmwright.pipeline.build.finish import finish, sweep
from elmwright.pipeline.build.ray_tasks import Runner, Task, task
from elmwright.pipeline.build.read_and_clean import (
    add_digests,
    clean_chunks,
    find_ngrams,
    learn_pieces,
)
from elmwright.pipeline.build.stages import keep, pack, select
from elmwright.pipeline.build.stages.repeats import Lost, count_progress_pieces, find_repeats
from elmwright.pipeline.build.stages.select import HashSplit
from elmwright.pipeline.build.state import WORK, Build
from elmwright.pipeline.build.up_to_date import (
    corpus_key,
    current_manifest,
    evaluation_files,
    find_inputs,
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
    """The manifest of the corpus. The corpus is built, or finished if a build was interrupted,
    unless it is up to date. Ray must have been started.

    Raises `UserError` for what the user can fix and `Interrupted` after `stop()`.
    """
    # Not `os.path.abspath`, which turns `link/../corpus` into `corpus`: that is another folder.
    where = str(folder) if at(folder).is_url else str(Path(folder).absolute())
    key = corpus_key(corpus, vocab, shards, seed)
    manifest = current_manifest(where, key, corpus, vocab.file)
    if manifest is None:
        claim(where)
        # From here on the folder holds no finished corpus, whatever it held before.
        at(join(where, NAME)).remove()
        runner = Runner(join(where, WORK), progress, in_flight, stop)
        build = Build(corpus, vocab, shards, seed, where, runner)
        is_harvested = any(source.path == EMBEDDED for source in corpus.sources)
        if is_harvested and harvest.frozen_parts(where) is None:
            _harvest(build)
        _run_stages(build)
        with runner.stage("writing report", 2) as line:
            manifest = finish(build, key)
            runner.prune()
            line.result = "report.html"
    sweep(where, manifest, keep_work=corpus.keep_work)
    return manifest


def _harvest(build: Build) -> None:
    groups = harvest.group_modules(harvest.list_modules())
    tasks = [task("harvest", harvest.harvest_group, group) for group in groups]
    with build.runner.stage("collecting text", 1) as line:
        counts = build.runner.run("harvest", tasks)
        outs = [one.out for one in tasks]
        documents = harvest.finish(build.folder, build.runner.work, outs, counts)
        line.result = plural(documents, "document")


def _run_stages(build: Build) -> None:
    """Run all stages, up to the shards.

    The number after a stage's name is how often it should call `Runner.run`, for its progress bar.
    """
    corpus, stage = build.corpus, build.runner.stage
    text_files = find_inputs(build.folder, corpus)
    eval_files = evaluation_files(corpus)
    inputs = [*text_files, *eval_files, *vocab_file(build.vocab.file)]
    check_space(inputs, build.folder)
    with stage("reading", 2) as line:
        build.files = add_digests(build.runner, inputs)
        text_files = build.files[: len(text_files)]
        eval_files = build.files[len(text_files) : len(text_files) + len(eval_files)]
        chunks = sources.cut(text_files, corpus)
        ngrams = find_ngrams(build.runner, corpus, text_files, eval_files)
        line.result = plural(len(inputs), "file")
    if corpus.tokenizer == "sentencepiece":
        with stage("learning pieces", 2) as line:
            learn_pieces(build, chunks)
            line.result = plural(corpus.sentencepiece.size, "piece")
    with stage("cleaning", 1) as line:
        clean_chunks(build, chunks, ngrams)
        line.result = plural(build.funnel.counts[READ][0], "document")
    with stage("finding copies", count_progress_pieces(corpus, build.has_heldout)) as line:
        documents = sum(
            part.documents for _, cleaned in build.train_chunks for part in cleaned.parts
        )
        hash_split = _hash_split(build, documents)
        lost = find_repeats(build.runner, corpus, [part for part, _ in build.parts], hash_split)
        line.result = f"in {plural(documents, 'document')}"
    with stage("shuffling", 1) as line:
        _keep(build, hash_split, lost)
        tables = [table for _, part in build.kept for table in part.splits.values()]
        line.result = plural(sum(table.sentences for table in tables), "sentence")
    with stage("counting words", 2) as line:
        _make_vocab(build)
        line.result = f"vocabulary of {build.vocab_files.size:,}"
    with stage("writing shards", 2) as line:
        _pack(build)
        line.result = plural(len(build.packed), "shard")


def _hash_split(build: Build, documents: int) -> HashSplit:
    """How documents are held out by hash: at least one for each share, if there are enough."""
    shares = {name: share for name, share in build.shares.items() if share > 0}
    smallest: tuple[int, ...] = ()
    # A set that can expect fewer than 100 documents may get none by chance.
    if shares and len(shares) < documents < 100 / min(shares.values()):
        names = [part.name for part, _ in build.parts if part.split == "train"]
        look = task("smallest", select.smallest_hashes, names, build.seed)
        smallest = build.runner.run("held-out", [look])[0].smallest
    limits = select.find_limits(list(shares.values()), smallest)
    return HashSplit(build.seed, tuple(shares), limits)


def _keep(build: Build, hash_split: HashSplit, lost: Lost) -> None:
    """Drop repeated text and text shared with held-out sets, and shuffle and count the rest."""
    corpus = build.corpus
    build.near = lost.near
    by_sentence = build.shards.shuffle == "sentence"
    has_copies = corpus.dedup == "none" or (by_sentence and corpus.dedup_lines != "sentence")
    tasks = [
        task(
            "keep",
            keep.keep_part,
            part,
            lost.documents,
            lost.lines,
            lost.sentences,
            hash_split,
            by_sentence=by_sentence,
            copies_left=has_copies,
            save_documents=corpus.save_documents if part.split == "train" else "none",
            file_names=names,
        )
        for part, names in build.parts
    ]
    kept = build.runner.run("shuffle", tasks)
    build.kept = list(zip([part for part, _ in build.parts], kept, strict=True))
    for part in kept:
        build.funnel.merge(part.funnel)
    if not any("train" in part.splits for part in kept):
        raise UserError(
            "no-text",
            "nothing is left to train on after duplicates and held-out text were dropped; "
            "give more text or hold out less (corpus.heldout)",
        )


def _make_vocab(build: Build) -> None:
    kept = [part for _, part in build.kept]
    names = [part.counts for part in kept if part.counts]
    count = count_ranges(sum(part.types for part in kept), pack.TYPES_PER_RANGE)
    tasks = [task("counts", pack.count_range, names, number, count) for number in range(count)]
    ranges = build.runner.run("word counts", tasks)
    sentences = sum(part.splits["train"].sentences for part in kept if "train" in part.splits)
    # The vocabulary file is the last input. A file in a store has no digest yet.
    path = build.vocab.file
    make = task(
        "vocab",
        pack.make_vocab,
        [words.name for words in ranges],
        [words.lengths for words in ranges],
        build.vocab,
        sentences,
        (build.files[-1].sha256 or at(path).sha256()) if path else "",
    )
    build.vocab_files = build.runner.run("vocabulary", [make])[0]


def _pack(build: Build) -> None:
    """Write the shards of every split, and compute the unigram perplexity of held-out sets."""
    steps = build.shards.block_steps
    splits = {name for _, part in build.kept for name in part.splits}
    tasks: list[tuple[str, Task[pack.PackedShard]]] = []
    for split in sorted(splits, key=lambda name: (name != "train", name)):
        tables = [part.splits[split] for _, part in build.kept if split in part.splits]
        total = sum(table.words + table.sentences for table in tables)
        count = max(1, -(-total // (steps * build.shards.blocks_per_shard)))
        names = [table.name for table in tables]
        for number in range(count):
            one = task(
                "shards",
                pack.make_shard,
                names,
                split,
                number,
                count,
                steps=steps,
                vocab_name=build.vocab_files.name,
                vocab_sha256=build.vocab_files.sha256,
            )
            tasks.append((split, one))
    packed = build.runner.run("shards", [one for _, one in tasks])
    build.packed = [
        (split, one, result.shard)
        for (split, one), result in zip(tasks, packed, strict=True)
        if result.shard
    ]
    tars: dict[str, list[str]] = {split: [] for split in sorted(splits - {"train"})}
    for split, one, shard in build.packed:
        if split in tars:
            tars[split].append(f"{one.out}/{shard.name}.tar")
    counts = f"{build.vocab_files.name}.counts.npy"
    measure = [task("unigram", pack.unigram, counts, names) for names in tars.values()]
    unigrams = build.runner.run("unigram", measure)
    build.perplexity = {
        split: unigram.perplexity for split, unigram in zip(tars, unigrams, strict=True)
    }
