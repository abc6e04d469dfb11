"""Word embeddings for flair, with the real library."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmwright import Elmo
from tests.support.guests.extras import extra
from tests.support.mistakes import mistake
from tests.support.random_model import write_random_model

flair = extra("flair")
WORDS = [["The", "cat", "saw", "the", "dog", "."], ["It", "barked"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flair, "device", torch.device("cpu"))


def sentences() -> list:
    from flair.data import Sentence

    return [Sentence(words) for words in WORDS]


@pytest.mark.parametrize(
    ("layers", "take"),
    [
        ("mean", lambda v: v.mean(0)),
        ("top", lambda v: v[-1]),
        ("1", lambda v: v[1]),
        ("all", lambda v: np.concatenate(list(v), axis=-1)),
    ],
)
def test_every_token_has_its_vector(model: Path, layers: str, take) -> None:
    from elmwright.compat.flair import ElmoEmbeddings

    embeddings = ElmoEmbeddings(str(model), layers=layers)
    given = sentences()
    embeddings.embed(given)
    for sentence, vectors in zip(given, Elmo.from_pretrained(str(model)).embed(WORDS), strict=True):
        got = torch.stack([token.embedding for token in sentence]).numpy()
        np.testing.assert_allclose(got, take(vectors), atol=1e-6)
        assert got.shape[1] == embeddings.embedding_length


def test_two_of_them_go_into_a_stack(model: Path) -> None:
    from flair.embeddings import StackedEmbeddings

    from elmwright.compat.flair import ElmoEmbeddings

    stack = StackedEmbeddings([ElmoEmbeddings(str(model), n) for n in ("0", "top")])
    given = sentences()
    stack.embed(given)
    assert given[0][0].embedding.shape == (32,) == (stack.embedding_length,)
    assert not list(stack.parameters())


def test_a_tagger_learns_is_saved_and_loaded(model: Path, tmp_path: Path) -> None:
    from flair.data import Corpus, Sentence
    from flair.datasets import FlairDatapointDataset
    from flair.models import SequenceTagger
    from flair.trainers import ModelTrainer

    from elmwright.compat.flair import ElmoEmbeddings

    def tagged() -> Sentence:
        sentence = Sentence(["The", "cat", "saw", "the", "dog"])
        for token, tag in zip(sentence, "DNVDN", strict=True):
            token.set_label("pos", tag)
        return sentence

    corpus = Corpus(*(FlairDatapointDataset([tagged() for _ in range(4)]) for _ in range(3)))
    flair.set_seed(1)
    tagger = SequenceTagger(
        embeddings=ElmoEmbeddings(str(model)),
        tag_dictionary=corpus.make_label_dictionary("pos", add_unk=False),
        tag_type="pos",
        use_rnn=False,
        use_crf=False,
        reproject_embeddings=False,
        dropout=0.0,
        word_dropout=0.0,
        locked_dropout=0.0,
    )
    names = [name for name, _ in tagger.named_parameters()]
    assert not [name for name in names if "bilm" in name]
    ModelTrainer(tagger, corpus).train(
        tmp_path,
        learning_rate=0.1,
        max_epochs=60,
        patience=60,  # else the rate falls before anything is learned
        optimizer=torch.optim.Adam,
        save_final_model=False,
    )
    tagger.save(tmp_path / "tagger.pt")
    loaded = SequenceTagger.load(tmp_path / "tagger.pt")
    sentence = Sentence(["The", "cat", "saw", "the", "dog"])
    loaded.predict(sentence)
    assert [token.get_label("pos").value for token in sentence] == list("DNVDN")


def test_a_mistake_is_a_sentence(model: Path) -> None:
    from flair.data import Sentence

    from elmwright.compat.flair import ElmoEmbeddings

    with mistake("model-missing", "nothing"):
        ElmoEmbeddings("nothing")
    with mistake("argument", "layer 9"):
        ElmoEmbeddings(str(model), layers="9")
    with mistake("input", "word 1 is 'New York', with a space inside"):
        ElmoEmbeddings(str(model)).embed(Sentence(["in", "New York"]))
