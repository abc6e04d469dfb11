"""A model nobody trained, in every format, for tests of what is done with a model."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from elmwright.model.bilm import BiLM
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import model_tensors, write_config
from elmwright.model.softmax import Softmax
from elmwright.model.text.text_input import config_entries
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from tests.support.tiny import ADJECTIVES, NOUNS, VERBS

SHAPE = ModelConfig(
    dim=16,
    projection_dim=8,
    char_dim=4,
    filters=((1, 4), (2, 4), (3, 8)),
    n_highway=1,
    max_chars=12,
)
VOCAB = ["<S>", "</S>", "<UNK>", "The", "the", ".", *NOUNS, *VERBS, *ADJECTIVES]


def write_random_model(
    folder: Path,
    vocab: list[str] = VOCAB,
    seed: int = 1,
    shape: ModelConfig = SHAPE,
    *,
    tokenisation: Tokenisation | None = None,
    pieces: bytes = b"",
) -> Path:
    """A folder that loads as a bundle, with `options.json` and `weights.hdf5` for the reference.

    Its softmax is far from uniform, so that an error in the targets shows. Without a tokenisation
    it is like a bundle of an earlier version. `pieces` is a sentencepiece model.
    """
    folder.mkdir(parents=True)
    bilm = BiLM(shape, seed)
    with torch.no_grad():
        for parameter in bilm.lstm.parameters():
            parameter.mul_(3)
    softmax = Softmax.create(len(vocab), shape.projection_dim, seed)
    softmax.weight.mul_(6)
    softmax.bias.normal_(generator=torch.Generator().manual_seed(seed))
    save_file(model_tensors(bilm), folder / "model.safetensors")
    save_file(softmax.state(), folder / "softmax.safetensors")
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    text = config_entries(tokenisation) if tokenisation else {}
    write_config(folder / "config.json", shape, {"eval_lanes": 2, **text})
    if pieces:
        (folder / "sentencepiece.model").write_bytes(pieces)
    write_options(folder / "options.json", shape)
    write_weights(folder / "weights.hdf5", shape, model_tensors(bilm))
    return folder
