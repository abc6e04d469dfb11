"""The published format: `options.json` + `weights.hdf5`, as bilm-tf and AllenNLP read and write it.

Reading gives a `ModelConfig` and tensors for a trainable `BiLM`; writing is the exact inverse, so a
round trip keeps every bit and two writes of one model are the same file. Everything is checked
before anything is used: a dataset that is missing, unexpected, of the wrong shape or not finite is
named, with both shapes.

Two numberings of characters exist (see `chars.py`). `options.json` has 261 in a training run and
262 in a published model, while the file has 261 rows in both. Both are read, and 262 is written,
which readers of published models expect. A file with 262 rows (a loader put the mask row in front
and saved it) is also read, if that row is zero.

The softmax is not part of this format.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmwright.model.chars import N_CHARS
from elmwright.model.config import ModelConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.untrusted import COPY_AGAIN, read_object

Array = npt.NDArray[np.float32]

PACKED = 64
"""How much larger weights may be than their compressed file. Weights hardly compress, zeros do so a
thousand times."""
DEPTH = 8
"""Depth up to which groups inside groups are read. Those of a biLM are five deep."""

Place = tuple[str, int | None]
"""A tensor of the state dict, and which direction of it (None for the whole tensor)."""


def read_options(path: Path) -> ModelConfig:
    """The shape of the model that an `options.json` describes.

    As in bilm-tf, a missing `n_highway` or clip means none, a missing `n_layers` one, and a missing
    `use_skip_connections` no. A clip of null or 0 is none, as in AllenNLP, and words without a
    maximum have its 50 characters. Other settings, of the training run, are ignored.
    """
    options = read_object(path)
    if not options.get("bidirectional", True):
        raise UserError(
            "model-invalid", f"{path} describes a model of one direction; ELMo needs both"
        )

    def get(*keys: str) -> Any:
        value: Any = options
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                raise UserError(
                    "model-invalid", f"{path} has no {'.'.join(keys)}, which a character biLM needs"
                )
            value = value[key]
        return value

    def optional(section: str, key: str, default: Any) -> Any:
        found = get(section)
        return default if isinstance(found, dict) and key not in found else get(section, key)

    def clip(name: str) -> float:
        value = optional("lstm", name, None)
        return 0.0 if value is None else float(value)

    n_chars = optional("char_cnn", "n_characters", N_CHARS)
    if n_chars not in (N_CHARS - 1, N_CHARS):
        raise UserError(
            "model-invalid",
            f"{path} has char_cnn.n_characters {n_chars!r:.50}; a biLM has 261 or 262",
        )
    try:
        config = ModelConfig(
            dim=get("lstm", "dim"),
            projection_dim=get("lstm", "projection_dim"),
            n_layers=optional("lstm", "n_layers", 1),
            char_dim=get("char_cnn", "embedding", "dim"),
            filters=tuple((width, number) for width, number in get("char_cnn", "filters")),
            n_highway=optional("char_cnn", "n_highway", 0) or 0,
            max_chars=optional("char_cnn", "max_characters_per_token", 50),
            activation=get("char_cnn", "activation"),
            cell_clip=clip("cell_clip"),
            proj_clip=clip("proj_clip"),
            residual=bool(optional("lstm", "use_skip_connections", False)),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            "model-invalid", f"{path} has a value of the wrong kind: {error}"
        ) from error
    if problem := config.problem():
        raise UserError("model-invalid", f"{path} has a value of the wrong kind: {problem}")
    return config


def options(config: ModelConfig) -> dict[str, Any]:
    """The content of `options.json`, under the names of bilm-tf. No clip is null, because 0 would
    clip everything in bilm-tf."""
    return {
        "bidirectional": True,
        "char_cnn": {
            "activation": config.activation,
            "embedding": {"dim": config.char_dim},
            "filters": [list(pair) for pair in config.filters],
            "max_characters_per_token": config.max_chars,
            "n_characters": N_CHARS,
            "n_highway": config.n_highway,
        },
        "lstm": {
            "cell_clip": config.cell_clip or None,
            "dim": config.dim,
            "n_layers": config.n_layers,
            "proj_clip": config.proj_clip or None,
            "projection_dim": config.projection_dim,
            "use_skip_connections": config.residual,
        },
    }


def write_options(path: Path, config: ModelConfig, extra: Mapping[str, Any] | None = None) -> None:
    """Write `options.json`; `extra` are further top-level keys (dropout, n_tokens_vocab, …)."""
    content = {**options(config), **(extra or {})}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def tensor_shapes(config: ModelConfig, count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a `BiLM(config)`, for a file of `count` tensors.

    If the config has more layers than the file can have, the list ends after one too many.
    """
    config = _cut(config, count)
    for name, (shape, (tensor_name, direction)) in datasets(config).items():
        if direction is None:
            yield tensor_name, shape[1:] if name.startswith("CNN/W_cnn") else shape
        elif direction == 0:
            yield tensor_name, (2, *shape)


