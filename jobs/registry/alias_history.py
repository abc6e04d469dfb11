"""The history of an alias, kept in MLflow as one tag per move.

MLflow moves an alias and forgets where it was, and a server has no lock. So nobody rewrites a list:
every move is a tag of its own, with a key that no other move has, and the history is computed from
all of them. Two moves at the same instant write two tags, and neither can overwrite the other.

A move is noted before the alias is moved, and noted as done afterwards. One that was killed in
between counts only if the alias does point there. A rollback names the moves that it takes back.
A move also names the moves its command had seen. That tells two cases apart in which the alias does
not point to the newest entry: another move of the same instant came last (both entries stay), or
somebody has moved the alias back in MLflow itself (what was after it is taken back). And it names
the entries in the order it saw them: of two moves at once the one that came last stays the last,
also when the alias has moved on.

Keys sort by time, and a move sorts behind every move that it has seen, however the clocks of two
machines differ. Up to version 0.2 the history was a single tag with a list. It is still read, as
the beginning of the history, and never written again.

Nothing here speaks to MLflow; mlflow_registry.py does.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from elmwright.jobs.registry.contract import HISTORY

PREFIX = "elmwright.history."
"""Tags of a registered model: with an alias behind it, the list of old; with an alias, a dot and a
key, one move."""
SEEN = 50
"""Moves that a move says it has seen, the newest."""
ORDERED = 20
"""Entries whose order it notes, the newest: a tag's value has at most 5,000 characters."""
STALE_MS = 3_600_000
"""A tag that is no longer needed is removed when it is so old: its command has surely ended."""


@dataclass(frozen=True)
class Move:
    """One move of an alias."""

    key: str
    """Unique, and ordered by time."""
    to: int
    """The version that the alias was moved to."""
    done: bool = True
    """Whether the alias was moved, or only about to be."""
    undoes: tuple[str, ...] = ()
    """Keys of the moves that a rollback takes back."""
    seen: tuple[str, ...] = ()
    """Keys of the newest moves that were known when this one was made."""
    order: tuple[str, ...] = ()
    """Keys of the newest entries of the history then, in their order."""

    @property
    def value(self) -> str:
        """What its tag says."""
        return json.dumps({key: value for key, value in asdict(self).items() if key != "key"})

    def knew(self, key: str) -> bool:
        return key in self.seen or (len(self.seen) == SEEN and key < self.seen[0])


@dataclass(frozen=True)
class Entry:
    """A version in the history, with the keys of the moves that put it there; none if the alias was
    moved there by somebody else."""

    version: int
    keys: tuple[str, ...] = ()


def tag_name(alias: str, key: str) -> str:
    """The tag of a move."""
    return f"{PREFIX}{alias}.{key}"


