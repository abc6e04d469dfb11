"""The commands around published models: export, publish, promote, rollback, versions.

`export` and `publish` are also stages of a run; with a config they do all that comes before, with a
run's folder or a bundle they do just this one thing.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import is_url

Command = Callable[[argparse.Namespace], int | None]
Add = Callable[[str, Command, str], argparse.ArgumentParser]
TO_HELP = (
    "an MLflow server or database (http://…, sqlite:///…), or a folder or s3:// prefix; "
    "by default what MLFLOW_TRACKING_URI says"
)


def add_commands(
    add: Add, run_stages: Command, with_overrides: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Put the commands into the parser; `run_stages` does a config's stages up to one."""
    sub = add("export", _export, "write the bundle: frozen weights, vocabulary, model card")
    sub.add_argument("config", metavar="RUN", help="a run's folder, or its config")
    with_overrides(sub)
    sub.add_argument(
        "--step", help="a checkpoint: its number, best, or latest (by default training's result)"
    )
    sub.add_argument("-o", "--output", metavar="DIR", help="folder to write (RUN/bundle)")
    sub.add_argument("--without-softmax", action="store_true", help="leave the softmax out")
    sub.add_argument("--sign", metavar="KEY", help="sign it with this private key (PEM)")
    sub.add_argument("--force", action="store_true", help="replace a bundle that is there")
    sub.add_argument("--json", action="store_true", help="print the result as JSON")
    sub.set_defaults(until="export", run_stages=run_stages)

    sub = add("publish", _publish, "register a bundle as a version of a model")
    sub.add_argument("config", metavar="BUNDLE", help="a bundle's folder, or a run's config")
    with_overrides(sub)
    sub.add_argument("--name", help="name of the model")
    sub.add_argument(
        "--alias", help="alias that moves to the version (candidate); others only if it is no worse"
    )
    sub.add_argument("--force", action="store_true", help="move the alias also if it is worse")
    sub.add_argument("--to", metavar="URI", help=TO_HELP)
    sub.add_argument("--json", action="store_true", help="print the result as JSON")
    sub.set_defaults(until="publish", run_stages=run_stages)

    sub = add("promote", _promote, "let an alias point to a version, if it is no worse")
    sub.add_argument("name", metavar="NAME")
    sub.add_argument("version", metavar="VERSION")
    sub.add_argument("--alias", required=True, help="the alias to move, such as champion")
    sub.add_argument("--force", action="store_true", help="also if it is worse")
    sub.add_argument(
        "--on",
        default="",
        metavar="TEXT",
        help="compare on this text, where vocabularies or held-out sets differ",
    )
    sub.add_argument("--to", metavar="URI", help=TO_HELP)

    sub = add("rollback", _rollback, "let an alias point to where it pointed before")
    sub.add_argument("name", metavar="NAME")
    sub.add_argument("--alias", required=True, help="the alias to move back")
    sub.add_argument("--to", metavar="URI", help=TO_HELP)

    sub = add("versions", _versions, "list the versions of a model, with what they reached")
    sub.add_argument("name", metavar="NAME")
    sub.add_argument("--to", metavar="URI", help=TO_HELP)
    sub.add_argument("--json", action="store_true", help="print the result as JSON")


def _registry_uri(said: str | None) -> str:
    uri = said or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        raise UserError(
            "which registry? say --to http://… (MLflow), a folder or s3://…, or set "
            "MLFLOW_TRACKING_URI, for example to sqlite:///runs/demo/mlflow/mlflow.db"
        )
    return uri


def _export(options: argparse.Namespace) -> int | None:
    run = options.config
    asked = options.step or options.output or options.without_softmax or options.sign
    if not (is_url(run) or Path(run).is_dir() or asked):
        stages: Command = options.run_stages
        return stages(options)
    from elmwright.jobs.console import Console
    from elmwright.jobs.export import export_run

    target, checked = export_run(
        run,
        options.step or "result",
        options.output or "",
        overrides=options.overrides,
        without_softmax=options.without_softmax,
        force=options.force,
        key=options.sign or "",
        progress=Console(sys.stderr).progress,
    )
    if options.json:
        print(json.dumps({"bundle": str(target), "checked": checked}, indent=1))
    else:
        print(f"wrote {target}: {checked}")
    return None


def _publish(options: argparse.Namespace) -> int | None:
    bundle = Path(options.config)
    if not bundle.is_dir():
        if options.name or options.alias or options.to or options.force:
            raise UserError(
                f"there is no bundle {options.config!r}; a config publishes by its own [export] "
                "and [tracking], without --name, --alias, --to and --force"
            )
        stages: Command = options.run_stages
        return stages(options)
    if not options.name:
        raise UserError("a bundle needs a name to be published under: --name NAME")
    from elmwright.jobs.bundle import bundle_bytes
    from elmwright.jobs.console import Console
    from elmwright.jobs.registry import CANDIDATE, open_registry, publish_bundle
    from elmwright.pipeline.progress import counting_bytes

    registry = open_registry(_registry_uri(options.to))
    alias = options.alias or CANDIDATE
    progress, total = Console(sys.stderr).progress, 2 * bundle_bytes(bundle)
    with progress("publish", total, "bytes") as advance, counting_bytes(advance):
        version = publish_bundle(registry, bundle, options.name, alias, force=options.force)
    if options.json:
        found = {"name": options.name, "version": version, "alias": alias, "uri": registry.uri}
        print(json.dumps(found, indent=1))
    else:
        print(f"{options.name} version {version}, alias {alias!r}, in {registry.uri}")
    return None


def _promote(options: argparse.Namespace) -> None:
    from elmwright.jobs.registry import open_registry, promote

    if not options.version.isdecimal():
        raise UserError(f"{options.version!r} is not the number of a version")
    registry = open_registry(_registry_uri(options.to))
    print(
        promote(
            registry,
            options.name,
            int(options.version),
            options.alias,
            force=options.force,
            on=options.on,
        )
    )


def _rollback(options: argparse.Namespace) -> None:
    from elmwright.jobs.registry import open_registry, rollback

    print(rollback(open_registry(_registry_uri(options.to)), options.name, options.alias))


def _versions(options: argparse.Namespace) -> None:
    from elmwright.jobs.registry import get_versions, open_registry

    found = get_versions(open_registry(_registry_uri(options.to)), options.name)
    if options.json:
        rows = [
            {"version": v.version, "created": v.created, "aliases": v.aliases, **v.about}
            for v in found
        ]
        print(json.dumps(rows, indent=1))
        return
    print(f"{'version':>7}  {'published (UTC)':<19}  {'step':>9}  {'digest':<12}  perplexity")
    for version in found:
        about = version.about
        scores = ", ".join(f"{split} {value:.2f}" for split, value in about["perplexity"].items())
        notes = [f"@{alias}" for alias in version.aliases] + ["signed"] * about["signed"]
        print(
            f"{version.version:>7}  {version.created:<19}  {about['step']:>9,}  "
            f"{about['digest'][:12]}  {scores or '-'}{'  ' if notes else ''}{' '.join(notes)}"
        )
