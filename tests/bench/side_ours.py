"""Our side of the training benchmark: `python side_ours.py WORKLOAD THREADS`, then a number of
steps a line on standard input; each line is answered with the seconds taken and the last loss."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elmwright.model.bilm import States
from elmwright.model.config import OptimConfig
from elmwright.model.formats.folder import load_folder
from elmwright.model.optim import Optimizer, global_norm
from elmwright.model.softmax import Negatives, Softmax, sampled_loss


class Trainer:
    """What `jobs/training/loop/train.py` does in one process, fed from the workload."""

    def __init__(self, folder: Path, words: int | None = None) -> None:
        """`words` asks for a fresh softmax of that size in place of the workload's."""
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
        out = self.bilm(chars, forward, forward.flip(1), self.states)
        hidden = torch.cat([out.top_forward, out.top_backward]).flatten(0, 1)
        weights, size = torch.ones(len(hidden)), self.softmax.vocab_size
        total = sampled_loss(hidden, targets.reshape(-1), weights, rows, table, negatives, size)
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
    trainer = Trainer(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        losses = [trainer.step() for _ in range(int(line))]
        answer = {"seconds": time.perf_counter() - start, "loss": losses[-1]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
