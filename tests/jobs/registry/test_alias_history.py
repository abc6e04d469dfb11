"""No move of an alias is lost, however many happen at once."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient

from elmwright.jobs.publishing.promotion import rollback
from elmwright.jobs.registry.alias_history import PREFIX, SEEN, STALE_MS, History, Move, tag_name
from elmwright.jobs.registry.contract import HISTORY, Change
from elmwright.jobs.registry.mlflow_registry import ABOUT, MlflowRegistry
from tests.support.mistakes import mistake
from tests.support.servers import mlflow_server

pytestmark = pytest.mark.slow(14)

ALIAS = "champion"
AT_ONCE = 6


class Server:
    """The tags and one alias of a registered model, as a server would keep them."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.holder: int | None = None

    def history(self) -> History:
        return History.read(self.tags, ALIAS, self.holder)

    def versions(self) -> list[int]:
        return [entry.version for entry in self.history().entries]

    def note(self, move: Move) -> None:
        self.tags[tag_name(ALIAS, move.key)] = move.value

    def begin(self, versions: list[int], history: History | None = None) -> Move:
        history = history or self.history()
        for unnoted in history.unnoted():
            self.note(unnoted)
        move = history.with_unnoted().plan_move(versions)
        self.note(move)
        return move

    def end(self, move: Move) -> None:
        self.holder = move.to
        self.note(replace(move, done=True))

    def promote(self, version: int) -> None:
        self.end(self.begin([*self.versions(), version][-HISTORY:]))

    def rollback(self) -> None:
        self.end(self.begin(self.versions()[:-1]))


def test_moves_and_rollbacks_one_after_the_other() -> None:
    server = Server()
    for version in (1, 2, 3):
        server.promote(version)
    assert server.versions() == [1, 2, 3]
    server.rollback()
    assert server.versions() == [1, 2]
    server.promote(1)
    server.promote(4)
    assert server.versions() == [1, 2, 1, 4]
    for left in ([1, 2, 1], [1, 2], [1]):
        server.rollback()
        assert server.versions() == left


@given(st.permutations(range(2, 7)), st.permutations(range(2, 7)))
def test_of_moves_at_once_every_one_is_in_the_history(first: list[int], last: list[int]) -> None:
    server = Server()
    server.promote(1)
    seen = server.history()
    moves = {version: server.begin([1, version], seen) for version in first}
    for version in last:
        server.end(moves[version])
    assert sorted(server.versions()) == [1, 2, 3, 4, 5, 6]
    assert server.versions()[-1] == last[-1]
    order = server.versions()
    for version in (7, 8):  # the order that was seen stays
        server.promote(version)
        order.append(version)
        assert server.versions() == order
    while len(order) > 1:
        server.rollback()
        order.pop()
        assert server.versions() == order
    assert order == [1]


def test_a_rollback_and_a_promotion_at_once_lose_nothing() -> None:
    for promotion_is_last in (True, False):
        server = Server()
        for version in (1, 2, 3):
            server.promote(version)
        seen = server.history()
        back, on = server.begin([1, 2], seen), server.begin([1, 2, 3, 4], seen)
        for move in (back, on) if promotion_is_last else (on, back):
            server.end(move)
        order = [1, 2, 4] if promotion_is_last else [1, 4, 2]
        assert server.versions() == order
        server.promote(5)
        assert server.versions() == [*order, 5]
        server.rollback()
        assert server.versions() == order


def test_a_race_behind_the_list_of_earlier_versions_keeps_its_order() -> None:
    server = Server()
    server.tags[f"{PREFIX}{ALIAS}"] = "[1, 2, 3]"
    server.holder = 3
    seen = server.history()
    back, on = server.begin([1, 2], seen), server.begin([1, 2, 3, 4], seen)
    server.end(on)
    server.end(back)
    assert server.versions() == [1, 4, 2]
    server.promote(5)
    assert server.versions() == [1, 4, 2, 5]


def test_moves_of_a_version_that_noted_no_order_are_still_read() -> None:
    value = '{"to": 2, "done": true, "undoes": [], "seen": []}'
    tags = {tag_name(ALIAS, "0000000000000001-a"): value}
    assert [entry.version for entry in History.read(tags, ALIAS, 2).entries] == [2]
    assert len(History.read(tags, ALIAS, 2).moves) == 1


def test_a_killed_move_counts_only_if_the_alias_was_moved() -> None:
    server = Server()
    server.promote(1)
    move = server.begin([1, 2])
    assert server.versions() == [1]
    server.holder = move.to
    assert server.versions() == [1, 2]
    server.promote(3)  # which notes that 2 was there
    assert server.versions() == [1, 2, 3]
    server.begin([1, 2])
    assert server.versions() == [1, 2, 3]


