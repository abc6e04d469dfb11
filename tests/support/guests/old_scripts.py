"""Runs scripts that were written for AllenNLP; AllenNLP's Python runs this file, too (3.8).

    python old_scripts.py FOLDER OUT.npz SCRIPT…

FOLDER has a model (`options.json`, `weights.hdf5`) and `sentences.json`. What each script leaves in
`results` is written as `script/name`.
"""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import torch


def run(script, options, weights, sentences):
    """The arrays that a script leaves in `results`."""
    torch.manual_seed(0)
    given = {"OPTIONS": str(options), "WEIGHTS": str(weights), "SENTENCES": sentences}
    results = runpy.run_path(str(script), init_globals=given)["results"]
    return {
        name: value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        for name, value in results.items()
    }


def run_all(folder, scripts):
    """The arrays of several scripts, by `script/name`."""
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    return {
        f"{script.stem}/{name}": array
        for script in scripts
        for name, array in run(
            script, folder / "options.json", folder / "weights.hdf5", sentences
        ).items()
    }


if __name__ == "__main__":
    np.savez_compressed(sys.argv[2], **run_all(Path(sys.argv[1]), map(Path, sys.argv[3:])))
