"""`Elmo.forward` on random batches of 32 against `Elmo.embed` of the same text: at least 85 %.

    python tests/bench/bench_forward.py [sentences] [rounds]

`embed` sorts a whole text by length. `forward` has to take the batches that it is given, as in
training. Both begin every pass with an empty cache. They are compared by their CPU time, in which
other load on the machine does not count, pass by pass. Speeds are by the clock. Where AllenNLP is
there (`workload.py: PEER_PYTHON`), its speed on the same batches is printed beside them.
"""

import random
import shutil
import sys
from statistics import median

from bench_embed import CONFIG, real_sentences, write_folder
from duel import Side
from workload import PEER_PYTHON

from elmwright.model.config import ModelConfig

DEMO = ModelConfig(
    dim=256,
    projection_dim=64,
    n_highway=1,
    filters=((1, 16), (2, 16), (3, 32), (4, 64), (5, 64)),
)
TARGET = 0.85


def main() -> None:
    count, rounds = (*map(int, sys.argv[1:]), *(800, 5)[len(sys.argv) - 1 :])
    text = real_sentences(count)
    random.Random(0).shuffle(text)
    words = sum(map(len, text))
    ratios = []
    for name, config in (("demo", DEMO), ("small", CONFIG)):
        folder = write_folder(text, config)
        for threads in (1, 2):
            where = str(folder), str(threads)
            python, ours = sys.executable, "side_embed_ours.py"
            sides = [
                Side("embed", python, ours, *where, threads=threads),
                Side("forward", python, ours, *where, "forward", threads=threads),
            ]
            if PEER_PYTHON.is_file():
                script = "side_embed_allennlp.py"
                sides.append(Side("allennlp", str(PEER_PYTHON), script, *where, threads=threads))
            for side in sides:
                side.run(1)  # the first pass is not counted
                side.seconds.clear()
                side.cpu.clear()
            for _ in range(rounds):
                for side in sides:
                    side.run(1)
            speed = {side.name: words / median(side.seconds) for side in sides}
            for side in sides:
                side.close()
            embed, forward = sides[0].cpu, sides[1].cpu
            ratios.append(median(a / b for a, b in zip(embed, forward, strict=True)))
            print(
                f"{name}, {len(text)} sentences, {threads} thread(s): "
                + ", ".join(f"{side} {value:,.0f} words/s" for side, value in speed.items())
                + f"; forward is {ratios[-1]:.0%} of embed "
                f"(by the clock {speed['forward'] / speed['embed']:.0%})",
                flush=True,
            )
        shutil.rmtree(folder)
    if not PEER_PYTHON.is_file():
        print(f"allennlp skipped: there is no {PEER_PYTHON}")
    sys.exit(0 if min(ratios) >= TARGET else 1)


if __name__ == "__main__":
    main()
