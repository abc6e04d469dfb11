"""The commands for runs in folders: runs, ui, checkpoints, prune."""

from argparse import Namespace

from elmwright.jobs.cli.output import print_json, print_table
from elmwright.jobs.runbook.find_run import find_run
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.terminal.wording import nearby, scores_text, size, tell
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at


def list_all(options: Namespace) -> None:
    from elmwright.jobs.upkeep.list_runs import as_json, as_table, list_runs

    found = list_runs(options.folder)
    if options.json:
        print(as_json(found))
    elif found:
        print(*as_table(found), sep="\n")
    else:
        tell(
            f"there is no run in {options.folder}/ here; 'elmwright run demo' starts one, "
            "'elmwright jobs' lists submitted runs"
        )


def ui(options: Namespace) -> None:
    from elmwright.jobs.upkeep.ui import find_folder, open_link, show

    if not 0 <= options.port < 65536:
        raise UserError("port", f"--port {options.port} is not a port; use 1 to 65535")
    show(find_folder(options.run), options.port, open_link if options.open else lambda _link: None)


def checkpoints(options: Namespace) -> None:
    from elmwright.jobs.checkpoints.checkpoint import verify_checkpoint
    from elmwright.jobs.publishing.choose_checkpoint import list_scored

    is_folder = at(options.run).is_folder()
    folder = RunFolder.at(options.run) if is_folder else find_run(options.run)
    infos = list_scored(folder)
    if not infos:
        raise UserError("checkpoint-missing", f"{nearby(folder.root)} has no checkpoints")
    if options.verify:
        for info in infos:
            verify_checkpoint(info.path)
    if options.json:
        keys = ("step", "path", "sha256", "bytes", "perplexity", "perplexity_states")
        print_json([{key: getattr(info, key) for key in keys} for info in infos])
        return
    header = ["step", "size", "sha256", "held-out perplexity", "folder"]
    rows = [
        [
            f"{info.step:,}",
            size(info.bytes),
            info.sha256[:12],
            scores_text(info.perplexity, info.perplexity_states),
            info.path.rpartition("/")[2],
        ]
        for info in infos
    ]
    if options.verify:
        header.append("checked")
        rows = [[*row, "verified"] for row in rows]
    print_table(header, rows, text=(2, 3, 4, 5))
    tell(f"in {nearby(folder.checkpoints)}")


def prune(options: Namespace) -> None:
    from elmwright.jobs.upkeep import prune as pruning

    folder = find_run(options.run)

    def announce(removals: list[pruning.Removal]) -> None:
        if removals and not options.json:
            verb = "Would remove" if options.dry_run else "Removing"
            print(f"{verb} from {nearby(folder.root)}:")
            print(*pruning.as_lines(folder, removals), sep="\n", flush=True)

    removals = pruning.prune(folder, dry_run=options.dry_run, tell=announce)
    total = sum(removal.bytes for removal in removals)
    if options.json:
        rows = [{"path": str(r.path), "bytes": r.bytes, "why": r.why} for r in removals]
        print_json({"dry_run": options.dry_run, "bytes": total, "removed": rows})
    elif not removals:
        tell(f"{nearby(folder.root)} has nothing to remove")
    else:
        print(f"{size(total)} {'would be freed' if options.dry_run else 'freed'}")
