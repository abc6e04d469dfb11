"""Every subcommand of `elmwright`: its arguments, and the function that runs it.

A function is named by its module in this folder and imported only when its command runs, so that
`elmwright --help` loads none of them. What a command does is described in `help.py`.
"""

from argparse import _ActionsContainer
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elmwright.jobs.cli.completion import Complete, configs, recipes, runs
from elmwright.jobs.rundir.stage_names import STAGES

Argument = Callable[[_ActionsContainer], None]
"""Adds one argument to a parser."""


def arg(names: str, text: str, *, complete: Complete | None = None, **options: Any) -> Argument:
    """An argument: its names, perhaps followed by a metavar in capitals, and its help text.

    `complete` suggests values in a shell; the other options are those of `add_argument`.
    """
    *flags, last = names.split()
    if last.isupper():
        options["metavar"] = last
    else:
        flags.append(last)

    def add(parser: _ActionsContainer) -> None:
        action = parser.add_argument(*flags, help=text, **options)
        action.completer = complete  # type: ignore[attr-defined]

    return add


def flag(names: str, text: str) -> Argument:
    """An option without a value."""
    return arg(names, text, action="store_true")


def one_of(*arguments: Argument) -> Argument:
    """Options of which at most one may be used."""

    def add(parser: _ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group()
        for argument in arguments:
            argument(group)

    return add


@dataclass(frozen=True)
class Command:
    """One subcommand."""

    function: str
    """module.function in this folder; it takes the parsed arguments."""
    arguments: tuple[Argument, ...]
    defaults: dict[str, Any]
    """Values that the function gets besides the arguments."""
    aliases: tuple[str, ...]


def command(
    function: str, *arguments: Argument, aliases: tuple[str, ...] = (), **defaults: Any
) -> Command:
    """A `Command`, with less punctuation."""
    return Command(function, arguments, defaults, aliases)


CONFIG = arg(
    "config CONFIG",
    "a config file, or the name of a shipped recipe (demo, small, original, wikitext2)",
    complete=configs,
)
SET = arg(
    "--set SECTION.KEY=VALUE",
    "override a setting; may be repeated",
    action="append",
    default=[],
    dest="overrides",
)
RUN_HELP = "a run's folder, its name in runs/ here, its config, or the name of a submitted run"
NEWEST_HELP = "a run's folder, name or config (the newest in runs/)"
RUN = arg("run RUN", RUN_HELP, complete=runs)
SUBMITTED = arg("run RUN", "the name of a submitted run, or its folder (run.dir)", complete=runs)
MODEL = arg(
    "model MODEL",
    "a run (its folder or name), a bundle or checkpoint (a folder or s3://…), a registered "
    "model (models:/NAME@ALIAS, FOLDER/NAME@ALIAS), or a folder with options.json and one .hdf5 "
    "in bilm format",
    complete=runs,
)
SIGNED_HELP = "refuse a MODEL that is not a bundle signed with this public key"
SIGNED = arg("--require-signature PUB", SIGNED_HELP)
DEVICE = arg("--device", "where to compute", default="cpu", choices=("cpu", "cuda", "auto"))
UNTIL = arg("--until", "the last stage to run", choices=STAGES, default=STAGES[-1])
JSON = flag("--json", "print the result as JSON")
QUIET = flag("-q --quiet", "print only warnings, errors and the result")
SENTENCES_HELP = "raw text, one sentence per line, or - for stdin"
TOKENIZED = flag("--tokenized", "words are separated by spaces already, as the model's own words")
TEXT_KIND = one_of(flag("--split", "the text is running text: find its sentences"), TOKENIZED)
NAME = arg("name NAME", "name of the model")
REGISTRY = arg(
    "--to URI",
    "an MLflow server or database (http://…, sqlite:///…), or a folder or s3:// prefix; by "
    "default MLFLOW_TRACKING_URI, else the registry of the runs here",
)
TARGET_HELP = (
    "local, slurm, k8s, the address of a Ray dashboard (http://HEAD:8265), or a name from "
    "~/.config/elmwright/targets.toml"
)
FOLLOW = flag("--follow", "print its log until it ends")
WAIT_HELP = "let the job wait this long (30) for a cluster that grows on demand"
WAIT = arg("--wait MINUTES", WAIT_HELP, type=int, nargs="?", const=30)

COMMANDS = {
    "run": command("run.run_stages", CONFIG, SET, UNTIL, JSON, QUIET),
    "init": command(
        "run.init",
        arg("file", "file to write (my.toml)", nargs="?", default="my.toml"),
        arg("--source", "text to read; may be repeated", action="append", default=[]),
        arg("--hours", "hours that training may take (1)", type=float, default=1.0),
        flag("--force", "overwrite the file"),
    ),
    "check": command(
        "run.check",
        *(CONFIG, SET),
        flag("--measure", "time some real training steps"),
        flag("--full", "also print the resolved config"),
        JSON,
    ),
    "bench": command(
        "run.bench",
        *(CONFIG, SET),
        arg("--device", "where to compute (cpu)", default="cpu", choices=("cpu", "cuda")),
        arg("--steps", "steps to time (10)", type=int, default=10),
        JSON,
    ),
    "config": command(
        "run.show_config",
        flag("--explain", "list every setting with its default and meaning"),
        arg("--recipe NAME", "print a recipe, to save and edit", complete=recipes),
        JSON,
    ),
    "corpus": command(
        "run.corpus",
        *(CONFIG, SET, JSON, QUIET),
        arg("--sample N", "only show what the rules do to N documents", type=int),
        flag("--force", "build it anew even if the run was trained on the one it has"),
        until="corpus",
    ),
    "train": command("run.run_stages", CONFIG, SET, JSON, QUIET, until="train"),
    "checkpoints": command(
        "runs.checkpoints", RUN, flag("--verify", "compare every file with its digest"), JSON
    ),
    "runs": command(
        "runs.list_all",
        arg("folder FOLDER", "their folder (runs)", nargs="?", default="runs"),
        JSON,
    ),
    "status": command("progress.status", RUN, JSON),
    "logs": command(
        "progress.logs", RUN, flag("-f --follow", "print new lines as they are written")
    ),
    "ui": command(
        "runs.ui",
        arg("run RUN", NEWEST_HELP, nargs="?", default="", complete=runs),
        arg("--port", "port to use (a free one from 5000)", type=int, default=0),
        flag("--open", "open the charts in the browser"),
    ),
    "prune": command("runs.prune", RUN, flag("--dry-run", "only list what would be removed"), JSON),
    "embed": command(
        "use.embed",
        *(MODEL, SIGNED, DEVICE),
        arg("input INPUT", SENTENCES_HELP),
        arg("-o --output OUT", "file to write: .hdf5, .parquet or .npz", required=True),
        arg("--format", "needed if OUT has another ending", choices=("hdf5", "parquet", "npz")),
        one_of(
            arg("--layers", "which layers (all)", choices=("all", "top", "mean"), default="all"),
            arg("--mix W0,W1,…", "one vector per word: the layers times these weights, added"),
        ),
        arg("--gamma", "with --mix: scales the sum (1)", type=float, default=1.0),
        arg(
            "--dtype",
            "type of the numbers (float32); float16 takes half the space",
            choices=("float32", "float16"),
            default="float32",
        ),
        arg(
            "--precision",
            "what products of matrices read (fp32); bf16 is faster on processors that have it",
            choices=("fp32", "bf16"),
            default="fp32",
        ),
        arg("--batch-size N", "sentences per batch (32)", type=int, default=32),
        arg("--workers N", "Ray worker processes (1)", type=int, default=1),
        TEXT_KIND,
        arg(
            "--pool",
            "with --tokenized, if the model reads pieces of words: one vector for each given "
            "word, of its pieces",
            choices=("first", "last", "mean"),
        ),
        flag(
            "--carry-state",
            "line n continues the LSTM states of line n minus batch size; by default every "
            "sentence starts with zero states",
        ),
        arg("--cache TABLE", "a file written by fill-cache", default=""),
        flag("--force", "replace OUT if it exists"),
        QUIET,
    ),
    "score": command(
        "use.score",
        *(MODEL, SIGNED, DEVICE),
        arg("input TEXT", SENTENCES_HELP, nargs="?"),
        arg(
            "--pairs FILE",
            "instead of TEXT: two sentences per line with a tab between them; how often is the "
            "first one more probable?",
        ),
        arg(
            "-o --output OUT",
            "file to write, a row per sentence or pair: .tsv or .jsonl (by default sentences go "
            "to stdout as TSV)",
        ),
        TEXT_KIND,
        flag("--words", "also score every word"),
        flag("--force", "replace OUT if it exists"),
        flag("--json", "with --pairs: print the result as JSON"),
    ),
    "substitutes": command(
        "use.substitutes",
        *(MODEL, SIGNED, DEVICE),
        arg(
            "--in SENTENCE",
            "a sentence with brackets around the word to replace, or around nothing",
            required=True,
            dest="sentence",
        ),
        TOKENIZED,
        arg("-k", "how many words (10)", type=int, default=10),
        JSON,
    ),
    "neighbours": command(
        "use.neighbours",
        *(MODEL, SIGNED, DEVICE),
        arg("--word", "a word of the sentence", required=True),
        arg("--in SENTENCE", "the sentence", required=True, dest="sentence"),
        arg(
            "--corpus TEXT",
            "raw text, one sentence per line, or a RUN or corpus folder, whose held-out "
            "sentences are read (if MODEL is a RUN, its own)",
        ),
        TEXT_KIND,
        arg("-k", "how many neighbours (10)", type=int, default=10),
        arg("--layer", "top, mean, or the number of a layer (top)", default="top"),
        flag("--any-word", "compare with all words, not only the same word"),
        arg("--html OUT", "also write a page"),
        flag("--force", "replace that page if it exists"),
        JSON,
        aliases=("neighbors",),
    ),
    "tokenize": command(
        "use.tokenize",
        *(MODEL, SIGNED),
        arg("input TEXT", SENTENCES_HELP),
        flag("--split", "the text is running text: find its sentences"),
        flag("--json", "print a JSON object per sentence, with the places of its words"),
        aliases=("tokenise",),
    ),
    "eval": command(
        "use.evaluate",
        *(MODEL, SIGNED),
        arg("--corpus FOLDER", "a corpus folder or a RUN (MODEL, if that is a RUN)"),
        arg("--split", "only this held-out set"),
        JSON,
    ),
    "fill-cache": command(
        "use.fill_cache",
        *(MODEL, SIGNED),
        arg("-o --output TABLE", "file to write", required=True),
        arg("--words FILE", "one word per line (the model's vocabulary)"),
        flag("--force", "replace TABLE if it exists"),
    ),
    "export": command(
        "publish.export",
        arg("config RUN", "a run's folder, name or config", complete=runs),
        SET,
        arg("--step", "a checkpoint: its number, best, or latest (training's result)"),
        arg("-o --output DIR", "folder to write (RUN/bundle)"),
        flag("--without-softmax", "leave out the softmax"),
        arg("--sign KEY", "sign the bundle with this private key (PEM)"),
        flag("--force", "replace an existing bundle"),
        *(JSON, QUIET),
        until="export",
    ),
    "verify": command(
        "publish.verify",
        arg("path PATH", "its folder or file, or a RUN", complete=runs),
        one_of(
            arg("--key PUB", "a bundle must be signed with this public key"),
            arg(
                "--replay STEP",
                "train a RUN again from this checkpoint (the last but one) to the next, and "
                "compare every bit",
                nargs="?",
                const="",
            ),
        ),
        JSON,
    ),
    "publish": command(
        "publish.publish",
        arg(
            "config BUNDLE",
            "a bundle's folder, or a run's folder, name or config",
            complete=configs,
        ),
        SET,
        arg("--name", "name of the model"),
        arg(
            "--alias",
            "alias to move to the version (candidate); any other moves only to a version that "
            "is no worse",
        ),
        flag("--force", "move the alias even to a worse version"),
        *(REGISTRY, JSON, QUIET),
        until="publish",
    ),
    "versions": command("publish.versions", NAME, REGISTRY, JSON),
    "promote": command(
        "publish.promote",
        NAME,
        arg("version VERSION", "number of the version"),
        arg("--alias", "the alias to move, such as champion", required=True),
        flag("--force", "even if the version is worse"),
        arg(
            "--on TEXT", "compare on this text if vocabularies or held-out sets differ", default=""
        ),
        REGISTRY,
    ),
    "rollback": command(
        "publish.rollback", NAME, arg("--alias", "alias to move back", required=True), REGISTRY
    ),
    "submit": command(
        "cluster.submit",
        *(CONFIG, SET),
        arg("--to TARGET", TARGET_HELP, required=True),
        UNTIL,
        arg("--name RUN", "name of the run, instead of run.name"),
        flag("--dry-run", "print what would be sent, and send nothing"),
        *(FOLLOW, WAIT, JSON),
    ),
    "jobs": command("cluster.jobs", JSON),
    "cancel": command(
        "cluster.cancel", SUBMITTED, flag("--no-wait", "do not wait until it has stopped")
    ),
    "resume": command(
        "cluster.resume",
        SUBMITTED,
        arg("--to TARGET", "a different target"),
        *(FOLLOW, WAIT),
    ),
    "doctor": command(
        "cluster.doctor",
        arg("target TARGET", TARGET_HELP),
        arg("--config CONFIG", "also check what this config needs", complete=configs),
        *(SET, JSON),
    ),
}