def _cut(config: ModelConfig, count: int) -> ModelConfig:
    """The same model, with at most one layer of each kind more than `count` tensors allow."""
    return replace(
        config,
        n_layers=min(config.n_layers, count + 1),
        n_highway=min(config.n_highway, count + 1),
    )


def datasets(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], Place]]:
    """Every dataset of `weights.hdf5`: its shape, and its place in the state dict."""
    n, p, d = config.n_filters, config.projection_dim, config.dim
    found: dict[str, tuple[tuple[int, ...], Place]] = {
        "char_embed": ((N_CHARS - 1, config.char_dim), ("encoder.char_embed", None))
    }
    for i, (width, number) in enumerate(config.filters):
        shape = (1, width, config.char_dim, number)
        found[f"CNN/W_cnn_{i}"] = shape, (f"encoder.conv.{i}.weight", None)
        found[f"CNN/b_cnn_{i}"] = (number,), (f"encoder.conv.{i}.bias", None)
    for i in range(config.n_highway):
        for gate in ("carry", "transform"):
            at = f"encoder.highway.{i}"
            found[f"CNN_high_{i}/W_{gate}"] = (n, n), (f"{at}.w_{gate}", None)
            found[f"CNN_high_{i}/b_{gate}"] = (n,), (f"{at}.b_{gate}", None)
    if config.has_projection:
        found["CNN_proj/W_proj"] = (n, p), ("encoder.projection.weight", None)
        found["CNN_proj/b_proj"] = (p,), ("encoder.projection.bias", None)
    for direction in range(2):
        for layer in range(config.n_layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found[f"{cell}/W_0"] = (2 * p, 4 * d), (f"lstm.{layer}.w", direction)
            found[f"{cell}/B"] = (4 * d,), (f"lstm.{layer}.b", direction)
            found[f"{cell}/W_P_0"] = (d, p), (f"lstm.{layer}.w_proj", direction)
    return found


def read_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The state dict of a `BiLM(config)`, float32, from a `weights.hdf5`."""
    with _opened(path) as file:
        arrays = _checked(path, file, config)
    single: dict[str, Tensor] = {}
    pairs: dict[str, list[Tensor]] = {}
    for name, (_, (tensor_name, direction)) in datasets(config).items():
        tensor = torch.from_numpy(arrays[name])
        if direction is not None:
            pairs.setdefault(tensor_name, []).append(tensor)
        else:
            single[tensor_name] = tensor[0] if name.startswith("CNN/W_cnn") else tensor
    return single | {name: torch.stack(both) for name, both in pairs.items()}


def check_members(path: Path, config: ModelConfig) -> None:
    """Refuse a `weights.hdf5` whose datasets are not exactly those of `config`; reads no values."""
    with _opened(path) as file:
        _check_names(path, _members(path, file), config)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an HDF5 file; any error of h5py about a damaged one becomes a UserError."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            "model-invalid", f"{path} cannot be read as HDF5: {reason:.200}; {COPY_AGAIN}"
        ) from error


def write_weights(path: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write `weights.hdf5`. No times are recorded: the same tensors give the same bytes."""
    with h5py.File(path, "w") as file:
        for name, (shape, (tensor_name, direction)) in datasets(config).items():
            tensor = tensors[tensor_name].detach().float().cpu()
            if direction is not None:
                tensor = tensor[direction]
            array = tensor.contiguous().numpy().reshape(shape)
            file.create_dataset(name, data=array, track_times=False)


def _checked(path: Path, file: Any, config: ModelConfig) -> dict[str, Array]:
    """All datasets, if they are exactly those of `config` and finite."""
    _check_names(path, _members(path, file), config)
    declared = sum(file[name].size * file[name].dtype.itemsize for name in datasets(config))
    size = path.stat().st_size
    if declared > PACKED * size:  # never written, or packed as no weights can be
        raise UserError(
            "model-invalid",
            f"{path} declares {declared:,} bytes of weights and has {size:,}; {COPY_AGAIN}",
        )
    arrays = {name: _finite(path, name, file[name]) for name in datasets(config)}
    if len(arrays["char_embed"]) == N_CHARS:
        if arrays["char_embed"][0].any():
            raise UserError(
                "model-invalid",
                f"{path}: char_embed has 262 rows and the first, the mask, is not zero",
            )
        arrays["char_embed"] = arrays["char_embed"][1:].copy()
    return arrays


def _members(
    path: Path, group: Any, inside: str = "", seen: set[int] | None = None
) -> dict[str, Any]:
    """Every dataset below a group with its shape.

    Links and external storage are refused, because they could make a reader open any file of the
    machine. So are groups in two places: one that is inside itself would never end, and some
    dozens, each twice inside the one before, would take years.
    """
    shapes: dict[str, Any] = {}
    seen = set() if seen is None else seen
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        raise UserError(
            "model-invalid", f"{path}: the group {inside} is in two places, or inside itself"
        )
    seen.add(address)
    if inside.count("/") > DEPTH:
        raise UserError("model-invalid", f"{path}: {inside} is nested deeper than any weights")
    for key in group:
        name = f"{inside}{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise UserError(
                "model-invalid",
                f"{path}: {name} is a link, which weights never are",
            )
        item = group[key]
        if isinstance(item, h5py.Group):
            shapes |= _members(path, item, f"{name}/", seen) or {name: "of a group"}
        elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
            raise UserError(
                "model-invalid",
                f"{path}: {name} is stored outside the file, which weights never are",
            )
        elif item.dtype.kind != "f":
            raise UserError(
                "model-invalid",
                f"{path}: dataset {name} has type {item.dtype}, not floating point",
            )
        else:
            shapes[name] = item.shape
    return shapes


