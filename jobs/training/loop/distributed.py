"""The biLM inside torch's DistributedDataParallel, with buckets that stay as they are.

DDP sums gradients in buckets, and forms these anew after the first backward pass, by the order in
which gradients were ready. From three processes up another bucket is another order of sums, so a
resumed run would differ in the last digits. (`find_unused_parameters` avoids that too, but walks
through the graph in every step.) So two passes over a made-up window come first, which change
nothing.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.model.bilm import BiLM, States

PASSES = 2
"""Backward passes until the buckets are final."""


def distributed(bilm: BiLM, ranks: Ranks) -> DistributedDataParallel:
    """The model that exchanges its gradients; every process must call this."""
    device = ranks.device
    wrapped = DistributedDataParallel(
        bilm,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
    chars = bilm.encoder.ids(["a"]).to(device)
    index = torch.zeros(1, 2, dtype=torch.int64, device=device)
    for _ in range(PASSES):
        output = wrapped(chars, index, index, States.zeros(bilm.config, 1, device))
        (output.top_forward.sum() + output.top_backward.sum()).backward()
        for parameter in bilm.parameters():
            parameter.grad = None
    return wrapped
