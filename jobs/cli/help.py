"""What `elmwright --help` says: the commands in groups, an example of each, and near misses.

argparse lists subcommands in one column in the order of their registration, names every choice for
a typo, and begins its errors with a usage line. Here the list has groups, a typo gets the nearest
name, and an error is one sentence, as everywhere else.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from elmwright.jobs.secrets.hiding import for_others
from elmwright.jobs.terminal.wording import did_you_mean

WIDTH = 80

GROUPS: dict[str, tuple[str, ...]] = {
    "Start here": ("run", "init", "check", "config"),
    "Corpus and training": ("corpus", "train", "checkpoints"),
    "Look": ("runs", "status", "logs", "ui", "prune"),
    "Use a model": ("embed", "score", "neighbours", "eval", "fill-cache"),
    "Publish": ("export", "verify", "publish", "versions", "promote", "rollback"),
    "Clusters": ("submit", "jobs", "cancel", "resume", "doctor"),
}
"""Every command that is listed, in the order in which it is."""

EXAMPLES: dict[str, str] = {
    "run": "elmwright run demo",
    "init": "elmwright init my.toml --source 'books/*.txt'",
    "check": "elmwright check my.toml",
    "config": "elmwright config --recipe small > my.toml",
    "corpus": "elmwright corpus my.toml --sample 100",
    "train": "elmwright train my.toml --set train.max_steps=2000",
    "checkpoints": "elmwright checkpoints demo --verify",
    "runs": "elmwright runs",
    "status": "elmwright status demo",
    "logs": "elmwright logs -f demo",
    "ui": "elmwright ui demo --open",
    "prune": "elmwright prune demo --dry-run",
    "embed": "echo 'The quick brown fox' | elmwright embed demo - -o fox.hdf5",
    "score": "elmwright score demo sentences.txt -o scores.tsv",
    "neighbours": "elmwright neighbours demo --word value --in 'returns the value .'",
    "eval": "elmwright eval demo",
    "fill-cache": "elmwright fill-cache demo -o demo.table",
    "export": "elmwright export demo --step best -o best-bundle",
    "verify": "elmwright verify demo",
    "publish": "elmwright publish runs/demo/bundle --name demo --to models/",
    "versions": "elmwright versions demo",
    "promote": "elmwright promote demo 2 --alias champion",
    "rollback": "elmwright rollback demo --alias champion",
    "submit": "elmwright submit my.toml --to http://head:8265 --follow",
    "jobs": "elmwright jobs",
    "cancel": "elmwright cancel demo",
    "resume": "elmwright resume demo",
    "doctor": "elmwright doctor slurm --config my.toml",
}
"""One line for each command's own help; each must parse."""

WORDS = (
    ("CONFIG", "a config file, or a recipe: demo, small, original, wikitext2"),
    ("RUN", "a run's folder, its name in runs/ here, or its config file"),
    ("MODEL", "a RUN, bundle, checkpoint, models:/NAME@ALIAS or bilm folder"),
)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, and whose help ends in an example."""

    example = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        how = "" if message.endswith("?") else f"; '{self.prog} --help' shows how"
        self.exit(2, f"error: {for_others(message)}{how}\n")

    def format_help(self) -> str:
        text = super().format_help()
        return f"{text}\nexample:\n  {self.example}\n" if self.example else text

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            near = did_you_mean(str(value), listed(choices))
            raise argparse.ArgumentError(None, f"there is no command {value!r}{near}")
        raise argparse.ArgumentError(
            action, f"{value!r} is none of {', '.join(choices)}{did_you_mean(str(value), choices)}"
        )


class _Formatter(argparse.HelpFormatter):
    """At most 80 columns, however wide the terminal is."""

    def __init__(self, prog: str, **options: Any) -> None:
        import shutil

        width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - 2
        super().__init__(prog, **{"width": width, "max_help_position": 26, **options})


class TopParser(CommandParser):
    """The parser of `elmwright` itself; `texts` is filled as commands are registered."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.texts: dict[str, str] = {}
        """What each listed command does."""

    def format_help(self) -> str:
        lines = ["usage: elmwright COMMAND …", "", str(self.description), ""]
        for group, names in grouped(self.texts):
            lines.append(f"{group}:")
            lines += [line for name in names for line in _row(name, self.texts[name])]
            lines.append("")
        lines.append("What the commands take:")
        lines += [line for name, text in WORDS for line in _row(name, text)]
        return "\n".join([*lines, "", str(self.epilog), ""])


def grouped(texts: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The groups with those of their commands that there are; a command in none comes last."""
    there = list(texts)
    found = [(group, [n for n in names if n in there]) for group, names in GROUPS.items()]
    known = {name for names in GROUPS.values() for name in names}
    return [(group, names) for group, names in found if names] + (
        [("Other", rest)] if (rest := [name for name in there if name not in known]) else []
    )


def listed(names: Iterable[str]) -> list[str]:
    """Of some names of commands, those that the help lists."""
    known = {name for group in GROUPS.values() for name in group}
    return [name for name in names if name in known]


def _row(name: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, WIDTH - 17)
    return [f"  {name:<12} {first}", *(f"{'':15}{line}" for line in rest)]


def print_help(parser: argparse.ArgumentParser) -> int:
    """What the bare command does."""
    parser.print_help(sys.stdout)
    return 0


EPILOG = """\
'elmwright COMMAND --help' explains one command, with an example.
New here? 'elmwright run demo', then 'elmwright init' for your own text.

Completion in bash (zsh: run 'autoload -U bashcompinit && bashcompinit' first):
  pip install 'elmwright[completion]'
  eval "$(register-python-argcomplete elmwright)"

Exit codes: 0 done, 1 failed, 2 a mistake in what was asked,
75 interrupted (the same command resumes)."""
