"""The choice of layers."""

import numpy as np
import pytest

from elmwright.jobs.using.layer_choice import choose_layers
from elmwright.pipeline.errors import UserError

VECTORS = np.arange(24, dtype=np.float32).reshape(3, 4, 2)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", VECTORS),
        ("top", VECTORS[2:]),
        ("mean", VECTORS[1:2]),
        ("0", VECTORS[:1]),
        ("2", VECTORS[2:]),
    ],
)
def test_the_chosen_layers_keep_their_axis(layers: str, expected: np.ndarray) -> None:
    chosen = choose_layers(VECTORS, layers)
    assert chosen.dtype == np.float32
    np.testing.assert_array_equal(chosen, expected)


@pytest.mark.parametrize("layers", ["3", "-1", "middle", ""])
def test_missing_layer_is_refused(layers: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_layers(VECTORS, layers)
    assert caught.value.code == "argument"
