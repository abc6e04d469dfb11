"""This package as a wheel, written directly from its files: what a submission ships.

The version carries a digest of the files, so that changed code can never hide behind an old name
(Ray keeps wheels by name and would run the old one). No build tool and no network are needed, and
an installed package can ship itself as well as a checkout can. The dependencies are named in the
metadata and never shipped: the cluster's own environment has them, which the job checks first.

The same members also travel unpacked: a folder with them on the path *is* the installed wheel. That
is how Ray gets them, because its pip plugin copies the whole virtual environment that Ray runs in,
on every node and for every change (2.3 GB here).
"""

import base64
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Mapping
from importlib import import_module, metadata
from pathlib import Path

import elmwright
from elmwright.jobs.environment.checkout import checkout

ROOMS = ("pipeline", "model", "jobs")
ENDINGS = (".py", ".toml", ".sbatch", ".typed")
"""Files of the package; nothing else is shipped, whatever lies beside them."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that the same files give the same bytes."""


def package_files() -> dict[str, bytes]:
    """Every file of the package: its name below site-packages, and its content."""
    found = {}
    top = Path(str(elmwright.__file__)).resolve().parent
    for name in ("__init__.py", "py.typed"):
        found[f"elmwright/{name}"] = (top / name).read_bytes()
    for room in ROOMS:
        folder = Path(str(import_module(f"elmwright.{room}").__file__)).resolve().parent
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            # In a checkout the top of the package lies in jobs/api.
            if path.suffix in ENDINGS and path.is_file() and inside.parts[0] != "api":
                found[f"elmwright/{room}/{inside.as_posix()}"] = path.read_bytes()
    return found


def content_version(files: Mapping[str, bytes]) -> str:
    """The package's version with a digest of the files behind it."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return f"{elmwright.__version__}+{digest.hexdigest()[:12]}"


def requirements() -> list[str]:
    """What the package needs, as pip would write it: from the checkout, else from its metadata."""
    root = checkout()
    if root is not None:
        found = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "dependencies"
        ]
        return sorted(str(line) for line in found)
    return sorted(line for line in metadata.requires("elmwright") or [] if "extra ==" not in line)


def wheel_members(files: Mapping[str, bytes] | None = None) -> tuple[str, dict[str, bytes]]:
    """The version, and the members of the wheel: the package and its metadata."""
    files = package_files() if files is None else files
    version = content_version(files)
    info = f"elmwright-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requirements())
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: elmwright\n"
        f"Version: {version}\nRequires-Python: >=3.11\n{needs}",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: elmwright\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nelmwright = elmwright.jobs.cli.program:main\n",
    }
    members = dict(files) | {f"{info}/{name}": text.encode() for name, text in about.items()}
    lines = [f"{name},{_record(content)},{len(content)}" for name, content in members.items()]
    record = f"{info}/RECORD"
    members[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    return version, members


def _record(content: bytes) -> str:
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


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder; pip installs it."""
    version, members = wheel_members()
    path = folder / f"elmwright-{version}-py3-none-any.whl"
    path.write_bytes(zipped(members))
    return path
