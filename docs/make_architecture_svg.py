"""Makes docs/architecture.svg: the rooms, who may import whom, and the data that passes through.

    python docs/make_architecture_svg.py [-o FILE]

The rooms and their order are import-linter's layers in pyproject.toml, what is said about a room is
its line in docs/code.md, and the libraries beside it are those that its modules import. Only the
stops of the data are listed here. The picture has its own background, so that it can be read in a
light page and in a dark one. A test compares it with what this script makes.
"""

import argparse
import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(__file__).with_name("architecture.svg")
LIBRARIES = {"ray": "Ray", "mlflow": "MLflow", "torch": "torch"}
COLOURS = {"jobs": "#5b3fa0", "model": "#0b6e5d", "pipeline": "#a04a00"}
"""Dark enough for text on white."""
TINTS = {"jobs": "#f1edfa", "model": "#e4f4f0", "pipeline": "#fbeee2"}
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

WIDTH, MARGIN, GAP = 1040, 28, 64
COLUMN = (WIDTH - 2 * MARGIN - GAP) / 2
ROW, HEAD, TOP = 26, 36, 48
CHIP, CHIP_HEIGHT, PER_LINE = 140, 74, 6


@dataclass(frozen=True)
class Stop:
    """One stop of a sentence on its way from a source file to a vector."""

    name: str
    hands_on: str
    """The type or file that comes out."""
    room: str


STOPS = (
    Stop("source file", "Piece", "pipeline/reading"),
    Stop("document", "Record", "pipeline/reading"),
    Stop("tokens", "Cleaned", "pipeline/cleaning"),
    Stop("block", "Block", "pipeline/format"),
    Stop("shard", "Manifest", "pipeline/build"),
    Stop("lane", "block, window", "pipeline/format"),
    Stop("window", "Batch", "jobs/training"),
    Stop("loss", "Trainer", "model"),
    Stop("checkpoint", "CheckpointInfo", "jobs/checkpoints"),
    Stop("bundle", "SHA256SUMS", "jobs/publishing"),
    Stop("version", "Version", "jobs/registry"),
    Stop("vector", "array", "model/inference"),
)


def layers() -> dict[str, list[list[str]]]:
    """The rooms of pipeline, model and jobs, the topmost first; some share a layer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {}
    for contract in project["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", []):
            found[container] = [
                [name.strip() for name in layer.split("|")] for layer in contract["layers"]
            ]
    return {name: found[f"elmwright.{name}"] for name in COLOURS}


def lines_of_the_tree() -> dict[str, str]:
    """What docs/code.md says about each room, by `jobs/stages`."""
    page = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    said, top = {}, ""
    for line in page.split("```text\n")[1].split("```")[0].splitlines():
        indent, name, text = re.findall(r"^( *)([\w.]+)/? +(.*)$", line)[0]
        if not indent:
            top = name
        elif len(indent) == 2:
            said[f"{top}/{name.removesuffix('.py')}"] = text
    return said


def libraries_of(room: str) -> list[str]:
    """Which of the heavy libraries the modules of a room import."""
    path = ROOT / room
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    imported = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    return [shown for name, shown in LIBRARIES.items() if name in imported]


def text(x: float, y: float, content: str, **style: str | float) -> str:
    """A line of text."""
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(content)}</text>'


def stack(x: float, y: float, top: str, rows: list[list[str]]) -> Iterator[str]:
    """The rooms of one top folder, each on the one it may import."""
    colour, said = COLOURS[top], lines_of_the_tree()
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{COLUMN:g}" height="{height_of(rows):g}" rx="8" '
        f'fill="{TINTS[top]}" stroke="{colour}"/>'
    )
    yield text(x + 12, y + 24, f"{top}/", fill=colour, font_weight=700, font_size=17)
    for number, names in enumerate(rows):
        line = y + HEAD + number * ROW
        rooms = [f"{top}/{name}" for name in names]
        libraries = sorted({library for room in rooms for library in libraries_of(room)})
        yield (
            f'<rect x="{x + 8:g}" y="{line:g}" width="{COLUMN - 16:g}" height="{ROW - 4}" rx="4" '
            'fill="#ffffff" stroke="#d5d9df"/>'
        )
        yield text(x + 16, line + 15.5, " · ".join(names), font_weight=600, fill="#1b1f24")
        if len(names) == 1:
            yield text(x + 130, line + 15.5, said[rooms[0]], fill="#4a525c", font_size=12)
        shown = ", ".join(libraries)
        yield text(
            x + COLUMN - 16, line + 15.5, shown, fill=colour, font_size=11, text_anchor="end"
        )


def height_of(rows: list[list[str]]) -> float:
    return HEAD + len(rows) * ROW + 6


def arrow(points: list[tuple[float, float]], colour: str = "#4a525c") -> str:
    """A line through the points, with a head at its end."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" '
        'marker-end="url(#head)"/>'
    )