@dataclass(frozen=True)
class History:
    """What an alias has pointed to, as far as tags and the alias itself tell."""

    alias: str
    holder: int | None
    """Where the alias points."""
    old: tuple[int, ...]
    """The list that versions up to 0.2 wrote."""
    moves: tuple[Move, ...]
    """All moves, in order."""

    @classmethod
    def read(cls, tags: Mapping[str, str], alias: str, holder: int | None) -> "History":
        """From the tags of a registered model, which anybody may have changed: what is not as we
        write it is left out."""
        prefix = tag_name(alias, "")
        found = [
            move
            for name, value in tags.items()
            if name.startswith(prefix) and (move := _move(name.removeprefix(prefix), value))
        ]
        old = _numbers(tags.get(f"{PREFIX}{alias}", "[]"))
        return cls(alias, holder, old, tuple(sorted(found, key=lambda move: move.key)))

    @property
    def counted(self) -> list[Move]:
        """Moves that took place: noted as done, or the alias points there."""
        there = [move for move in self.moves if move.to == self.holder][-1:]
        return [move for move in self.moves if move.done or move in there]

    @property
    def entries(self) -> list[Entry]:
        """The versions the alias has pointed to; the last is where it points now."""
        return _without_repeats(self._sorted_out[0])[-HISTORY:]

    @property
    def _sorted_out(self) -> tuple[list[Entry], list[Entry]]:
        """The entries of the history, and those that somebody took back in MLflow itself."""
        if self.holder is None:
            return [], []
        counted = self.counted
        gone = {key for move in counted for key in move.undoes}
        found = [Entry(version, (_old(n),)) for n, version in enumerate(self.old)]
        found += [Entry(move.to, (move.key,)) for move in counted if not move.undoes]
        found = [entry for entry in found if entry.keys[0] not in gone]
        for move in counted:
            found = _in_order(found, move.order)
        at = [n for n, entry in enumerate(found) if entry.version == self.holder]
        if not at:
            return [*found, Entry(self.holder)], []
        before, here, behind = found[: at[-1]], found[at[-1]], found[at[-1] + 1 :]
        # What put the alias where it is: the move of that entry, or a rollback to it.
        arrivals = [move.key for move in counted if move.to == self.holder]
        moves = {move.key: move for move in counted}

        def at_once(entry: Entry) -> bool:
            move = moves.get(entry.keys[0])
            return move is not None and bool(arrivals) and not move.knew(arrivals[-1])

        beside = [entry for entry in behind if at_once(entry)]
        return [*before, *beside, here], [entry for entry in behind if not at_once(entry)]

    def unsaid(self) -> list[Move]:
        """What has happened and is not noted yet: by a command that was killed, or by others.

        Everybody who finds it so gives it the same key: what they write is then one tag.
        """
        found = [replace(move, done=True) for move in self.counted if not move.done]
        entries, taken_back = self._sorted_out
        if self.holder is None or (entries[-1].keys and not taken_back):
            return found
        undoes = tuple(key for entry in taken_back for key in entry.keys)
        key = f"{self._newest:016d}-seen-{self.holder}"
        return [*found, Move(key, self.holder, True, undoes, *self._known)]

    def noted(self) -> "History":
        """The same when all that is unsaid has been noted."""
        moves = {move.key: move for move in (*self.moves, *self.unsaid())}
        return replace(self, moves=tuple(moves[key] for key in sorted(moves)))

    def move(self, versions: Sequence[int]) -> Move:
        """The move, not done yet, that makes the history `versions`: one more, or a rollback."""
        undoes: tuple[str, ...] = ()
        entries = self.entries
        if len(versions) < len(entries):
            left = list(versions)
            for entry in entries:
                if left and entry.version == left[0]:
                    left.pop(0)
                else:
                    undoes += entry.keys
        moment = max(int(time.time() * 1000), self._newest + 1)
        key = f"{moment:016d}-{secrets.token_hex(4)}"
        return Move(key, versions[-1], False, undoes, *self._known)

    def unneeded(self) -> list[str]:
        """Keys of old tags that tell nothing any more.

        A rollback stays until what it takes back is gone, or that would come back.
        """
        limit = int(time.time() * 1000) - STALE_MS
        counted = {move.key for move in self.counted}
        needed = {key for entry in self.entries for key in entry.keys}
        there = {move.key for move in self.moves} | {_old(n) for n in range(len(self.old))}
        return [
            move.key
            for move in self.moves
            if _moment(move.key) < limit
            and (
                not there.intersection(move.undoes)
                if move.undoes and move.key in counted
                else move.key not in needed
            )
        ]

    @property
    def _known(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a move made now has seen, and the order of the entries."""
        seen = tuple(move.key for move in self.counted)
        order = tuple(key for entry in self._sorted_out[0] for key in entry.keys)
        return seen[-SEEN:], order[-ORDERED:]

    @property
    def _newest(self) -> int:
        return max((_moment(move.key) for move in self.moves), default=0)


def _in_order(entries: list[Entry], order: Sequence[str]) -> list[Entry]:
    """The entries that `order` names, so ordered in the places they have; all others stay."""
    rank = {key: n for n, key in enumerate(order)}
    named = sorted(
        (entry for entry in entries if entry.keys[0] in rank), key=lambda one: rank[one.keys[0]]
    )
    following = iter(named)
    return [next(following) if entry.keys[0] in rank else entry for entry in entries]


def _without_repeats(entries: list[Entry]) -> list[Entry]:
    """One entry for neighbours of the same version."""
    kept: list[Entry] = []
    for entry in entries:
        if kept and kept[-1].version == entry.version:
            kept[-1] = Entry(entry.version, kept[-1].keys + entry.keys)
        else:
            kept.append(entry)
    return kept


def _old(number: int) -> str:
    """The key of an entry of the old list."""
    return f"old-{number}"


def _moment(key: str) -> int:
    return int(key.partition("-")[0])


def _move(key: str, value: str) -> Move | None:
    try:
        data = json.loads(value)
        _moment(key)
        order = data.get("order", ())  # which versions up to 0.3 did not note
        texts = [tuple(map(str, keys)) for keys in (data["undoes"], data["seen"], order)]
        return Move(key, int(data["to"]), bool(data["done"]), *texts)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _numbers(saved: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in json.loads(saved))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ()
