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


def arg(*names: str, complete: Complete | None = None, **options: Any) -> Argument:
    """An argument as `add_argument` takes it; `complete` suggests values in a shell."""

    def add(parser: _ActionsContainer) -> None:
        parser.add_argument(*names, **options).completer = complete  # type: ignore[attr-defined]

    return add


def flag(*names: str, help: str) -> Argument:  # noqa: A002 - as in argparse
    """An option without a value."""
    return arg(*names, action="store_true", help=help)


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
    "config",
    metavar="CONFIG",
    complete=configs,
    help="a config file, or the name of a shipped recipe (demo, small, original, wikitext2)",
)
SET = arg(
    "--set",
    action="append",
    default=[],
    metavar="SECTION.KEY=VALUE",
    dest="overrides",
    help="override a setting; may be repeated",
)
RUN_HELP = "a run's folder, its name in runs/ here, its config, or the name of a submitted run"
NEWEST_HELP = "a run's folder, name or config (the newest in runs/)"
RUN = arg("run", metavar="RUN", complete=runs, help=RUN_HELP)
SUBMITTED_HELP = "the name of a submitted run, or its folder (run.dir)"
SUBMITTED = arg("run", metavar="RUN", complete=runs, help=SUBMITTED_HELP)
MODEL = arg(
    "model",
    metavar="MODEL",
    complete=runs,
    help="a run (its folder or name), a bundle or checkpoint (a folder or s3://…), a registered "
    "model (models:/NAME@ALIAS, FOLDER/NAME@ALIAS), or a folder with options.json and one .hdf5 "
    "in bilm format",
)
SIGNED_HELP = "refuse a MODEL that is not a bundle signed with this public key"
SIGNED = arg("--require-signature", metavar="PUB", help=SIGNED_HELP)
DEVICE = arg("--device", default="cpu", choices=("cpu", "cuda", "auto"), help="where to compute")
UNTIL = arg("--until", choices=STAGES, default=STAGES[-1], help="the last stage to run")
JSON = flag("--json", help="print the result as JSON")
QUIET = flag("-q", "--quiet", help="print only warnings, errors and the result")
SENTENCES_HELP = "one tokenised sentence per line, or - for stdin"
NAME = arg("name", metavar="NAME", help="name of the model")
REGISTRY = arg(
    "--to",
    metavar="URI",
    help="an MLflow server or database (http://…, sqlite:///…), or a folder or s3:// prefix; by "
    "default MLFLOW_TRACKING_URI, else the registry of the runs here",
)
TARGET_HELP = (
    "local, slurm, k8s, the address of a Ray dashboard (http://HEAD:8265), or a name from "
    "~/.config/elmwright/targets.toml"
)
FOLLOW = flag("--follow", help="print its log until it ends")
WAIT_HELP = "let the job wait this long (30) for a cluster that grows on demand"
WAIT = arg("--wait", type=int, nargs="?", const=30, metavar="MINUTES", help=WAIT_HELP)

