"""The recipe `demo` of an earlier commit against today's: at most 0.80 × the fresh perplexity.

    python tests/bench/bench_demo.py [--old FILE] [--work FOLDER] [--json FILE]

Both recipes train on one corpus, with the same number of processes and with today's code, and
today's may not take more CPU seconds. (If [shards] differ, the same text is packed twice.) `--old`
is the earlier recipe, by default that of commit e275208. It is read as the version of that commit
did: settings that it does not name have the defaults of then, and the data has the order of then
(`NUMERICS` 1). Time is that of training alone, see training_run.py.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

from training_run import Trained, build_corpus, former_settings, train_run
from verdict import (
    Bar,
    common_settings,
    conclude,
    options_parser,
    print_circumstances,
    work_folder,
)
from workload import ROOT

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.pipeline.records import to_data

NEW, COMMIT, OLD_NUMERICS = "demo", "e275208", 1
LIMIT = 0.80


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--old", type=Path, metavar="FILE", help=f"a recipe (that of {COMMIT})")
    options = parser.parse_args()
    print_circumstances()
    with work_folder(options.work) as work:
        old = str(options.old or recipe_of_commit(work / "old.toml"))
        check_same_text(load_config(old), load_config(NEW))
        common = [
            "eval.every_steps=0",
            f"train.processes={load_config(NEW).train.processes}",
            *([f"train.max_steps={options.steps}"] if options.steps else []),
            *common_settings(options),
        ]
        old_settings = [*defaults_of_then(old), *common, packed(old, work)]
        new_settings = [*common, packed(NEW, work)]
        then = train_run(old, old_settings, work / "old", OLD_NUMERICS)
        now = train_run(NEW, new_settings, work / "new")
    print_table(then, now)
    ratio = now.score.perplexity / then.score.perplexity
    bars = [
        Bar("new / old fresh perplexity", ratio, LIMIT),
        Bar("new / old CPU seconds", now.cpu / then.cpu, 1.0),
    ]
    numbers: dict[str, object] = {
        side: {
            "steps": run.steps,
            "wall_seconds": run.wall,
            "cpu_seconds": run.cpu,
            "score": to_data(run.score),
        }
        for side, run in (("old", then), ("new", now))
    }
    return conclude(options, numbers, bars)


def recipe_of_commit(target: Path) -> Path:
    """The text of the recipe at `COMMIT`, as a file."""
    name = f"{COMMIT}:jobs/config/recipes/demo.toml"
    done = subprocess.run(["git", "-C", ROOT, "show", name], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"git has no {name}; name the earlier recipe with --old")
    target.write_bytes(done.stdout)
    return target


def defaults_of_then(path: str) -> list[str]:
    """Overrides for the settings that the file does not name and that did not exist then."""
    named = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    return [
        override
        for name, override in former_settings().items()
        if name.partition(".")[2] not in named.get(name.partition(".")[0], {})
    ]


def check_same_text(old: RunConfig, new: RunConfig) -> None:
    """Refuse recipes whose perplexities are not comparable."""
    for section in ("corpus", "vocab"):
        if getattr(old, section) != getattr(new, section):
            sys.exit(f"[{section}] of the two recipes differs: they do not learn the same text")


def packed(recipe: str, work: Path) -> str:
    """Build the corpus, once for recipes with the same [shards]; the setting that names it."""
    shards = load_config(recipe).shards
    corpus = work / f"corpus-{shards.block_steps}-{shards.blocks_per_shard}-{shards.shuffle}"
    build_corpus(recipe, [], corpus)
    return f"corpus.dir={corpus}"


def print_table(then: Trained, now: Trained) -> None:
    print(f"\nheld out: {now.score.tokens:,} tokens, full softmax; training alone is timed")
    print(f"{'':8} {'steps':>6} {'fresh':>9} {'carried':>9} {'wall s':>8} {'CPU s':>8}")
    for name, run in (("old", then), ("new", now)):
        print(
            f"{name:8} {run.steps:>6,} {run.score.perplexity:>9,.1f} "
            f"{run.score.carried_perplexity:>9,.1f} {run.wall:>8,.0f} {run.cpu:>8,.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
