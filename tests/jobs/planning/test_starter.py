"""`elmwright init` asks nothing; its config fits the text, the time and the machine."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.planning import starter
from elmwright.jobs.planning.plan import describe
from elmwright.jobs.planning.starter import EPOCHS, choose, starter_text, write_starter
from elmwright.jobs.planning.survey import Survey, survey
from tests.support.mistakes import mistake
from tests.support.tiny import write_text

GERMAN = (
    "Der alte Fluss war in jenem Frühling sehr hoch, und niemand im Dorf konnte hinüber gehen. "
    "„Wir müssen warten“, sagte die Frau des Müllers, „bis das Wasser wieder sinkt.“ "
)
ENGLISH = (
    "The old river was high that spring, and nobody in the village could get across it. "
    "“We have to wait,” said the miller's wife, “until the water goes down again.” "
)
NUMBERED = [f"{ENGLISH}It was day {n} of the flood." for n in range(400)]


def written(file: Path, *sources: object, hours: float = 1.0) -> RunConfig:
    write_starter(file, [str(source) for source in sources], hours=hours, force=True)
    return load_config(str(file))


def test_the_config_is_valid_and_gets_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "books.txt", 800)
    monkeypatch.chdir(tmp_path)
    config = written(tmp_path / "my corpus.toml", text)
    assert config.run.name == "my-corpus"
    plan = describe(config)
    assert plan.problems == ()
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("stem", "name"),
    [("Müller's Bücher", "M-ller-s-B-cher"), ("本", "run"), ("a" * 150, "a" * 100)],
)
def test_the_run_name_is_valid_for_any_file_name(tmp_path: Path, stem: str, name: str) -> None:
    text = write_text(tmp_path / "books.txt", 50)
    assert written(tmp_path / f"{stem}.toml", text).run.name == name


def test_an_invalid_config_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path / "books.txt", 50)
    monkeypatch.setattr(starter, "starter_text", lambda *_: "[train]\nlanes = -1\n")
    with mistake("setting", "train.lanes"):
        write_starter(tmp_path / "a.toml", [str(text)])
    assert not (tmp_path / "a.toml").exists()


def test_optimiser_and_model_are_those_of_the_demo(tmp_path: Path) -> None:
    config = written(tmp_path / "a.toml", write_text(tmp_path / "books.txt", 800))
    demo, wikitext2 = load_config("demo"), load_config("wikitext2")
    # The demo's own rates are for its few steps.
    optim = replace(demo.optim, lr=config.optim.lr, softmax_lr=wikitext2.optim.softmax_lr)
    assert replace(config.optim, warmup_steps=100) == optim
    assert config.optim.warmup_steps <= config.train.max_steps / 5
    assert config.model == demo.model
    assert config.train.reset_states == "sentence"


def test_an_existing_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    text, file = write_text(tmp_path / "books.txt", 50), tmp_path / "a.toml"
    file.write_text("mine")
    with mistake("output", str(file), "--force"):
        write_starter(file, [str(text)])
    assert file.read_text() == "mine"
    write_starter(file, [str(text)], force=True)
    assert load_config(str(file)).corpus.sources[0].path == str(text)


def test_without_a_source_the_folder_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with mistake("no-text", "elmwright init my.toml --source"):
        write_starter(Path("my.toml"), [])
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text" / "books.txt", 50)
    write_starter(Path("my.toml"), [])
    assert [source.path for source in load_config("my.toml").corpus.sources] == ["text"]


def test_sources_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with mistake("file-missing", "nothere/*.txt", "--source"):
        write_starter(tmp_path / "a.toml", ["nothere/*.txt"])
    assert not (tmp_path / "a.toml").exists()
    (tmp_path / "empty.txt").write_text("")
    with mistake("no-text", "empty.txt"):
        write_starter(tmp_path / "a.toml", [str(tmp_path / "empty.txt")])
    with mistake("argument", "--hours 0"):
        write_starter(tmp_path / "a.toml", [str(write_text(tmp_path / "a.txt"))], hours=0)


def test_the_language_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "de.txt").write_text(f"{GERMAN}\n" * 200)
    assert written(tmp_path / "de.toml", tmp_path / "de.txt").corpus.language == "de"
    (tmp_path / "en.txt").write_text(f"{ENGLISH}\n" * 200)
    assert written(tmp_path / "en.toml", tmp_path / "en.txt").corpus.language == "en"
    assert "language =" not in (tmp_path / "en.toml").read_text()


def test_a_language_without_spaces_gets_pieces(tmp_path: Path) -> None:
    chinese = "这条河在那个春天水位很高，村里没有人能够过去。我们必须等待，磨坊主的妻子说。\n"
    (tmp_path / "zh.txt").write_text(chinese * 300)
    config = written(tmp_path / "zh.toml", tmp_path / "zh.txt")
    assert (config.corpus.language, config.corpus.tokenizer) == ("zh", "sentencepiece")


def test_tokenised_text_is_split_at_spaces(tmp_path: Path) -> None:
    line = "The old river was high that spring , and nobody could get across it .\n"
    (tmp_path / "wiki.tokens").write_text(line * 200)
    config = written(tmp_path / "a.toml", tmp_path / "wiki.tokens")
    assert config.corpus.tokenizer == "whitespace"
    (tmp_path / "plain.txt").write_text(f"{ENGLISH}\n" * 200)
    assert written(tmp_path / "a.toml", tmp_path / "plain.txt").corpus.tokenizer == "ptb"


def test_novels_are_cut_so_that_the_heldout_set_is_not_one_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "novels"
    folder.mkdir()
    for number in range(15):
        (folder / f"{number}.txt").write_text("\n".join(NUMBERED * (1 + number % 3)))
    config = written(tmp_path / "a.toml", folder)
    assert config.corpus.documents == "file"
    assert config.corpus.cut_documents > 0
    assert describe(config).warnings == ()


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("\n".join(NUMBERED), "file"),  # paragraphs, a line each
        ("\n\n".join(NUMBERED), "file"),  # paragraphs, apart
        ("\n\n".join("\n".join(NUMBERED[n : n + 12]) for n in range(0, 400, 12)), "blank-line"),
        ("\n\n".join("One sentence.\nAnd another one." for _ in range(400)), "blank-line"),
    ],
    ids=["lines", "paragraphs", "articles", "short documents"],
)
def test_the_document_separator_is_recognised(tmp_path: Path, text: str, documents: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert survey([str(tmp_path / "a.txt")]).documents == documents


def test_the_field_with_the_text_is_found(tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "url": f"http://example.org/{n}", "prose": t, "n": n}
        for n, t in enumerate(NUMBERED)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert written(tmp_path / "a.toml", tmp_path / "a.jsonl").corpus.text_field == "prose"
    parquet.write_table(
        pyarrow.table({"content": NUMBERED, "id": range(400)}), tmp_path / "b.parquet"
    )
    assert written(tmp_path / "b.toml", tmp_path / "b.parquet").corpus.text_field == "content"
    both = written(tmp_path / "c.toml", tmp_path / "a.jsonl", tmp_path / "b.parquet")
    assert [source.text_field for source in both.corpus.sources] == ["prose", "content"]
    (tmp_path / "d.jsonl").write_text('{"n": 1, "name": "d0a4", "tokens": ["a", "b"]}\n' * 50)
    with mistake("source", "d.jsonl", "name, tokens"):
        survey([str(tmp_path / "d.jsonl")])


TEXT = Survey(3, 20_000_000, 4_000_000, ("",), "blank-line", "ptb", "en", 1.0, 5_000)


def test_steps_follow_the_hours_until_the_text_is_used_up() -> None:
    one, two, many = (choose(TEXT, hours, 2) for hours in (0.1, 0.2, 100))
    assert 1.8 < two.config.train.max_steps / one.config.train.max_steps < 2.7
    assert (one.limited_by, many.limited_by) == ("time", "text")
    assert many.epochs <= EPOCHS
    assert (one.config.train.dropout, many.config.train.dropout) == (0.0, 0.1)
    faster = choose(TEXT, 0.1, 4)
    assert faster.config.train.max_steps > 1.8 * one.config.train.max_steps


@pytest.mark.parametrize("cores", [1, 2, 3, 6, 12, 48, 96])
@pytest.mark.parametrize("steps", [3_000, 200_000, 4_000_000, 1_000_000_000])
def test_every_core_and_size_gives_a_config_that_works(
    tmp_path: Path, cores: int, steps: int
) -> None:
    found = replace(TEXT, steps=steps, bytes=5 * steps, longest=4 * steps)
    numbers = choose(found, 1.0, cores)
    file = tmp_path / "a.toml"
    file.write_text(starter_text(file, ["a.txt"], found, numbers, 1.0))
    config = load_config(str(file))
    assert config.train.processes * config.train.threads <= cores
    assert config.train.processes * config.train.threads > cores / 2
    assert config.corpus.cut_documents == numbers.cut_documents > 0
    assert config.train == numbers.config.train
    assert config.optim == numbers.config.optim
    assert config.model == numbers.config.model


def test_a_large_text_and_much_time_get_a_larger_model() -> None:
    large = replace(TEXT, steps=200_000_000, bytes=1_000_000_000)
    assert choose(large, 24, 8).config.model.dim > choose(TEXT, 24, 8).config.model.dim
    assert choose(large, 24, 8).vocabulary > choose(TEXT, 24, 8).vocabulary


def test_every_line_of_the_file_is_short(tmp_path: Path) -> None:
    folder = tmp_path / "novels"
    folder.mkdir()
    (folder / "a.txt").write_text(f"{GERMAN}\n" * 900)
    write_starter(tmp_path / "a.toml", [str(folder)])
    lines = (tmp_path / "a.toml").read_text().splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 90
