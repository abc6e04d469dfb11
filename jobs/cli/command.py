"""The `elmwright` command: the parser, and one function per subcommand.

The subcommands of other groups are in the modules beside. Ray, torch and MLflow are imported inside
the functions that need them, so that `elmwright --help` answers at once. Exit codes: 0 done,
1 failed, 2 the user's mistake, 75 interrupted but resumable by the same command.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright import __version__
from elmwright.jobs.cli import publish, use
from elmwright.jobs.cli import runs as cli_runs
from elmwright.jobs.cli.cluster import add_cluster_commands
from elmwright.jobs.cli.completion import completes, configs, offer, recipes, runs
from elmwright.jobs.cli.early import Command, after, look_eval, look_verify
from elmwright.jobs.cli.help import EPILOG, EXAMPLES, CommandParser, TopParser, print_help
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.terminal.exit_codes import DONE, exit_code
from elmwright.jobs.terminal.signals import stoppable
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data

MODEL_HELP = (
    "a run (its folder or name), a bundle or checkpoint (a folder or s3://…), a registered model "
    "(models:/NAME@ALIAS, FOLDER/NAME@ALIAS), or a folder with options.json and one .hdf5 in bilm "
    "format"
)
CONFIG_HELP = "a config file, or the name of a shipped recipe (demo, small, original, wikitext2)"
QUIET_HELP = "print only warnings, errors and the result"


@stoppable
def main(arguments: list[str] | None = None) -> int:
    """Run one command; program.py is the console script's entry point."""
    words = sys.argv[1:] if arguments is None else arguments
    options = words[: words.index("--")] if "--" in words else words
    return exit_code(lambda: _one_command(words), as_json="--json" in options)


def _one_command(arguments: list[str]) -> int | None:
    options = _parser().parse_args(arguments)
    command: Command = options.command
    with _required_signature(getattr(options, "require_signature", None)):
        return command(options)


@contextmanager
def _required_signature(key: str | None) -> Iterator[None]:
    """Let every model that the command opens, in Ray's workers too, be signed with this key."""
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


