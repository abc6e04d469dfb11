"""Every file of `infra/` as text, for the tests that compare them with the package."""

import importlib.util
from functools import lru_cache
from pathlib import Path

from tests.support.places import INFRA

TEXT = {
    path.relative_to(INFRA).as_posix(): path.read_text()
    for path in sorted(INFRA.rglob("*"))
    if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
}


def everything() -> str:
    return "\n".join(TEXT.values())


@lru_cache
def source(package: str, file: str) -> str:
    """A file of an installed package, which need not be imported for that."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text()
