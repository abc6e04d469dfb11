"""`Elmo.forward` on random batches of 32 against `Elmo.embed` of the same text: at least 85 %.

    python tests/bench/bench_forward.py [--sentences N] [--rounds N] [--json FILE]

`embed` sorts a whole text by length. `forward` has to take the batches that it is given, as in
training. Both begin every pass with an empty cache. They are compared by their CPU time, in which
other load on the machine does not count, pass by pass. Speeds are by the clock. Where AllenNLP is
there (`workload.py: PEER_PYTHON`), its speed on the same batches is printed beside them.
"""

import random
import shutil
import sys
from pathlib import Path
from statistics import median

from bench_embed import CONFIG, real_sentences, write_folder
from duel import Side
from verdict import Bar, conclude, print_circumstances, record_parser
from workload import PEER_PYTHON

from elmwright.model.config import ModelConfig

DEMO = ModelConfig(
    dim=256,
    projection_dim=64,
    n_highway=1,
    filters=((1, 16), (2, 16), (3, 32), (4, 64), (5, 64)),
)
LEAST = 0.85


def main() -> int:
    parser = record_parser(__doc__)
    parser.add_argument("--sentences", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print_circumstances()
    text = real_sentences(options.sentences)
    random.Random(0).shuffle(text)
    words, bars = sum(map(len, text)), []
    for name, config in (("demo", DEMO), ("small", CONFIG)):
        folder = write_folder(text, config)
        for threads in (1, 2):
            embed, forward, peers = take_turns(folder, threads, options.rounds)
            speed = {side.name: words / side.median for side in (embed, forward, *peers)}
            pairs = zip(embed.cpu, forward.cpu, strict=True)
            ratio = median(whole / batches for whole, batches in pairs)
            print(
                f"{name}, {len(text)} sentences, {threads} thread(s): "
                + ", ".join(f"{side} {value:,.0f} words/s" for side, value in speed.items())
                + f"; forward is {ratio:.0%} of embed "
                f"(by the clock {speed['forward'] / speed['embed']:.0%})",
                flush=True,
            )
            bars.append(
                Bar(
                    f"forward on batches of 32 against embed, {name}, {threads} thread(s)",
                    ratio,
                    LEAST,
                    is_least=True,
                    ours=f"{speed['forward']:,.0f} words/s",
                    peer=", ".join(
                        f"{side} {speed[side]:,.0f} words/s" for side in speed if side != "forward"
                    ),
                )
            )
        shutil.rmtree(folder)
    if not PEER_PYTHON.is_file():
        print(f"allennlp skipped: there is no {PEER_PYTHON}")
    return conclude(options, {}, bars)


def take_turns(folder: Path, threads: int, rounds: int) -> tuple[Side, Side, list[Side]]:
    """`embed`, `forward` and, where it is there, AllenNLP over the same sentences."""
    where = str(folder), str(threads)
    python, ours = sys.executable, "side_embed_ours.py"
    embed = Side("embed", python, ours, *where, threads=threads)
    forward = Side("forward", python, ours, *where, "forward", threads=threads)
    peers = []
    if PEER_PYTHON.is_file():
        script = "side_embed_allennlp.py"
        peers.append(Side("allennlp", str(PEER_PYTHON), script, *where, threads=threads))
    sides = [embed, forward, *peers]
    for side in sides:
        side.warm_up(1)
    for _ in range(rounds):
        for side in sides:
            side.run(1)
    for side in sides:
        side.close()
    return embed, forward, peers


if __name__ == "__main__":
    sys.exit(main())
