"""A slow, obvious forward pass in numpy, sharing no line with the rest of the package.

It reads `options.json` and `weights.hdf5` by itself, follows the equations of the format one word
and one step at a time in float64, and knows nothing of torch. `elmwright export` compares a bundle
with it before calling it done; the tests compare everything else. Do not make it faster.
"""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
State = list[list[tuple[Array, Array]]]
"""(cell, projected output) for each direction and layer."""


class ReferenceBiLM:
    """The biLM of an `options.json` and a `weights.hdf5`."""

    def __init__(self, options: Path | str, weights: Path | str) -> None:
        self.options: dict[str, Any] = json.loads(Path(options).read_text(encoding="utf-8"))
        self.w: dict[str, Array] = {}
        with h5py.File(weights, "r") as file:
            file.visititems(self._take)

    def _take(self, name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            self.w[name] = np.asarray(item[()], dtype=np.float64)

    def characters(self, word: str) -> list[int]:
        """Raw ids (bytes 0–255, then bos, eos, bow, eow, pad), as rows of `char_embed`."""
        size = self.options["char_cnn"]["max_characters_per_token"]
        marks = {"<S>": [256], "</S>": [257]}
        inner = marks.get(word) or list(word.encode("utf-8", "ignore")[: size - 2])
        framed = [258, *inner, 259]
        return framed + [260] * (size - len(framed))

    def encode(self, word: str) -> Array:
        """A word's context-free representation."""
        cnn = self.options["char_cnn"]
        embedded = self.w["char_embed"][self.characters(word)]
        features = []
        for i, (width, _) in enumerate(cnn["filters"]):
            kernel, bias = self.w[f"CNN/W_cnn_{i}"][0], self.w[f"CNN/b_cnn_{i}"]
            windows = [embedded[s : s + width] for s in range(len(embedded) - width + 1)]
            values = [np.einsum("wd,wdn->n", window, kernel) + bias for window in windows]
            features.append(np.max(values, axis=0))
        x: Array = np.concatenate(features)
        x = np.maximum(x, 0) if cnn["activation"] == "relu" else np.tanh(x)
        for k in range(cnn.get("n_highway") or 0):
            layer = f"CNN_high_{k}"
            gate = sigmoid(x @ self.w[f"{layer}/W_carry"] + self.w[f"{layer}/b_carry"])
            new = np.maximum(x @ self.w[f"{layer}/W_transform"] + self.w[f"{layer}/b_transform"], 0)
            x = gate * new + (1 - gate) * x
        if "CNN_proj/W_proj" in self.w:
            x = x @ self.w["CNN_proj/W_proj"] + self.w["CNN_proj/b_proj"]
        return x

    def zeros(self) -> State:
        """The state before anything was read."""
        lstm = self.options["lstm"]
        cell, out = np.zeros(lstm["dim"]), np.zeros(lstm["projection_dim"])
        return [[(cell, out) for _ in range(lstm["n_layers"])] for _ in range(2)]

    def read(self, words: list[str], direction: int, state: State) -> tuple[list[Array], State]:
        """One direction over words in the order it meets them: the layers of each word (the
        encoder's first), and the state afterwards."""
        lstm = self.options["lstm"]
        layers = list(state[direction])
        found = []
        for word in words:
            x = self.encode(word)
            outputs = [x]
            for number in range(lstm["n_layers"]):
                out, layers[number] = self._cell(x, direction, number, *layers[number])
                skip = lstm.get("use_skip_connections", False) and number > 0
                x = out + x if skip else out
                outputs.append(x)
            found.append(np.stack(outputs))
        after = [layers if d == direction else state[d] for d in range(2)]
        return found, after

    def _cell(
        self, x: Array, direction: int, number: int, c: Array, m: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        lstm = self.options["lstm"]
        name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
        z = np.concatenate([x, m]) @ self.w[f"{name}/W_0"] + self.w[f"{name}/B"]
        i, j, f, o = np.split(z, 4)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
        c = clip(c, lstm["cell_clip"])
        m = (sigmoid(o) * np.tanh(c)) @ self.w[f"{name}/W_P_0"]
        m = clip(m, lstm["proj_clip"])
        return m, (c, m)

    def embed(self, sentence: list[str], state: State | None = None) -> tuple[Array, State]:
        """All layers of a sentence, (layers + 1, words, 2·projection_dim), and the state after it.

        Without a state the sentence is read from zeros.
        """
        state = self.zeros() if state is None else state
        framed = ["<S>", *sentence, "</S>"]
        forward, state = self.read(framed, 0, state)
        backward, state = self.read(framed[::-1], 1, state)
        pairs = zip(forward, backward[::-1], strict=True)
        both = [np.concatenate([one, other], axis=-1) for one, other in pairs]
        return np.stack(both, axis=1)[:, 1:-1], state


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), through tanh so that no exponent overflows."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def clip(x: Array, limit: float | None) -> Array:
    """Values limited to ± `limit`; 0 and null mean no limit, as in AllenNLP."""
    return np.clip(x, -limit, limit) if limit else x
