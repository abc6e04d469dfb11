"""Commands, options, configs, files and sizes that `infra/` names are real ones."""

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from elmwright.jobs.cli import command as cli
from elmwright.jobs.config.toml_file import explain, load_config
from tests.support.infra.texts import TEXT, everything, source
from tests.support.places import ROOT


def known() -> dict[str, argparse.ArgumentParser]:
    """The real subcommands."""
    (action,) = [a for a in cli.make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every `elmwright COMMAND …` in a shell block, or in a comment that shows how."""
    commands = "|".join(known())
    for name, text in TEXT.items():
        if name.endswith((".py", ".toml")):
            continue
        if name.endswith(".md"):
            shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))
        else:
            shell = "\n".join(re.findall(r"^(?:#   | *)(?!#)(.*)$", text, re.M))
        for line in re.sub(r"\\\n\s*", " ", shell).splitlines():
            found = re.search(rf"(?:^|[ /])elmwright ((?:{commands}) [^#>&]*)", line)
            if found:
                yield name, shlex.split(found[1])


def test_every_command_line_is_understood_by_the_real_parser() -> None:
    settings = {setting.key for setting in explain()}
    assert set(re.findall(r"--set ([a-z]+\.\w+)=", everything())) <= settings
    seen = set()
    for name, words in command_lines():
        try:
            cli.make_parser().parse_args(
                [
                    re.sub(r"^\$\w+$", "corpus" if before == "--until" else "x", word)
                    for before, word in zip(["", *words], words, strict=False)
                ]
            )
        except SystemExit:
            pytest.fail(f"{name}: elmwright {shlex.join(words)}")
        seen.add(name)
    assert seen >= {"README.md", "compose/compose.yaml"}


def test_every_subcommand_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:`|^|/bin/|exec head )elmwright ([a-z]+)", everything(), re.M))
    assert len(named) > 3
    assert named <= known().keys()


def test_options_of_ray_and_mlflow_exist() -> None:
    """Looked up in their source: importing both takes longer than all other tests here."""
    joined = re.sub(r"\[mlflow, server\]\s+args:", "mlflow server", everything())
    joined = re.sub(r"\n +#[^\n]*(?=\n +- --)", "", joined)  # a comment in a list of options
    joined = re.sub(r"(?:\\)?\n {4,}(?:- )?(?=--)", " ", joined)
    joined = joined.replace("ray.scripts.scripts start", "ray start")  # run as a Python module
    start = source("ray", "scripts/scripts.py")
    start = start[start.index('"--node-ip-address"') : start.index("def start(")]
    server = source("mlflow", "cli/__init__.py") + source("mlflow", "utils/cli_args.py")
    for command, options in (("ray start", start), ("mlflow server", server)):
        lines = re.findall(rf"{command} ([^\n|`]*)", joined)
        used = {option for line in lines for option in re.findall(r"--[a-z][a-z-]+", line)}
        assert len(used) >= 4
        assert used <= set(re.findall(r'"(--[a-z-]+)"', options)), command


def test_make_targets_that_infra_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake ((?:[a-z]+-)?[a-z]+)\b", TEXT["README.md"]))
    assert named
    assert named <= targets


def test_infra_mentions_only_files_that_exist() -> None:
    for name, text in TEXT.items():
        for path in re.findall(r"\binfra/[\w./-]+\w", text):
            made_by_hand = path.endswith("/.env")
            assert made_by_hand or (ROOT / path).exists(), f"{name}: {path}"


def two_digits(number: float) -> str:
    return f"{number:#.2g}".rstrip(".")


def test_the_sizes_in_the_readme_are_what_the_formulas_give() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT["README.md"].splitlines()
        if line.startswith("|")
    ]
    for column, recipe in ((2, "small"), (3, "original")):
        config = load_config(recipe)
        dense = sum(config.model.parameter_counts().values())
        width, train = config.model.projection_dim + 1, config.train
        tokens = train.lanes * train.window
        gradients = 4 * dense
        softmax = 4 * width * min(config.vocab.max_size, train.negatives + 2 * tokens)
        ring = 2 * (train.processes - 1) / train.processes * (gradients + softmax)
        checkpoint = 8 * (dense + config.vocab.max_size * width)
        expected = {
            "dense gradients": f"{gradients / 1e6:.0f} MB",
            "softmax rows": f"{two_digits(softmax / 1e6)} MB",
            "sent, and": f"{ring / 1e6:.0f} MB at *W* = {train.processes}",
            "checkpoint (Adagrad": f"{two_digits(checkpoint / 1e9)} GB",
            "checkpoint (AdamW": f"{two_digits(1.5 * checkpoint / 1e9)} GB",
            "storage for": f"{two_digits((config.checkpoint.keep_last + 2) * checkpoint / 1e9)} GB",
            "storage bandwidth": f"{checkpoint / 120 / 1e6:.0f} MB/s",
        }
        for begin, value in expected.items():
            (row,) = [r for r in rows if r[0].startswith(begin)][:1]
            assert row[column] == value, begin
        if recipe == "original":
            for row in rows:
                if re.fullmatch(r"\d+,000", row[0]):
                    speed = int(row[0].replace(",", ""))
                    assert row[1] == f"{768_648_884 * 10 / speed / 86_400:.1f}"
                    assert row[2] == f"{two_digits(ring * speed / tokens / 1e9)} GB/s"
