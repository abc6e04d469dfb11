"""The history of an alias, stored in MLflow as one tag per move.

MLflow does not remember where an alias has pointed, and a server has no locks. So no list is ever
rewritten: every move is a tag with a key of its own, and the history is computed from all of them.
Simultaneous moves write different tags, and neither can overwrite the other.

A move is noted before the alias is moved, and noted as done afterwards. One that was killed in
between counts only if the alias does point there. A rollback names the moves that it undoes.

A move also names the moves that its command had seen. That distinguishes two cases in which the
alias does not point to the newest entry: a simultaneous move came last (both entries stay), or
somebody has moved the alias back in MLflow itself (later entries are undone). And it names the
entries in the order that its command saw, so that this order stays when the alias moves again.

Keys sort by time, and a move sorts after every move that it has seen, even if the clocks of two
machines differ. Early versions wrote a single tag with a list. It is read as the beginning of the
history, and never written. `mlflow_registry.py` reads and writes the tags.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elmwright.jobs.registry.contract import HISTORY
from elmwright.pipeline.records import from_data, to_data

PREFIX = "elmwright.history."
"""Tags of a registered model: followed by an alias, the early list; by an alias, a dot and a key,
one move."""
SEEN = 50
"""How many of the newest moves a move names as seen."""
ORDERED = 20
"""How many of the newest entries it names in order. A tag's value has at most 5,000 characters."""
STALE_MS = 3_600_000
"""Age at which an unneeded tag is removed: no command still uses it."""


@dataclass(frozen=True)
class Move:
    """One move of an alias."""

    key: str
    """Unique, and ordered by time: it begins with milliseconds."""
    to: int
    """The version that the alias was moved to."""
    done: bool
    """Whether the alias was moved, or only about to be."""
    undoes: tuple[str, ...] = ()
    """Keys of the moves that a rollback undoes."""
    seen: tuple[str, ...] = ()
    """Keys of the newest moves that its command had seen."""
    order: tuple[str, ...] = ()
    """Keys of the newest entries of the history then, in their order."""

    @property
    def value(self) -> str:
        """The value of its tag."""
        data = to_data(self)
        del data["key"]
        return json.dumps(data)

    def knew(self, key: str) -> bool:
        return key in self.seen or (len(self.seen) == SEEN and key < self.seen[0])


@dataclass(frozen=True)
class Entry:
    """A version in the history, with the keys of the moves that put it there; no keys if the alias
    was moved there in MLflow itself."""

    version: int
    keys: tuple[str, ...] = ()


def tag_name(alias: str, key: str) -> str:
    """The name of a move's tag."""
    return f"{PREFIX}{alias}.{key}"


