"""A model with random weights, a few lines of text, and the vectors the reference gives them."""

from pathlib import Path

import numpy as np
import pytest

from elmwright.model.reference import ReferenceBiLM
from tests.support.embedded import LINES
from tests.support.random_model import write_random_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


@pytest.fixture
def expected(model: Path) -> list[np.ndarray]:
    reference = ReferenceBiLM(model / "options.json", model / "weights.hdf5")
    return [
        reference.embed(line.split())[0] if line else np.zeros((3, 0, 16), np.float64)
        for line in LINES
    ]
