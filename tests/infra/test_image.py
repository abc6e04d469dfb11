"""The image contains what the files that use it need."""

import re
import sysconfig
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.infra.texts import TEXT, source
from tests.support.infra.validators import documents
from tests.support.places import INFRA, ROOT


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
        assert service["image"].removeprefix("${ELMWRIGHT_IMAGE:-").startswith(f"{here[program]}:")
    for file in ("mlflow", "postgres"):
        text = TEXT[f"kubernetes/base/{file}.yaml"]
        (program,) = re.findall(r"exec:\s+(?:#.*\s+)?command: \[(\w+),", text)
        (image,) = set(re.findall(r"image: ([\w/]+):", text))
        assert here[program] == image
    assert "wget" in packages()


def test_the_mlflow_server_of_kubernetes_starts_no_job_runner() -> None:
    """It held more than a GiB, and had the server killed at its limit."""
    objects = documents(INFRA / "kubernetes" / "base" / "mlflow.yaml")
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = {one["name"]: one.get("value") for one in server["env"]}
    assert settings["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert "MLFLOW_SERVER_ENABLE_JOB_EXECUTION" in source("mlflow", "environment_variables.py")


def test_the_databases_password_is_on_no_command_line_of_kubernetes() -> None:
    """Kubernetes puts $(NAME) into the arguments, and every user of the machine can read those."""
    objects = documents(INFRA / "kubernetes" / "base" / "mlflow.yaml")
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    containers = [*pod["initContainers"], *pod["containers"]]
    assert len(containers) == 2
    for container in containers:
        words = [*container.get("command", []), *container.get("args", [])]
        assert words
        assert not [word for word in words if "$" in word]


def test_the_database_counts_as_ready_only_when_others_can_reach_it() -> None:
    """While PostgreSQL's image makes the database, its server answers on its socket alone."""
    (probe,) = re.findall(r"command: \[pg_isready, (.*)\]", TEXT["kubernetes/base/postgres.yaml"])
    assert "--host=127.0.0.1" in probe.split(", ")


def stages() -> dict[str, str]:
    """The Dockerfile's stages by name, with what each of them says; the last one is ''."""
    _, *parts = re.split(r"^FROM ", TEXT["docker/Dockerfile"], flags=re.M)
    found = {}
    for part in parts:
        first, _, rest = part.partition("\n")
        base, _, name = first.partition(" AS ")
        found[name] = f"{found.get(base, '')}{rest}"  # an image inherits what its base has
    return found


def test_bytecode_is_compiled_into_the_image_and_stays_there() -> None:
    """Its user cannot write it. Without it Ray's head took 19 s of CPU time to start, not 9, and
    the demo failed on a busy machine."""
    build = stages()["build"]
    compiled = [m.start() for m in re.finditer(r"python -m compileall ", build)]
    assert re.search(r'compileall .*\\\s+"\$\{packages\}"\n', build), "the dependencies"
    assert re.search(r'compileall .*"\$\{packages\}/elmwright"\n', build), "the package"
    assert compiled[-1] > build.rindex("pip install")
    assert '"stdlib"' in stages()["base"], "Python's own modules, of which it is published without"
    assert "__pycache__" not in TEXT["docker/Dockerfile"], "nothing removes it again"
    # A builder may change every file's time, which would make each of these files worthless.
    count = TEXT["docker/Dockerfile"].count("-m compileall ")
    assert TEXT["docker/Dockerfile"].count("--invalidation-mode unchecked-hash") == count


def test_what_the_image_leaves_out_is_named_right() -> None:
    """Each of them is in the installed packages, so a typing mistake is noticed."""
    (removed,) = re.findall(r"rm -rf (\"\$.*?) &&", stages()["build"].replace("\\\n", ""))
    patterns = [re.sub(r'"|\$\{packages\}/', "", word) for word in removed.split()]
    assert {"torch/include", "torch/test", "ray/jars"} <= set(patterns)
    packages = Path(sysconfig.get_path("purelib"))
    for pattern in patterns:
        found = list(packages.glob(pattern))
        assert found, pattern
        assert not [path for path in found if path.name == "torch_shm_manager"], "torch starts it"


def test_no_instruction_needs_buildkit() -> None:
    """Debian's Docker, `podman build` and older servers build it as well."""
    instructions = [line for line in TEXT["docker/Dockerfile"].splitlines() if line[:1] != "#"]
    for line in instructions:
        assert not re.search(r"--(?:chmod|mount|link|exclude|parents|network|security)\b", line)
        assert "<<" not in line
    assert "# syntax=" not in TEXT["docker/Dockerfile"]


def test_the_image_for_gpus_asks_for_them_and_the_other_one_does_not() -> None:
    """NVIDIA's toolkit gives a container no GPU unless its environment asks: so it was on AWS."""
    found = stages()
    assert re.findall(r"^FROM (\S+)$", TEXT["docker/Dockerfile"], re.M) == ["${VARIANT}"]
    assert {"cpu", "cuda"} < set(found)
    assert re.findall(r"NVIDIA_\w+=\S+", found["cuda"]) == [
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]
    assert "NVIDIA_" not in found["cpu"]
    assert "COPY --from=build" in found["cpu"], "both are the whole image"
    assert "COPY --from=build" in found["cuda"]
