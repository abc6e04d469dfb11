"""The image has what the files that use it count on."""

import re
import tomllib
from importlib.metadata import packages_distributions

import pytest
import sqlalchemy

from tests.infra.texts import TEXT, source
from tests.infra.validators import INFRA, ROOT, documents


def test_rays_launcher_finds_its_tools_in_the_image() -> None:
    """It runs rsync in every container, and ssh in the head's: read in Ray's own code."""
    runner = source("ray", "autoscaler/_private/command_runner.py")
    assert "rsync -e '{} exec -i'" in runner
    assert 'ssh = ["ssh"' in runner
    assert {"rsync", "openssh-client"} <= packages()


def packages() -> set[str]:
    """Debian packages of the image, beyond those of Python's own."""
    (line,) = re.findall(
        r"apt-get install -y --no-install-recommends (.*) \\", TEXT["docker/Dockerfile"]
    )
    return set(line.split())


def test_the_python_of_the_image_is_one_the_package_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (python,) = re.findall(r"ARG PYTHON=(\d+)\.(\d+)", TEXT["docker/Dockerfile"])
    (least,) = re.findall(r">=(\d+)\.(\d+)", project["requires-python"])
    assert tuple(map(int, python)) >= tuple(map(int, least))


def installed() -> set[str]:
    """What `pip install` is asked for in the image by name, without what that pulls in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + TEXT["docker/requirements.txt"].splitlines()
    return {found[0].lower() for line in asked if (found := re.match(r"[\w-]+", line))}


@pytest.mark.parametrize("file", ["compose/compose.yaml", "kubernetes/base/mlflow.yaml"])
def test_mlflows_database_is_reached_by_a_driver_that_the_image_has(file: str) -> None:
    """SQLAlchemy 2.1 takes psycopg 3 where a URL names no driver; MLflow then does not start."""
    (url,) = re.findall(r"MLFLOW_BACKEND_STORE_URI(?:\s+value)?: (\S.*)", TEXT[file])
    url = re.sub(r"\$(?:\{[^}]*\}|\([^)]*\))", "secret", url)
    engine = sqlalchemy.create_engine(url)  # imports the driver; connects to nothing
    assert engine.url.password == "secret"  # noqa: S105
    driver = engine.dialect.dbapi.__name__  # type: ignore[attr-defined]
    assert set(packages_distributions()[driver]) & installed(), driver


def test_no_file_names_a_database_without_its_driver() -> None:
    for name, text in TEXT.items():
        assert not re.findall(r"postgres(?:ql)?://", text), name


def test_the_mlflow_server_and_rays_autoscaler_find_boto3() -> None:
    """Neither MLflow nor Ray depends on it; both import it, for s3:// and for AWS."""
    assert "--artifacts-destination s3://" in TEXT["compose/compose.yaml"]
    assert "import boto3" in source("mlflow", "store/artifact/s3_artifact_repo.py")
    assert "import boto3" in source("ray", "autoscaler/_private/aws/config.py")
    assert "boto3" in installed()


def test_health_checks_call_what_their_image_has() -> None:
    """wget is ours to install; nc is in rclone's image (Alpine), pg_isready in PostgreSQL's."""
    here = {"wget": "elmwright", "nc": "rclone/rclone", "pg_isready": "postgres"}
    (compose,) = documents(INFRA / "compose" / "compose.yaml")
    for service in compose["services"].values():
        _, program, *_ = service["healthcheck"]["test"]
        assert service["image"].startswith(f"{here[program]}:")
    for file in ("mlflow", "postgres"):
        text = TEXT[f"kubernetes/base/{file}.yaml"]
        (program,) = re.findall(r"exec:\s+command: \[(\w+),", text)
        (image,) = re.findall(r"image: ([\w/]+):", text)
        assert here[program] == image
    assert "wget" in packages()
