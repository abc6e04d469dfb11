"""Mistakes have a code and a sentence, and keep both on their way through Ray."""

import pickle
import re
from typing import get_args

from elmwright.pipeline.errors import Code, UserError
from tests.support.places import ROOT


def test_a_mistake_survives_pickling_with_its_code() -> None:
    error = pickle.loads(pickle.dumps(UserError("busy", "it is in use; wait")))  # noqa: S301 - ours
    assert (type(error), error.code, str(error)) == (UserError, "busy", "it is in use; wait")


def test_other_words_keep_type_and_code() -> None:
    class SpecialError(UserError):
        pass

    error = SpecialError("busy", "it is in use").saying("the run is in use")
    assert (type(error), error.code, str(error)) == (SpecialError, "busy", "the run is in use")


def test_every_code_is_used_and_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([a-z-]+)` \| ", page, re.MULTILINE)
    assert documented == sorted(get_args(Code))
    folders = (ROOT / name for name in ("pipeline", "model", "jobs"))
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    paths.remove(ROOT / "pipeline" / "errors.py")
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert [word for word in documented if f'"{word}"' not in code] == []
