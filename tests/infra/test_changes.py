"""A single wrong port, path, version, time or command in `infra/` is noticed, wherever it is."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from elmwright import __version__
from elmwright.jobs.runbook import ports
from tests.infra import test_agreement as agreement
from tests.infra import test_commands as commands
from tests.support.infra.texts import TEXT

CHANGES = {
    rf"\b(?:{ports.RAY_PORT}|{ports.DASHBOARD_PORT}|{ports.MLFLOW_PORT}|{ports.POSTGRES_PORT}|"
    rf"{ports.STORE_PORT}|{agreement.AGENT_PORT})\b": "7777",
    rf"\b{re.escape(__version__)}-(?:cpu|cuda)": "0.0.9-cpu",
    r"(?<=rayVersion: )\S+": "2.59.0",
    r"(?<=grace_period: )\d+|(?<=GracePeriodSeconds: )\d+": "30",
    r"(?<=elmwright )run(?= )": "walk",
    r"(?<=--set )[a-z]+\.[a-z]+(?==)": "cluster.adress",
    r"--(?:dashboard-host|num-cpus|allowed-hosts)(?==| )": "--no-such-option",
}
"""What is looked for, and what it is changed to: each occurrence alone."""


def places(pattern: str, skipped: tuple[str, ...]) -> Iterator[tuple[str, re.Match[str], str]]:
    """File, match and line, wherever the pattern stands in something that is not prose."""
    for name, text in TEXT.items():
        if name.endswith(skipped):
            continue
        for match in re.finditer(pattern, text):
            start = text.rfind("\n", 0, match.start()) + 1
            line = text[start : text.find("\n", match.end())]
            comment = line.lstrip().startswith("#") and not line.startswith("#   ")
            if not comment and "  # " not in text[start : match.start()]:
                yield name, match, line.strip()


def changed(name: str, start: int, end: int, to: str) -> str:
    return TEXT[name][:start] + to + TEXT[name][end:]


@pytest.mark.parametrize("pattern", CHANGES)
def test_each_change_of_a_single_value_is_noticed(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(places(pattern, (".md", ".py", ".toml", "requirements.txt")))
    assert found
    assert not noticed(), "nothing is wrong yet"
    for name, match, line in found:
        with monkeypatch.context() as patch:
            patch.setitem(TEXT, name, changed(name, *match.span(), CHANGES[pattern]))
            assert noticed(), f"{name}: {line}"


def test_each_change_of_a_single_path_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a path that another file may name; a mount point, also to one of its own file's."""
    everywhere = set().union(*agreement.PATHS.values())
    mounts = {path for _, path in agreement.PLACES}
    files = set()
    assert not noticed(), "nothing is wrong yet"
    for name, match, line in list(places(agreement.PATH, (".md", ".py"))):
        path = agreement.below(match[0].rstrip("./"), name)
        foreign = sorted(everywhere - agreement.PATHS[name])
        others = everywhere - {path} if path in mounts else {foreign[0], foreign[-1]}
        for other in sorted(others | {"/mnt/elsewhere"}):
            wrong = changed(name, match.start(), match.start() + len(path), other)
            with monkeypatch.context() as patch:
                patch.setitem(TEXT, name, wrong)
                assert noticed(), f"{name}: {line}: {other}"
        files.add(name)
    assert files >= agreement.PATHS.keys() - {"kubernetes/storage/claims.yaml"}  # prose alone


def noticed() -> bool:
    """Whether any test that reads texts fails now."""
    for check in (
        agreement.test_every_path_is_one_that_its_file_may_name,
        *(partial(agreement.test_a_path_is_the_packages, *pair) for pair in agreement.PLACES),
        agreement.test_no_other_port_is_named,
        agreement.test_image_tags_are_those_of_this_version,
        agreement.test_versions_are_the_pinned_ones,
        agreement.test_a_stopped_job_has_the_time_it_was_promised,
        agreement.test_ray_has_time_to_drain_a_node_that_is_stopped,
        commands.test_options_of_ray_and_mlflow_exist,
        commands.test_every_subcommand_that_is_named_exists,
        commands.test_every_command_line_is_understood_by_the_real_parser,
        *(partial(agreement.test_a_port_is_the_packages, *pair) for pair in agreement.PORTS),
    ):
        try:
            check()
        except (AssertionError, pytest.fail.Exception):
            return True
    return False
