"""The commands around published models: export, publish, promote, rollback, versions.

`export` and `publish` are also stages of a run. With a config they do all stages before, too; with
a run's folder or name, or a bundle, they do just this one thing, and so does `export` of a config
with --step, -o, --without-softmax or --sign.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from elmwright.jobs.cli.completion import completes, configs, runs
from elmwright.jobs.cli.early import (
    Command,
    check_database,
    check_export,
    check_file,
    check_folder_output,
    check_text,
)
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import is_url, read_json

if TYPE_CHECKING:
    from elmwright.jobs.registry.contract import Registry
    from elmwright.jobs.rundir.layout import RunFolder

Extend = Callable[[argparse.ArgumentParser], None]
TO_HELP = (
    "an MLflow server or database (http://…, sqlite:///…), or a folder or s3:// prefix; by "
    "default what MLFLOW_TRACKING_URI says, else the registry of the runs here"
)


def add_commands(
    add: Callable[..., argparse.ArgumentParser],
    run_stages: Command,
    with_overrides: Extend,
    with_quiet: Extend,
) -> None:
    """Put the commands into the parser; `run_stages` does a config's stages up to one."""
    sub = add("export", _export, "write the bundle: frozen weights, vocabulary, model card")
    run = sub.add_argument("config", metavar="RUN", help="a run's folder or name, or its config")
    completes(run, runs)
    with_overrides(sub)
    sub.add_argument(
        "--step", help="a checkpoint: its number, best, or latest (by default training's result)"
    )
    sub.add_argument("-o", "--output", metavar="DIR", help="folder to write (RUN/bundle)")
    sub.add_argument("--without-softmax", action="store_true", help="leave the softmax out")
    sub.add_argument("--sign", metavar="KEY", help="sign it with this private key (PEM)")
    sub.add_argument("--force", action="store_true", help="replace a bundle that is there")
    sub.add_argument("--json", action="store_true", help="print the result as JSON")
    with_quiet(sub)
    sub.set_defaults(until="export", run_stages=run_stages)

    sub = add("publish", _publish, "register a bundle as a version of a model")
    help_text = "a bundle's folder, a run's folder or name, or its config"
    completes(sub.add_argument("config", metavar="BUNDLE", help=help_text), configs)
    with_overrides(sub)
    sub.add_argument("--name", help="name of the model")
    sub.add_argument(
        "--alias", help="alias that moves to the version (candidate); others only if it is no worse"
    )
    sub.add_argument("--force", action="store_true", help="move the alias even if it is worse")
    sub.add_argument("--to", metavar="URI", help=TO_HELP)
    sub.add_argument("--json", action="store_true", help="print the result as JSON")
    with_quiet(sub)
    sub.set_defaults(until="publish", run_stages=run_stages)

    sub = add("promote", _promote, "point an alias at a version, unless that is worse")
    sub.add_argument("name", metavar="NAME", help="name of the model")
    sub.add_argument("version", metavar="VERSION", help="number of the version")
    sub.add_argument("--alias", required=True, help="the alias to move, such as champion")
    sub.add_argument("--force", action="store_true", help="even if it is worse")
    sub.add_argument(
        "--on",
        default="",
        metavar="TEXT",
        help="compare on this text, where vocabularies or held-out sets differ",
    )
    sub.add_argument("--to", metavar="URI", help=TO_HELP)

    sub = add("rollback", _rollback, "point an alias at where it pointed before")
    sub.add_argument("name", metavar="NAME", help="name of the model")
    sub.add_argument("--alias", required=True, help="the alias to move back")
    sub.add_argument("--to", metavar="URI", help=TO_HELP)

    sub = add("versions", _versions, "list the versions of a model and their perplexities")
    sub.add_argument("name", metavar="NAME", help="name of the model")
    sub.add_argument("--to", metavar="URI", help=TO_HELP)
    sub.add_argument("--json", action="store_true", help="print the result as JSON")


def _export(options: argparse.Namespace) -> int | None:
    from elmwright.jobs.config.toml_file import load_config
    from elmwright.jobs.runbook.find_run import find_run, is_run
    from elmwright.jobs.rundir.layout import RunFolder

    run = options.config
    asked_for = options.step or "result", options.output or "", options.force
    asked = options.step or options.output or options.without_softmax or options.sign
    there = is_url(run) or Path(run).is_dir()
    if not there and not _is_config(run):
        run = find_run(run).root
        there = True
    if options.output:
        check_folder_output(options.output, options.force)
    if options.sign:
        check_file(options.sign, "private key")
    if not (there or asked):
        stages: Command = options.run_stages
        return stages(options)
    if not there:
        check_export(RunFolder.of(load_config(run, options.overrides)), *asked_for)
    elif is_run(run):
        check_export(RunFolder.at(run), *asked_for)
    elif not is_url(run):
        raise UserError(
            "run-missing", f"{run} is not a run's folder (it has no config.json of a run)"
        )
    from elmwright.jobs.publishing.export import export_run
    from elmwright.jobs.terminal.console import Console

    target, checked = export_run(
        run,
        *asked_for[:2],
        overrides=options.overrides,
        without_softmax=options.without_softmax,
        force=options.force,
        key=options.sign or "",
        progress=Console(sys.stderr, quiet=options.quiet).progress,
    )
    if options.json:
        print(json.dumps({"bundle": str(target), "checked": checked}, indent=1))
    else:
        tell(f"wrote {target}: {checked}")
    return None