@dataclass(frozen=True)
class History:
    """The versions that an alias has pointed to, according to tags and the alias itself."""

    holder: int | None
    """The version that the alias points to."""
    early: tuple[int, ...]
    """The list that early versions wrote."""
    moves: tuple[Move, ...]
    """All moves, in order."""

    @classmethod
    def read(cls, tags: Mapping[str, str], alias: str, holder: int | None) -> "History":
        """From the tags of a registered model. Tags that are not as we write them are ignored:
        anybody may have changed them."""
        prefix = tag_name(alias, "")
        moves = [
            move
            for name, value in tags.items()
            if name.startswith(prefix) and (move := _parse_move(name.removeprefix(prefix), value))
        ]
        early = _parse_early(tags.get(f"{PREFIX}{alias}", "[]"))
        return cls(holder, early, tuple(sorted(moves, key=lambda move: move.key)))

    @property
    def counted(self) -> list[Move]:
        """Moves that took place: noted as done, or the newest one to where the alias points."""
        last = [move for move in self.moves if move.to == self.holder][-1:]
        return [move for move in self.moves if move.done or move in last]

    @property
    def entries(self) -> list[Entry]:
        """The versions that the alias has pointed to; the last is where it points now."""
        merged: list[Entry] = []
        for entry in self._sorted_out[0]:
            if merged and merged[-1].version == entry.version:
                merged[-1] = Entry(entry.version, merged[-1].keys + entry.keys)
            else:
                merged.append(entry)
        return merged[-HISTORY:]

    @property
    def _sorted_out(self) -> tuple[list[Entry], list[Entry]]:
        """The entries of the history, and those that were undone in MLflow itself."""
        if self.holder is None:
            return [], []
        counted = self.counted
        undone = {key for move in counted for key in move.undoes}
        entries = [Entry(version, (_early_key(n),)) for n, version in enumerate(self.early)]
        entries += [Entry(move.to, (move.key,)) for move in counted if not move.undoes]
        entries = [entry for entry in entries if entry.keys[0] not in undone]
        for move in counted:
            entries = _in_order(entries, move.order)
        places = [n for n, entry in enumerate(entries) if entry.version == self.holder]
        if not places:
            return [*entries, Entry(self.holder)], []
        place = places[-1]
        # The last move to where the alias points: that of its entry, or a rollback to it.
        arrivals = [move.key for move in counted if move.to == self.holder]
        moves = {move.key: move for move in counted}

        def is_simultaneous(entry: Entry) -> bool:
            move = moves.get(entry.keys[0])
            return move is not None and bool(arrivals) and not move.knew(arrivals[-1])

        later = entries[place + 1 :]
        simultaneous = [entry for entry in later if is_simultaneous(entry)]
        undone_elsewhere = [entry for entry in later if not is_simultaneous(entry)]
        return [*entries[:place], *simultaneous, entries[place]], undone_elsewhere

    def unnoted(self) -> list[Move]:
        """Moves that took place without being noted: by a command that was killed, or by others.

        Every command gives them the same keys, so that what they write is one tag.
        """
        moves = [replace(move, done=True) for move in self.counted if not move.done]
        entries, undone = self._sorted_out
        if self.holder is None or (entries[-1].keys and not undone):
            return moves
        undoes = tuple(key for entry in undone for key in entry.keys)
        key = f"{self._newest:016d}-seen-{self.holder}"
        return [*moves, Move(key, self.holder, True, undoes, *self._known)]

    def with_unnoted(self) -> "History":
        """The history after all unnoted moves have been noted."""
        moves = {move.key: move for move in (*self.moves, *self.unnoted())}
        return replace(self, moves=tuple(moves[key] for key in sorted(moves)))

    def plan_move(self, versions: Sequence[int]) -> Move:
        """The move, not done yet, that makes the history `versions`: one more, or a rollback."""
        undoes: tuple[str, ...] = ()
        entries = self.entries
        if len(versions) < len(entries):
            remaining = list(versions)
            for entry in entries:
                if remaining and entry.version == remaining[0]:
                    remaining.pop(0)
                else:
                    undoes += entry.keys
        moment = max(int(time.time() * 1000), self._newest + 1)
        key = f"{moment:016d}-{secrets.token_hex(4)}"
        return Move(key, versions[-1], False, undoes, *self._known)

    def unneeded(self) -> list[str]:
        """Keys of old tags that no longer matter.

        A rollback stays as long as a move that it undoes, which would otherwise count again.
        """
        limit = int(time.time() * 1000) - STALE_MS
        counted = {move.key for move in self.counted}
        needed = {key for entry in self.entries for key in entry.keys}
        existing = {move.key for move in self.moves} | set(map(_early_key, range(len(self.early))))
        unneeded = []
        for move in self.moves:
            if move.undoes and move.key in counted:
                is_needed = not existing.isdisjoint(move.undoes)
            else:
                is_needed = move.key in needed
            if _parse_moment(move.key) < limit and not is_needed:
                unneeded.append(move.key)
        return unneeded

    @property
    def _known(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a move made now has seen, and the order of the entries."""
        seen = tuple(move.key for move in self.counted)
        order = tuple(key for entry in self._sorted_out[0] for key in entry.keys)
        return seen[-SEEN:], order[-ORDERED:]

    @property
    def _newest(self) -> int:
        return max((_parse_moment(move.key) for move in self.moves), default=0)


def _in_order(entries: list[Entry], order: Sequence[str]) -> list[Entry]:
    """The entries, those that `order` names rearranged among their places; the others stay."""
    rank = {key: n for n, key in enumerate(order)}
    named = [entry for entry in entries if entry.keys[0] in rank]
    following = iter(sorted(named, key=lambda entry: rank[entry.keys[0]]))
    return [next(following) if entry.keys[0] in rank else entry for entry in entries]


def _early_key(number: int) -> str:
    """The key of an entry of the early list."""
    return f"old-{number}"


def _parse_moment(key: str) -> int:
    return int(key.partition("-")[0])


def _parse_move(key: str, value: str) -> Move | None:
    try:
        _parse_moment(key)
        return from_data(Move, {**json.loads(value), "key": key}, ignore_unknown=True)
    except (ValueError, TypeError, RecursionError):
        return None


def _parse_early(value: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in json.loads(value))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ()
