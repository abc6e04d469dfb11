"""Published and served; and what the pyfunc makes of every input.

The service itself is started in test_publish_servers.py and in tests/docs.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import invocations

from elmwright.jobs.bundles.bundle import write_sums
from elmwright.jobs.bundles.bundle_json import read_bundle_config
from elmwright.jobs.publishing.promotion import publish_bundle
from elmwright.jobs.registry.open_registry import open_registry
from elmwright.jobs.serving import Embedder
from elmwright.jobs.using.pretrained import Elmo
from tests.support.places import DOCS

pytestmark = pytest.mark.slow(4)

USING = (DOCS / "using.md").read_text(encoding="utf-8")
SENTENCES = [["The", "old", "cat"], ["A", "bird", "sees"]]


@pytest.fixture(scope="module")
def place(
    trained: Path,
    bundle: Path,
    worse_bundle: Path,
    empty_database: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """A folder with runs/demo, which has been published, and has a champion that is worse."""
    home = tmp_path_factory.mktemp("home")
    demo = home / "runs" / "demo"
    shutil.copytree(trained, demo, symlinks=True)
    shutil.copytree(bundle, demo / "bundle")
    (demo / "mlflow").mkdir()
    shutil.copyfile(empty_database, demo / "mlflow" / "mlflow.db")
    registry = open_registry(f"sqlite:///{demo / 'mlflow' / 'mlflow.db'}")
    publish_bundle(registry, bundle, "demo", "candidate")
    publish_bundle(registry, worse_bundle, "demo", "champion")
    before = os.environ.get("MLFLOW_TRACKING_URI")
    yield home
    mlflow.set_tracking_uri(None)  # which also takes the variable away
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before


def test_the_files_that_allennlp_is_given_are_in_the_bundle(bundle: Path) -> None:
    """Its own Elmo is run by tests/bench/interop_allennlp.py."""
    (line,) = re.findall(r"`(Elmo\(.*?\))`", USING)
    compile(line, "docs/using.md", "eval")
    names = [Path(name) for name in re.findall(r'"(.*?)"', line)]
    assert [name.parent.as_posix() for name in names] == ["runs/demo/bundle"] * 2
    assert [name.name for name in names] == ["options.json", "weights.hdf5"]
    assert all((bundle / name.name).is_file() for name in names)


def test_the_way_to_load_with_mlflow_on_the_card_works(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    mlflow.set_tracking_uri("sqlite:///runs/demo/mlflow/mlflow.db")
    card = Path("runs/demo/bundle/README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(import mlflow\n.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    published = snippet.replace("models:/tiny@ALIAS", "models:/demo@candidate")
    assert published != snippet
    exec(published, names)  # noqa: S102 - our own card
    np.testing.assert_array_equal(
        names["vectors"][0],
        Elmo.from_pretrained("runs/demo/bundle").embed(example("runs/demo/bundle"))[0],
    )


def example(bundle: str) -> str:
    """The sentence on the card: a whole one of the corpus's own held-out text."""
    sentence = read_bundle_config(Path(bundle)).example
    assert re.fullmatch(r"The \w+ \w+ \w+ the \w+\.", sentence)
    return sentence


@pytest.fixture(scope="module")
def served(place: Path) -> Any:
    mlflow.set_tracking_uri(f"sqlite:///{place / 'runs' / 'demo' / 'mlflow' / 'mlflow.db'}")
    return mlflow.pyfunc.load_model("models:/demo@candidate")


@pytest.mark.parametrize(
    "given",
    [
        [" ".join(words) for words in SENTENCES],
        SENTENCES,
        np.array(SENTENCES),
        np.array([" ".join(words) for words in SENTENCES]),
        pd.DataFrame({"text": [" ".join(words) for words in SENTENCES]}),
        pd.DataFrame({"text": SENTENCES}),
        pd.Series(SENTENCES),
        {"text": SENTENCES},
    ],
    ids=["strings", "lists", "2-d array", "array", "table", "table of lists", "series", "dict"],
)
def test_no_word_is_lost_whatever_sentences_come_as(served: Any, bundle: Path, given: Any) -> None:
    wanted = Elmo.from_pretrained(bundle).embed(SENTENCES)
    for got, expected in zip(served.predict(given), wanted, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_one_string_is_one_sentence(served: Any) -> None:
    for given in ("The old cat", {"text": "The old cat"}, {"text": np.array("The old cat")}):
        (vectors,) = served.predict(given)
        assert vectors.shape == (3, 3, 16)


def test_strings_are_raw_sentences(served: Any, bundle: Path) -> None:
    wanted = Elmo.from_pretrained(bundle).embed([["The", "old", "cat", "sees", "it", "."]])
    for given in (["The old cat sees it."], pd.DataFrame({"text": ["The old cat sees it."]})):
        np.testing.assert_allclose(served.predict(given)[0], wanted[0], atol=1e-6)


def test_a_version_that_was_published_before_splits_strings_at_spaces(
    bundle: Path, tmp_path: Path
) -> None:
    """It must give the vectors that it gave before the upgrade."""
    copy = shutil.copytree(bundle, tmp_path / "old")
    content = json.loads((copy / "config.json").read_text())
    for key in ("input", "tokenisation", "example"):
        del content[key]
    (copy / "config.json").write_text(json.dumps(content))
    write_sums(copy)
    served = Embedder(copy)
    with pytest.warns(UserWarning, match="only split at spaces"):
        found = served.predict(["The old cat.", ""])
    (wanted,) = Elmo.from_pretrained(bundle).embed([["The", "old", "cat."]])
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)
    assert found[1].shape == (3, 0, 16)


@pytest.mark.parametrize(
    ("given", "params", "why"),
    [
        (pd.DataFrame({"a": ["The cat"], "b": ["A bird"]}), {}, "one column of sentences, not 2"),
        ({"a": ["The cat"], "b": ["A bird"]}, {}, "one column of sentences, not 2"),
        ([1, 2], {}, "sentence 0 of the batch is int"),
        ([["The", 2]], {}, "word 1 of sentence 0 is int"),
        ([[["The"]]], {}, "word 0 of sentence 0 is list"),
        (["The cat", ""], {}, "sentence 1 of the batch is empty"),
        ([None], {}, "sentence 0 of the batch is None"),
        (["The cat"], {"layers": "bottom"}, "it may be all, top or mean"),
    ],
)
def test_what_is_no_list_of_sentences_is_refused(
    served: Any, given: Any, params: dict[str, str], why: str
) -> None:
    with pytest.raises(MlflowException, match=why):
        served.predict(given, params=params)


def test_tokenised_sentences_reach_the_service_whole(served: Any, bundle: Path) -> None:
    schema = served.metadata.get_input_schema()
    for body in ({"inputs": SENTENCES}, {"dataframe_split": {"data": [[s] for s in SENTENCES]}}):
        answer = invocations(json.dumps(body), "application/json", served, schema)
        found = json.loads(answer.response)["predictions"]
        for got, expected in zip(found, Elmo.from_pretrained(bundle).embed(SENTENCES), strict=True):
            np.testing.assert_allclose(np.array(got), expected, atol=1e-6)
