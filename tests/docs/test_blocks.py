"""Blocks of the README and of docs/ say where they run; those that need a cluster are parsed."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.cli import command
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_from, explain, load_config, recipe_names
from elmwright.jobs.runbook.target import KINDS as TARGET_KINDS
from elmwright.jobs.runbook.target import find_target
from tests.support.docs.blocks import (
    KINDS,
    PAGES,
    ROOT,
    Block,
    all_blocks,
    prose_of,
    subcommands,
    text_of,
)
from tests.support.docs.texts import write_texts


def test_every_block_says_where_it_runs() -> None:
    for block in all_blocks():
        assert block.kind in KINDS, f"{block}: nothing runs it"
    assert {block.kind for block in all_blocks()} == KINDS, "a kind without blocks is not tested"
    for page in PAGES:
        assert text_of(page).count("```") == 2 * sum(b.page == page for b in all_blocks()), page


def test_the_command_is_called_in_one_way() -> None:
    for page in (*PAGES, "CONTRIBUTING.md", "infra/README.md"):
        assert "bin/elmwright" not in text_of(page), page


def test_no_comment_is_hidden_in_a_page() -> None:
    for page in PAGES:
        assert "<!--" not in text_of(page), page


@pytest.fixture
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The config that the README's `elmwright init my.toml` writes into the current folder."""
    write_texts(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    (line,) = [
        line for block in all_blocks("sh demo") for line in block.lines() if " init " in line
    ]
    assert command.main(shlex.split(line)[1:]) == 0
    return load_config("my.toml")


@pytest.mark.parametrize("block", all_blocks("sh cluster", "sh long"), ids=str)
def test_commands_for_a_cluster_or_for_hours_are_valid(block: Block, own_config: RunConfig) -> None:
    """The parser accepts them, and they name the config and the run of the README."""
    for line in block.lines():
        program, *words = shlex.split(line, comments=True)
        assert program == "elmwright", line
        options = vars(parse(words, line))
        if options.get("config") is not None:
            config = load_config(options["config"], options.get("overrides", []))
            assert config == own_config or options["config"] in recipe_names(), line
        if options.get("run") is not None:
            assert options["run"] == own_config.run.name, line
        for target in (options.get("target"), options.get("to")):
            assert target is None or find_target(target).kind in TARGET_KINDS, line


def parse(words: list[str], line: str) -> Any:
    try:
        return command.make_parser().parse_args(words)
    except SystemExit:
        pytest.fail(f"the parser refuses: {line}")


@pytest.mark.parametrize("block", all_blocks("sh make"), ids=str)
def test_make_knows_its_targets(block: Block) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for line in block.lines():
        program, *words = shlex.split(line, comments=True)
        assert program == "make", line
        subprocess.run([program, "--dry-run", *words], cwd=ROOT, check=True, capture_output=True)


def test_make_targets_in_prose_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text_of("Makefile"), re.MULTILINE))
    for page in (*PAGES, "CONTRIBUTING.md", "SECURITY.md"):
        named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", text_of(page), re.MULTILINE))
        assert named <= targets, page


@pytest.mark.parametrize("block", all_blocks("toml config"), ids=str)
def test_configs_load(block: Block) -> None:
    config_from({"version": 1, **tomllib.loads(block.code)}, str(block))


@pytest.mark.parametrize("block", all_blocks("toml targets"), ids=str)
def test_targets_are_accepted_by_submit(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "elmwright").mkdir()
    (tmp_path / "elmwright" / "targets.toml").write_text(block.code, encoding="utf-8")
    for name, options in tomllib.loads(block.code).items():
        assert find_target(name).kind == options["kind"]


def test_extras_in_prose_exist() -> None:
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    named = {name for page in PAGES for name in re.findall(r"'\.\[(\w+)\]'", prose_of(page))}
    assert named
    assert named <= extras.keys()


def inline_commands() -> list[tuple[str, str]]:
    """(page, command) of every `elmwright …` between single backticks."""
    return [
        (page, span.replace("\\|", "|"))
        for page in (*PAGES, "SECURITY.md", "CONTRIBUTING.md")
        for span in re.findall(r"`(elmwright [^`\n]+)`", prose_of(page))
    ]


def test_commands_and_options_in_prose_exist() -> None:
    known = subcommands()
    seen, wrong = set(), []
    for page, span in inline_commands():
        name = re.match(r"elmwright (\S+)", span)[1]  # type: ignore[index]
        if name == "COMMAND" or name.startswith("-"):
            continue
        seen.add(name)
        options = known[name]._option_string_actions if name in known else {}
        given = re.findall(r"(?<![\w-])--?[a-z][\w-]*", span)
        if name not in known or not set(given) <= options.keys():
            wrong.append(f"{page}: {span}")
    assert wrong == []
    assert len(seen) > 10


def test_settings_in_prose_exist() -> None:
    keys = {setting.key for setting in explain()}
    known = keys | {key.rpartition(".")[0] for key in keys}
    sections = {key.partition(".")[0] for key in keys}
    files = re.compile(r"\.(py|json|jsonl|html|toml|txt|tar|npy|hdf5|md|log|safetensors|svg)$")
    wrong = [
        f"{page}: {name}"
        for page in PAGES
        for name in re.findall(r"`(?:--set )?([a-z_]+(?:\.[a-z0-9_]+)+)(?= ?=|`)", prose_of(page))
        if name.partition(".")[0] in sections and not files.search(name) and name not in known
    ]
    assert wrong == []


def test_the_page_of_commands_lists_all_of_them_and_no_other() -> None:
    """An alias need not be listed. It has the same parser as the command."""
    named = set(re.findall(r"^\| `elmwright ([\w-]+)", text_of("docs/commands.md"), re.MULTILINE))
    known = subcommands()
    assert named <= known.keys()
    listed = {id(known[name]) for name in named}
    assert [name for name, parser in known.items() if id(parser) not in listed] == []