def _check_names(path: Path, shapes: dict[str, Any], config: ModelConfig) -> None:
    config = _cut(config, len(shapes))
    expected = {name: shape for name, (shape, _) in datasets(config).items()}
    if expected.keys().isdisjoint(shapes):
        some = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:3]) or "nothing"
        raise UserError(
            "model-invalid",
            f"{path} is HDF5 of another layout: it has {some}, and none of the datasets of a "
            f"biLM (such as char_embed {expected['char_embed']})",
        )
    if shapes.get("char_embed") == (N_CHARS, config.char_dim):  # with the mask row
        shapes = {**shapes, "char_embed": expected["char_embed"]}
    check_shapes(expected.items(), shapes, str(path), "dataset", "options.json")


def check_shapes(
    expected: Iterable[tuple[str, tuple[int, ...]]],
    shapes: Mapping[str, Any],
    source: str,
    kind: str = "tensor",
    description: str = "the config",
) -> None:
    """Refuse names and shapes that are not those that a config requires.

    Ends at the first that is missing, so a config of a larger model costs neither time nor memory.
    """
    names = set()
    for name, shape in expected:
        if name not in shapes:
            raise UserError(
                "model-invalid", f"{source} has no {kind} {name} (expected with shape {shape})"
            )
        if shapes[name] != shape:
            raise UserError(
                "model-invalid",
                f"{source}: {kind} {name} has shape {shapes[name]}, but {description} "
                f"requires {shape}",
            )
        names.add(name)
    for name in shapes.keys() - names:
        raise UserError(
            "model-invalid",
            f"{source} has a {kind} {name:.100} with shape {shapes[name]} that {description} "
            "does not explain",
        )


def _finite(path: Path, name: str, dataset: Any) -> Array:
    array: Array = np.asarray(dataset[()], dtype=np.float32)
    if bad := int(array.size - np.isfinite(array).sum()):
        raise UserError(
            "file-damaged",
            f"{path}: dataset {name} with shape {array.shape} has {bad} values that are NaN or "
            "infinite; the file is damaged or the training run diverged",
        )
    return array
