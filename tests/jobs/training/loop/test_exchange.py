"""What a process says of its peers when an exchange fails."""

import pytest
import torch
import torch.distributed as dist

from elmwright.jobs.training.loop.exchange import PeerLost, Positions, Ranks


def test_without_the_private_store_of_torch_a_lost_peer_has_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_get_default_store")
    positions = Positions(Ranks(0, 2))
    positions.publish(1234, 2)
    lost = positions.blame(RuntimeError("Connection closed by peer"))
    assert isinstance(lost, PeerLost)
    assert "step 1,234 was not answered" in str(lost)
    assert f"torch {torch.__version__} does not report which process" in str(lost)
    assert positions.blame(RuntimeError("shapes do not fit")) is None
    assert Positions(Ranks()).blame(RuntimeError("Connection closed by peer")) is None
