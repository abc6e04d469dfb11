"""elmwright substitutes: forward × backward over the vocabulary, in the place that is marked."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor

import elmwright
from elmwright.jobs.cli.command import main
from elmwright.jobs.using.text.marked_sentence import (
    MarkedWords,
    find_mark,
    marked_list,
    words_around,
)
from elmwright.model.bilm import BiLM
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.cleaning.words import VERSION
from tests.support.corpus.korean import KOREAN, TEXT, korean_pieces
from tests.support.mistakes import mistake
from tests.support.random_model import SHAPE, VOCAB, write_random_model

pytestmark = [pytest.mark.slow(5), pytest.mark.filterwarnings("ignore:this model does not carry")]

LONG = "The cat sees the dog . " * 30  # more than a window before the mark


def by_hand(model: Path, before: list[str], after: list[str]) -> np.ndarray:
    """[3, vocabulary]: log-probabilities of both directions, and the normalised product."""
    reference = ReferenceBiLM(model / "options.json", model / "weights.hdf5")
    softmax = load_file(model / "softmax.safetensors")
    rows = []
    for direction, read in enumerate((["<S>", *before], ["</S>", *after[::-1]])):
        layers, _ = reference.read(read, direction, reference.zeros())
        logits = softmax["weight"].astype(np.float64) @ layers[-1][-1] + softmax["bias"]
        rows.append(logits - np.log(np.exp(logits).sum()))
    product = np.exp(rows[0] + rows[1])
    product[:3] = 0
    return np.array([*rows, product / product.sum()])


@pytest.mark.parametrize(
    ("sentence", "before", "after"),
    [
        ("The [cat] sees the dog .", ["The"], ["sees", "the", "dog", "."]),
        ("[The] cat", [], ["cat"]),
        ("The []", ["The"], []),
        ("[bird]", [], []),
        ("The [old cat] forgets .", ["The"], ["forgets", "."]),
        (f"{LONG}The [cat]", [*LONG.split(), "The"], []),
        (f"[The] cat {LONG}", [], ["cat", *LONG.split()]),
    ],
)
def test_probabilities_equal_an_independent_computation(
    model: Path, sentence: str, before: list[str], after: list[str]
) -> None:
    elmo = elmwright.Elmo.from_pretrained(model)
    (result,) = elmo.substitutes(sentence, k=len(VOCAB))
    forward, backward, both = by_hand(model, before, after)
    (own,) = result.marked if len(result.marked) == 1 else ("",)
    assert (list(result.before), list(result.after)) == (before, after)
    found = {o.word: o for o in result.substitutes}
    assert set(found) == set(VOCAB[3:]) - {own}
    assert (result.itself is not None) == bool(own)
    if result.itself is not None:
        found[own] = result.itself
    for word, substitute in found.items():
        number = VOCAB.index(word)
        assert substitute.forward == pytest.approx(forward[number], abs=1e-4)
        assert substitute.backward == pytest.approx(backward[number], abs=1e-4)
        assert substitute.probability == pytest.approx(both[number], abs=1e-5)
    ranks = [found[VOCAB[number]].rank for number in np.argsort(-both)[: len(VOCAB) - 3]]
    assert ranks == sorted(ranks) == list(range(1, len(VOCAB) - 2))
    assert sum(o.probability for o in found.values()) == pytest.approx(1)


def test_a_batch_gives_what_each_sentence_gives(model: Path) -> None:
    elmo = elmwright.Elmo.from_pretrained(model)
    sentences = ["The [cat] sees the dog .", f"{LONG}[bird]", ["The", "[old]", "house", "."]]
    for sentence, result in zip(sentences, elmo.substitutes(sentences, k=3), strict=True):
        (alone,) = elmo.substitutes([sentence], k=3)
        assert [o.word for o in result.substitutes] == [o.word for o in alone.substitutes]
        assert len(result.substitutes) == 3
        for one, other in zip(result.substitutes, alone.substitutes, strict=True):
            assert one.probability == pytest.approx(other.probability, abs=1e-5)
    assert elmo.substitutes([]) == []


def test_the_weights_that_the_layer_has_now_are_used(model: Path) -> None:
    elmo = elmwright.Elmo.from_pretrained(model, trainable_bilm=True)
    (before,) = elmo.substitutes("The [cat] sees", k=3)
    elmo.bilm.load_state_dict(BiLM(SHAPE, 99).state_dict())
    (after,) = elmo.substitutes("The [cat] sees", k=3)
    assert before.substitutes != after.substitutes


def test_the_command_prints_a_table_and_json(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["substitutes", str(model), "--in", "The [cat] sees the dog .", "-k", "3"]
    (result,) = elmwright.Elmo.from_pretrained(model).substitutes(command[3], 3)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("The [cat] sees the dog .\n")
    rows = [line.split()[0] for line in shown.splitlines()[3:6]]
    assert rows == [o.word for o in result.substitutes]
    assert "cat itself has" in shown
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["marked"] == ["cat"]
    assert [o["word"] for o in data["substitutes"]] == rows
    assert data["itself"]["rank"] == result.itself.rank if result.itself else False
    unknown = "The [xylo\x1bphone] sees"
    assert main(["substitutes", str(model), "--in", unknown]) == 0
    shown = capsys.readouterr().out
    assert "xylo�phone is not one word of the vocabulary" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("they [play] in", (("they",), ("play",), ("in",))),
        ("they [ play ] in", (("they",), ("play",), ("in",))),
        ("they [play]ed in", (("they",), ("played",), ("in",))),
        ("they[]in", (("they",), (), ("in",))),
        ("they [ ] in", (("they",), (), ("in",))),
        (["they", "[play", "ball]", "in"], (("they",), ("play", "ball"), ("in",))),
        ("[]", ((), (), ())),
    ],
)
def test_brackets_mark_words(sentence: str | list[str], words: tuple[tuple[str, ...], ...]) -> None:
    given = sentence.split() if isinstance(sentence, str) and sentence != "they[]in" else sentence
    if isinstance(given, list):
        assert marked_list(given) == MarkedWords(*words)
    if isinstance(sentence, str):
        mark = find_mark(sentence)
        tokens = ((found[0], *found.span()) for found in re.finditer(r"\S+", mark.text))
        assert words_around(mark, tokens) == MarkedWords(*words)


def test_a_sentence_without_one_mark_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for sentence in ("they play", "they [play", "they ]play[ in", "[they] [play]", "[[play]]", ""):
        assert main(["substitutes", str(model), "--in", sentence]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "put one pair of brackets around one word" in line
    assert main(["substitutes", str(model), "--in", "[a]", "-k", "0"]) == 2
    assert "-k must be at least 1" in capsys.readouterr().err


def test_a_model_without_its_softmax_has_no_substitutes(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "bundle")
    (folder / "softmax.safetensors").unlink()
    with mistake("model-incomplete", str(folder)):
        elmwright.Elmo.from_pretrained(folder).substitutes("a [b]")
    with mistake("model-incomplete", "from_pretrained"):
        elmwright.Elmo(BiLM(SHAPE)).substitutes("a [b]")


def test_raw_text_is_tokenised_by_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = Tokenisation("ptb", VERSION)
    folder = write_random_model(tmp_path / "bundle", tokenisation=how)
    elmo = elmwright.Elmo.from_pretrained(folder)
    words = ["The", "[cat]", "sees", "the", "dog", "."]
    raw, given = elmo.substitutes(["The [cat] sees the dog.", words], k=5)
    assert raw == given
    assert raw.after == ("sees", "the", "dog", ".")
    assert main(["substitutes", str(folder), "--in", "The [cat] sees the dog."]) == 0
    assert "The [cat] sees the dog ." in capsys.readouterr().out
    assert main(["substitutes", str(folder), "--in", "The [cat] a.", "--tokenized"]) == 0
    assert "The [cat] a." in capsys.readouterr().out
    with mistake("input", "word 1", "3"):
        elmo.substitutes([["The", 3, "[cat]"]])


def test_pieces_are_substituted_for_the_pieces_of_a_word(tmp_path: Path) -> None:
    model = SentencePieceProcessor(model_proto=korean_pieces())
    vocab = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    folder = write_random_model(
        tmp_path / "bundle",
        ["<S>", "</S>", "<UNK>", *vocab],
        tokenisation=KOREAN,
        pieces=korean_pieces(),
    )
    elmo = elmwright.Elmo.from_pretrained(folder)
    whole = [piece.text for piece in elmo.tokenize(TEXT[0])]
    first, second, last = TEXT[0].split()[0], TEXT[0].split()[1], TEXT[0].split()[2:]
    marked = f"{first} [{second}] {' '.join(last)}"
    raw, words = elmo.substitutes([marked, marked.split()], k=5)
    assert raw == words
    assert [*raw.before, *raw.marked, *raw.after] == whole
    assert "".join(raw.marked).strip("▁") == second
    assert all(found.word in vocab for found in raw.substitutes)


def test_half_precision_gives_nearly_the_same(model: Path) -> None:
    (exact,) = elmwright.Elmo.from_pretrained(model).substitutes("The [cat] sees", k=3)
    elmo = elmwright.Elmo.from_pretrained(model).bfloat16()
    (rounded,) = elmo.substitutes("The [cat] sees", k=len(VOCAB))
    found = {o.word: o.probability for o in rounded.substitutes}
    for o in exact.substitutes:
        assert found[o.word] == pytest.approx(o.probability, rel=0.2)
