"""Fine-tuning on another domain: better than the base, and than training from scratch.

    python tests/bench/bench_finetune.py [--work FOLDER] [--json FILE]

The base has the shape and the optimiser of the recipe `demo` and 1,000 steps on English Wikipedia.
Then 200 steps on novels: from the base (`train.init_from`, the softmax alone for the first 50,
`train.hold_steps`), and from scratch. All are scored on held-out novels with fresh states.

The novels are packed twice. With the vocabulary of the base (`vocab.file`) all three models predict
the same targets: there the fine-tuned one has to be better than both. With a vocabulary of their
own the fine-tuned one has to be better than the one from scratch. The base is not compared there:
words that it does not know count as <UNK>, which is easy to predict, so the share of <UNK> is
printed beside each number.

In the 20 steps after the hold, no training loss may be more than 5 % above the mean of the 20 steps
before: the first updates of the biLM must not destroy what the base knows.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from training_run import Trained, build_corpus, evaluate, train_run
from verdict import (
    Bar,
    common_settings,
    conclude,
    options_parser,
    print_circumstances,
    work_folder,
)
from workload import SHARED, skip

from elmwright.jobs.checkpoints.contents import SavedScore
from elmwright.pipeline.records import to_data

RECIPE = "demo"
WIKIPEDIA = SHARED / "data" / "enwiki2014" / "train-00000.jsonl.xz"
NOVELS = SHARED / "data" / "novels_en" / "train-00000.jsonl.xz"
BASE_STEPS, STEPS, HOLD, AROUND, JUMP = 1000, 200, 50, 20, 1.05
PLAIN = [
    "corpus.dedup_lines=none",
    "corpus.min_letter_share=0.0",
    "corpus.min_sentence_words=1",
]
"""Both texts are clean, where the recipe's is not."""


@dataclass(frozen=True)
class Pair:
    """Two trainings on the novels, with the same vocabulary."""

    vocabulary: str
    tuned: Trained
    scratch: Trained


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--base-steps", type=int, default=BASE_STEPS, help="steps of the base")
    parser.add_argument("--hold", type=int, default=HOLD, help="train.hold_steps")
    options = parser.parse_args()
    steps = options.steps or STEPS
    if not AROUND <= options.hold <= steps - AROUND:
        parser.error(f"--hold: {AROUND} steps before and after the end of the hold are compared")
    for text in (WIKIPEDIA, NOVELS):
        if not text.is_file():
            skip(f"{text} is not there; ELMWRIGHT_SHARED names the folder that has data/")
    print_circumstances()
    common = ["eval.every_steps=0", "tracking.every_steps=1", *common_settings(options)]
    with work_folder(options.work) as work:
        wikipedia, novels = build_corpora(work)
        base_settings = [f"corpus.dir={wikipedia}", f"train.max_steps={options.base_steps}"]
        base = train_run(RECIPE, [*common, *base_settings], work / "base")
        start = [f"train.init_from={base.checkpoint}", f"train.hold_steps={options.hold}"]
        pairs = []
        for name, corpus in novels.items():
            new = [*common, f"corpus.dir={corpus}", f"train.max_steps={steps}"]
            tuned = train_run(RECIPE, [*new, *start], work / f"tuned-{name}")
            pairs.append(Pair(name, tuned, train_run(RECIPE, new, work / f"scratch-{name}")))
        base_score = evaluate(base.checkpoint, novels["base"])

    print(f"\nbase: fresh perplexity {base.score.perplexity:,.1f} on Wikipedia held out")
    print_table(base_score, pairs)
    bars = compare(base_score, pairs)
    for pair in pairs:
        bars.append(jump(pair, options.hold))
    numbers: dict[str, object] = {
        "base_on_wikipedia": to_data(base.score),
        "base_on_novels": to_data(base_score),
        "pairs": [
            {
                "vocabulary": pair.vocabulary,
                "tuned": to_data(pair.tuned.score),
                "scratch": to_data(pair.scratch.score),
                "tuned_losses": list(pair.tuned.losses.values()),
            }
            for pair in pairs
        ],
    }
    is_as_meant = options.base_steps == BASE_STEPS and options.hold == HOLD
    return conclude(options, numbers, bars, is_as_meant=is_as_meant)


def build_corpora(work: Path) -> tuple[Path, dict[str, Path]]:
    """Wikipedia, and the novels with the vocabulary of the base and with their own."""
    wikipedia = work / "wikipedia"
    build_corpus(RECIPE, [*PLAIN, f"corpus.sources=['{WIKIPEDIA}']"], wikipedia)
    settings = [
        *PLAIN,
        f"corpus.sources=['{NOVELS}']",
        "corpus.cut_documents=10000",  # so that pieces of a novel can be held out
        "corpus.heldout={heldout = 0.03}",
    ]
    novels = {"base": work / "novels-base", "own": work / "novels-own"}
    build_corpus(RECIPE, [*settings, f"vocab.file={wikipedia / 'vocab.txt'}"], novels["base"])
    build_corpus(RECIPE, settings, novels["own"])
    return wikipedia, novels


def print_table(base: SavedScore, pairs: list[Pair]) -> None:
    print(f"held-out novels: {base.tokens:,} tokens, full softmax")
    print(
        f"{'vocabulary':11} {'model':13} {'fresh':>9} {'carried':>9} {'bits/char':>9} {'<UNK>':>6}"
    )
    rows = [("base", "base", base)]
    for pair in pairs:
        rows.append((pair.vocabulary, "fine-tuned", pair.tuned.score))
        rows.append((pair.vocabulary, "from scratch", pair.scratch.score))
    for vocabulary, model, score in rows:
        print(
            f"{vocabulary:11} {model:13} {score.perplexity:>9,.1f} "
            f"{score.carried_perplexity:>9,.1f} {score.bits_per_character:>9.3f} "
            f"{score.unk_share:>6.1%}"
        )


def compare(base: SavedScore, pairs: list[Pair]) -> list[Bar]:
    """The fine-tuned model against those that predict the same targets."""
    bars = []
    for pair in pairs:
        others = {"from scratch": pair.scratch.score}
        if pair.vocabulary == "base":
            others["base"] = base
        bars += [
            Bar(
                f"vocabulary {pair.vocabulary}: fresh perplexity fine-tuned, against {other},",
                pair.tuned.score.perplexity,
                score.perplexity,
                is_strict=True,
            )
            for other, score in others.items()
        ]
    return bars


def jump(pair: Pair, hold: int) -> Bar:
    """The highest loss soon after the hold, against the mean before."""
    losses = pair.tuned.losses
    before = mean(losses[step] for step in range(hold - AROUND + 1, hold + 1))
    after = {step: losses[step] for step in range(hold + 1, hold + AROUND + 1)}
    worst = max(after, key=after.__getitem__)
    print(
        f"vocabulary {pair.vocabulary}: mean loss {before:.3f} in the last {AROUND} steps of the "
        f"hold, {mean(after.values()):.3f} in the next {AROUND}, at most {after[worst]:.3f} there "
        f"(step {worst})"
    )
    name = f"vocabulary {pair.vocabulary}: highest loss after the hold / mean before"
    return Bar(name, after[worst] / before, JUMP)


if __name__ == "__main__":
    sys.exit(main())
