"""Our side of the training benchmark: `python side_ours.py WORKLOAD THREADS [PRECISION [DROPOUT]]`.

Each line on standard input is a number of steps, answered with the seconds taken and the last loss,
or "gemm", answered with the rate of a large product of float32.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from gemm import large_rate
from torch import Tensor

from elmwright.model.bilm import States
from elmwright.model.config import OptimConfig, Precision
from elmwright.model.dropout import dropout_masks
from elmwright.model.formats.folder import load_folder
from elmwright.model.optim import Optimizer, global_norm
from elmwright.model.precision import Operands
from elmwright.model.softmax import Negatives, Softmax, sampled_loss
from elmwright.pipeline.format.lanes import Stream, keyed_hash


class Trainer:
    """What `jobs/training/loop/train.py` does in one process, fed from the workload."""

    def __init__(
        self,
        folder: Path,
        words: int | None = None,
        precision: Precision = "fp32",
        dropout: float = 0.0,
    ) -> None:
        """`words` asks for a fresh softmax of that size in place of the workload's."""
        self.operands, self.dropout = Operands.of(precision), dropout
        self.work = dict(np.load(folder / "work.npz"))
        self.shape = json.loads((folder / "shape.json").read_text())
        self.bilm = load_folder(folder).bilm
        self.bilm.requires_grad_()
        weight = torch.from_numpy(self.work.pop("softmax"))
        self.softmax = Softmax(weight, torch.zeros(len(weight)))
        if words is not None:
            self.softmax = Softmax.create(words, weight.size(1), 0)
        settings = OptimConfig("adagrad", initial_accumulator=self.shape["accumulator"])
        params = dict(self.bilm.named_parameters())
        self.optimizer = Optimizer(params, self.softmax, settings)
        self.states = States.zeros(self.bilm.config, self.work["windows"].shape[1])
        self.done = 0

    def step(self) -> float:
        read = self.work["windows"][self.done]
        types, index = np.unique(read[:, 1:-1], return_inverse=True)
        forward = torch.from_numpy(index.reshape(len(read), -1))
        chars = torch.from_numpy(self.work["chars"][types])
        targets = torch.from_numpy(np.stack([read[:, 2:], read[:, :-2][:, ::-1]]))
        drawn = torch.from_numpy(self.work["negatives"][self.done])
        negatives = Negatives(drawn, int(self.work["tries"][self.done]))

        rows = torch.unique(torch.cat([targets.reshape(-1), negatives.ids]))
        table = self.softmax.table(rows).requires_grad_()
        lanes, window = forward.shape
        keys = [keyed_hash(1, Stream.DROPOUT, self.done, lane) for lane in range(lanes)]
        masks = dropout_masks(self.bilm.config, self.dropout, keys, window, torch.device("cpu"))
        rest = self.states, masks, None, None, self.operands
        out = self.bilm(chars, forward, forward.flip(1), *rest)
        hidden = torch.cat([out.top_forward, out.top_backward]).flatten(0, 1)
        weights, size = torch.ones(len(hidden)), self.softmax.vocab_size
        total = sampled_loss(
            *(hidden, targets.reshape(-1), weights, rows, table, negatives, size),
            self.operands.softmax,
        )
        loss = total / len(hidden)
        self.bilm.zero_grad()
        loss.backward()
        self._update(rows, table.grad)
        self.states = out.states.detach()
        self.done += 1
        return loss.item()

    def _update(self, rows: Tensor, table_grad: Tensor | None) -> None:
        grads = [p.grad for p in self.bilm.parameters() if p.grad is not None]
        norm, clip = float(global_norm(grads, table_grad)), self.shape["clip"]
        factor = clip / norm if norm > clip else 1.0
        self.optimizer.step(self.shape["lr"], factor, rows, table_grad)


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    precision: Precision = "bf16" if "bf16" in sys.argv else "fp32"
    dropout = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    trainer = Trainer(Path(sys.argv[1]), precision=precision, dropout=dropout)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "gemm":
            print(json.dumps({"rate": large_rate()}), flush=True)
            continue
        start = time.perf_counter()
        losses = [trainer.step() for _ in range(int(line))]
        answer = {"seconds": time.perf_counter() - start, "loss": losses[-1]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
