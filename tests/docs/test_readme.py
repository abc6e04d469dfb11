"""The README stays short and finished, links lead somewhere, and generated pages are current."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import elmwright
from elmwright.jobs.config.sections import RESUMABLE
from elmwright.jobs.config.toml_file import explain
from tests.support.docs.blocks import PAGES, ROOT, text_of
from tests.support.docs.configuration import PAGE, page

MAX_LINES, MAX_WORDS = 180, 1600
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
LINKED = [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "infra/README.md"]


def test_the_readme_is_short() -> None:
    text = text_of("README.md")
    assert len(text.splitlines()) <= MAX_LINES
    assert len(text.split()) <= MAX_WORDS


def test_no_number_is_still_to_be_filled_in() -> None:
    for name in LINKED:
        assert re.findall(r"@@\w*@@", text_of(name)) == [], name


def test_every_result_names_a_command_that_exists() -> None:
    table = text_of("README.md").split("\n## Results\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["what", "ours", "peer", "ratio", "command"]
    targets = set(re.findall(r"^([a-z0-9-]+):", text_of("Makefile"), re.MULTILINE))
    for _, ours, peer, _, command in rows[2:]:
        if command == "–":
            assert "quoted" in peer, peer
            assert ours == "–", "our own number needs a command"
            continue
        program, name = command.strip("`").split()[:2]
        if program == "make":
            assert name in targets
        else:
            assert program == "python"
            assert (ROOT / name).is_file(), name


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get when it is rendered."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_link_leads_somewhere() -> None:
    wrong = []
    for name in LINKED:
        for link in LINK.findall(text_of(name)):
            path, _, anchor = link.partition("#")
            target = ((ROOT / name).parent / path).resolve() if path else ROOT / name
            if link.startswith("https://"):
                continue
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                wrong.append(f"{name}: {link}")
    assert wrong == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    links = {link.partition("#")[0] for link in LINK.findall(text_of("README.md"))}
    assert set(PAGES) - {"README.md"} <= links


def test_files_that_pages_name_exist() -> None:
    """Those of infra/README.md are looked at by tests/infra."""
    path = re.compile(r"\b(?:docs|tests|infra|jobs|pipeline|model)/[\w./-]+\.\w+")
    wrong = [
        f"{name}: {found}"
        for name in (*PAGES, "CONTRIBUTING.md", "SECURITY.md")
        for found in path.findall(text_of(name))
        if not (ROOT / found).exists()
    ]
    assert wrong == []


def test_the_page_of_settings_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m tests.support.docs.configuration"
    )


def test_what_may_change_on_resume_is_what_the_code_allows() -> None:
    """Settings of [train] one by one; [eval] is promised as a whole."""
    (row,) = re.findall(r"^\| may change \| (.*) \|$", text_of("docs/training.md"), re.MULTILINE)
    named = set(re.findall(r"`(train\.\w+)`", row))
    assert named == {key for key in RESUMABLE if key.startswith("train.")}
    assert "[eval]" in row
    for key in (setting.key for setting in explain()):
        assert key in RESUMABLE or not key.startswith("eval."), key


def test_the_citation_is_of_this_version() -> None:
    data = yaml.safe_load(text_of("CITATION.cff"))
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert str(data["version"]) == elmwright.__version__
    assert data["license"] == project["license"]
    assert data["authors"] == [{"name": "The Elmwright authors"}]


def test_the_citation_is_valid() -> None:
    tool = str(Path(sys.executable).with_name("check-jsonschema"))
    done = subprocess.run(
        [tool, "--builtin-schema", "vendor.citation-file-format", str(ROOT / "CITATION.cff")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_that_pages_name_are_of_this_version() -> None:
    named = {tag for name in PAGES for tag in re.findall(r"elmwright:([\d.]+)-", text_of(name))}
    assert named == {elmwright.__version__}
