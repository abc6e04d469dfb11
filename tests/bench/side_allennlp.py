"""The peer's side of the training benchmark: the biLM assembled from AllenNLP's own modules.

Runs in AllenNLP's environment (Python 3.8), so it imports nothing of ours. Same protocol as
`side_ours.py`: WORKLOAD THREADS [PRECISION [DROPOUT]], of which it knows only "fp32", then requests
on standard input. Weights start from the workload's files, hence its losses must be ours. Dropout
is applied to the words and to the top outputs, two of the three places where ours is.
"""

import json
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from allennlp.modules.elmo_lstm import ElmoLstm
from allennlp.modules.seq2vec_encoders import CnnHighwayEncoder
from torch.nn.functional import cross_entropy


class Peer(torch.nn.Module):
    def __init__(self, folder, dropout):
        super().__init__()
        self.dropout = torch.nn.Dropout(dropout)
        shape = self.shape = json.loads((folder / "shape.json").read_text())
        work = self.work = dict(np.load(folder / "work.npz"))
        self.chars = torch.from_numpy(work["chars"].astype(np.int64))
        width, char_dim = shape["proj"], shape["char_dim"]
        self.embed = torch.nn.Embedding(262, char_dim)
        self.cnn = CnnHighwayEncoder(
            char_dim,
            shape["filters"],
            shape["highway"],
            width,
            activation="relu",
            do_layer_norm=False,
        )
        self.lstm = ElmoLstm(
            width,
            width,
            shape["dim"],
            2,
            requires_grad=True,
            memory_cell_clip_value=3.0,
            state_projection_clip_value=3.0,
        )
        self.weight = torch.nn.Parameter(torch.from_numpy(work["softmax"]))
        self.bias = torch.nn.Parameter(torch.zeros(len(self.weight)))
        self.lstm.load_weights(str(folder / "weights.hdf5"))
        self.load_encoder(folder / "weights.hdf5")
        self.optimizer = torch.optim.Adagrad(
            self.parameters(), lr=shape["lr"], initial_accumulator_value=shape["accumulator"]
        )
        self.done = 0

    def load_encoder(self, path):
        with h5py.File(path, "r") as file, torch.no_grad():

            def put(parameter, values):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))

            put(self.embed.weight[1:], file["char_embed"][...])
            self.embed.weight[0].zero_()
            for k, conv in enumerate(self.cnn._convolutions):
                put(conv.weight, file[f"CNN/W_cnn_{k}"][0].transpose(2, 1, 0))
                put(conv.bias, file[f"CNN/b_cnn_{k}"][...])
            for k, layer in enumerate(self.cnn._highways._layers):
                part = file[f"CNN_high_{k}"]  # its gate has the opposite sense
                put(layer.weight, np.vstack([part["W_transform"][...].T, -part["W_carry"][...].T]))
                put(layer.bias, np.hstack([part["b_transform"][...], -part["b_carry"][...]]))
            put(self.cnn._projection.weight, file["CNN_proj/W_proj"][...].T)
            put(self.cnn._projection.bias, file["CNN_proj/b_proj"][...])

    def log_expected(self, ids, tries):
        chance = torch.log1p(1 / (ids.double() + 1)) / np.log1p(len(self.weight))
        return torch.log(-torch.expm1(tries * torch.log1p(-chance))).float()

    def sampled(self, hidden, targets, ids, tries):
        true = (hidden * self.weight[targets]).sum(1) + self.bias[targets]
        true = true - self.log_expected(targets, tries)
        other = hidden @ self.weight[ids].t() + self.bias[ids] - self.log_expected(ids, tries)
        other = other.masked_fill(targets[:, None] == ids[None], -1e9)
        logits = torch.cat([true[:, None], other], 1)
        return cross_entropy(logits, torch.zeros_like(targets))

    def step(self):
        read = torch.from_numpy(self.work["windows"][self.done])
        rows, window = read[:, 1:-1].shape
        chars = self.chars[read[:, 1:-1].reshape(-1)]
        mask = torch.ones(chars.shape, dtype=torch.bool)
        words = self.cnn(self.embed(chars), mask).view(rows, window, -1)
        there = torch.ones(rows, window, dtype=torch.bool)
        top = self.dropout(self.lstm(self.dropout(words), there)[-1])
        forward, backward = top.reshape(rows * window, -1).chunk(2, 1)
        drawn = torch.from_numpy(self.work["negatives"][self.done]), self.work["tries"][self.done]
        loss = 0.5 * (
            self.sampled(forward, read[:, 2:].reshape(-1), *drawn)
            + self.sampled(backward, read[:, :-2].reshape(-1), *drawn)
        )
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters(), self.shape["clip"])
        self.optimizer.step()
        self.done += 1
        return loss.item()


def large_rate(size=4096):
    """FLOP/s of a large product, as gemm.py measures it for ours."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.mm(a, b)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def main():
    torch.set_num_threads(int(sys.argv[2]))
    peer = Peer(Path(sys.argv[1]), float(sys.argv[4]) if len(sys.argv) > 4 else 0.0)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "gemm":
            print(json.dumps({"rate": large_rate()}), flush=True)
            continue
        start = time.perf_counter()
        losses = [peer.step() for _ in range(int(line))]
        answer = {"seconds": time.perf_counter() - start, "loss": losses[-1]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
