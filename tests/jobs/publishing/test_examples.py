"""What a bundle shows as an example: a held-out sentence, and never one of the training text."""

from dataclasses import replace

from elmwright.jobs.publishing.examples import PLAIN, example_sentence, heldout_examples
from elmwright.pipeline.format.manifest import Manifest
from tests.support.places import ROOT

CORPUS = str(ROOT / "tests" / "fixtures" / "compat" / "0.1" / "finished" / "corpus")


def test_the_example_is_a_held_out_sentence() -> None:
    manifest = Manifest.load(CORPUS)
    texts = [example.text for example in heldout_examples(CORPUS, manifest)]
    assert example_sentence(CORPUS, manifest) in texts


def test_a_corpus_without_held_out_text_shows_none_of_its_own() -> None:
    manifest = Manifest.load(CORPUS)
    without = replace(manifest, splits={"train": manifest.splits["train"]})
    assert heldout_examples(CORPUS, without)
    assert example_sentence(CORPUS, without) == PLAIN.text
