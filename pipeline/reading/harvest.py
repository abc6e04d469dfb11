"""The embedded corpus: prose from the docstrings of the Python code on this machine.

The .py files of the standard library and of the installed packages are parsed with `ast`, never
imported. A module is one document: its docstrings in the order of the source, without doctests,
code blocks, tables, underlines, and the names and types of parameters. That is real, messy,
duplicated English without a download.

The text is written once, as JSON Lines in `source/`. `source/SOURCE.json` is written last and makes
it final, so that installing a package later does not change a run. The 290 MB of this project's
environment take about 58 s of processor time, half of it parsing.
"""

import ast
import gc
import json
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import read_object

FOLDER = "source"
NAME = "SOURCE.json"
GROUP_BYTES = 4_000_000
"""Bytes of Python source per task."""
MAX_BYTES = 3_000_000
"""Larger files are generated tables, and `ast` needs about 45 bytes of memory per byte."""
MIN_QUOTED = 0.08
"""Files with a smaller share of triple-quoted text are not parsed. They would take a third of the
time and give a twentieth of the words."""
SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "elmwright", "lib2to3"})
"""Folders that are not read: packages that are listed elsewhere, our own code (which may change
between two runs), and Python 2 test data."""

_UNDERLINE = re.compile(r"\s*([=\-~^*#\"'`+_.:]){3,}\s*\Z")
_CODE_LINE = re.compile(r"\s*(?:>>>|\.\.\.\s|In \[\d+\]|Out\[\d+\]|\$ |\.\. |[-+|=]{2,}|@\w|```)")
_FIELD = re.compile(
    r"\s*:\w+[^:]{0,80}:\s*|\s*[*\w]+ ?\([^)]{0,80}\):\s+|\s*\*{0,2}\w+: +(?=[A-Z])"
)
_NUMPY_FIELD = re.compile(r"\s*[*\w, .]+ : \S|\s*[*\w]+\s*\Z")
_ROLE = re.compile(r":[\w:+-]+:`([^`<]*)(?: <[^`>]*>)?`")
_MARKUP = re.compile(r"`+([^`]*)`+_{0,2}|\*\*?([^*\s][^*]*)\*\*?")
_CITATION = re.compile(r"\[[\w.*#]+\]_")
_SPACES = re.compile(r"\S  +\S")
_CODE = re.compile(
    r"\w\(|\)\.|\w\[|[\w)\]] ?(?:=|==|\+=|->|:=) ?[\w(\[{'\"]|[{}\\;|]|\bself\.|::|=>"
    r"|(?:\A|\n)\s*(?:def|class|import|return|from|for|if|elif|else|while|with|try|assert|print)\b"
)
CODE_MARKS = 0.7
"""A paragraph with more marks of code than this per line is code."""


@dataclass(frozen=True)
class HarvestCounts:
    """How many modules were read, how many of them could not be parsed, and the documents."""

    modules: int
    skipped: int
    documents: int


def list_modules() -> list[tuple[str, str]]:
    """(name, path) of every module on this machine, sorted; the name is a path below its root."""
    modules: dict[str, str] = {}
    for place in ("stdlib", "purelib", "platlib"):
        root = sysconfig.get_path(place)
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in SKIPPED]
            for file in names:
                if file.endswith(".py") and not file.startswith("__editable__"):
                    path = os.path.join(folder, file)
                    modules.setdefault(os.path.relpath(path, root), path)
    return sorted(modules.items())


