"""The commands for published models: export, verify, publish, promote, rollback, versions.

`export` and `publish` are also stages of a run. With a config they run all stages before, too; with
a run's folder or name, or a bundle, they run only this one, and so does `export` of a config
with --step, -o, --without-softmax or --sign.
"""

import sys
from argparse import Namespace
from pathlib import Path

from elmwright.jobs.cli.early import (
    check_database,
    check_export,
    check_file,
    check_folder_output,
    check_text,
    check_verifiable,
)
from elmwright.jobs.cli.output import print_json, print_table
from elmwright.jobs.cli.run import run_stages
from elmwright.jobs.config.toml_file import find_config, load_config
from elmwright.jobs.registry.contract import (
    CANDIDATE,
    Registry,
    check_alias,
    check_name,
    get_versions,
)
from elmwright.jobs.registry.find_registry import registry_of, run_of_bundle
from elmwright.jobs.registry.open_registry import open_registry
from elmwright.jobs.runbook.find_run import find_run, is_run
from elmwright.jobs.runbook.runbook import is_name
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.terminal.wording import nearby, scores_text, tell
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import counting_bytes
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at


def export(options: Namespace) -> None:
    run = options.config
    step, output = options.step or "result", options.output or ""
    is_folder = at(run).is_folder()
    if not is_folder and not _is_config(run):
        run = find_run(run).root
        is_folder = True
    if output:
        check_folder_output(output, options.force)
    if options.sign:
        check_file(options.sign, "private key")
    if not (is_folder or options.step or output or options.without_softmax or options.sign):
        run_stages(options)
        return
    if not is_folder or is_run(run):
        config = None if is_folder else load_config(run, options.overrides)
        folder = RunFolder.of(config) if config else RunFolder.at(run)
        check_export(folder, step, output, options.force)
    elif not at(run).is_url:
        raise UserError(
            "run-missing", f"{run} is not a run's folder (it has no config.json of a run)"
        )
    from elmwright.jobs.publishing.export import export_run
    from elmwright.jobs.terminal.console import Console

    target, checked = export_run(
        run,
        step,
        output,
        overrides=options.overrides,
        without_softmax=options.without_softmax,
        force=options.force,
        key=options.sign or "",
        progress=Console(sys.stderr, quiet=options.quiet).progress,
    )
    if options.json:
        print_json({"bundle": str(target), "checked": checked})
    else:
        tell(f"wrote {target}: {checked}")


def _is_config(text: str) -> bool:
    """Whether this is a config file or a recipe, whose stages are run, and not just a run."""
    try:
        find_config(text)
    except UserError:
        return False
    return True


def verify(options: Namespace) -> None:
    path = check_verifiable(options.path, options.key)
    from elmwright.jobs.terminal.console import Console
    from elmwright.jobs.upkeep.verify import verify_path

    checked = verify_path(path, options.key or "", Console(sys.stderr).progress)
    if options.json:
        print_json({"ok": True, "checked": checked})
    else:
        for line in checked:
            tell(f"ok: {line}")


def publish(options: Namespace) -> None:
    bundle, name, alias = Path(options.config), options.name, options.alias
    run = ""
    is_bundle = bundle.is_dir()
    if is_run(bundle) or (
        not is_bundle and not _is_config(options.config) and is_name(options.config)
    ):
        folder = find_run(options.config)
        run, bundle = folder.root, _bundle_of(folder)
        section = (at(folder.config).read_json() or {}).get("export", {})
        name = name or section.get("name")
        alias = alias or section.get("alias")
    elif not is_bundle:
        if name or alias or options.to or options.force:
            raise UserError(
                "model-missing",
                f"there is no bundle {options.config!r}; a config publishes by its own [export] "
                "and [tracking], without --name, --alias, --to and --force",
            )
        run_stages(options)
        return
    if not name:
        raise UserError("argument", "a bundle needs a name to be published under: --name NAME")
    from elmwright.jobs.bundles.bundle import bundle_bytes
    from elmwright.jobs.publishing.promotion import publish_bundle
    from elmwright.jobs.terminal.console import Console

    check_name(name)
    registry = open_registry(registry_of(name, options.to, run or run_of_bundle(bundle)))
    alias = alias or CANDIDATE
    progress = Console(sys.stderr, quiet=options.quiet).progress
    total = 2 * bundle_bytes(bundle)
    with progress("publishing", total, "bytes") as advance, counting_bytes(advance):
        version = publish_bundle(registry, bundle, name, alias, force=options.force)
    if options.json:
        print_json({"name": name, "version": version, "alias": alias, "uri": registry.uri})
    else:
        tell(f"{name} version {version}, alias {alias!r}, in {registry.uri}")


def _bundle_of(run: RunFolder) -> Path:
    if not (run.bundle / "SHA256SUMS").is_file():
        raise UserError(
            "model-missing",
            f"{nearby(run.root)} has no bundle yet; "
            f"'elmwright export {nearby(run.root)}' writes one",
        )
    return run.bundle


def _open(options: Namespace) -> Registry:
    """The registry to look in for a model; `UserError` if it is a SQLite file that is missing."""
    uri = registry_of(options.name, options.to)
    if uri.startswith("sqlite:///"):
        check_database(uri)
    return open_registry(uri)


def promote(options: Namespace) -> None:
    from elmwright.jobs.publishing import promotion

    if not options.version.isdecimal():
        raise UserError("argument", f"{options.version!r} is not the number of a version")
    check_alias(options.alias)
    if options.on:
        check_text(options.on)
    version, force = int(options.version), options.force
    registry = _open(options)
    tell(
        promotion.promote(
            registry, options.name, version, options.alias, force=force, on=options.on
        )
    )


def rollback(options: Namespace) -> None:
    from elmwright.jobs.publishing import promotion

    check_alias(options.alias)
    tell(promotion.rollback(_open(options), options.name, options.alias))


def versions(options: Namespace) -> None:
    listed = get_versions(_open(options), options.name)
    if options.json:
        rows = [
            {"version": v.version, "created": v.created, "aliases": v.aliases, **to_data(v.about)}
            for v in listed
        ]
        print_json(rows)
        return
    cells = [
        (
            str(version.version),
            version.created,
            f"{version.about.step:,}",
            version.about.digest[:12],
            scores_text(*version.about.shown_perplexity),
            " ".join(
                [f"@{alias}" for alias in version.aliases] + ["signed"] * version.about.signed
            ),
        )
        for version in listed
    ]
    header = ("version", "published (UTC)", "step", "digest", "perplexity", "")
    print_table(header, cells, text=(3, 4, 5))
