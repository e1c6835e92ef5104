"""A node of a Redis cluster in memory: whose slots are, as it knows, and what it says to who asks for a key.

Nodes tell each other what is theirs (`hear`). Of two that claim a slot the one with the later config epoch has it; a
primary without slots follows who has taken the last one. What it has in common with real clusters
`tests/proof/memory/test_redis_cluster.py` runs on both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from deelog_proof.memory.redis_keyspace import Refused, Words
from deelog_schemas.keys import slot_of

_KEYS: Final = {
    b"MSET": slice(1, None, 2),
    b"DEL": slice(1, None),
    b"UNLINK": slice(1, None),
    b"EXISTS": slice(1, None),
    b"RENAME": slice(1, 3),
    b"MEMORY": slice(2, 3),
}
"""Where the keys of a command are, if it has others than its first argument."""
_KEYLESS: Final = frozenset(
    b"FLUSHDB FLUSHALL SCAN CLUSTER PING ROLE INFO MULTI EXEC ASKING MIGRATE REPLCONF PSYNC SELECT".split()
)


def keys_of(words: Words) -> list[bytes]:
    """The keys that a command names."""
    name = words[0].upper()
    return [] if name in _KEYLESS else list(words[_KEYS.get(name, slice(1, 2))])


@dataclass
class Member:
    """One node, as a node knows it."""

    id: str
    port: int
    follows: str = ""
    """The id of its primary."""
    epoch: int = 0
    slots: set[int] = field(default_factory=set)


class ClusterNode:
    """See the module. It is what a node keeps when it ends, too."""

    def __init__(self, id_: str, port: int) -> None:
        self.me = Member(id_, port)
        self.members = {id_: self.me}
        """By id."""
        self.epoch = 0
        """The latest that it has heard of."""
        self.moving: dict[int, str] = {}
        """The slots that it gives away, with the ids of those who get them."""
        self.coming: dict[int, str] = {}
        """Those that it gets, with the ids of those who have them."""

    def owner(self, slot: int) -> Member | None:
        """Who has a slot, as far as this node knows."""
        return next((member for member in self.members.values() if slot in member.slots), None)

    def refuses(self, words: Words, there: Collection[bytes], asking: bool) -> Refused | None:
        """What it says where it does not carry a command out; `there` are the keys that it has."""
        keys = keys_of(words)
        slots = {slot_of(key) for key in keys}
        if not slots:
            return None
        if len(slots) > 1:
            return Refused("CROSSSLOT Keys in request don't hash to the same slot")
        (slot,) = slots
        owner, missing = self.owner(slot), [key for key in keys if key not in there]
        if owner is None:
            return Refused("CLUSTERDOWN Hash slot not served")
        if owner is not self.me:
            if not (asking and slot in self.coming and not self.me.follows):
                return Refused(f"MOVED {slot} 127.0.0.1:{owner.port}")
            return Refused("TRYAGAIN Multiple keys request during rehashing of slot") if missing and keys[1:] else None
        if slot in self.moving and missing:
            if len(missing) < len(keys):
                return Refused("TRYAGAIN Multiple keys request during rehashing of slot")
            return Refused(f"ASK {slot} 127.0.0.1:{self.members[self.moving[slot]].port}")
        return None

    def nodes(self) -> bytes:
        """What CLUSTER NODES answers."""
        return "".join(f"{self._line(member)}\n" for member in self.members.values()).encode()

    def _line(self, member: Member) -> str:
        flags = ("myself," if member is self.me else "") + ("slave" if member.follows else "master")
        words = [member.id, f"127.0.0.1:{member.port}@{member.port + 10000}", flags, member.follows or "-"]
        words += ["0", "0", str(member.epoch), "connected", *_ranges(member.slots)]
        if member is self.me:
            words += [f"[{slot}->-{id_}]" for slot, id_ in self.moving.items()]
            words += [f"[{slot}-<-{id_}]" for slot, id_ in self.coming.items()]
        return " ".join(words)

    # -- what changes it ----------------------------------------------------------------------------------------------

    def set_slot(self, slot: int, what: str, id_: str = "") -> None:
        """CLUSTER SETSLOT. Raises `Refused`."""
        mine = slot in self.me.slots
        match what:
            case "MIGRATING" if mine:
                self.moving[slot] = id_
            case "IMPORTING" if not mine and not self.me.follows:
                self.coming[slot] = id_
            case "STABLE":
                self.moving.pop(slot, None)
                self.coming.pop(slot, None)
            case "NODE" if id_ in self.members:
                latest = max(member.epoch for member in self.members.values())
                if id_ == self.me.id and slot in self.coming and not 0 < self.me.epoch == latest:
                    self._rises()
                self._given(slot, id_)
            case _:
                raise Refused(f"ERR SETSLOT {slot} {what} is not for this node now")

    def _given(self, slot: int, id_: str) -> None:
        for member in self.members.values():
            member.slots.discard(slot)
        self.members[id_].slots.add(slot)
        if id_ != self.me.id:
            self.moving.pop(slot, None)
        else:
            self.coming.pop(slot, None)

    def _rises(self) -> None:
        self.epoch += 1
        self.me.epoch = self.epoch

    def lead(self) -> None:
        """It takes the place of the one that it follows: CLUSTER FAILOVER TAKEOVER."""
        former = self.members[self.me.follows]
        self.me.follows = ""
        self._rises()
        for slot in list(former.slots):
            self._given(slot, self.me.id)

    def follow(self, id_: str) -> None:
        """CLUSTER REPLICATE. Whose its slots are it hears."""
        self.me.slots.clear()
        self.me.follows = id_
        self.moving.clear()
        self.coming.clear()

    def hear(self, other: ClusterNode) -> tuple[str, set[int]]:
        """What another node says of itself. Returns whom this one follows from now on, if any, and slots it lost."""
        its, me = other.me, self.me
        self.epoch = max(self.epoch, other.epoch)
        known = self.members.setdefault(its.id, Member(its.id, its.port))
        known.follows = its.follows
        if its.follows:
            known.slots.clear()
            # Nobody follows a replica.
            return (its.follows if me.follows == its.id and its.follows != me.id else ""), set()
        known.epoch = its.epoch
        if its.epoch == me.epoch and not me.follows and me.id < its.id:
            self._rises()
        primary = self.members[me.follows] if me.follows else me
        had, lost = len(primary.slots), set[int]()
        known.slots &= its.slots  # real nodes may go on to believe what nobody claims
        for slot in its.slots:
            owner = self.owner(slot)
            if owner is None or (owner is not known and owner.epoch < its.epoch):
                if owner is primary:
                    lost.add(slot)
                self._given(slot, its.id)
        if had and not primary.slots:
            return its.id, lost
        return "", lost if primary is me else set()


def _ranges(slots: Iterable[int]) -> list[str]:
    found = []
    for _, group in groupby(enumerate(sorted(slots)), lambda pair: pair[1] - pair[0]):
        run = [slot for _, slot in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return found
