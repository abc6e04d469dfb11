"""The help page of `elmwright`, an example for each command, and errors in one sentence.

argparse lists subcommands in one column in the order of their registration, names every choice for
a typo, and begins its errors with a usage line. This page has groups, a typo is answered with the
nearest name, and an error is one sentence, as everywhere else.
"""

import argparse
import re
import shutil
from typing import Any, NoReturn

from elmwright.jobs.secrets.hiding import for_others
from elmwright.jobs.terminal.wording import WIDTH, did_you_mean

PAGE = """\
usage: elmwright COMMAND …

From raw text to a published, drop-in ELMo.

Start here:
  run          run every stage of a config, or resume where it stopped
  init         write a commented config file for your own text
  check        inspect text, model and machine, and estimate what a run needs
  config       list the shipped recipes, or explain every setting

Corpus and training:
  corpus       build the corpus: cleaned and tokenised text, vocabulary, shards
  train        pretrain the biLM (builds the corpus first if needed)
  bench        measure how fast a CPU or GPU trains, and what a step asks of it
  checkpoints  list a run's checkpoints

Inspect runs:
  runs         list the runs here: state, step, perplexity, size
  status       show the progress of a run, local or submitted
  logs         show the log of a run, local or submitted
  ui           show a run's charts and corpus report in a browser
  prune        remove files that a run can rebuild: work files, caches

Use a model:
  embed        write the vectors of every word of a text to a file
  score        compute the log-probability of every sentence, or word, of a text
  substitutes  list the words that fit where a sentence marks one
  neighbours   find where a text uses a word as a given sentence does
  tokenize     print the words that a model makes of raw text
  eval         measure held-out perplexity with the full softmax
  fill-cache   encode a vocabulary once, to speed up many short embeds

Publish:
  export       write the bundle: frozen weights, vocabulary, model card
  verify       check a run, corpus, shard, checkpoint or bundle byte by byte
  publish      register a bundle as a version of a model
  versions     list the versions of a model and their perplexities
  promote      move an alias to a version, unless that version is worse
  rollback     move an alias back to its previous version

Clusters:
  submit       send a run to a cluster, or to the background of this machine
  jobs         list the submitted runs and their states
  cancel       ask a submitted run to checkpoint and stop
  resume       submit a run again, to resume from its newest checkpoint
  doctor       check a target: version, token, resources, storage, environment

Arguments of commands:
  CONFIG       a config file, or a recipe: demo, small, original, wikitext2
  RUN          a run's folder, its name in runs/ here, or its config file
  MODEL        a RUN, bundle, checkpoint, models:/NAME@ALIAS or bilm folder

'elmwright COMMAND --help' explains one command, with an example.
New here? 'elmwright run demo', then 'elmwright init' for your own text.

Completion in bash (zsh: run 'autoload -U bashcompinit && bashcompinit' first):
  pip install 'elmwright[completion]'
  eval "$(register-python-argcomplete elmwright)"

Exit codes: 0 done, 1 failed, 2 a mistake in the command or its input,
75 interrupted (the same command resumes).
"""
TEXTS = dict(re.findall(r"(?m)^  ([a-z-]+) {2,}(.+)$", PAGE))
"""What each command does."""
EXAMPLES = {
    "run": "elmwright run demo",
    "init": "elmwright init my.toml --source 'books/*.txt'",
    "check": "elmwright check my.toml",
    "config": "elmwright config --recipe small > my.toml",
    "corpus": "elmwright corpus my.toml --sample 100",
    "train": "elmwright train my.toml --set train.max_steps=2000",
    "bench": "elmwright bench small --device cuda --set train.precision=bf16",
    "checkpoints": "elmwright checkpoints demo --verify",
    "runs": "elmwright runs",
    "status": "elmwright status demo",
    "logs": "elmwright logs -f demo",
    "ui": "elmwright ui demo --open",
    "prune": "elmwright prune demo --dry-run",
    "embed": "echo 'The quick brown fox' | elmwright embed demo - -o fox.hdf5",
    "score": "elmwright score demo sentences.txt -o scores.tsv",
    "substitutes": "elmwright substitutes demo --in 'it [returns] the value .'",
    "neighbours": "elmwright neighbours demo --word value --in 'returns the value .'",
    "tokenize": 'echo "I don\'t know." | elmwright tokenize demo -',
    "eval": "elmwright eval demo",
    "fill-cache": "elmwright fill-cache demo -o demo.table",
    "export": "elmwright export demo --step best -o best-bundle",
    "verify": "elmwright verify demo --replay",
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


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, and whose help ends in an example."""

    example = ""

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
        near = did_you_mean(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, f"there is no command {value!r}{near}")
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(choices)}{near}")


class TopParser(CommandParser):
    """The parser of `elmwright` itself."""

    def format_help(self) -> str:
        return PAGE


def narrow_formatter(prog: str) -> argparse.HelpFormatter:
    """A formatter for at most 80 columns, however wide the terminal is."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - 2
    return argparse.HelpFormatter(prog, max_help_position=26, width=width)
