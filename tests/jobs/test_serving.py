"""Published and served, by the README's own words; and what the pyfunc makes of every input.

The service itself is started in test_publish_servers.py.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models.cli import serve
from mlflow.pyfunc.scoring_server import invocations

from elmwright.jobs.cli import main
from elmwright.jobs.models import load
from elmwright.jobs.registry import open_registry, publish_bundle

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SENTENCES = [["The", "old", "cat"], ["A", "bird", "sees"]]


def section(name: str) -> str:
    return README.split(f"\n## {name}\n")[1].split("\n## ")[0]


def commands(code: str) -> list[list[str]]:
    """The lines of a shell snippet as words, without comments."""
    return [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]


def export_variables(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in words[1:]:
        name, _, value = setting.partition("=")
        monkeypatch.setenv(name, os.path.expandvars(value))


@pytest.fixture(scope="module")
def place(
    trained: Path, bundle: Path, worse_bundle: Path, empty_database: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:  # fmt: skip
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


def test_the_publishing_block_of_the_readme_runs_as_it_stands(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    (block,) = re.findall(r"```sh\n(export .*?)```", section("Publishing"), re.DOTALL)
    said = {}
    for words in commands(block):
        if words[0] == "export":
            export_variables(words, monkeypatch)
            continue
        assert words[0] == "elmwright"
        assert main(words[1:]) == 0, words
        said[words[1]] = capsys.readouterr().out
    assert set(said) == {"export", "verify", "publish", "promote", "versions", "rollback"}
    assert "demo version 1" in said["publish"]
    assert "champion is now version 1" in said["promote"]
    assert "version 2 of demo again" in said["rollback"]


def test_what_the_readme_and_the_card_say_of_serving_is_so(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    text = section("Serve it")
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    variables, service, request = commands(block)
    with monkeypatch.context() as shell:
        shell.setenv("PWD", str(place))
        export_variables(variables, shell)
        assert os.environ["PATH"].startswith(str(place / ".venv" / "bin"))
        mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    assert service[:3] == ["mlflow", "models", "serve"]
    assert service[-1] == "&"
    asked = serve.make_context("serve", service[3:-1]).params  # refuses what it does not know
    assert (asked["model_uri"], asked["port"]) == ("models:/demo@champion", 5001)
    (line,) = re.findall(r"`(mlflow\.pyfunc\.load_model\(.*?\)\.predict\(.*?\))`", text)
    (answer,) = eval(line, {"mlflow": mlflow})  # noqa: S307 - our own README
    assert answer.shape == (3, 4, 16)
    assert request[1] == "http://127.0.0.1:5001/invocations"
    model = mlflow.pyfunc.load_model(asked["model_uri"])
    body = request[request.index("-d") + 1]
    served = invocations(body, "application/json", model, model.metadata.get_input_schema())
    assert served.status == 200
    assert np.array(json.loads(served.response)["predictions"][0]).shape == (3, 4, 16)

    (line,) = re.findall(r"`(Elmo\(.*?\))`", text)  # AllenNLP's; interop_allennlp.py runs it
    compile(line, "README.md", "eval")
    files = re.findall(r'"(.*?)"', line)
    assert [Path(file).name for file in files] == ["options.json", "weights.hdf5"]
    assert all(Path(file).is_file() for file in files)

    card = Path("runs/demo/bundle/README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(import mlflow\n.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    published = snippet.replace("models:/tiny@ALIAS", "models:/demo@candidate")
    assert published != snippet
    exec(published, names)  # noqa: S102 - our own card
    np.testing.assert_array_equal(
        names["vectors"][0], load("runs/demo/bundle").embed([["The", "quick", "brown", "fox"]])[0]
    )


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
    wanted = load(bundle).embed(SENTENCES)
    for got, expected in zip(served.predict(given), wanted, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_one_string_is_one_sentence(served: Any) -> None:
    for given in ("The old cat", {"text": "The old cat"}, {"text": np.array("The old cat")}):
        (vectors,) = served.predict(given)
        assert vectors.shape == (3, 3, 16)


@pytest.mark.parametrize(
    ("given", "params", "why"),
    [
        (pd.DataFrame({"a": ["The cat"], "b": ["A bird"]}), {}, "one column of sentences, not 2"),
        ({"a": ["The cat"], "b": ["A bird"]}, {}, "one column of sentences, not 2"),
        ([1, 2], {}, "a sentence is a string of words"),
        ([["The", 2]], {}, "a sentence is a string of words"),
        ([[["The"]]], {}, "a sentence is a string of words"),
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
        for got, expected in zip(found, load(bundle).embed(SENTENCES), strict=True):
            np.testing.assert_allclose(np.array(got), expected, atol=1e-6)