def journey(y: float) -> Iterator[str]:
    """The stops of the data, in lines from left to right."""
    step = (WIDTH - 2 * MARGIN - CHIP) / (PER_LINE - 1)
    below = CHIP_HEIGHT + 44
    for number, stop in enumerate(STOPS):
        line, place = divmod(number, PER_LINE)
        x, top = MARGIN + place * step, y + line * below
        colour = COLOURS[stop.room.split("/")[0]]
        tint = TINTS[stop.room.split("/")[0]]
        middle = x + CHIP / 2
        yield (
            f'<rect x="{x:g}" y="{top:g}" width="{CHIP}" height="{CHIP_HEIGHT}" rx="8" '
            f'fill="{tint}" stroke="{colour}"/>'
        )
        centred = {"text_anchor": "middle"}
        yield text(
            middle, top + 22, stop.name, font_weight=700, font_size=15, fill=colour, **centred
        )
        yield text(middle, top + 43, stop.hands_on, font_size=13, fill="#1b1f24", **centred)
        yield text(middle, top + 62, stop.room, font_size=11.5, fill="#4a525c", **centred)
        if place < PER_LINE - 1:
            if number < len(STOPS) - 1:
                at = top + CHIP_HEIGHT / 2
                yield arrow([(x + CHIP + 3, at), (x + step - 4, at)])
        elif number < len(STOPS) - 1:
            between = top + CHIP_HEIGHT + 22
            yield arrow(
                [
                    (middle, top + CHIP_HEIGHT + 2),
                    (middle, between),
                    (MARGIN + CHIP / 2, between),
                    (MARGIN + CHIP / 2, top + below - 4),
                ]
            )


def picture() -> str:
    """The whole picture."""
    rows = layers()
    left, right = MARGIN, MARGIN + COLUMN + GAP
    ends = TOP + height_of(rows["jobs"])
    pipeline_top = ends - height_of(rows["pipeline"])
    model_ends = TOP + height_of(rows["model"])
    centre = right + COLUMN / 2
    journey_top = ends + 84
    height = journey_top + 2 * CHIP_HEIGHT + 44 + MARGIN
    title = {"font_weight": 700, "font_size": 16, "fill": "#1b1f24"}
    model_at, pipeline_at = (TOP + model_ends) / 2, (pipeline_top + ends) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" font-family="{FONT}" font-size="13" role="img">',
        "<title>The rooms of Elmwright, their imports, and the way of the data</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="#4a525c"/></marker>'
        "</defs>",
        f'<rect width="{WIDTH}" height="{height:g}" rx="10" fill="#ffffff"/>',
        text(MARGIN, 32, "Imports: a room may import the rooms below it, never one above", **title),
        *stack(left, TOP, "jobs", rows["jobs"]),
        *stack(right, TOP, "model", rows["model"]),
        *stack(right, pipeline_top, "pipeline", rows["pipeline"]),
        arrow([(left + COLUMN + 3, model_at), (right - 4, model_at)]),
        text(left + COLUMN + GAP / 2, model_at - 8, "imports", text_anchor="middle", font_size=11),
        arrow([(left + COLUMN + 3, pipeline_at), (right - 4, pipeline_at)]),
        text(
            left + COLUMN + GAP / 2, pipeline_at - 8, "imports", text_anchor="middle", font_size=11
        ),
        arrow([(centre, model_ends + 3), (centre, pipeline_top - 4)]),
        text(centre + 10, (model_ends + pipeline_top) / 2 + 4, "imports", font_size=11),
        text(MARGIN, journey_top - 20, "Data: one sentence, and what is handed on", **title),
        *journey(journey_top),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    given = parser.parse_args()
    given.output.write_text(picture(), encoding="utf-8")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
