"""A bundle in AllenNLP's `Elmo`: the same vectors, layer by layer, to 1e-5.

    python tests/bench/interop_allennlp.py BUNDLE [text]

AllenNLP reads options.json and weights.hdf5 in an environment of its own, which
ELMWRIGHT_PEER_PYTHON names; without it this says that it is skipped. The text has a tokenised
sentence a line; by default it is the model card of the bundle, which has every kind of word.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from workload import PEER_PYTHON, need_peer

from elmwright import Elmo

TOLERANCE = 1e-5
SENTENCES = 200


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("give a bundle: python tests/bench/interop_allennlp.py runs/demo/bundle")
    need_peer()
    bundle = Path(sys.argv[1])
    text = Path(sys.argv[2]) if len(sys.argv) > 2 else bundle / "README.md"
    lines = text.read_text(encoding="utf-8").splitlines()
    sentences = [words for line in lines if (words := line.split())][:SENTENCES]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name in ("options.json", "weights.hdf5"):
            shutil.copyfile(bundle / name, work / name)
        (work / "sentences.json").write_text(json.dumps(sentences))
        side = Path(__file__).with_name("side_interop_allennlp.py")
        subprocess.run([str(PEER_PYTHON), str(side), str(work)], check=True)
        theirs = np.load(work / "peer.npy")
    ours = np.concatenate(Elmo.from_pretrained(bundle).embed(sentences), axis=1)
    assert ours.shape == theirs.shape, f"{ours.shape} and {theirs.shape}"
    gaps = np.abs(ours - theirs).max(axis=(1, 2))
    largest = " ".join(f"{gap:.1e}" for gap in gaps)
    print(
        f"{len(sentences)} sentences, {ours.shape[1]} words, {ours.shape[2]} numbers a layer: "
        f"largest difference by layer {largest} (values up to {np.abs(ours).max():.2f})"
    )
    sys.exit(0 if gaps.max() <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
