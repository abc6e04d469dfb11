"""Small models of many shapes, shared by the tests of this room."""

from pathlib import Path

import hypothesis.strategies as st

from elmwright.model.bilm import BiLM
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import model_tensors

TINY = ModelConfig(
    dim=12,
    projection_dim=6,
    char_dim=4,
    filters=((1, 3), (2, 4), (3, 5)),
    n_highway=1,
    max_chars=12,
)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Any small model: every switch of the format is thrown in turn."""
    filters = draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3)
    )
    total = sum(number for _, number in filters)
    return ModelConfig(
        dim=draw(st.integers(1, 9)),
        projection_dim=draw(st.one_of(st.integers(1, 6), st.just(total))),
        n_layers=draw(st.integers(1, 3)),
        char_dim=draw(st.integers(1, 4)),
        filters=tuple(filters),
        n_highway=draw(st.integers(0, 2)),
        max_chars=draw(st.integers(5, 14)),
        activation=draw(st.sampled_from(["relu", "tanh"])),
        cell_clip=draw(st.sampled_from([0.0, 0.1, 3.0])),
        proj_clip=draw(st.sampled_from([0.0, 0.05, 3.0])),
        residual=draw(st.booleans()),
    )


def write_model(folder: Path, bilm: BiLM) -> tuple[Path, Path]:
    """A model in the published format; returns the paths of options and weights."""
    options, weights = folder / "options.json", folder / "weights.hdf5"
    write_options(options, bilm.config)
    write_weights(weights, bilm.config, model_tensors(bilm))
    return options, weights