def _parser() -> argparse.ArgumentParser:
    parser = TopParser(
        prog="elmwright",
        description="From raw text to a published, drop-in ELMo.",
        epilog=EPILOG,
    )
    parser.set_defaults(command=lambda _options: print_help(parser))
    parser.add_argument("--version", action="version", version=f"elmwright {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=CommandParser)

    def add(name: str, function: Command, text: str, *aliases: str) -> argparse.ArgumentParser:
        sub: CommandParser = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", aliases=aliases
        )
        sub.example = EXAMPLES.get(name, "")
        sub.set_defaults(command=function)
        parser.texts[name] = text
        return sub

    def with_overrides(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="SECTION.KEY=VALUE",
            dest="overrides",
            help="override a setting; may be given several times",
        )

    def with_config(sub: argparse.ArgumentParser) -> None:
        completes(sub.add_argument("config", metavar="CONFIG", help=CONFIG_HELP), configs)
        with_overrides(sub)

    def with_model(sub: argparse.ArgumentParser) -> None:
        completes(sub.add_argument("model", metavar="MODEL", help=MODEL_HELP), runs)
        sub.add_argument(
            "--require-signature",
            metavar="PUB",
            help="refuse a MODEL that is not a bundle signed with this public key",
        )

    def with_json(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--json", action="store_true", help="print the result as JSON")

    def with_quiet(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("-q", "--quiet", action="store_true", help=QUIET_HELP)

    sub = add("init", _init, "write a commented config file for your own text")
    sub.add_argument("file", nargs="?", default="my.toml", help="file to write (my.toml)")
    sub.add_argument("--source", action="append", default=[], help="text to read; repeatable")
    sub.add_argument("--hours", type=float, default=1.0, help="time that training may take (1)")
    sub.add_argument("--force", action="store_true", help="overwrite the file")

    sub = add("run", _run, "do everything a config asks for; resume where it stopped")
    with_config(sub)
    sub.add_argument("--until", choices=STAGES, default=STAGES[-1], help="last stage to do")
    with_json(sub)
    with_quiet(sub)

    for stage, text in (
        ("corpus", "build the corpus: clean, tokenise, vocabulary, shards"),
        ("train", "pretrain the biLM (builds the corpus first if need be)"),
    ):
        sub = add(stage, _run, text)
        with_config(sub)
        sub.set_defaults(until=stage)
        with_json(sub)
        with_quiet(sub)
        if stage == "corpus":
            sub.add_argument(
                "--sample",
                type=int,
                metavar="N",
                help="only try the rules on N documents, in seconds, and show what they do",
            )
            sub.set_defaults(command=_corpus)

    publish.add_commands(add, _run, with_overrides, with_quiet)

    text = "held-out perplexity with the full softmax, every token once"
    sub = add("eval", after(look_eval, _eval), text)
    with_model(sub)
    sub.add_argument(
        "--corpus",
        metavar="FOLDER",
        help="a corpus folder, or a RUN (if MODEL is a RUN, its own corpus)",
    )
    sub.add_argument("--split", help="only this held-out set")
    with_json(sub)

    use.add_commands(add, with_model, with_quiet)

    text = "check a run, corpus, shard, checkpoint or bundle byte by byte"
    sub = add("verify", after(look_verify, _verify), text)
    path = sub.add_argument("path", metavar="PATH", help="its folder or file, or a RUN")
    completes(path, runs)
    sub.add_argument("--key", metavar="PUB", help="a bundle must be signed with this public key")
    with_json(sub)

    sub = add("check", _check, "look at the text, the model, the machine: what a run will take")
    with_config(sub)
    sub.add_argument("--measure", action="store_true", help="time some real training steps")
    sub.add_argument("--full", action="store_true", help="print the resolved config, too")
    with_json(sub)

    sub = add("config", _config, "list the shipped recipes, or explain every setting")
    sub.add_argument("--explain", action="store_true", help="every setting, its default, its use")
    recipe = sub.add_argument("--recipe", metavar="NAME", help="print a recipe, to save and change")
    completes(recipe, recipes)
    with_json(sub)

    cli_runs.add_commands(add, with_json)
    add_cluster_commands(add, with_config, with_overrides, with_json)
    if "_ARGCOMPLETE" in os.environ:
        offer(parser)
    return parser


def _init(options: argparse.Namespace) -> None:
    from elmwright.jobs.planning.starter import write_starter

    file = Path(options.file)
    print(write_starter(file, options.source, hours=options.hours, force=options.force))


def _run(options: argparse.Namespace) -> int:
    from elmwright.jobs.config.toml_file import load_config
    from elmwright.jobs.stages.workflow import run

    config = load_config(options.config, options.overrides)
    outcome = run(
        config,
        until=options.until,
        config_name=options.config,
        quiet=options.json,
        brief=options.quiet,
    )
    if options.json:
        print(json.dumps(outcome.as_data(), indent=1))
    return DONE


def _corpus(options: argparse.Namespace) -> int:
    if options.sample is None:
        return _run(options)
    from elmwright.jobs.config.toml_file import load_config
    from elmwright.jobs.planning.sampling import show_sample

    config = load_config(options.config, options.overrides)
    show_sample(config, options.sample, as_json=options.json)
    return DONE


def _eval(options: argparse.Namespace) -> None:
    from elmwright.jobs.terminal.console import Console
    from elmwright.jobs.using.evaluate_model import evaluate_model

    results = evaluate_model(
        options.model, options.corpus, options.split, Console(sys.stderr).progress
    )
    if options.json:
        print(json.dumps(to_data(results), indent=1))
        return
    for split, result in results.items():
        tell(
            f"{split}: perplexity {result.perplexity:.2f} "
            f"(forward {result.forward_perplexity:.2f}, "
            f"backward {result.backward_perplexity:.2f}), "
            f"{result.bits_per_character:.3f} bits a character, {result.tokens:,} tokens, "
            f"{result.unk_share:.2%} <UNK> targets"
        )


def _verify(options: argparse.Namespace) -> None:
    from elmwright.jobs.terminal.console import Console
    from elmwright.jobs.upkeep.verify import verify_path

    checked = verify_path(options.path, options.key or "", Console(sys.stderr).progress)
    if options.json:
        print(json.dumps({"ok": True, "checked": checked}, indent=1))
    else:
        for line in checked:
            tell(f"ok: {line}")


def _check(options: argparse.Namespace) -> None:
    from elmwright.jobs.config.toml_file import load_config
    from elmwright.jobs.planning.plan import describe
    from elmwright.jobs.planning.plan_record import plan_json
    from elmwright.jobs.planning.plan_text import config_lines, plan_lines
    from elmwright.jobs.stages.problems import as_text

    config = load_config(options.config, options.overrides)
    plan = describe(config, measure=options.measure)
    if options.json:
        print(plan_json(plan))
    else:
        for line in (
            *(config_lines(plan) if options.full else ()),
            *plan_lines(plan, options.config),
        ):
            print(line)
    if plan.problems:
        raise UserError("problems", as_text(plan.problems))


def _config(options: argparse.Namespace) -> None:
    from elmwright.jobs.config.explain_settings import explain
    from elmwright.jobs.config.toml_file import RECIPES, find_config

    if options.recipe:
        print(find_config(options.recipe).read_text(encoding="utf-8"), end="")
        return
    if options.explain:
        rows = list(explain())
        if options.json:
            names = ("key", "type", "default", "meaning")
            print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=1))
            return
        for key, kind, default, meaning in rows:
            tell(f"{key} = {default}  ({kind})\n    {meaning}")
        return
    recipes = sorted(path.stem for path in RECIPES.glob("*.toml"))
    if options.json:
        print(json.dumps({"recipes": recipes}))
        return
    for name in recipes:
        first = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
        print(f"{name:<10} {first.lstrip('# ')}")
    print("'elmwright config --recipe NAME' prints one; --explain explains every setting")
