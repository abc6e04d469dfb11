"""A Korean model of sentencepiece's pieces: from raw files to raw sentences at use, end to end."""

import json
import lzma
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import ray

from elmwright.jobs.bundles.bundle import read_sums
from elmwright.jobs.bundles.bundle_json import read_bundle_config
from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.closing import closing_lines, find_outcome
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.using.pretrained import Elmo
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.build.sample import try_rules
from elmwright.pipeline.cleaning.pieces import text_of
from elmwright.pipeline.progress import silent
from elmwright.pipeline.storage.files import at
from tests.support.made_once import made_once
from tests.support.places import SHARED
from tests.support.tiny import write_config

KOREAN = SHARED / "data" / "multilingual" / "ko.jsonl.xz"
pytestmark = [
    pytest.mark.skipif(not KOREAN.is_file(), reason="the Korean text is not here"),
    pytest.mark.slow(30),
]
RAW = "그는 1998년에 대학교를 졸업했다.\n서울은 대한민국의 수도이다!\n\n'책'을 읽었다.\n"
SETTINGS = {
    "corpus_language": "ko",
    "corpus_tokenizer": "sentencepiece",
    "corpus_sentencepiece": {"size": 3000},
    "vocab_max_size": 4000,
    "model_max_chars": 24,
}


def make_run(home: Path) -> None:
    texts = []
    with lzma.open(KOREAN, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in islice(file, 60)]
    (home / "ko.txt").write_text("\n\n".join(texts), encoding="utf-8")
    settings = {**SETTINGS, "train_max_steps": 20, "train_processes": 1}
    config = load_config(str(write_config(home, home / "ko.txt", **settings)))
    run = RunFolder.of(config)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        build_corpus(
            config.corpus,
            config.vocab,
            config.shards,
            seed=config.run.seed,
            folder=run.corpus,
            progress=silent,
        )
    finally:
        ray.shutdown()
    Path(run.train).mkdir(parents=True, exist_ok=True)
    begin_attempt(run.attempt)
    train(config, run, 1, Ranks())
    at(run.config).write_json(to_dict(config))
    export_run(run.root, "latest", str(run.bundle), overrides=[])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "korean", make_run) / "run"


def test_the_score_of_raw_text_is_that_of_its_pieces(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.txt").write_text(RAW, encoding="utf-8")
    for model in (run, run / "bundle", newest_checkpoint(run)):
        assert main(["tokenize", str(model), str(tmp_path / "raw.txt")]) == 0
        pieces = capsys.readouterr().out
        assert [text_of(line.split()) for line in pieces.split("\n")] == RAW.split("\n")
        (tmp_path / "pieces.txt").write_text(pieces, encoding="utf-8")
        assert main(["score", str(model), str(tmp_path / "raw.txt")]) == 0
        raw = capsys.readouterr()
        assert main(["score", str(model), str(tmp_path / "pieces.txt"), "--tokenized"]) == 0
        assert capsys.readouterr() == raw
        assert "warning" not in raw.err
    unknown = sum(int(line.split("\t")[2]) for line in raw.out.splitlines()[1:])
    words = sum(int(line.split("\t")[1]) for line in raw.out.splitlines()[1:])
    assert unknown < words / 10


def test_raw_text_that_is_passed_off_as_tokenised_is_noticed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.txt").write_text(RAW * 3, encoding="utf-8")
    assert main(["score", str(run), str(tmp_path / "raw.txt"), "--tokenized"]) == 0
    assert "warning: 100% of the words are unknown to the model" in capsys.readouterr().err


def test_a_word_of_a_list_has_the_vector_of_its_first_piece(run: Path) -> None:
    elmo = Elmo.from_pretrained(run)
    elmo.eval()
    sentence = RAW.split("\n", maxsplit=1)[0]
    places = elmo.tokenize(sentence)
    (pieces,) = elmo.embed([sentence])
    (words,) = elmo.embed([sentence.split()])
    assert words.shape[1] == len(sentence.split()) < pieces.shape[1] == len(places)
    begins = [0, *(n + 1 for n, char in enumerate(sentence) if char == " ")]
    firsts = [next(n for n, p in enumerate(places) if p.end > begin) for begin in begins]
    np.testing.assert_allclose(words, pieces[:, firsts], atol=1e-6)


def test_the_files_and_the_embedding_of_lines_agree(run: Path, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text(RAW, encoding="utf-8")
    elmo = Elmo.from_pretrained(run)
    lines = RAW.split("\n")[:-1]
    cases = (
        ([], [(n, line) for n, line in enumerate(lines) if line]),
        (
            ["--tokenized", "--pool", "first"],
            [(n, line.split()) for n, line in enumerate(lines)],
        ),
    )
    for number, (options, wanted) in enumerate(cases):
        out = tmp_path / f"{number}.npz"
        assert main(["embed", str(run), str(tmp_path / "raw.txt"), "-o", str(out), *options]) == 0
        with np.load(out) as found:
            assert len(found.files) == len(lines)
            for line, item in wanted:
                np.testing.assert_allclose(found[str(line)], elmo.embed([item])[0], atol=1e-6)


def test_the_bundle_carries_its_tokeniser(run: Path) -> None:
    bundle = run / "bundle"
    about = read_bundle_config(bundle)
    assert about.input == 2
    assert about.tokenisation is not None
    assert (about.tokenisation.kind, about.tokenisation.language) == ("sentencepiece", "ko")
    assert "sentencepiece.model" in read_sums(bundle)
    checkpoint = newest_checkpoint(run)
    pieces = "sentencepiece.model"
    assert (checkpoint / pieces).read_bytes() == (bundle / pieces).read_bytes()


def test_card_and_next_lines_speak_korean(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = read_bundle_config(run / "bundle").example
    assert any("가" <= char <= "힣" for char in example)
    card = (run / "bundle" / "README.md").read_text(encoding="utf-8")
    assert f'elmo.embed(["{example}"])' in card
    assert f'model.predict(["{example}"])' in card
    assert "fox" not in card

    config = load_config(str(run.parent / "tiny.toml"))
    outcome = find_outcome(config, RunFolder.of(config), "export")
    assert outcome.example is not None
    word, sentence = outcome.example
    assert any("가" <= char <= "힣" for char in sentence)
    assert "▁" not in sentence
    (command,) = [line for line in closing_lines(outcome, "", None) if "neighbours" in line]
    assert word in command
    arguments = ["neighbours", str(run), "--word", word, "--in", sentence, "--corpus", str(run)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["neighbours"]
    for neighbour in found["neighbours"]:
        assert neighbour["words"][neighbour["position"]] == word


def test_a_sample_of_the_built_corpus_shows_the_pieces_of_its_model(run: Path) -> None:
    config = load_config(str(run.parent / "tiny.toml"))
    sample = try_rules(config.corpus, RunFolder.of(config).corpus, 20, config.run.seed)
    assert sample.pieces_of == "corpus"
    elmo = Elmo.from_pretrained(run)
    pieces = sample.kept[0].text.split("\n")[0].split()
    assert [word.text for word in elmo.tokenize(text_of(pieces))] == pieces


def newest_checkpoint(run: Path) -> Path:
    return max((run / "train" / "checkpoints").glob("step-*"))
