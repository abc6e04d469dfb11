"""The `elmwright` command: parse the arguments, import the command's function and call it.

Exit codes: 0 done, 1 failed, 2 the user's mistake, 75 interrupted but resumable by the same
command.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from elmwright import __version__
from elmwright.jobs.cli.commands import COMMANDS
from elmwright.jobs.cli.completion import offer_completions
from elmwright.jobs.cli.help import EXAMPLES, TEXTS, CommandParser, TopParser, narrow_formatter
from elmwright.jobs.terminal.exit_codes import exit_code
from elmwright.jobs.terminal.signals import stoppable


@stoppable
def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; program.py calls this for the console script."""
    words = sys.argv[1:] if arguments is None else arguments
    options = words[: words.index("--")] if "--" in words else words
    return exit_code(lambda: _run_command(words), as_json="--json" in options)


def _run_command(words: list[str]) -> int | None:
    parser = make_parser()
    options = parser.parse_args(words)
    if "function" not in options:
        parser.print_help()
        return None
    module, _, name = options.function.rpartition(".")
    function = getattr(import_module(f"elmwright.jobs.cli.{module}"), name)
    with _required_signature(getattr(options, "require_signature", None)):
        code: int | None = function(options)
    return code


@contextmanager
def _required_signature(key: str | None) -> Iterator[None]:
    """Inside the block, refuse models that `key` did not sign, in Ray's workers too."""
    name = "ELMWRIGHT_REQUIRE_SIGNATURE"
    before = os.environ.get(name)
    if key:
        os.environ[name] = key
    try:
        yield
    finally:
        if key and before is None:
            del os.environ[name]
        elif key and before is not None:
            os.environ[name] = before


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `function` in its result names the command's function."""
    parser = TopParser(prog="elmwright")
    parser.add_argument("--version", action="version", version=f"elmwright {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=CommandParser)
    for name, command in COMMANDS.items():
        description = f"{TEXTS[name][0].upper()}{TEXTS[name][1:]}."
        sub = subparsers.add_parser(
            name,
            aliases=command.aliases,
            help=TEXTS[name],
            description=description,
            formatter_class=narrow_formatter,
        )
        sub.example = EXAMPLES[name]
        sub.set_defaults(function=command.function, **command.defaults)
        for add in command.arguments:
            add(sub)
    if "_ARGCOMPLETE" in os.environ:
        offer_completions(parser)
    return parser
