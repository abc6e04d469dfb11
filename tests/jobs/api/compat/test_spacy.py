"""The spaCy component, in real pipelines."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from elmwright import Elmo
from tests.support.guests.extras import extra
from tests.support.mistakes import mistake
from tests.support.random_model import write_random_model

spacy = extra("spacy")
pytestmark = pytest.mark.filterwarnings("ignore:.*words are unknown", "ignore:.*W109")
TEXT = "The cat saw the dog . It\n\nbarked  loudly ."
SENTENCES = [["The", "cat", "saw", "the", "dog", "."], ["It", "barked", "loudly", "."]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model") / "bundle")


def pipeline(model: Path, *, split: bool = True, **config: object):
    """A pipeline that finds the component by its entry point, or once its module is imported."""
    from elmwright.compat import spacy as _component  # noqa: F401

    nlp = spacy.blank("en")
    if split:
        nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmwright", config={"model": str(model), **config})
    return nlp


@pytest.mark.parametrize(
    ("layers", "take"),
    [
        ("mean", lambda v: v.mean(0)),
        ("top", lambda v: v[-1]),
        ("0", lambda v: v[0]),
        ("all", lambda v: np.concatenate(list(v), axis=-1)),
    ],
)
def test_every_word_has_the_vector_of_its_sentence_and_spaces_have_zeros(
    model: Path, layers: str, take
) -> None:
    doc = pipeline(model, layers=layers)(TEXT)
    first, second = (take(v) for v in Elmo.from_pretrained(str(model)).embed(SENTENCES))
    words = [token.i for token in doc if not token.is_space]
    spaces = [token.i for token in doc if token.is_space]
    assert len(spaces) == 2
    np.testing.assert_allclose(doc.tensor[words], np.concatenate([first, second]), atol=1e-6)
    assert not doc.tensor[spaces].any()
    whole = pipeline(model, split=False, layers=layers)(TEXT)
    (wanted,) = Elmo.from_pretrained(str(model)).embed([[*SENTENCES[0], *SENTENCES[1]]])
    np.testing.assert_allclose(whole.tensor[words], take(wanted), atol=1e-6)


def test_hooks_give_vectors_and_similarities(model: Path) -> None:
    doc = pipeline(model)(TEXT)
    np.testing.assert_array_equal(doc[1].vector, doc.tensor[1])
    np.testing.assert_allclose(doc[0:3].vector, doc.tensor[0:3].mean(0), rtol=1e-6)
    words = [token.i for token in doc if not token.is_space]
    np.testing.assert_allclose(doc.vector, doc.tensor[words].mean(0), rtol=1e-5)
    before = next(token.i for token in doc if token.is_space)
    np.testing.assert_allclose(doc[before - 1 : before + 1].vector, doc.tensor[before - 1])
    one, other = doc[0].vector, doc[3].vector
    cosine = one @ other / (np.linalg.norm(one) * np.linalg.norm(other))
    assert doc[0].similarity(doc[3]) == pytest.approx(cosine, abs=1e-6)
    assert doc.similarity(doc) == pytest.approx(1, abs=1e-6)
    assert doc[0:2].similarity(doc[0:2]) == pytest.approx(1, abs=1e-6)
    space = next(token for token in doc if token.is_space)
    assert [doc[0].has_vector, doc.has_vector, space.has_vector] == [True, True, False]
    assert space.similarity(doc[0]) == 0
    assert doc[0].vector_norm == pytest.approx(np.linalg.norm(one), rel=1e-5)


def test_pipe_reads_the_sentences_of_many_documents_together(model: Path, monkeypatch) -> None:
    nlp = pipeline(model)
    calls = []
    elmo = nlp.get_pipe("elmwright").elmo
    embed = elmo.embed
    monkeypatch.setattr(elmo, "embed", lambda s, **o: calls.append(len(s)) or embed(s, **o))
    texts = [TEXT, "", "   ", "The dog .", TEXT]
    docs = list(nlp.pipe(texts, batch_size=4))
    assert calls == [3, 2]
    assert [doc.text for doc in docs] == texts
    for doc, text in zip(docs, texts, strict=True):
        np.testing.assert_allclose(doc.tensor, nlp(text).tensor, atol=1e-6)


def test_a_document_without_words_has_zeros(model: Path) -> None:
    nlp = pipeline(model)
    for text, rows in (("", 0), (" ", 1), ("  \n\n \t ", None)):
        doc = nlp(text)
        assert doc.tensor.shape == (len(doc), 16)
        assert rows is None or len(doc) == rows
        assert not doc.tensor.any()
        assert not doc.has_vector
        assert doc.vector.shape == (16,)


def test_a_saved_pipeline_has_its_own_copy_of_the_model(model: Path, tmp_path: Path) -> None:
    original = tmp_path / "bundle"
    shutil.copytree(model, original)
    nlp = pipeline(original, layers="top")
    nlp.to_disk(tmp_path / "saved")
    (tmp_path / "saved").rename(tmp_path / "moved")
    wanted = nlp(TEXT)
    shutil.rmtree(original)
    loaded = spacy.load(tmp_path / "moved")
    np.testing.assert_array_equal(loaded(TEXT).tensor, wanted.tensor)
    loaded.to_disk(tmp_path / "again")
    again = spacy.load(tmp_path / "again")
    np.testing.assert_array_equal(again(TEXT).tensor, wanted.tensor)


def test_vectors_stay_with_a_stored_document(model: Path) -> None:
    nlp = pipeline(model)
    doc = nlp(TEXT)
    stored = spacy.tokens.Doc(nlp.vocab).from_bytes(doc.to_bytes())
    np.testing.assert_array_equal(stored.tensor, doc.tensor)
    np.testing.assert_allclose(stored[1].vector, doc[1].vector)


def test_a_mistake_is_a_sentence(model: Path, tmp_path: Path) -> None:
    with mistake("model-missing", "nothing"):
        pipeline(tmp_path / "nothing")(TEXT)
    with mistake("argument", "layer 9", "0 … 2"):
        pipeline(model, layers="9")(TEXT)
    nlp = pipeline(model)
    words = spacy.tokens.Doc(nlp.vocab, words=["I", "saw", "New York", "."])
    with mistake("input", "word 2 is 'New York', with a space inside", "merges tokens"):
        nlp.get_pipe("elmwright")(words)


def test_spacy_finds_the_component_by_its_entry_point() -> None:
    from importlib.metadata import EntryPoint

    from elmwright.compat.spacy import make
    from elmwright.jobs.environment.wheel import wheel_members

    (points,) = (
        text.decode() for name, text in wheel_members().items() if name.endswith("entry_points.txt")
    )
    value = points.split("[spacy_factories]\nelmwright = ")[1].strip()
    assert EntryPoint("elmwright", value, "spacy_factories").load() is make
