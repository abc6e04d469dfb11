"""Loads a model from a folder: a bundle, a checkpoint, or the published format (bilm).

    bundle, checkpoint   config.json + model.safetensors [+ softmax.safetensors, vocab.txt]
    bilm                 options.json + exactly one *.hdf5 [+ vocab.txt]; without an options.json,
                         the only *options.json

If the config.json of a checkpoint says "weights": "average", the model is the average of the
weights (`average.py`), and the last weights are only there to resume from.

Names and shapes of the tensors must be those of the config, and all values finite. Nothing is ever
unpickled. Digests are written and verified by `jobs/`, which also resolves a registry URI to a
folder.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmwright.model.average import DENSE, ROWS, averaged
from elmwright.model.bilm import BiLM
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import (
    check_shapes,
    read_options,
    read_weights,
    tensor_shapes,
)
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.untrusted import COPY_AGAIN, read_object, read_words

FORMAT = 1
"""Version of config.json that this code writes and reads."""
CONFIG, MODEL, SOFTMAX = "config.json", "model.safetensors", "softmax.safetensors"
AVERAGE, AVERAGE_SOFTMAX = f"{DENSE}.safetensors", f"{ROWS}.safetensors"
VOCAB, OPTIONS = "vocab.txt", "options.json"
OF_AVERAGE = {"weights": "average"}
"""What config.json of a checkpoint says if its model is the average of the weights."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types in which weights may be stored."""


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a folder."""

    config: ModelConfig
    """The shape of the model."""
    bilm: BiLM
    """Encoder and LSTMs with their weights, trainable."""
    vocab: tuple[str, ...] | None
    """The words of the softmax in order of their ids, if the folder has them."""
    softmax: Softmax | None
    """The softmax, if it was requested and the folder has one."""
    folder: Path
    """Where it was read from."""
    kind: Literal["bundle", "checkpoint", "bilm"]
    """The kind of folder."""
    is_average: bool = False
    """Whether it is the average that a checkpoint has besides its last weights."""


def load_folder(
    path: Path | str, device: torch.device | str = "cpu", with_softmax: bool = False
) -> LoadedModel:
    """The model in a folder, on `device`; `UserError` if there is none or it is invalid."""
    folder = Path(path)
    kind = _kind(folder)
    is_average = kind == "checkpoint" and _is_average(folder)
    if kind == "bilm":
        config = read_options(_options(folder))
        tensors = read_weights(_only_hdf5(folder), config)
    else:
        config = read_config(folder / CONFIG)
        tensors = read_tensors(folder / (AVERAGE if is_average else MODEL))
    check_shapes(tensor_shapes(config, len(tensors)), shapes_of(tensors), str(folder))
    with _report_lack_of_memory(folder):
        bilm = BiLM(config)
        load_tensors(bilm, tensors, source=str(folder))
    vocab = read_vocab(folder / VOCAB) if (folder / VOCAB).is_file() else None
    softmax = None
    if with_softmax and (folder / SOFTMAX).is_file():
        softmax = _read_softmax(folder / SOFTMAX, config, vocab)
        if is_average:
            softmax = _read_average(folder / AVERAGE_SOFTMAX, softmax)
        softmax = Softmax(softmax.weight.to(device), softmax.bias.to(device))
    return LoadedModel(config, bilm.to(device), vocab, softmax, folder, kind, is_average)


def _is_average(folder: Path) -> bool:
    return read_object(folder / CONFIG).get("weights") == OF_AVERAGE["weights"]


@contextmanager
def _report_lack_of_memory(path: Path) -> Iterator[None]:
    """Turn a lack of memory, for which torch raises RuntimeError, into a UserError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise UserError(
            "memory", f"{path} does not fit into memory; use a machine with more, or {COPY_AGAIN}"
        ) from error


def read_shape(path: Path | str) -> ModelConfig:
    """The shape of the model in a folder, without its weights."""
    folder = Path(path)
    if _kind(folder) == "bilm":
        _only_hdf5(folder)
        return read_options(_options(folder))
    return read_config(folder / CONFIG)


def _kind(folder: Path) -> Literal["bundle", "checkpoint", "bilm"]:
    if not folder.is_dir():
        raise UserError(
            "model-missing",
            f"{folder} is not a folder; give a bundle, a checkpoint, or a folder with "
            f"{OPTIONS} and one .hdf5",
        )
    if (folder / CONFIG).is_file() and (folder / MODEL).is_file():
        return "checkpoint" if (folder / "MANIFEST.json").is_file() else "bundle"
    if _options(folder).is_file() and list(folder.glob("*.hdf5")):
        return "bilm"
    raise UserError(
        "model-missing",
        f"{folder} holds no model; looked for {CONFIG} with {MODEL}, and for {OPTIONS} with one "
        ".hdf5 file",
    )


def _options(folder: Path) -> Path:
    """The options of a bilm folder, which published models name after themselves."""
    others = sorted(folder.glob(f"*{OPTIONS}"))
    return others[0] if len(others) == 1 else folder / OPTIONS


