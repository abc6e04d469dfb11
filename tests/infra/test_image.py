"""The image has what the files that use it count on."""

import re
import tomllib

from tests.infra.texts import TEXT, source
from tests.infra.validators import ROOT


def test_rays_launcher_finds_its_tools_in_the_image() -> None:
    """It runs rsync in every container, and ssh in the head's: read in Ray's own code."""
    runner = source("ray", "autoscaler/_private/command_runner.py")
    assert "rsync -e '{} exec -i'" in runner
    assert 'ssh = ["ssh"' in runner
    (line,) = re.findall(
        r"apt-get install -y --no-install-recommends (.*) \\", TEXT["docker/Dockerfile"]
    )
    assert {"rsync", "openssh-client"} <= set(line.split())


def test_the_python_of_the_image_is_one_the_package_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (python,) = re.findall(r"ARG PYTHON=(\d+)\.(\d+)", TEXT["docker/Dockerfile"])
    (least,) = re.findall(r">=(\d+)\.(\d+)", project["requires-python"])
    assert tuple(map(int, python)) >= tuple(map(int, least))
