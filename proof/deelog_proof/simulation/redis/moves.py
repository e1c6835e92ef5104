"""Slots of a cluster that move key by key, as `redis-cli` moves them, whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.network import Network
from deelog_proof.memory.redis_cluster import ClusterNode
from deelog_proof.memory.redis_keyspace import Refused
from deelog_proof.simulation.redis.server import Server
from deelog_schemas.keys import slot_of

_SECONDS: Final = (0.002, 0.02, 0.1)
"""Until the next key goes."""


@dataclass(slots=True)
class Move:
    """Of a slot, between two shards; `back`: it was given up."""

    source: int
    target: int
    back: bool = False


class Shards(Protocol):
    """What moves need of a world."""

    engine: Engine
    network: Network
    counts: Counter[str]
    shards: int

    def leader(self, shard: int) -> Server: ...


class Moves:
    """Those under way, by slot."""

    def __init__(self, world: Shards) -> None:
        self._world = world
        self._chance = world.engine.stream("moves")
        self.under_way: dict[int, Move] = {}

    def slots_of(self, shard: int) -> set[int]:
        """What a shard has, be it on its way."""
        return self._known(shard).me.slots

    def begin(self, slot: int, target: int) -> bool:
        """Moves a slot to a shard; False where that has it, where it moves already, and where nothing would be left."""
        owners = [shard for shard in range(self._world.shards) if slot in self.slots_of(shard)]
        if len(owners) != 1 or owners[0] == target or slot in self.under_way:
            return False
        leave = sum(move.source == owners[0] for move in self.under_way.values())
        if len(self.slots_of(owners[0])) - leave < 2:
            return False
        self.under_way[slot] = Move(owners[0], target)
        self._step(slot)
        return True

    def abort(self, slot: int) -> bool:
        """What has gone comes back; False where nothing moves."""
        move = self.under_way.get(slot)
        if move is None or move.back:
            return False
        move.back = True
        return True

    def _known(self, shard: int) -> ClusterNode:
        known = self._world.leader(shard).redis.cluster
        assert known is not None
        return known

    def _step(self, slot: int) -> None:
        move = self.under_way[slot]
        source, target = self._world.leader(move.source), self._world.leader(move.target)
        works = _serves(source) and _serves(target) and not self._is_cut(source, target)
        goes = self._goes_back if move.back else self._goes_on
        if works and goes(slot, move, source, target):
            del self.under_way[slot]
            self._world.counts["moves ended"] += not move.back
        else:
            self._world.engine.after(self._chance.choice(_SECONDS), self._step, slot)

    def _is_cut(self, one: Server, other: Server) -> bool:
        pair = one.node_id, other.node_id
        return self._world.network.is_cut(pair) or self._world.network.is_cut((pair[1], pair[0]))

    def _goes_on(self, slot: int, move: Move, source: Server, target: Server) -> bool:
        """The next key; whether there was none, and the slot is the target's."""
        its, to = self._known(move.source), self._known(move.target)
        if slot not in to.me.slots:
            target.loop.within(target.redis.hear, its)  # its epoch is to be the later one
            to.set_slot(slot, "IMPORTING", its.me.id)
            its.set_slot(slot, "MIGRATING", to.me.id)
            if _moves_one(slot, source, target):
                return False
            to.set_slot(slot, "NODE", to.me.id)
        if slot in its.me.slots:
            its.set_slot(slot, "NODE", to.me.id)
        return True

    def _goes_back(self, slot: int, move: Move, source: Server, target: Server) -> bool:
        its, to = self._known(move.source), self._known(move.target)
        if slot in to.me.slots:  # it is too late
            move.back = False
            return True
        its.set_slot(slot, "STABLE")
        if _moves_one(slot, target, source):
            return False
        to.set_slot(slot, "NODE", its.me.id)
        return True


def _serves(server: Server) -> bool:
    return server.alive and not server.paused and server.redis.primary is None


def _moves_one(slot: int, source: Server, target: Server) -> bool:
    """Moves a key of a slot; False where there is none. What the other side has already goes."""
    key = next((key for key in source.redis.keyspace.databases[0] if slot_of(key) == slot), None)
    if key is None:
        return False
    try:
        source.loop.within(source.redis.migrate, target.redis.port, key)
    except Refused as error:
        if "BUSYKEY" not in str(error):
            raise
        source.loop.within(source.redis.forget, [key])
    return True
