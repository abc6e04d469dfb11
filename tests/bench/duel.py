"""Two or more sides on one machine: started once, pinned to the same cores, then timed in turn.

Only one side works at a time. Other load on the machine comes and goes, so rounds alternate, and
each side is judged by its median round.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent


class Side:
    """One process that does as much as it is told, and says how long it took."""

    def __init__(self, name: str, python: str, script: str, *arguments: str, threads: int) -> None:
        self.name = name
        self.seconds: list[float] = []
        """Of each round, per step."""
        self.cpu: list[float] = []
        """Seconds of CPU time, where the script says them."""
        self.losses: list[float] = []
        """The last loss of each round, warm-up included."""
        self.gemms: list[float] = []
        """FLOP/s of a large product in this process, whenever it was asked."""
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

    def run(self, steps: int) -> None:
        """Time this many steps."""
        answer = self._ask(str(steps))
        self.seconds.append(answer["seconds"] / steps)
        self.cpu.append(answer.get("cpu", 0.0) / steps)
        self.losses.append(answer["loss"])

    def warm_up(self, steps: int) -> None:
        """The same without the time: libraries choose algorithms, and memory is allocated."""
        self.run(steps)
        self.seconds.clear()
        self.cpu.clear()

    def gemm(self) -> None:
        """Time a large product."""
        self.gemms.append(self._ask("gemm")["rate"])

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> str:
        """The slowest and the fastest round, as shares of the median's speed."""
        return f"{self.median / max(self.seconds):.0%}–{self.median / min(self.seconds):.0%}"

    def _ask(self, request: str) -> dict[str, float]:
        assert self.process.stdin is not None
        print(request, file=self.process.stdin, flush=True)
        answer: dict[str, float] = json.loads(self._answer())
        return answer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: the {self.name} side ended early; run {self.process.args} by hand")
        return line

    def close(self) -> None:
        self.process.communicate()