COMMANDS = {
    "run": command("run.run_stages", CONFIG, SET, UNTIL, JSON, QUIET),
    "init": command(
        "run.init",
        arg("file", nargs="?", default="my.toml", help="file to write (my.toml)"),
        arg("--source", action="append", default=[], help="text to read; may be repeated"),
        arg("--hours", type=float, default=1.0, help="hours that training may take (1)"),
        flag("--force", help="overwrite the file"),
    ),
    "check": command(
        "run.check",
        *(CONFIG, SET),
        flag("--measure", help="time some real training steps"),
        flag("--full", help="also print the resolved config"),
        JSON,
    ),
    "config": command(
        "run.show_config",
        flag("--explain", help="list every setting with its default and meaning"),
        arg("--recipe", metavar="NAME", complete=recipes, help="print a recipe, to save and edit"),
        JSON,
    ),
    "corpus": command(
        "run.corpus",
        *(CONFIG, SET, JSON, QUIET),
        arg("--sample", type=int, metavar="N", help="only show what the rules do to N documents"),
        until="corpus",
    ),
    "train": command("run.run_stages", CONFIG, SET, JSON, QUIET, until="train"),
    "checkpoints": command(
        "runs.checkpoints", RUN, flag("--verify", help="compare every file with its digest"), JSON
    ),
    "runs": command(
        "runs.list_all",
        arg("folder", nargs="?", default="runs", metavar="FOLDER", help="their folder (runs)"),
        JSON,
    ),
    "status": command("progress.status", RUN, JSON),
    "logs": command(
        "progress.logs", RUN, flag("-f", "--follow", help="print new lines as they are written")
    ),
    "ui": command(
        "runs.ui",
        arg("run", metavar="RUN", nargs="?", default="", complete=runs, help=NEWEST_HELP),
        arg("--port", type=int, default=0, help="port to use (a free one from 5000)"),
        flag("--open", help="open the charts in the browser"),
    ),
    "prune": command(
        "runs.prune", RUN, flag("--dry-run", help="only list what would be removed"), JSON
    ),
    "embed": command(
        "use.embed",
        *(MODEL, SIGNED, DEVICE),
        arg("input", metavar="INPUT", help=SENTENCES_HELP),
        arg(
            "-o",
            "--output",
            required=True,
            metavar="OUT",
            help="file to write: .hdf5, .parquet or .npz",
        ),
        arg(
            "--format", choices=("hdf5", "parquet", "npz"), help="needed if OUT has another ending"
        ),
        one_of(
            arg(
                "--layers", choices=("all", "top", "mean"), default="all", help="which layers (all)"
            ),
            arg(
                "--mix",
                metavar="W0,W1,…",
                help="one vector per word: the layers times these weights, added",
            ),
        ),
        arg("--gamma", type=float, default=1.0, help="with --mix: scales the sum (1)"),
        arg("--batch-size", type=int, default=32, metavar="N", help="sentences per batch (32)"),
        arg("--workers", type=int, default=1, metavar="N", help="Ray worker processes (1)"),
        flag(
            "--carry-state",
            help="line n continues the LSTM states of line n minus batch size; by default every "
            "sentence starts with zero states",
        ),
        arg("--cache", default="", metavar="TABLE", help="a file written by fill-cache"),
        flag("--force", help="replace OUT if it exists"),
        QUIET,
    ),
    "score": command(
        "use.score",
        *(MODEL, SIGNED, DEVICE),
        arg("input", metavar="TEXT", help=SENTENCES_HELP),
        arg("-o", "--output", metavar="OUT", help="file to write: .tsv or .jsonl (TSV on stdout)"),
        flag("--words", help="also score every word"),
        flag("--force", help="replace OUT if it exists"),
    ),
    "neighbours": command(
        "use.neighbours",
        *(MODEL, SIGNED, DEVICE),
        arg("--word", required=True, help="a word of the sentence"),
        arg(
            "--in",
            required=True,
            dest="sentence",
            metavar="SENTENCE",
            help="the tokenised sentence",
        ),
        arg(
            "--corpus",
            metavar="TEXT",
            help="a file of one tokenised sentence per line, or a RUN or corpus folder, whose "
            "held-out sentences are read (if MODEL is a RUN, its own)",
        ),
        arg("-k", type=int, default=10, help="how many neighbours (10)"),
        arg("--layer", default="top", help="top, mean, or the number of a layer (top)"),
        flag("--any-word", help="compare with all words, not only the same word"),
        arg("--html", metavar="OUT", help="also write a page"),
        flag("--force", help="replace that page if it exists"),
        JSON,
        aliases=("neighbors",),
    ),
    "eval": command(
        "use.evaluate",
        *(MODEL, SIGNED),
        arg(
            "--corpus", metavar="FOLDER", help="a corpus folder or a RUN (MODEL, if that is a RUN)"
        ),
        arg("--split", help="only this held-out set"),
        JSON,
    ),
    "fill-cache": command(
        "use.fill_cache",
        *(MODEL, SIGNED),
        arg("-o", "--output", required=True, metavar="TABLE", help="file to write"),
        arg("--words", metavar="FILE", help="one word per line (the model's vocabulary)"),
        flag("--force", help="replace TABLE if it exists"),
    ),
    "export": command(
        "publish.export",
        arg("config", metavar="RUN", complete=runs, help="a run's folder, name or config"),
        SET,
        arg("--step", help="a checkpoint: its number, best, or latest (training's result)"),
        arg("-o", "--output", metavar="DIR", help="folder to write (RUN/bundle)"),
        flag("--without-softmax", help="leave out the softmax"),
        arg("--sign", metavar="KEY", help="sign the bundle with this private key (PEM)"),
        flag("--force", help="replace an existing bundle"),
        *(JSON, QUIET),
        until="export",
    ),
    "verify": command(
        "publish.verify",
        arg("path", metavar="PATH", complete=runs, help="its folder or file, or a RUN"),
        arg("--key", metavar="PUB", help="a bundle must be signed with this public key"),
        JSON,
    ),
    "publish": command(
        "publish.publish",
        arg(
            "config",
            metavar="BUNDLE",
            complete=configs,
            help="a bundle's folder, or a run's folder, name or config",
        ),
        SET,
        arg("--name", help="name of the model"),
        arg(
            "--alias",
            help="alias to move to the version (candidate); any other moves only to a version that "
            "is no worse",
        ),
        flag("--force", help="move the alias even to a worse version"),
        *(REGISTRY, JSON, QUIET),
        until="publish",
    ),
    "versions": command("publish.versions", NAME, REGISTRY, JSON),
    "promote": command(
        "publish.promote",
        NAME,
        arg("version", metavar="VERSION", help="number of the version"),
        arg("--alias", required=True, help="the alias to move, such as champion"),
        flag("--force", help="even if the version is worse"),
        arg(
            "--on",
            default="",
            metavar="TEXT",
            help="compare on this text if vocabularies or held-out sets differ",
        ),
        REGISTRY,
    ),
    "rollback": command(
        "publish.rollback", NAME, arg("--alias", required=True, help="alias to move back"), REGISTRY
    ),
    "submit": command(
        "cluster.submit",
        *(CONFIG, SET),
        arg("--to", required=True, metavar="TARGET", help=TARGET_HELP),
        UNTIL,
        arg("--name", metavar="RUN", help="name of the run, instead of run.name"),
        flag("--dry-run", help="print what would be sent, and send nothing"),
        *(FOLLOW, WAIT, JSON),
    ),
    "jobs": command("cluster.jobs", JSON),
    "cancel": command(
        "cluster.cancel", SUBMITTED, flag("--no-wait", help="do not wait until it has stopped")
    ),
    "resume": command(
        "cluster.resume",
        SUBMITTED,
        arg("--to", metavar="TARGET", help="a different target"),
        *(FOLLOW, WAIT),
    ),
    "doctor": command(
        "cluster.doctor",
        arg("target", metavar="TARGET", help=TARGET_HELP),
        arg(
            "--config", metavar="CONFIG", complete=configs, help="also check what this config needs"
        ),
        *(SET, JSON),
    ),
}
