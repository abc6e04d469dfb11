"""The commands that prepare a run and run its stages: init, run, corpus, train, check, bench,
config."""

import json
from argparse import Namespace
from pathlib import Path

from elmwright.jobs.cli.output import print_json
from elmwright.jobs.config.toml_file import RECIPES, find_config, load_config, recipe_names
from elmwright.jobs.terminal.wording import tell
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data


def init(options: Namespace) -> None:
    from elmwright.jobs.planning.starter import write_starter

    file = Path(options.file)
    print(write_starter(file, options.source, hours=options.hours, force=options.force))


def run_stages(options: Namespace, *, forces_corpus: bool = False) -> None:
    config = load_config(options.config, options.overrides)
    from elmwright.jobs.stages.workflow import run

    outcome = run(
        config,
        until=options.until,
        config_name=options.config,
        quiet=options.json,
        brief=options.quiet,
        force=forces_corpus,
    )
    if options.json:
        print_json(outcome.as_data())


def corpus(options: Namespace) -> None:
    if options.sample is None:
        run_stages(options, forces_corpus=options.force)
        return
    from elmwright.jobs.planning.sampling import show_sample

    config = load_config(options.config, options.overrides)
    show_sample(config, options.sample, as_json=options.json)


def check(options: Namespace) -> None:
    config = load_config(options.config, options.overrides)
    from elmwright.jobs.planning.plan import describe
    from elmwright.jobs.planning.plan_record import plan_json
    from elmwright.jobs.planning.plan_text import config_lines, plan_lines
    from elmwright.jobs.stages.problems import as_text

    plan = describe(config, measure=options.measure)
    if options.json:
        print(plan_json(plan))
    else:
        if options.full:
            print(*config_lines(plan), sep="\n")
        print(*plan_lines(plan, options.config), sep="\n")
    if plan.problems:
        raise UserError("problems", as_text(plan.problems))


def bench(options: Namespace) -> None:
    if options.steps < 1:
        raise UserError("argument", f"--steps {options.steps}: at least one step is needed")
    config = load_config(options.config, options.overrides)
    from elmwright.jobs.planning.device_bench import bench_device, bench_lines

    result = bench_device(config, options.device, options.steps)
    if options.json:
        print_json({**to_data(result), "utilisation": result.utilisation})
    else:
        print(*bench_lines(result), sep="\n")


def show_config(options: Namespace) -> None:
    if options.recipe:
        print(find_config(options.recipe).read_text(encoding="utf-8"), end="")
    elif options.explain:
        from elmwright.jobs.config.explain_settings import explain

        settings = list(explain())
        if options.json:
            print_json(settings)
        else:
            for setting in settings:
                tell(f"{setting.key} = {setting.default}  ({setting.type})\n    {setting.meaning}")
    elif options.json:
        print(json.dumps({"recipes": recipe_names()}))
    else:
        for name in recipe_names():
            title = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
            print(f"{name:<10} {title.lstrip('# ')}")
        print("'elmwright config --recipe NAME' prints one; --explain explains every setting")
