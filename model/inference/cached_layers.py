"""`elmwright.CachedLayers`: the layers in a file of `elmwright embed`, as a torch Dataset.

A frozen biLM gives a sentence the same layers in every epoch. So a task may compute them once, and
train its mixes (`elmwright.LayerMixes`) from the file. HDF5 only, because a task reads sentences in
any order, which Parquet and npz are not made for.
"""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.untrusted import COPY_AGAIN


class CachedLayers(Dataset[Tensor]):
    """Sentence n of an HDF5 file as (layers, words, width), in the type of the file.

    Every process opens the file for itself, so the workers of a `DataLoader` may share one.
    """

    def __init__(self, path: Path | str) -> None:
        """`path` is a file of `elmwright embed`, or of another program that writes its form."""
        self.path = Path(path)
        self._file: Any = None
        self._process = 0
        if not self.path.is_file():
            raise UserError(
                "file-missing", f"there is no file {path}; write it with elmwright embed"
            )
        self._size: int = sum(name.isdecimal() for name in self._opened())
        if self._size and str(self._size - 1) not in self._opened():
            raise self._damaged("its sentences are not numbered from 0")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> Tensor:
        if not -self._size <= number < self._size:
            raise IndexError(f"{self.path} has {self._size} sentences, and no number {number}")
        name = str(number % self._size)
        file = self._opened()
        try:
            link = file.get(name, getlink=True)
            if type(link).__name__ != "HardLink":  # it could lead out of the file
                raise self._damaged(f"sentence {name} is a link")
            layers = np.asarray(file[name][()])
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise self._damaged(" ".join(str(error).split())[:200]) from error
        if layers.ndim == 2:  # one layer, as other programs write it
            layers = layers[np.newaxis]
        if layers.ndim != 3 or layers.dtype not in (np.float16, np.float32, np.float64):
            raise self._damaged(f"sentence {name} has no layers of floating-point numbers")
        return torch.from_numpy(layers)

    def _opened(self) -> Any:
        """The file, opened by this process."""
        if self._file is None or self._process != os.getpid():
            try:
                self._file = h5py.File(self.path, "r")
            except OSError as error:
                raise UserError(
                    "file-unreadable",
                    f"{self.path} cannot be read as HDF5 ({' '.join(str(error).split())[:100]}); "
                    "write it with elmwright embed -o NAME.hdf5",
                ) from error
            self._process = os.getpid()
        return self._file

    def _damaged(self, reason: str) -> UserError:
        return UserError("file-damaged", f"{self.path}: {reason}; {COPY_AGAIN}")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}
