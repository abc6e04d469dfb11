"""The fenced blocks of the README and of docs/, each with the place where it can be run.

The place is the word behind the language, which no reader sees once the page is rendered:

    sh demo       in a folder with a finished run `demo`, by a shell
    sh serve      there too; the last line is a service that runs until it is stopped
    sh clone      in a fresh clone of the repository
    sh make       make targets
    sh long       a run of the reader's own text, in a folder with nothing but text
    sh cluster    needs a cluster
    python demo   a script of its own, in the folder of the demo
    python extra  the same; needs spaCy or flair, which have an environment of their own
    toml config   a run config, toml targets: a file of targets, text: not a program
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from elmwright.jobs.cli import command
from tests.support.places import DOCS, ROOT

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))]
KINDS = {
    "sh demo",
    "sh serve",
    "sh clone",
    "sh make",
    "sh long",
    "sh cluster",
    "python demo",
    "python extra",
    "toml config",
    "toml targets",
    "text",
}
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    """File it is in, relative to the repository."""
    line: int
    """Line of its opening fence."""
    kind: str
    """Language and place."""
    code: str
    """What is between the fences."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.kind})"

    def lines(self) -> list[str]:
        """The commands of a shell block, continued lines joined."""
        return [line for line in self.code.replace("\\\n", " ").splitlines() if line.strip()]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = text_of(page)
    for match in FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2])


def all_blocks(*kinds: str) -> list[Block]:
    """Every block of these kinds, of all kinds if none is named."""
    return [
        block for page in PAGES for block in blocks_of(page) if block.kind in kinds or not kinds
    ]


def prose_of(page: str) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", text_of(page))


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """The commands a user sees, and their parsers; the hidden one has no description."""
    (action,) = [
        action
        for action in command.make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return {name: parser for name, parser in action.choices.items() if parser.description}
