"""The files of this package as a wheel, which a submission ships unpacked.

setuptools would put the same files into a wheel, but here no build tool and no network is needed. A
checkout ships what its pyproject lists, an installed package all of its files. The folder that they
are unpacked into works like the installed wheel once it is on Python's path. Ray is not asked to
install the wheel: for every change, and on every node, its pip plugin would copy the whole virtual
environment that Ray runs in (2.3 GB when measured).

The version contains a digest of the files, so that changed code never has an old version. The
dependencies are named in the metadata and never shipped: the cluster's own environment must have
them, which the job checks first.
"""

import base64
import glob
import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import elmwright
from elmwright.jobs.environment.checkout import checkout, read_pyproject

ALWAYS = ("*.py", "*.pyi", "py.typed")
"""Files that setuptools takes from the folder of every listed package."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The modification time of every file in the zip, so that the same files give the same bytes."""


def package_files() -> dict[str, bytes]:
    """Every file of the package: its name below site-packages, and its content."""
    project = checkout()
    if project is not None:
        return listed_files(project)
    return installed_files(Path(elmwright.__path__[0]))


def listed_files(project: Path) -> dict[str, bytes]:
    """The files of a checkout that setuptools would put into a wheel."""
    setup = read_pyproject(project)["tool"]["setuptools"]
    data: dict[str, list[str]] = setup.get("package-data", {})
    files = {}
    for package in setup["packages"]:
        folder = project / _folder_of(package, setup["package-dir"])
        for pattern in (*ALWAYS, *data.get("*", ()), *data.get(package, ())):
            for name in glob.glob(pattern, root_dir=folder, recursive=True):
                if (folder / name).is_file():
                    files[f"{package.replace('.', '/')}/{name}"] = (folder / name).read_bytes()
    return dict(sorted(files.items()))


def _folder_of(package: str, folders: Mapping[str, str]) -> str:
    """The folder of a package: as package-dir says, else below its parent's folder."""
    if package in folders:
        return folders[package]
    parent, _, name = package.rpartition(".")
    return f"{_folder_of(parent, folders)}/{name}" if parent else name


def installed_files(top: Path) -> dict[str, bytes]:
    """The files of an installed or a shipped package, without bytecode."""
    return {
        f"{top.name}/{path.relative_to(top).as_posix()}": path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def content_version(files: Mapping[str, bytes]) -> str:
    """The package's version, followed by a digest of the files."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return f"{elmwright.__version__}+{digest.hexdigest()[:12]}"


def requirements() -> list[str]:
    """The dependencies of the package, such as "numpy>=2.0,<3", sorted."""
    return sorted(_project().dependencies)


@dataclass(frozen=True)
class _Project:
    """What the metadata of a wheel says of this package."""

    requires_python: str
    dependencies: tuple[str, ...]
    entry_points: dict[str, dict[str, str]]
    """The commands, and what other packages find by name, by group."""


def _project() -> _Project:
    """The project table of the checkout's pyproject, else the metadata of the installed package."""
    folder = checkout()
    if folder is not None:
        table = read_pyproject(folder)["project"]
        groups = {"console_scripts": table["scripts"], **table["entry-points"]}
        return _Project(table["requires-python"], tuple(table["dependencies"]), groups)
    installed = metadata.distribution("elmwright")
    return _Project(
        requires_python=installed.metadata["Requires-Python"],
        dependencies=tuple(line for line in installed.requires or () if "extra ==" not in line),
        entry_points={
            group: {point.name: point.value for point in installed.entry_points.select(group=group)}
            for group in installed.entry_points.groups
        },
    )


def wheel_members() -> dict[str, bytes]:
    """The members of the wheel: the files of the package and its metadata."""
    files = package_files()
    version = content_version(files)
    info = f"elmwright-{version}.dist-info"
    project = _project()
    needs = "".join(f"Requires-Dist: {line}\n" for line in sorted(project.dependencies))
    points = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in sorted(names.items()))
        for group, names in sorted(project.entry_points.items())
    )
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: elmwright\n"
        f"Version: {version}\nRequires-Python: {project.requires_python}\n{needs}",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: elmwright\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        "entry_points.txt": points,
    }
    members = files | {f"{info}/{name}": text.encode() for name, text in about.items()}
    lines = [f"{name},{_digest(content)},{len(content)}" for name, content in members.items()]
    record = f"{info}/RECORD"
    members[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    return members


def _digest(content: bytes) -> str:
    """The digest of a file as RECORD spells it."""
    digest = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def zipped(members: Mapping[str, bytes]) -> bytes:
    """A zip of the members; the same members give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return out.getvalue()
