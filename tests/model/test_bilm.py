"""The biLM as training uses it: windows, dropout, several processes."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elmwright.model.bilm import BiLM, States
from elmwright.model.chars import char_ids
from elmwright.model.dropout import dropout_masks
from tests.support.shapes import TINY

pytestmark = pytest.mark.slow(3)

WORDS = ["<S>", "</S>", "a", "few", "different", "words", "Łódź"]


@pytest.fixture
def batch():
    index = torch.randint(0, len(WORDS), (3, 8), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(char_ids(WORDS, TINY.max_chars)), index, index.flip(1)


def test_windows_equal_the_whole(batch):
    bilm, (chars, forward, backward) = BiLM(TINY, 0), batch
    whole = bilm(chars, forward, backward, States.zeros(TINY, 3))
    states, tops = States.zeros(TINY, 3), []
    for part in (slice(0, 3), slice(3, 8)):
        output = bilm(chars, forward[:, part], backward[:, part], states)
        states = output.states.detach()
        tops.append(output.top_backward)
    torch.testing.assert_close(torch.cat(tops, 1), whole.top_backward)
    torch.testing.assert_close((states.c, states.m), (whole.states.c, whole.states.m))


def test_rows_do_not_see_each_other(batch):
    bilm, (chars, forward, backward) = BiLM(TINY, 0), batch
    states = States(torch.randn(2, 2, 3, TINY.dim), torch.randn(2, 2, 3, TINY.projection_dim))
    whole = bilm(chars, forward, backward, states)
    alone = bilm(chars, forward[1:2], backward[1:2], states.rows(slice(1, 2)))
    torch.testing.assert_close(alone.top_forward, whole.top_forward[1:2])
    torch.testing.assert_close(alone.states.c, whole.states.rows(slice(1, 2)).c)


def test_dropout_is_on_every_layer_input_and_the_top(batch):
    bilm, (chars, forward, backward) = BiLM(TINY, 0), batch
    masks = dropout_masks(TINY, 0.3, [1, 2, 3], 8)
    types, states = bilm.encoder(chars), States.zeros(TINY, 3)
    got = bilm.run(types, forward, backward, states, masks, all_layers=True)
    keep = [mask.transpose(1, 2) for mask in masks]
    assert got.layers[0].shape == (2, 3, 8, TINY.projection_dim)
    torch.testing.assert_close(got.top_forward, got.layers[-1][0] * keep[-1][0])
    # The residual adds the dropped input: without the LSTM's own part it is all that is left.
    with torch.no_grad():
        bilm.lstm[1].w_proj.zero_()
    types, states = bilm.encoder(chars), States.zeros(TINY, 3)
    got = bilm.run(types, forward, backward, states, masks, all_layers=True)
    torch.testing.assert_close(got.layers[2], got.layers[1] * keep[1])


def test_the_dropout_of_a_lane_does_not_depend_on_other_lanes():
    together = dropout_masks(TINY, 0.1, [11, 12, 13, 14], 20)
    apart = [dropout_masks(TINY, 0.1, seeds, 20) for seeds in ([11, 12, 13], [14])]
    assert len(together) == TINY.n_layers + 1
    for site, mask in enumerate(together):
        assert torch.equal(mask, torch.cat([part[site] for part in apart], dim=2))
    values = torch.stack(together)
    assert values.unique().tolist() == pytest.approx([0, 1 / 0.9], rel=1e-4)
    assert values.mean().item() == pytest.approx(1, abs=0.02)
    assert not torch.equal(together[0][0], together[0][1])  # directions differ
    assert dropout_masks(TINY, 0.0, [1], 20) is None


def test_ddp_finds_every_gradient(batch, tmp_path, monkeypatch):
    plain, wrapped = BiLM(TINY, 0), BiLM(TINY, 0)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        hooked = []
        ddp = DistributedDataParallel(
            wrapped, find_unused_parameters=True, gradient_as_bucket_view=True
        )

        def hook(_state, bucket):
            hooked.extend(bucket.parameters())
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        ddp.register_comm_hook(None, hook)
        for model in (plain, ddp):
            output = model(*batch, States.zeros(TINY, 3))
            (output.top_forward.sum() + output.top_backward.square().sum()).backward()
    finally:
        dist.destroy_process_group()
    assert {id(p) for p in hooked} == {id(p) for p in wrapped.parameters()}
    for a, b in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert a.grad.any()
        torch.testing.assert_close(a.grad, b.grad)


def test_every_step_gives_the_same_bits(batch):
    def gradients():
        bilm = BiLM(TINY, 0)
        output = bilm(*batch, States.zeros(TINY, 3), dropout_masks(TINY, 0.1, [1, 2, 3], 8))
        (output.top_forward.sum() + output.top_backward.sum()).backward()
        return [p.grad for p in bilm.parameters()]

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
