"""Two sides, one machine: started once, pinned to the same cores, then timed in turn.

Only one side works at a time. Other load on the machine comes and goes, so rounds alternate and
each side is judged by its median round; the ratio of the best rounds is printed beside it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from workload import PEER_PYTHON

HERE = Path(__file__).resolve().parent


class Side:
    """One process that runs as many steps as it is told."""

    def __init__(self, name: str, python: str, script: str, *arguments: str, threads: int) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        """Seconds of CPU time, where the script says them."""
        self.losses: list[float] = []
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
        command = [python, str(HERE / script), *arguments]
        if sys.platform == "linux":
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
            command = ["taskset", "-c", cores, *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()  # "ready"

    def run(self, steps: int) -> dict[str, float]:
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        answer: dict[str, float] = json.loads(self._answer())
        self.seconds.append(answer["seconds"] / steps)
        self.cpu.append(answer.get("cpu", 0.0) / steps)
        self.losses.append(answer["loss"])
        return answer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: the {self.name} side ended early; run {self.process.args} by hand")
        return line

    def close(self) -> None:
        self.process.communicate()


def training_duel(
    folder: Path,
    threads: int,
    rounds: int,
    steps: int,
    around: Callable[[], None] = lambda: None,
) -> tuple[Side, Side]:
    """Both sides over the same windows. The first step of each is not timed; `steps` steps of the
    peer are timed a round, and as many of ours: both see the same data. `around` is called before
    and after every timed run of ours, for what has to be measured under the same load."""
    arguments = str(folder), str(threads)
    ours = Side("elmwright", sys.executable, "side_ours.py", *arguments, threads=threads)
    peer = Side("allennlp", str(PEER_PYTHON), "side_allennlp.py", *arguments, threads=threads)
    for side in (ours, peer):
        side.run(1)
        side.seconds.clear()
    for _ in range(rounds):
        around()
        ours.run(steps)
        around()
        peer.run(steps)
    for side in (ours, peer):
        side.close()
    return ours, peer


def report(ours: Side, peer: Side, tokens: int, threads: int, target: float) -> bool:
    """Print tokens/s of each side and their ratio; true when the ratio reaches the target."""
    for side in (ours, peer):
        rates = (
            f"{tokens / median(side.seconds):7.0f} median, {tokens / min(side.seconds):7.0f} best"
        )
        print(
            f"  {side.name:10} {rates} tokens/s; loss {side.losses[0]:.6f} → {side.losses[-1]:.6f}"
        )
    ratio = median(peer.seconds) / median(ours.seconds)
    best = min(peer.seconds) / min(ours.seconds)
    same = abs(ours.losses[0] - peer.losses[0]) < 1e-4 * peer.losses[0]
    falls = all(side.losses[-1] < side.losses[0] for side in (ours, peer))
    print(
        f"  ratio {ratio:.2f} (median), {best:.2f} (best) on {threads} thread(s); target {target}; "
        f"first losses {'agree' if same else 'DIFFER'}, both {'fall' if falls else 'DO NOT FALL'}"
    )
    return ratio >= target and same and falls
