"""A model as a folder, whatever kind: bundle, checkpoint, or the published format.

    bundle, checkpoint   config.json + model.safetensors [+ softmax.safetensors, vocab.txt]
    bilm                 options.json + exactly one *.hdf5 [+ vocab.txt]

`load_folder` gives the same thing for all of them. Tensors are compared with the config by name and
shape, and must be finite; nothing is ever unpickled. Digests are verified by `jobs/`, which wrote
them; a registry URI is resolved to a folder there, too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmwright.model.bilm import BiLM
from elmwright.model.bilm_format import read_options, read_weights
from elmwright.model.config import ModelConfig
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError

FORMAT = 1
"""Version of config.json that this code writes and reads."""
CONFIG, MODEL, SOFTMAX = "config.json", "model.safetensors", "softmax.safetensors"
VOCAB, OPTIONS = "vocab.txt", "options.json"


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a folder."""

    config: ModelConfig
    """Its shape."""
    bilm: BiLM
    """Encoder and LSTMs with their weights, trainable."""
    vocab: tuple[str, ...] | None
    """The words of the softmax in order of their ids, where the folder has them."""
    softmax: Softmax | None
    """The softmax, where it was asked for and the folder has one."""
    folder: Path
    """Where it was read from."""
    kind: Literal["bundle", "checkpoint", "bilm"]
    """What kind of folder that is."""


def load_folder(
    path: Path | str, device: torch.device | str = "cpu", with_softmax: bool = False
) -> LoadedModel:
    """Read the model in a folder onto `device`; `UserError` if there is none or it does not fit."""
    folder = Path(path)
    kind = _kind(folder)
    if kind == "bilm":
        config = read_options(folder / OPTIONS)
        tensors = read_weights(_only_hdf5(folder), config)
    else:
        config = read_config(folder / CONFIG)
        tensors = _read_tensors(folder / MODEL)
    _check_size(folder, config, tensors)
    bilm = BiLM(config)
    load_tensors(bilm, tensors, source=str(folder))
    vocab = read_vocab(folder / VOCAB) if (folder / VOCAB).is_file() else None
    softmax = None
    if with_softmax and (folder / SOFTMAX).is_file():
        softmax = _read_softmax(folder / SOFTMAX, config, vocab, device)
    return LoadedModel(config, bilm.to(device), vocab, softmax, folder, kind)


def read_shape(path: Path | str) -> ModelConfig:
    """The shape of the model in a folder, without its weights."""
    folder = Path(path)
    if _kind(folder) == "bilm":
        _only_hdf5(folder)
        return read_options(folder / OPTIONS)
    return read_config(folder / CONFIG)


def _kind(folder: Path) -> Literal["bundle", "checkpoint", "bilm"]:
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; give a bundle, a checkpoint, or a folder with "
            f"{OPTIONS} and one .hdf5"
        )
    if (folder / CONFIG).is_file() and (folder / MODEL).is_file():
        return "checkpoint" if (folder / "MANIFEST.json").is_file() else "bundle"
    if (folder / OPTIONS).is_file() and list(folder.glob("*.hdf5")):
        return "bilm"
    raise UserError(
        f"{folder} holds no model; looked for {CONFIG} with {MODEL}, and for {OPTIONS} with one "
        ".hdf5 file"
    )


def _only_hdf5(folder: Path) -> Path:
    found = sorted(folder.glob("*.hdf5"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder} has {len(found)} .hdf5 files ({names}); leave only the weights")
    return found[0]


def write_config(path: Path, config: ModelConfig, extra: Mapping[str, Any] | None = None) -> None:
    """Write config.json: the model's shape, and whatever else belongs beside it."""
    content = {"format": FORMAT, "model": asdict(config), **(extra or {})}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_config(path: Path) -> ModelConfig:
    """The model's shape from a config.json."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise UserError(f'{path} has no section "model"; it is not the config of a model')
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {content.get('format')!r} and this version reads {FORMAT}; "
            "use the version of elmwright that wrote it"
        )
    model = dict(content["model"])
    known = {field.name for field in fields(ModelConfig)}
    if model.keys() != known:
        odd = ", ".join(sorted(model.keys() ^ known))
        raise UserError(f"{path}: the model section lacks or does not know: {odd}")
    try:
        model["filters"] = tuple((width, number) for width, number in model["filters"])
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: model.filters is not a list of [width, number] pairs") from error
    config = ModelConfig(**model)
    if problem := config.problem():
        raise UserError(f"{path}: model.{problem}")
    return config


def read_vocab(path: Path) -> tuple[str, ...]:
    """One word a line. Only the newline ends a line: words may hold other separators."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from error
    return tuple(text.removesuffix("\n").split("\n"))


def model_tensors(bilm: BiLM) -> dict[str, Tensor]:
    """What model.safetensors holds: the parameters by name, detached, the live ones."""
    return {name: parameter.detach() for name, parameter in bilm.named_parameters()}


@torch.no_grad()
def load_tensors(bilm: BiLM, tensors: Mapping[str, Tensor], source: str = "the model file") -> None:
    """Copy tensors into a biLM, if they are exactly its parameters and finite."""
    own = model_tensors(bilm)
    for name, tensor in own.items():
        shape = tuple(tensor.shape)
        if name not in tensors:
            raise UserError(f"{source} has no tensor {name} (expected with shape {shape})")
        if tuple(tensors[name].shape) != shape:
            raise UserError(
                f"{source}: tensor {name} has shape {tuple(tensors[name].shape)}, but the config "
                f"asks for {shape}"
            )
        _check_finite(tensors[name], name, source)
    for name in tensors.keys() - own.keys():
        raise UserError(f"{source} has a tensor {name} that the config does not explain")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def _check_size(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """A config that asks for far more than the file holds must not take all memory first."""
    asked = sum(config.parameter_counts().values())
    there = sum(tensor.numel() for tensor in tensors.values())
    if asked > 10 * there + 1_000_000:
        raise UserError(
            f"{folder}: the config asks for {asked:,} parameters, and the file holds {there:,}"
        )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from error


def _read_softmax(
    path: Path, config: ModelConfig, vocab: tuple[str, ...] | None, device: torch.device | str
) -> Softmax:
    tensors = _read_tensors(path)
    if tensors.keys() != {"weight", "bias"}:
        raise UserError(f"{path} holds {sorted(tensors)} instead of a weight and a bias")
    weight, bias = tensors["weight"], tensors["bias"]
    size = len(vocab) if vocab is not None else len(bias)
    if weight.shape != (size, config.projection_dim) or bias.shape != (size,):
        raise UserError(
            f"{path}: weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit "
            f"{size} words and projection_dim {config.projection_dim}"
        )
    for name, tensor in tensors.items():
        _check_finite(tensor, name, str(path))
    return Softmax(weight.to(device), bias.to(device))


def _check_finite(tensor: Tensor, name: str, source: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise UserError(
            f"{source}: tensor {name} with shape {tuple(tensor.shape)} has values that are NaN or "
            "infinite; the file is damaged or the training run diverged"
        )
