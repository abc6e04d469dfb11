"""What the same tokens teach: WikiText-2, 2.05 M training tokens, by the optimiser and settings.

    python tests/bench/bench_quality.py [--rows a] [--work FOLDER] [--json FILE]

Trains the model of the recipe `wikitext2` for 1,600 steps of 64 × 20 tokens, with the schedule over
those steps, and scores the whole validation file under the full softmax: with fresh states for
every sentence, and with states carried over.

a   the recipe as it is: at most 210 fresh, hoped for 200
b   Adagrad and everything else as bilm-tf sets it, at most 310 carried, on the validation file in
    its own order. It also reads as bilm-tf does: the sentences are shuffled, and the two directions
    read different ones in a step (read_apart.py)
c   the same, but both directions read the same sentences, as training here does: no bar

bilm-tf itself has 309.9 (carried) after the same tokens. That number is quoted, not measured here.
Time is that of training alone, see training_run.py. `--rows a` runs one row.
"""

import lzma
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from read_apart import read_apart
from training_run import Patch, Trained, build_corpus, evaluate, former_settings, train_run
from verdict import (
    Bar,
    common_settings,
    conclude,
    options_parser,
    print_circumstances,
    work_folder,
)
from workload import SHARED, skip

from elmwright.jobs.config.toml_file import load_config
from elmwright.pipeline.records import to_data

RECIPE, TOKENS = "wikitext2", 1600 * 64 * 20
TEXT = SHARED / "data" / "wikitext2"
QUOTED = 309.9
"""Carried perplexity of bilm-tf's own code with its own settings, after the same tokens."""
FRESH, HOPED, CARRIED = 210.0, 200.0, 310.0


@dataclass(frozen=True)
class Row:
    """One way to train on the tokens."""

    name: str
    settings: tuple[str, ...] = ()
    """What differs from the recipe."""
    is_shuffled: bool = False
    """Whether lanes read shuffled sentences; else they read articles from beginning to end."""
    patch: Patch | None = None
    """What no setting can change."""


AS_BILM_TF = (
    *former_settings().values(),  # bilm-tf has none of what was added since
    "optim.name=adagrad",
    "optim.lr=0.2",
    "optim.initial_accumulator=1.0",
    "optim.clip_norm=10.0",
    "optim.scale_by_window=true",
    "optim.schedule=constant",
    "optim.warmup_steps=0",
    "train.negatives=2048",
    "train.dropout=0.1",
    "train.reset_states=never",
    "train.softmax_init=zero",
)
ROWS = {
    "a": Row("the recipe"),
    # bilm-tf shuffles the sentences of a file for training, and not for evaluation.
    "b": Row("Adagrad as in bilm-tf", AS_BILM_TF, is_shuffled=True, patch=read_apart),
    "c": Row("the same, directions together", AS_BILM_TF, is_shuffled=True),
}


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--rows", default="ab", help="which rows to run (ab)")
    options = parser.parse_args()
    if not options.rows or set(options.rows) - set(ROWS):
        parser.error(f"--rows {options.rows}: there are {', '.join(ROWS)}")
    if not TEXT.is_dir():
        skip(f"{TEXT} is not there; ELMWRIGHT_SHARED names the folder that has data/wikitext2")
    print_circumstances()
    with work_folder(options.work) as work:
        corpus = prepare(work)
        shuffled = prepare(work, "corpus-shuffled", "shards.shuffle=sentence")
        trained = {}
        for key in options.rows:
            row = ROWS[key]
            read = shuffled if row.is_shuffled else corpus
            common = [f"corpus.dir={read}", "eval.every_steps=0", *common_settings(options)]
            if row.is_shuffled:
                common.append("eval.final_tokens=10000")  # the file in its order is scored below
            run = train_run(
                RECIPE,
                settings(row, common, options.steps),
                work / f"row-{key}",
                patch=row.patch,
            )
            if row.is_shuffled:
                run = replace(run, score=evaluate(run.checkpoint, corpus))
            trained[key] = run
    print_table(trained)
    bars = [bar for key, run in trained.items() for bar in bars_of(key, run)]
    numbers: dict[str, object] = {
        key: {
            "settings": list(ROWS[key].settings),
            "steps": run.steps,
            "wall_seconds": run.wall,
            "cpu_seconds": run.cpu,
            "score": to_data(run.score),
        }
        for key, run in trained.items()
    }
    return conclude(options, {**numbers, "quoted": {"bilm-tf carried": QUOTED}}, bars)


def prepare(work: Path, name: str = "corpus", *settings: str) -> Path:
    """Unpack the text and build a corpus of it, both unless they are there."""
    for split in ("train", "valid"):
        target = work / "wikitext-2" / f"wiki.{split}.tokens"
        target.parent.mkdir(exist_ok=True)
        if not target.exists():  # a later time stamp would look like another text
            packed = TEXT / f"wiki.{split}.tokens.xz"
            target.write_bytes(lzma.decompress(packed.read_bytes()))
    corpus = work / name
    build_corpus(RECIPE, list(settings), corpus)
    return corpus


def settings(row: Row, common: list[str], steps: int | None) -> list[str]:
    """The overrides of a row, for as many steps as the tokens allow if `steps` is not given."""
    overrides = [*row.settings, *common]
    tokens = load_config(RECIPE, overrides).train.tokens
    return [*overrides, f"train.max_steps={steps or TOKENS // tokens}"]


def print_table(trained: dict[str, Trained]) -> None:
    first = next(iter(trained.values()))
    print(f"\nvalid: {first.score.tokens:,} tokens, full softmax; training alone is timed")
    print(f"{'':42} {'steps':>6} {'fresh':>9} {'carried':>9} {'wall s':>8} {'CPU s':>8}")
    for key, run in trained.items():
        print(
            f"({key}) {ROWS[key].name:38} {run.steps:>6,} {run.score.perplexity:>9,.1f} "
            f"{run.score.carried_perplexity:>9,.1f} {run.wall:>8,.0f} {run.cpu:>8,.0f}"
        )
    name = "bilm-tf itself (quoted, not run here)"
    print(f"    {name:38} {'':6} {'':9} {QUOTED:>9,.1f}")


def bars_of(key: str, run: Trained) -> list[Bar]:
    if key == "a":
        return [Bar("(a) fresh perplexity", run.score.perplexity, FRESH, hoped=HOPED)]
    if key == "b":
        return [Bar("(b) carried perplexity", run.score.carried_perplexity, CARRIED)]
    return []


if __name__ == "__main__":
    sys.exit(main())
