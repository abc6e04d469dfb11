"""A running average of the weights, which is often a better model than the last weights are.

After update t the average moves towards the weights by 1/min(t, horizon): it is the plain mean of
all weights up to the horizon, and an exponential moving average after it.

The dense weights change with every update, and so do their averages. A row of the softmax changes
only when a step touches it. While it stays the same, its average approaches it by a known factor
(`share_left`), so an update computes the averages of the touched rows alone: first what they missed
since their last update, then the update itself. Each row has the number of that last update. The
average of all rows at one moment is computed into a copy (`Average.current_softmax`). If it were
computed in place, the later bits would depend on how often someone looked.

State is two flat dicts of tensors, one per file of a checkpoint. They hold the rows as they are,
with the number of the last update of each, so a resumed run has the same bits. A reader computes
the average at the checkpoint's step from them and the checkpoint's own softmax (`averaged`).
"""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor

from elmwright.model.bilm import BiLM
from elmwright.model.softmax import Softmax, parts_of_table

DENSE, ROWS = "average", "average_softmax"
"""Names of the two parts of the state, and of their files."""


class Average:
    """The average of the weights of a model that is being trained."""

    def __init__(self, bilm: BiLM, softmax: Softmax, horizon: int) -> None:
        """`bilm` and `softmax` are the live weights. `update` reads them."""
        self._live_bilm, self._live_softmax = bilm, softmax
        self.horizon = horizon
        self.updates = 0
        """Updates that are in the average."""
        self.bilm = deepcopy(bilm).requires_grad_(False)
        """The average of the dense weights."""
        self._rows = Softmax(softmax.weight.clone(), softmax.bias.clone())
        """The average of each softmax row at its own last update."""
        self._row_updates = torch.zeros(
            softmax.vocab_size, dtype=torch.int32, device=softmax.weight.device
        )

    @property
    def is_ready(self) -> bool:
        """Whether the horizon has passed. At that moment it is the mean of all weights so far, and
        from then on the share of the first ones shrinks."""
        return self.updates >= self.horizon

    @torch.no_grad()
    def update(self, rows: Tensor, before: Tensor) -> None:
        """Include the live weights, after an update of the softmax rows `rows`, which were
        the table `before` until then."""
        self.updates += 1
        weight = 1 / min(self.updates, self.horizon)
        for average, current in zip(
            self.bilm.parameters(), self._live_bilm.parameters(), strict=True
        ):
            average.lerp_(current, weight)
        since = self._row_updates.index_select(0, rows)
        left = share_left(since, self.updates - 1, self.horizon).to(before.dtype)
        live, own = self._live_softmax.state(), self._rows.state()
        parts = parts_of_table(before, self._rows.weight.size(1))
        for name, value in zip(own, parts, strict=True):
            share = left.unsqueeze(1) if name == "weight" else left
            row = torch.lerp(value, own[name].index_select(0, rows), share)
            own[name].index_copy_(0, rows, row.lerp_(live[name].index_select(0, rows), weight))
        self._row_updates.index_fill_(0, rows, self.updates)

    def current_softmax(self) -> Softmax:
        """A new softmax with the average of every row after the last update."""
        return averaged(self._live_softmax, self.state()[ROWS])

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything needed to resume, by file. The tensors are the live ones, not copies."""
        return {
            DENSE: {name: value.detach() for name, value in self.bilm.named_parameters()},
            ROWS: {
                **self._rows.state(),
                "row_updates": self._row_updates,
                "updates": torch.tensor(self.updates, dtype=torch.int64),
                "horizon": torch.tensor(self.horizon, dtype=torch.int64),
            },
        }

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy the values of another `state()`; the caller has compared names and shapes."""
        for part, tensors in self.state().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])
        self.updates = int(state[ROWS]["updates"])


def averaged(softmax: Softmax, rows: Mapping[str, Tensor]) -> Softmax:
    """The average of every row of a softmax, from the state of its average at the same step."""
    left = share_left(rows["row_updates"], int(rows["updates"]), int(rows["horizon"]))
    weight, bias = softmax.weight, softmax.bias
    return Softmax(
        torch.lerp(weight, rows["weight"], left.to(weight.dtype).unsqueeze(1)),
        torch.lerp(bias, rows["bias"], left.to(bias.dtype)),
    )


def share_left(since: Tensor, until: int, horizon: int) -> Tensor:
    """How much is left, after update `until`, of the distance between an average and its weights
    after update `since`, if the weights have not changed in between; in float64.

    The product of 1 − 1/min(k, horizon) for each update k after `since`: a ratio of counts up to
    the horizon, a power after it.
    """
    since = since.double()
    in_mean = since.clamp_max(horizon) / max(1, min(until, horizon))
    after = max(until, horizon) - since.clamp_min(horizon)
    return in_mean * (1 - 1 / horizon) ** after
