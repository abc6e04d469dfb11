"""The `elmwright` command: one function a subcommand, each two lines from the work.

Only argparse is imported here; Ray, torch and MLflow are imported by the command that needs them,
so that `elmwright --help` answers at once. Exit codes: 0 done, 1 failed, 2 the user's mistake,
75 interrupted but resumable by the same command.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright import __version__
from elmwright.jobs import cli_use
from elmwright.jobs.cli_cluster import add_cluster_commands
from elmwright.jobs.cli_publish import add_commands
from elmwright.jobs.ui import add_ui_command
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.files import is_url
from elmwright.pipeline.storage import explain

DONE, FAILED, MISTAKE, RESUMABLE = 0, 1, 2, 75

MODEL_HELP = (
    "a bundle or checkpoint (a folder or s3://…), a registered model (models:/NAME@ALIAS, "
    "FOLDER/NAME@ALIAS), or a folder with options.json and one .hdf5 in bilm format"
)
CONFIG_HELP = "a config file, or the name of a shipped recipe (demo, small, original)"
STAGES = ("corpus", "train", "export", "publish")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the console script's entry point."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int | None] = options.command
    try:
        with _required_signature(getattr(options, "require_signature", None)):
            return command(options) or DONE
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    except Interrupted as stop:
        print(f"stopped: {stop}", file=sys.stderr)
        return RESUMABLE
    except KeyboardInterrupt:
        print("stopped: interrupted; nothing is lost", file=sys.stderr)
        return RESUMABLE
    except BrokenPipeError:
        # The reader of a pipe (elmwright … | head) has seen enough. SIGPIPE itself stays ignored:
        # it would also end a run whose tracking server closes a connection.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Failed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return FAILED
    except OSError as error:
        sentence = explain(error, Path(error.filename or "here"))
        if sentence is None and error.errno is None:
            # Only object stores fail without a number.
            reason = " ".join(str(error).split())[:300]
            print(f"failed: the object store does not answer as it should ({reason}); check "
                  "AWS_ENDPOINT_URL and the network, then run the same command again",
                  file=sys.stderr)  # fmt: skip
            return FAILED
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return MISTAKE


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
    parser = argparse.ArgumentParser(
        prog="elmwright",
        description="From raw text to a published, drop-in ELMo.",
        epilog="Start with 'elmwright run demo', or 'elmwright init' for your own text. "
        "Exit codes: 0 done, 1 failed, 2 a mistake in what was asked, "
        "75 interrupted (the same command goes on).",
    )
    parser.add_argument("--version", action="version", version=f"elmwright {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        name: str, function: Callable[[argparse.Namespace], int | None], text: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(command=function)
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
        sub.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
        with_overrides(sub)

    def with_model(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("model", metavar="MODEL", help=MODEL_HELP)
        sub.add_argument(
            "--require-signature",
            metavar="PUB",
            help="refuse a MODEL that is not a bundle signed with this public key",
        )

    def with_json(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--json", action="store_true", help="print the result as JSON")

    sub = add("init", _init, "write a commented config file for your own text")
    sub.add_argument("file", nargs="?", default="my.toml", help="file to write (my.toml)")
    sub.add_argument("--source", action="append", default=[], help="text to read; repeatable")

    sub = add("run", _run, "do everything a config asks for, going on where it stopped")
    with_config(sub)
    sub.add_argument("--until", choices=STAGES, default=STAGES[-1], help="last stage to do")
    with_json(sub)

    for stage, text in (
        ("corpus", "build the corpus: clean, tokenise, vocabulary, shards"),
        ("train", "pretrain the biLM (builds the corpus first if need be)"),
    ):
        sub = add(stage, _run, text)
        with_config(sub)
        sub.set_defaults(until=stage)
        with_json(sub)
        if stage == "corpus":
            sub.add_argument(
                "--sample",
                type=int,
                metavar="N",
                help="only try the rules on N documents, in seconds, and show what they do",
            )
            sub.set_defaults(command=_corpus)

    add_commands(add, _run, with_overrides)

    sub = add("eval", _eval, "held-out perplexity with the full softmax, every token once")
    with_model(sub)
    sub.add_argument(
        "--corpus", required=True, metavar="FOLDER", help="a corpus folder, or a run's folder"
    )
    sub.add_argument("--split", help="only this held-out set")
    with_json(sub)

    cli_use.add_commands(add, with_model)

    sub = add("verify", _verify, "check a corpus, shard, checkpoint, bundle or run byte by byte")
    sub.add_argument("path", metavar="PATH")
    sub.add_argument("--key", metavar="PUB", help="a bundle must be signed with this public key")
    with_json(sub)

    sub = add("check", _check, "print the resolved config, its hash and the planned sizes")
    with_config(sub)
    with_json(sub)

    sub = add("config", _config, "list the shipped recipes, or explain every setting")
    sub.add_argument("--explain", action="store_true", help="every setting, its default, its use")
    sub.add_argument("--recipe", metavar="NAME", help="print a recipe, to be saved and changed")
    with_json(sub)

    sub = add("checkpoints", _checkpoints, "list a run's checkpoints")
    sub.add_argument("run", metavar="RUN", help="a run's folder, or its config")
    sub.add_argument("--verify", action="store_true", help="compare every file with its digest")
    with_json(sub)

    add_ui_command(add)
    add_cluster_commands(commands, add, with_config, with_overrides, with_json)
    return parser


def _init(options: argparse.Namespace) -> None:
    from elmwright.jobs.starter import write_starter

    path = write_starter(Path(options.file), options.source)
    print(f"wrote {path}; look it over, then: make run CONFIG={path}  (or: elmwright run {path})")


def _run(options: argparse.Namespace) -> int:
    from elmwright.jobs.config_file import load_config
    from elmwright.jobs.workflow import run

    config = load_config(options.config, options.overrides)
    result = run(config, until=options.until, config_name=options.config, quiet=options.json)
    if options.json:
        print(json.dumps(result, indent=1))
    return DONE


def _corpus(options: argparse.Namespace) -> int:
    if options.sample is None:
        return _run(options)
    from elmwright.jobs.config_file import load_config
    from elmwright.jobs.sampling import show_sample

    config = load_config(options.config, options.overrides)
    show_sample(config, options.sample, as_json=options.json)
    return DONE


def _eval(options: argparse.Namespace) -> None:
    from elmwright.jobs.evaluate import evaluate_model

    results = evaluate_model(options.model, options.corpus, options.split)
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for split, result in results.items():
        print(
            f"{split}: perplexity {result['perplexity']:.2f} "
            f"(forward {result['forward_perplexity']:.2f}, "
            f"backward {result['backward_perplexity']:.2f}), "
            f"{result['bits_per_character']:.3f} bits a character, {result['tokens']:,} tokens, "
            f"{result['unk_share']:.2%} <UNK> targets"
        )


def _verify(options: argparse.Namespace) -> None:
    from elmwright.jobs.verify import verify_path

    checked = verify_path(options.path, options.key or "")
    if options.json:
        print(json.dumps({"ok": True, "checked": checked}, indent=1))
    else:
        for line in checked:
            print(f"ok: {line}")


def _check(options: argparse.Namespace) -> None:
    from elmwright.jobs.config_file import load_config
    from elmwright.jobs.planning import describe

    config = load_config(options.config, options.overrides)
    plan = describe(config)
    if options.json:
        print(json.dumps(plan, indent=1))
        return
    for section, values in plan["config"].items():
        if isinstance(values, dict):
            print(f"[{section}]")
            for key, value in values.items():
                print(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    print(f"\nconfig hash  {plan['hash']}")
    for name, text in plan["sizes"].items():
        print(f"{name:<12} {text}")


def _config(options: argparse.Namespace) -> None:
    from elmwright.jobs.config_file import RECIPES, explain, find_config

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
            print(f"{key} = {default}  ({kind})\n    {meaning}")
        return
    recipes = sorted(path.stem for path in RECIPES.glob("*.toml"))
    if options.json:
        print(json.dumps({"recipes": recipes}))
        return
    for name in recipes:
        first = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
        print(f"{name:<10} {first.lstrip('# ')}")
    print("'elmwright config --recipe NAME' prints one; --explain explains every setting")


def _checkpoints(options: argparse.Namespace) -> None:
    from elmwright.jobs.checkpoint import list_checkpoints, verify_checkpoint
    from elmwright.jobs.config_file import load_config
    from elmwright.jobs.layout import RunFolder

    place = options.run
    if is_url(place) or Path(place).is_dir():
        folder = RunFolder.at(place)
    else:
        folder = RunFolder.of(load_config(place))
    infos = list_checkpoints(folder.checkpoints)
    if not infos:
        raise UserError(f"{folder.root} has no checkpoints")
    if options.verify:
        for info in infos:
            verify_checkpoint(info.path)
    if options.json:
        rows = [
            {
                "step": info.step,
                "path": info.path,
                "sha256": info.sha256,
                "bytes": info.bytes,
                "perplexity": info.perplexity,
            }
            for info in infos
        ]
        print(json.dumps(rows, indent=1))
        return
    for info in infos:
        scores = ", ".join(f"{split} {value:.2f}" for split, value in info.perplexity.items())
        checked = "  verified" if options.verify else ""
        print(
            f"step {info.step:>8,}  {info.bytes / 1e6:9.1f} MB  sha256 {info.sha256[:12]}  "
            f"{scores or '-'}{checked}  {info.path}"
        )


if __name__ == "__main__":
    sys.exit(main())