def _only_hdf5(folder: Path) -> Path:
    paths = sorted(folder.glob("*.hdf5"))
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(
            "model-missing",
            f"{folder} has {len(paths)} .hdf5 files ({names}); keep only the one with the weights",
        )
    return paths[0]


def write_config(path: Path, config: ModelConfig, extra: Mapping[str, Any] | None = None) -> None:
    """Write config.json: the model's shape and the entries of `extra`."""
    content = {"format": FORMAT, "model": asdict(config), **(extra or {})}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_config(path: Path) -> ModelConfig:
    """The model's shape from a config.json."""
    content = read_object(path)
    if not isinstance(content.get("model"), dict):
        raise UserError(
            "model-invalid", f'{path} has no section "model"; it is not the config of a model'
        )
    if content.get("format") != FORMAT:
        raise UserError(
            "format",
            f"{path} has format {content.get('format')!r:.50} and this version reads {FORMAT}; "
            "use the version of elmwright that wrote it",
        )
    model = dict(content["model"])
    known = {field.name for field in fields(ModelConfig)}
    if model.keys() != known:
        names = ", ".join(sorted(model.keys() ^ known))
        raise UserError(
            "format", f"{path}: these settings of the model are missing or unknown: {names:.300}"
        )
    try:
        model["filters"] = tuple((width, number) for width, number in model["filters"])
    except (TypeError, ValueError) as error:
        raise UserError(
            "model-invalid", f"{path}: model.filters is not a list of [width, number] pairs"
        ) from error
    config = ModelConfig(**model)
    if problem := config.problem():
        raise UserError("model-invalid", f"{path}: model.{problem}")
    return config


def read_vocab(path: Path) -> tuple[str, ...]:
    """The words of a vocabulary file, one per line. A line ends only at a newline."""
    return tuple(read_words(path))


def model_tensors(bilm: BiLM) -> dict[str, Tensor]:
    """The content of model.safetensors: the parameters by name, detached, not copied."""
    return {name: parameter.detach() for name, parameter in bilm.named_parameters()}


@torch.no_grad()
def load_tensors(bilm: BiLM, tensors: Mapping[str, Tensor], source: str = "the model file") -> None:
    """Copy tensors into a biLM; `UserError` if they are not its parameters, or not finite."""
    parameters = model_tensors(bilm)
    check_shapes(shapes_of(parameters).items(), shapes_of(tensors), source)
    for name in parameters:
        _check_values(tensors[name], name, source)
    for name, tensor in parameters.items():
        tensor.copy_(tensors[name])


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        with _report_lack_of_memory(path):
            return load_file(path)
    except (SafetensorError, OSError, RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            "model-invalid", f"{path} cannot be read as safetensors ({reason:.200}); {COPY_AGAIN}"
        ) from error


def _read_softmax(path: Path, config: ModelConfig, vocab: tuple[str, ...] | None) -> Softmax:
    tensors = read_tensors(path)
    if tensors.keys() != {"weight", "bias"}:
        raise UserError(
            "model-invalid", f"{path} has {sorted(tensors)!r:.200} instead of a weight and a bias"
        )
    weight, bias = tensors["weight"], tensors["bias"]
    size = len(vocab) if vocab is not None else bias.numel()
    if weight.shape != (size, config.projection_dim) or bias.shape != (size,):
        raise UserError(
            "model-invalid",
            f"{path}: weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit "
            f"{size} words and projection_dim {config.projection_dim}",
        )
    for name, tensor in tensors.items():
        _check_values(tensor, name, str(path))
    return Softmax(weight, bias)


def _read_average(path: Path, softmax: Softmax) -> Softmax:
    """The average of a checkpoint's softmax at its step."""
    rows = read_tensors(path)
    size = softmax.vocab_size
    counts = {"row_updates": (size,), "updates": (), "horizon": ()}
    check_shapes((shapes_of(softmax.state()) | counts).items(), shapes_of(rows), str(path))
    for name, tensor in softmax.state().items():
        _check_values(rows[name], name, str(path))
        rows[name] = rows[name].to(tensor.dtype)
    each, last, horizon = (rows[name] for name in counts)
    are_whole = all(rows[name].dtype in (torch.int32, torch.int64) for name in counts)
    if not (are_whole and horizon > 0 and ((each >= 0) & (each <= last)).all()):
        raise UserError("file-damaged", f"{path} has impossible counts of updates; {COPY_AGAIN}")
    with _report_lack_of_memory(path):
        return averaged(softmax, rows)


def _check_values(tensor: Tensor, name: str, source: str) -> None:
    if tensor.dtype not in FLOATS:
        raise UserError(
            "model-invalid",
            f"{source}: tensor {name} has type {tensor.dtype}, not floating point",
        )
    if not bool(torch.isfinite(tensor).all()):
        raise UserError(
            "file-damaged",
            f"{source}: tensor {name} with shape {tuple(tensor.shape)} has values that are NaN or "
            "infinite; the file is damaged or the training run diverged",
        )
