"""Text files such as a user might have in a folder, with the words that the pages ask for."""

import random
from pathlib import Path

from tests.support.tiny import ADJECTIVES, NOUNS, write_text

STORY = "\nThe {} function returns a list of every {}. They play in the garden beside the {}."
"""Told in every document, each time of other things."""


def write_texts(folder: Path) -> None:
    """Three files of 120 documents each."""
    folder.mkdir()
    draw = random.Random(1)
    for number in range(3):
        text = write_text(folder / f"{number}.txt", documents=120, seed=number)
        documents = text.read_text(encoding="utf-8").strip().split("\n\n")
        for document in range(len(documents)):
            words = draw.choice(ADJECTIVES), *draw.sample(NOUNS, 2)
            documents[document] += STORY.format(*words)
        text.write_text("\n\n".join(documents), encoding="utf-8")