def test_an_alias_that_others_have_moved() -> None:
    server = Server()
    server.holder = 7
    assert server.versions() == [7]
    server.promote(8)
    assert server.versions() == [7, 8]
    server.holder = 7  # somebody takes 8 back in MLflow's own pages
    assert server.versions() == [7]
    server.promote(10)
    assert server.versions() == [7, 10]
    server.holder = 9
    assert server.versions() == [7, 10, 9]
    server.rollback()
    assert server.versions() == [7, 10]


def test_the_list_that_earlier_versions_wrote_is_the_beginning() -> None:
    server = Server()
    server.tags[f"{PREFIX}{ALIAS}"] = "[1, 2, 3]"
    server.holder = 3
    assert server.versions() == [1, 2, 3]
    server.holder = 2
    assert server.versions() == [1, 2]
    server.promote(4)
    assert server.versions() == [1, 2, 4]
    server.rollback()
    server.rollback()
    assert server.versions() == [1]
    assert server.tags[f"{PREFIX}{ALIAS}"] == "[1, 2, 3]"


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        '{"to": "x"}',
        "[" * 5000,
        '{"to": 1, "done": 1}',
        "[1e999]",
        '{"to": Infinity, "done": true, "undoes": [], "seen": []}',
    ],
)
def test_tags_that_are_not_ours_are_left_out(value: str) -> None:
    tags = {tag_name(ALIAS, "x"): value, tag_name(ALIAS, "1-a"): value, f"{PREFIX}{ALIAS}": value}
    assert [entry.version for entry in History.read(tags, ALIAS, 3).entries] == [3]
    assert History.read(tags, ALIAS, None).entries == []


def test_a_long_history_is_cut_and_its_tags_are_removed_when_they_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [time.time()]
    monkeypatch.setattr("elmwright.jobs.registry.alias_history.time.time", lambda: now[0])
    server = Server()
    for version in range(1, HISTORY + 31):
        server.promote(version)
    server.rollback()
    assert server.versions() == list(range(30, HISTORY + 30))
    assert server.history().unneeded() == []  # a command of this moment may still be at it
    assert max(len(value) for value in server.tags.values()) < 5000
    assert len(server.history().moves[-1].seen) == SEEN
    now[0] += STALE_MS / 1000 + 60
    for _ in range(3):
        for key in server.history().unneeded():
            del server.tags[tag_name(ALIAS, key)]
        assert server.versions() == list(range(30, HISTORY + 30))
    assert len(server.tags) == HISTORY


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as uri:
        yield uri


def published(uri: str, name: str, versions: int) -> MlflowClient:
    """A registered model with versions that say they are ours."""
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model(name)
    facts = {
        "digest": "0",
        "step": 1,
        "perplexity": {},
        "vocab_sha256": "",
        "heldout_sha256": {},
        "corpus_fingerprint": "",
        "run_id": "",
        "signed": False,
    }
    for _ in range(versions):
        client.create_model_version(name, "s3://nowhere/model", tags={ABOUT: json.dumps(facts)})
    return client


def at_once(uri: str, name: str, versions: list[int]) -> None:
    """Promote them all; every command has read the history before the first one moves."""
    barrier, problems = threading.Barrier(len(versions)), list[BaseException]()

    def one_more(version: int) -> Change:
        def change(history: list[int]) -> list[int]:
            barrier.wait(60)
            return [*history, version]

        return change

    def move(version: int) -> None:
        try:
            MlflowRegistry(uri).point(name, ALIAS, one_more(version))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=move, args=(version,)) for version in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_promotions_at_the_same_instant_are_all_in_the_history_of_a_server(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = published(server, "tiny", AT_ONCE + 1)
    client.set_registered_model_tag("tiny", f"{PREFIX}{ALIAS}", "[1]")  # by an earlier version
    client.set_registered_model_alias("tiny", ALIAS, "1")
    registry = MlflowRegistry(server)
    at_once(server, "tiny", list(range(2, AT_ONCE + 2)))
    history = registry.history("tiny", ALIAS)
    assert sorted(history) == list(range(1, AT_ONCE + 2))
    assert history[-1] == int(client.get_model_version_by_alias("tiny", ALIAS).version)
    monkeypatch.setattr(registry, "fetch", lambda *_: Path())  # there are no files behind these
    for expected in reversed(history[:-1]):
        assert f"version {expected} of tiny again" in rollback(registry, "tiny", ALIAS)
        assert int(client.get_model_version_by_alias("tiny", ALIAS).version) == expected
    with mistake("alias", ALIAS, "tiny"):
        rollback(registry, "tiny", ALIAS)


def test_an_alias_of_the_greatest_length_has_a_history_on_a_server(server: str) -> None:
    alias = "a" * 100
    published(server, "long", 2)
    registry = MlflowRegistry(server)
    for version in (1, 2):
        registry.point("long", alias, lambda history, version=version: [*history, version])
    assert registry.history("long", alias) == [1, 2]
