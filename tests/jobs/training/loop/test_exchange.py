"""What a process says of its peers when an exchange fails."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

from elmwright.jobs.training.loop.exchange import PeerLost, Positions, Ranks, TableExchange


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


class _Done:
    """An exchange that is over."""

    def wait(self) -> None:
        pass


def table_of_a_step() -> tuple[TableExchange, torch.Tensor]:
    table = torch.ones(3, requires_grad=True)
    return TableExchange(Ranks(0, 2), table), table


def test_the_table_of_a_step_is_freed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that is not removed keeps the table, and the table the hook: that grew by the size of
    both in every step."""
    monkeypatch.setattr(dist, "all_reduce", lambda *_args, **_options: _Done())
    exchange, table = table_of_a_step()
    exchange.is_last = True
    table.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(exchange.result(), torch.full((3,), 0.5))
    is_there = weakref.ref(table)
    del exchange, table
    gc.collect()
    assert is_there() is None


def test_a_gradient_that_was_not_sent_is_no_result() -> None:
    exchange, table = table_of_a_step()
    table.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(AssertionError, match="no backward pass was the last"):
        exchange.result()
