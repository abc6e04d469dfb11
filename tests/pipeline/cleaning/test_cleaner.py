"""The batch engine: rules in order, every word accounted for, each document judged alone."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.cleaning import words
from elmwright.pipeline.cleaning.cleaner import Cleaner, rule_names
from elmwright.pipeline.config import C4, CorpusConfig, FineWeb, GopherQuality, Pieces
from tests.support.mistakes import mistake

ALL = ("gopher-repetition", "gopher-quality", "c4", "fineweb")
EVERYTHING = CorpusConfig(
    rules=ALL,
    boilerplate=True,
    mask=("email", "ip", "phone"),
    languages=("en",),
    language_threshold=0.3,
    language_unit="sentence",
    min_sentence_words=3,
    min_words=5,
    min_letter_share=0.2,
    gopher_quality=GopherQuality(min_words=5, min_letter_words=0.3),
    c4=C4(min_sentences=1),
    fineweb=FineWeb(max_newlines=1.0, max_short_lines=1.0),
)
PROSE = (
    "The house stood on a hill, and the wind had bent the trees towards the sea for a long time. "
    "Nobody had lived there since the war. On clear days you could see the harbour from it."
)


def lines_of(number):
    rng = random.Random(number)
    parts = [
        "It was the best of times, and it was the worst of times.",
        "Home | About us | Contact",
        "A heading without an end",
        "See the notes[1] and the book[2] that came with it.",
        "Please enable JavaScript to see this page.",
        "We use cookies to have a better site.",
        "",
        "Der schnelle braune Fuchs springt über den faulen Hund.",
        "- an item of the list",
        "Write to a.b@example.org. He came. It went on to the end of the road.",
        "Yes!",
        "x" * 1200,
        f"The number {number} of {rng.randrange(100)} things that we have to do with it...",
    ]
    return "\n".join(rng.choices(parts, k=rng.randrange(1, 25))) + f"\n{PROSE}"


DOCUMENTS = [lines_of(number) for number in range(60)]


def check_accounts(cleaned):
    for number, verdict in enumerate(cleaned.verdicts):
        sentences, n_words = cleaned.sentences_read[number], cleaned.words_read[number]
        lost = cleaned.lost[number].values()
        sentences -= sum(row[0] for row in lost)
        n_words -= sum(row[1] for row in lost)
        text = cleaned.texts[number]
        if verdict is None:
            assert text
            assert all(line and "  " not in line for line in text.split("\n"))
            assert sentences == len(text.split("\n")) == sum(cleaned.lines[number])
            assert n_words == len(text.split())
            assert all(cleaned.lines[number])
        else:
            assert text == ""
            assert cleaned.lines[number] == []
            assert sentences >= 0
            assert n_words >= 0


@pytest.mark.parametrize("tokenizer", ["ptb", "whitespace"])
@pytest.mark.parametrize("sentences", ["split", "line"])
def test_the_funnel_adds_up_and_tokens_are_the_words_kept(tokenizer, sentences):
    config = replace(EVERYTHING, tokenizer=tokenizer, sentences=sentences)
    cleaned = Cleaner(config).clean(DOCUMENTS)
    check_accounts(cleaned)
    assert 5 < cleaned.verdicts.count(None) < 60
    number = cleaned.tokens.lexicon.number
    kept = [text for text in cleaned.texts if text]
    assert cleaned.tokens.sizes.tolist() == [len(text.split()) for text in kept]
    assert cleaned.tokens.ids.tolist() == [number(w) for text in kept for w in text.split()]
    seen = {*cleaned.verdicts, *(rule for lost in cleaned.lost for rule in lost)} - {None}
    assert seen <= set(rule_names(config))
    assert {"boilerplate", "c4.terminal_punctuation", "c4.citations", "languages"} <= seen
    assert cleaned.repaired["email"] > 5


@pytest.mark.parametrize("rules", [(), ALL])
def test_a_document_is_judged_alone(rules):
    config = replace(EVERYTHING, rules=rules)
    together = Cleaner(config).clean(DOCUMENTS)
    backwards = Cleaner(config).clean(DOCUMENTS[::-1])
    for number, document in enumerate(DOCUMENTS):
        alone = Cleaner(config).clean([document])
        for name in ("verdicts", "details", "texts", "lines", "words_read", "lost", "languages"):
            [result] = getattr(alone, name)
            assert getattr(together, name)[number] == result
            assert getattr(backwards, name)[-1 - number] == result


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text(max_size=120), max_size=4))
def test_any_text_is_accounted_for(texts):
    for config in (CorpusConfig(), replace(EVERYTHING, languages=(), language_unit="document")):
        check_accounts(Cleaner(config).clean(texts))


HOSTILE = [
    "",
    "\0",
    "\0\0 \n",
    "x" * 1_000_000,
    "?!.,;" * 2000,
    "😀" * 5000,
    "שלום עולם. " * 500,
    "e\u0301\u0302\u0303" * 2000,
    "\n" * 10_000,
    " " * 10_000,
    "{" * 5000,
    "[1]" * 5000,
    "a\n" * 20_000,
    "http://" * 5000,
    "'" * 20_000,
    "…\n" * 3000,
    "\ud800",
    "a.b." * 50_000,
]


def test_hostile_documents_take_bounded_time():
    begin = time.process_time()
    for config in (CorpusConfig(), EVERYTHING, CorpusConfig(rules=ALL, tokenizer="whitespace")):
        check_accounts(Cleaner(config).clean(HOSTILE))
    assert time.process_time() - begin < 20


def verdict(text, **settings):
    [result] = Cleaner(CorpusConfig(**settings)).clean([text]).verdicts
    return result


def test_own_rules_drop_by_their_setting_names():
    assert verdict(" \n") == "empty"
    assert verdict("a b", min_words=3) == "min_words"
    assert verdict("a b c", min_words=3) is None
    assert verdict("a b c", max_words=2) == "max_words"
    assert verdict("a b", max_words=2) is None
    assert verdict("1 2 c", min_letter_share=0.5) == "min_letter_share"
    assert verdict("1 c", min_letter_share=0.5) is None
    assert verdict("Yes. No.", min_sentence_words=3) == "min_sentence_words"
    assert verdict("Home | About us", boilerplate=True) == "boilerplate"
    assert verdict("Der Hund und die Katze leben zusammen.", languages=("en",)) == "languages"
    assert verdict(f"{PROSE}", rules=("c4",)) == "c4.min_sentences"
    assert verdict("\n".join(["Buy it now!"] * 9), rules=("fineweb",)) == "fineweb.max_short_lines"
    assert verdict("the be to of", rules=("gopher-quality",)) == "gopher_quality.min_words"


def test_rules_are_named_only_where_they_can_act():
    assert rule_names(CorpusConfig()) == ("empty", "max_words")
    names = rule_names(EVERYTHING)
    assert len(set(names)) == len(names)
    assert names.index("languages") < names.index("gopher_repetition.max_top_ngrams")
    assert names.index("gopher_quality.min_words") < names.index("c4.terminal_punctuation")
    assert names.index("fineweb.max_newlines") < names.index("min_words")


def test_lines_around_a_dropped_line_are_not_joined():
    text = "A first line that ends.\nA heading\nAnother line that ends."
    cleaned = Cleaner(CorpusConfig(rules=("c4",), c4=C4(min_sentences=0))).clean([text])
    assert cleaned.texts == ["A first line that ends .\nAnother line that ends ."]
    assert cleaned.lines == [[1, 1]]
    assert cleaned.lost == [{"c4.terminal_punctuation": (0, 2)}]


def test_heldout_files_are_tokenised_and_never_filtered():
    config = replace(EVERYTHING, quotes="straight")
    cleaned = Cleaner(config, filters=False).clean(["“Yes” a@b.org", "", "Home | About us"])
    assert cleaned.verdicts == [None, "empty", None]
    assert cleaned.texts[0] == '" Yes " email@example.com'
    assert cleaned.lost == [{}, {}, {}]


def test_pieces_are_written_and_words_are_judged(tmp_path):
    config = CorpusConfig(
        tokenizer="sentencepiece",
        rules=("gopher-quality", "c4"),
        min_sentence_words=4,
        gopher_quality=GopherQuality(min_words=10),
        c4=C4(min_sentences=1),
        sentencepiece=Pieces(size=200),
    )
    texts = [f"{PROSE}\nA heading\nSo it was[1].", PROSE]
    plain = Cleaner(config).clean(texts)
    assert plain.texts[1].split("\n")[1] == "Nobody had lived there since the war."
    model = tmp_path / "pieces.model"
    sentences = iter(plain.texts[0].split("\n") * 50)
    model.write_bytes(words.train_sentencepiece(sentences, config.sentencepiece, "en"))
    cleaned = Cleaner(config, model=model).clean(texts)
    check_accounts(cleaned)
    assert cleaned.words == plain.words
    assert cleaned.texts[1].replace(" ", "").replace("▁", " ").replace(
        "\n ", "\n"
    ).strip() == PROSE.replace(". ", ".\n")
    assert cleaned.tokens.ids.tolist() == plain.tokens.ids.tolist()


def test_an_unknown_language_is_refused():
    with mistake("setting", "xx"):
        Cleaner(CorpusConfig(languages=("xx",)))