def _is_config(text: str) -> bool:
    """Whether this is a config file or a recipe, whose stages are done, and not just a run."""
    from elmwright.jobs.config.toml_file import find_config

    try:
        find_config(text)
    except UserError:
        return False
    return True


def _publish(options: argparse.Namespace) -> int | None:
    from elmwright.jobs.registry.find_registry import registry_of, run_of_bundle
    from elmwright.jobs.runbook.find_run import find_run, is_name, is_run

    given = options.config
    bundle, name, alias = Path(given), options.name, options.alias
    run = ""
    if is_run(given) or (not bundle.is_dir() and not _is_config(given) and is_name(given)):
        found = find_run(given)
        run = found.root
        bundle, own = _bundle_of(found)
        name = name or own.get("name")
        alias = alias or own.get("alias")
    elif not bundle.is_dir():
        if name or alias or options.to or options.force:
            raise UserError(
                "model-missing",
                f"there is no bundle {options.config!r}; a config publishes by its own [export] "
                "and [tracking], without --name, --alias, --to and --force",
            )
        stages: Command = options.run_stages
        return stages(options)
    if not name:
        raise UserError("argument", "a bundle needs a name to be published under: --name NAME")
    from elmwright.jobs.bundles.bundle import bundle_bytes
    from elmwright.jobs.publishing.promotion import publish_bundle
    from elmwright.jobs.registry.contract import CANDIDATE, check_name
    from elmwright.jobs.registry.open_registry import open_registry
    from elmwright.jobs.terminal.console import Console
    from elmwright.pipeline.progress import counting_bytes

    check_name(name)
    registry = open_registry(registry_of(name, options.to, run or run_of_bundle(bundle)))
    alias = alias or CANDIDATE
    progress = Console(sys.stderr, quiet=options.quiet).progress
    total = 2 * bundle_bytes(bundle)
    with progress("publishing", total, "bytes") as advance, counting_bytes(advance):
        version = publish_bundle(registry, bundle, name, alias, force=options.force)
    if options.json:
        made = {"name": name, "version": version, "alias": alias, "uri": registry.uri}
        print(json.dumps(made, indent=1))
    else:
        tell(f"{name} version {version}, alias {alias!r}, in {registry.uri}")
    return None


def _bundle_of(run: "RunFolder") -> tuple[Path, dict[str, str]]:
    """The bundle of a run, and the section [export] of its config: name and alias."""
    from elmwright.jobs.terminal.wording import nearby

    if not (run.bundle / "SHA256SUMS").is_file():
        raise UserError(
            "model-missing",
            f"{nearby(run.root)} has no bundle yet; "
            f"'elmwright export {nearby(run.root)}' writes one",
        )
    return run.bundle, dict((read_json(run.config) or {}).get("export", {}))


def _open(name: str, to: str | None) -> "Registry":
    """The registry to look in for a model; `UserError` if it is a SQLite file that is missing."""
    from elmwright.jobs.registry.find_registry import registry_of
    from elmwright.jobs.registry.open_registry import open_registry

    uri = registry_of(name, to)
    if uri.startswith("sqlite:///"):
        check_database(uri)
    return open_registry(uri)


def _promote(options: argparse.Namespace) -> None:
    from elmwright.jobs.publishing.promotion import promote
    from elmwright.jobs.registry.contract import check_alias

    if not options.version.isdecimal():
        raise UserError("argument", f"{options.version!r} is not the number of a version")
    check_alias(options.alias)
    if options.on:
        check_text(options.on)
    registry = _open(options.name, options.to)
    tell(
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
    from elmwright.jobs.publishing.promotion import rollback
    from elmwright.jobs.registry.contract import check_alias

    check_alias(options.alias)
    tell(rollback(_open(options.name, options.to), options.name, options.alias))


def _versions(options: argparse.Namespace) -> None:
    from elmwright.jobs.registry.contract import get_versions

    found = get_versions(_open(options.name, options.to), options.name)
    if options.json:
        rows = [
            {"version": v.version, "created": v.created, "aliases": v.aliases, **to_data(v.about)}
            for v in found
        ]
        print(json.dumps(rows, indent=1))
        return
    from elmwright.jobs.terminal.listing import table
    from elmwright.jobs.terminal.wording import terminal_width

    cells = []
    for version in found:
        about = version.about
        scores = ", ".join(f"{split} {value:.2f}" for split, value in about.perplexity.items())
        notes = [f"@{alias}" for alias in version.aliases] + ["signed"] * about.signed
        cells.append(
            (
                f"{version.version}",
                version.created,
                f"{about.step:,}",
                about.digest[:12],
                scores or "-",
                " ".join(notes),
            )
        )
    header = ("version", "published (UTC)", "step", "digest", "perplexity", "")
    for line in table(header, cells, terminal_width(sys.stdout), text=(3, 4, 5)):
        print(line)