def group_modules(modules: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Consecutive modules in groups of about `GROUP_BYTES`."""
    groups: list[list[tuple[str, str]]] = [[]]
    filled = 0
    for name, path in modules:
        size = Path(path).stat().st_size
        if groups[-1] and filled + size > GROUP_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append((name, path))
        filled += size
    return groups


def harvest_group(work: str, out: str, modules: Sequence[tuple[str, str]]) -> HarvestCounts:
    """Write the prose of some modules to `out`.jsonl, and count them."""
    records = []
    skipped = 0
    # Syntax trees are many small objects without cycles. Collecting them takes a sixth of the time.
    gc.disable()
    try:
        for name, path in modules:
            try:
                text = "\n\n".join(module_prose(Path(path)))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                skipped += 1
                continue
            if text:
                records.append(json.dumps({"id": name, "text": text}, ensure_ascii=False))
    finally:
        gc.enable()
    data = "".join(f"{record}\n" for record in records).encode("utf-8", "replace")
    at(join(work, f"{out}.jsonl")).write_bytes(data)
    return HarvestCounts(len(modules), skipped, len(records))


def module_prose(path: Path) -> Iterator[str]:
    """The prose of each docstring of a module, in the order of the source."""
    if path.stat().st_size > MAX_BYTES:
        return
    source = path.read_bytes()
    if _quoted(source) < MIN_QUOTED * len(source):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    for node in _owners(tree):
        if text := prose(ast.get_docstring(node) or ""):
            yield text


def _quoted(source: bytes) -> int:
    """The approximate number of bytes between triple quotes."""
    return sum(len(text) for quote in (b'"""', b"'''") for text in source.split(quote)[1::2])


Owner = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _owners(tree: ast.Module) -> Iterator[Owner]:
    """The module, its classes and functions, in the order of the source."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Owner):
            yield node
        for name in ("finalbody", "handlers", "orelse", "body"):
            children = getattr(node, name, None)
            if isinstance(children, list):
                stack.extend(reversed(children))


def prose(docstring: str) -> str:
    """The running text of a docstring, paragraphs separated by empty lines."""
    kept: list[str] = []
    lines = docstring.expandtabs().split("\n")
    code_indent: int | None = None
    in_doctest = False
    for number, line in enumerate(lines):
        text = line.strip()
        if not text:
            in_doctest = False
            _break(kept)
            continue
        indent = len(line) - len(line.lstrip())
        if code_indent is not None:
            if indent > code_indent:
                continue
            code_indent = None
        following = lines[number + 1] if number + 1 < len(lines) else ""
        in_doctest = in_doctest or text.startswith(">>>")
        if text.startswith(".. ") or text.endswith("::"):
            code_indent = indent
            # A sentence that introduces code is still a sentence: "Use it like this::".
            if text.startswith(".. ") or len(text.split()) < 4:
                continue
            text = text[:-1]
        if in_doctest or _CODE_LINE.match(line) or _UNDERLINE.match(line):
            continue
        if _UNDERLINE.match(following) or _opens_description(text, indent, following):
            _break(kept)
            continue
        field = _FIELD.match(line)
        if field:
            _break(kept)
            text = line[field.end() :].strip()
        if text and not _SPACES.search(text.replace(".  ", ". ")):
            kept.append(_plain(text))
    paragraphs = "\n".join(kept).strip().split("\n\n")
    return "\n\n".join(text for text in paragraphs if text.strip() and not _is_code(text))


def _is_code(paragraph: str) -> bool:
    lines = paragraph.count("\n") + 1
    return sum(1 for _ in _CODE.finditer(paragraph)) > CODE_MARKS * lines


def _opens_description(text: str, indent: int, following: str) -> bool:
    """Whether a line is the head of an indented description: `x : int`, `Returns:`, `name`."""
    if len(following) - len(following.lstrip()) <= indent or not following.strip():
        return " : " in text and len(text.split()) < 6
    return bool(_NUMPY_FIELD.match(text)) or text.endswith(":")


def _plain(text: str) -> str:
    """Text without inline mark-up: ``code``, *emphasis*, :class:`Name`."""
    text = _CITATION.sub("", _ROLE.sub(r"\1", text))
    return _MARKUP.sub(lambda match: match[1] or match[2] or "", text).replace("`", "")


def _break(kept: list[str]) -> None:
    if kept and kept[-1]:
        kept.append("")


def finish(folder: str, work: str, outs: Sequence[str], counts: Sequence[HarvestCounts]) -> int:
    """Copy the parts of a harvest to `source/`, and make it final by listing them.

    Returns the number of documents.
    """
    digests = {}
    for number, out in enumerate(outs):
        part = join(work, f"{out}.jsonl")
        name = f"part-{number:05d}.jsonl"
        digests[name] = at(part).sha256()
        at(join(folder, FOLDER, name)).copy_from(at(part))
    digest = sha256_bytes("\n".join(digests.values()).encode())
    total = HarvestCounts(
        sum(part.modules for part in counts),
        sum(part.skipped for part in counts),
        sum(part.documents for part in counts),
    )
    source = {"format": 1, "parts": digests, "sha256": digest, **to_data(total)}
    at(join(folder, FOLDER, NAME)).write_json(source)
    return total.documents


def frozen_parts(folder: str) -> list[str] | None:
    """The parts of a finished harvest, or None if there is none."""
    path = join(folder, FOLDER, NAME)
    if not at(path).exists():
        return None
    names = read_object(path).get("parts")
    if not isinstance(names, dict) or not all(re.fullmatch(r"part-\d+\.jsonl", n) for n in names):
        raise UserError(
            "file-damaged", f"{path} is damaged: it names no parts of a harvest; delete its folder"
        )
    return [join(folder, FOLDER, name) for name in names]
