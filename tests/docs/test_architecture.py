"""docs/architecture.md names files, functions and types that exist, and its picture is current."""

import ast
import re
import runpy
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.docs.blocks import ROOT, text_of

pytestmark = pytest.mark.slow(2)

PAGE = "docs/architecture.md"
ROOMS = ("pipeline", "model", "jobs")
QUOTED = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"([\w/.-]+\.py)(?:: ([\w.]+))?")
STOPS = [
    "Source file",
    "Document",
    "Tokens",
    "Selection",
    "Block",
    "Shard",
    "Lane",
    "Window",
    "Loss",
    "Checkpoint",
    "Bundle",
    "Version",
    "Vector",
]


def quoted() -> list[str]:
    return QUOTED.findall(text_of(PAGE))


def defined_in(path: Path) -> set[str]:
    """Functions, classes, `Class.method` and module-level names of a file."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            found |= {f"{node.name}.{method.name}" for method in methods}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in ast.walk(target)]
            found |= {name.id for name in names if isinstance(name, ast.Name)}
    return found


def wrong_places(texts: list[str]) -> list[str]:
    """Those of some quoted texts that are `file.py` or `file.py: name` and do not exist."""
    wrong = []
    for text in texts:
        match = PLACE.fullmatch(text)
        if not match:
            if ".py" in text:
                wrong.append(f"{text}: neither a file nor 'file: name'")
            continue
        path = ROOT / match[1]
        if not path.is_file():
            wrong.append(f"{match[1]}: no such file")
        elif match[2] and match[2] not in defined_in(path):
            wrong.append(f"{text}: not defined there")
    return wrong


def test_every_file_and_function_on_the_page_exists() -> None:
    texts = quoted()
    assert sum(bool(PLACE.fullmatch(text)) for text in texts) > 60
    assert wrong_places(texts) == []


@pytest.mark.parametrize(
    "text",
    [
        "pipeline/format/blocks.py",
        "pipeline/format/block.py: Blocks",
        "model/bilm.py: BiLM.backward",
        "see model/bilm.py",
    ],
)
def test_a_name_that_is_gone_is_noticed(text: str) -> None:
    assert len(wrong_places([text])) == 1


def test_every_folder_on_the_page_exists() -> None:
    folders = [text for text in quoted() if text.endswith("/")]
    assert len(folders) > 5
    assert [name for name in folders if not (ROOT / name).is_dir()] == []


def test_the_sentence_passes_every_stop_and_each_says_what_comes_out() -> None:
    walk = text_of(PAGE).split("\n## One sentence")[1].split("\n## ")[0]
    paragraphs = re.findall(r"^\*\*(.+?)\.\*\* (.+)$", walk, re.MULTILINE)
    assert [name for name, _ in paragraphs] == STOPS
    for name, paragraph in paragraphs:
        assert "Output: " in paragraph, name
        assert PLACE.search(paragraph), name


def test_the_picture_is_linked_and_is_what_the_script_draws() -> None:
    assert "](architecture.svg)" in text_of(PAGE)
    draw = runpy.run_path(str(ROOT / "docs" / "make_architecture_svg.py"))
    assert text_of("docs/architecture.svg") == draw["picture"](), (
        "run: python docs/make_architecture_svg.py"
    )


def test_every_room_is_in_the_picture_and_in_the_tree() -> None:
    picture, tree = text_of("docs/architecture.svg"), text_of("docs/code.md")
    for room in ROOMS:
        packages = [path.parent for path in (ROOT / room).glob("*/__init__.py")]
        assert packages
        for package in packages:
            assert f">{package.name}<" in picture, package
            assert f"\n  {package.name}/ " in tree, package


def docstring_of(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""


def test_every_package_says_what_it_may_import() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("__init__.py"):
            docstring = docstring_of(path.parent)
            assert re.search(r"\bmay\s+import\b", docstring, re.IGNORECASE), path
            assert 3 <= len(docstring.splitlines()) <= 9, path


def test_what_a_package_says_it_may_import_is_what_import_linter_allows() -> None:
    """`May import X and what is below it`, or `and the rooms below it`: X is the layer below."""
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    checked = 0
    for contract in contracts:
        for container in contract.get("containers", []):
            for layer, below in pairwise(contract["layers"]):
                package = ROOT.joinpath(*container.split(".")[1:], layer)
                if not package.is_dir():
                    continue
                words = " ".join(docstring_of(package).split())
                rule = re.search(r"[Mm]ay import (\w+) and what is below it", words)
                if rule:
                    checked += 1
                    assert rule[1] in re.findall(r"\w+", below), package
    assert checked >= 20
