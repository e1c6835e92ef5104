"""One run on servers of Redis, each with the connector that ships beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Final

from deelog_connector.runtime import Connector
from deelog_proof.memory.redis_cluster import ClusterNode
from deelog_proof.memory.redis_keyspace import Refused, Reply, Words
from deelog_proof.memory.redis_server import Saved
from deelog_proof.simulation.hosted import Hosted
from deelog_proof.simulation.language import Settings
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.checker import RedisChecker
from deelog_proof.simulation.redis.moves import Moves
from deelog_proof.simulation.redis.server import HOST, Server, id_of, port_of, server_at
from deelog_proof.simulation.redis.verbs import TAGS
from deelog_proof.simulation.redis.watcher import MASTER, Watcher, watched_at
from deelog_proof.simulation.run import Run, connector_fields
from deelog_proof.simulation.script import Script
from deelog_schemas.config import parse
from deelog_schemas.keys import SLOTS, slot_of

_APART: Final = "/"
"""Between the commands of a transaction."""


class RedisWorld(Run[Hosted]):
    """Call `run()` once."""

    checker: RedisChecker

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._fields = _fields(script.settings)
        self.config = parse({**self._fields, "node.id": "c1"})
        self._backlog = script.settings["backlog"]
        self._starts = Counter[str]()
        self.saved: dict[str, Saved] = {}
        self.shards = script.settings["shards"]
        numbers = range(1, script.settings["servers"] + 1)
        self._known = self._cluster([f"r{number}" for number in numbers]) if self.shards > 1 else {}
        if self._known:
            self.segments = SLOTS
        self.primaries = [f"r{number}" for number in range(1, self.shards + 1)]
        self.moves = Moves(self)
        self.checker = RedisChecker(self)
        self.kafka.on_stable = self.checker.stable
        for number in numbers:
            self._serve(f"r{number}", None)
        for leader in self.leaders():
            self.checker.leads(leader, "", 0)
        self._gossip()
        for number in range(1, script.settings["sentinels"] + 1):
            self._watch(f"s{number}")
        for number in numbers:
            self.start(f"c{number}")

    def _cluster(self, node_ids: Sequence[str]) -> dict[str, ClusterNode]:
        """What each server knows of the cluster, and keeps when it ends."""
        nodes = [ClusterNode(id_of(node_id), port_of(node_id)) for node_id in node_ids]
        slots = [slot_of(tag.encode()) for tag in TAGS]
        for number, node in enumerate(nodes):
            node.epoch = self.shards
            if number < self.shards:
                node.me.slots, node.me.epoch = set(slots[number :: self.shards]), number + 1
        for node, other in permutations(nodes, 2):
            node.hear(other)
        for number, node in enumerate(nodes[self.shards :]):
            node.follow(nodes[number % self.shards].me.id)
        return dict(zip(node_ids, nodes, strict=True))

    # -- processes ----------------------------------------------------------------------------------------------------

    def servers(self) -> list[Server]:
        """Those that live."""
        return [node for node in self.nodes.values() if isinstance(node, Server) and node.alive]

    def connectors(self) -> list[Beside]:
        """Those that live."""
        return [node for node in self.living() if isinstance(node, Beside)]

    def shard(self, node_id: str) -> int:
        """That of a server."""
        return (int(node_id[1:]) - 1) % self.shards

    def leader(self, shard: int) -> Server:
        """The newest process of a primary."""
        node = self.nodes[self.primaries[shard]]
        assert isinstance(node, Server)
        return node

    def leaders(self) -> list[Server]:
        """By shard."""
        return [self.leader(shard) for shard in range(self.shards)]

    def _leads(self, server: Server) -> bool:
        return server.node_id in self.primaries

    def start(self, node_id: str) -> Beside:
        """A new process of a connector."""
        url = f"redis://{HOST}:{port_of(node_id)}/0"
        config = parse({**self._fields, "node.id": node_id, "redis.url": url})
        node = Beside(self, node_id, config, self.checker)
        self.nodes[node_id] = node
        self.everybody.append(node)
        return node

    def restart(self, node_id: str, data: str) -> None:
        """A new process in the place of one that has ended."""
        before = self.nodes[node_id]
        if isinstance(before, Watcher):
            self._watch(node_id)
            return
        if not isinstance(before, Server):
            self.start(node_id)
            return
        id_, same = before.redis.stream.id, before.redis.saved()
        if data == "saved" and node_id in self.saved:
            saved: Saved | None = self.saved[node_id]
        else:
            saved = {"none": None, "same": same, "saved": None, "append-only": same._replace(id="")}[data]
        server = self._serve(node_id, saved)
        if self._follows(node_id) is None:
            self.checker.leads(server, *(("", 0) if saved is None else (saved.id or id_, saved.offset)))

    def watchers(self) -> list[Watcher]:
        """The newest processes of the Sentinels."""
        return [node for node in self.nodes.values() if isinstance(node, Watcher)]

    def _watch(self, node_id: str) -> None:
        self._starts[node_id] += 1
        node = Watcher(self, node_id, f"{node_id}@{self._starts[node_id]}", self.primaries[0])
        self.nodes[node_id] = node
        self.everybody.append(node)

    def _follows(self, node_id: str) -> str | None:
        """Whom a server follows when it starts: a node of a cluster whom it followed before."""
        known = self._known.get(node_id)
        if known is None:
            return None if node_id in self.primaries else self.primaries[self.shard(node_id)]
        return server_at(known.members[known.me.follows].port) if known.me.follows else None

    def _serve(self, node_id: str, saved: Saved | None) -> Server:
        self._starts[node_id] += 1
        member, follows = f"{node_id}@{self._starts[node_id]}", self._follows(node_id)
        node = Server(self, node_id, member, self._backlog, saved, follows, self._known.get(node_id))
        node.redis.ask_other = self._ask_other
        self.nodes[node_id] = node
        self.everybody.append(node)
        self._name()
        return node

    def _sent(self, node: Hosted, data: bytes) -> str:
        """The first command that a connector sends; what servers send is as late as the network has it."""
        return data.split(b"\r\n", 3)[2].decode() if isinstance(node, Beside) else ""

    # -- what verbs do ------------------------------------------------------------------------------------------------

    def addressee(self, words: Sequence[str]) -> str:
        """The node id of the server to which clients send a command: where its first key is."""
        slot = slot_of(words[1].encode()) if len(words) > 1 else -1
        return next((self.primaries[n] for n in range(self.shards) if slot in self._slots(n)), self.primaries[0])

    def _slots(self, shard: int) -> set[int]:
        return self.moves.slots_of(shard) if self._known else set()

    def _ask_other(self, port: int, words: Words) -> Reply | None:
        server = self.nodes[server_at(port)]
        assert isinstance(server, Server)
        if not server.alive or server.paused:
            return None
        (reply,) = server.loop.within(server.redis.execute_all, [words], True)
        return reply

    def _gossip(self) -> None:
        """Servers of a cluster hear of each other."""
        if not self._known:
            return
        running = [server for server in self.servers() if not server.paused]
        for one, other in permutations(running, 2):
            if not self.network.is_cut((one.node_id, other.node_id)):
                other.loop.within(other.redis.hear, self._known[one.node_id])
        self.engine.after(self.engine.stream("gossip").choice((0.02, 0.1, 0.5)), self._gossip)

    def disagree(self) -> str:
        """What is not settled in the cluster, or among Sentinels; empty where all is."""
        if self.moves.under_way:
            return f"slots move: {self.moves.under_way}"
        for watcher in self.watchers():
            if watcher.redis.run_id != self.leader(0).redis.run_id:
                return f"{watcher.member} does not name {self.leader(0).member}"
        for known in self._known.values():
            for shard, leader in enumerate(self.leaders()):
                owners = [known.owner(slot) for slot in self._slots(shard)]
                if any(owner is None or owner.port != leader.redis.port for owner in owners):
                    return f"{server_at(known.me.port)} knows other slots of {leader.member}"
        return ""

    def write(self, server: Server, words: Sequence[str], asking: bool = False) -> bool:
        """Commands of a client; False where the server has done none of them."""
        commands: list[list[bytes]] = [[]]
        for word in words:
            if word == _APART:
                commands.append([])
            else:
                commands[-1].append(word.encode())
        replies = server.loop.within(server.redis.execute_all, commands, asking)
        kind, *to = str(replies[0]).split() if isinstance(replies[0], Refused) else [""]
        if kind == "ASK" and not asking:
            other = self.nodes[server_at(int(to[-1].rpartition(":")[2]))]
            return isinstance(other, Server) and other.alive and not other.paused and self.write(other, words, True)
        done = [
            (words, reply)
            for words, reply in zip(commands, replies, strict=True)
            if reply is not None and not isinstance(reply, Refused)
        ]
        if done:
            self.checker.written(server, done, asking)
        return bool(done)

    def may_lead(self, server: Server) -> bool:
        """Whether a replica may become primary: the present one's, and in a cluster whom others would vote for."""
        leader, known = self.leader(self.shard(server.node_id)), server.redis.cluster
        if self.watchers():
            return True
        if server.redis.stream.id != leader.redis.stream.id:
            return False
        if known is None or leader.redis.cluster is None:
            return True
        follows, led = known.members.get(known.me.follows), leader.redis.cluster
        if follows is None or follows.port != leader.redis.port or follows.slots != led.me.slots:
            return False
        # Who had not heard of the leader's epoch could get the same one, and lose to it when it comes back.
        return known.epoch >= led.me.epoch

    def follow(self, server: Server) -> None:
        """It becomes a replica of the primary, unless it is that itself by now."""
        if not self._leads(server):
            server.follow(self.primaries[self.shard(server.node_id)])

    def promote(self, server: Server) -> None:
        """It is primary from now on."""
        stream = server.redis.stream
        id_, offset = stream.id, stream.offset
        self.primaries[self.shard(server.node_id)] = server.node_id
        for watcher in self.watchers():
            delay = self.engine.stream("sentinels").choice((0.0, 0.02, 0.3))
            self.engine.after(delay, lambda watcher=watcher: watcher.hear(self.primaries[0]))
        server.lead()
        self.checker.leads(server, id_, offset)
        self._name()

    def ended(self, node: Any) -> None:
        super().ended(node)
        self._name()

    def _name(self) -> None:
        self.names = {}
        for shard, primary in enumerate(self.primaries):
            number, ids = shard + 1 if shard else "", [server.node_id for server in self.servers()]
            others = [node_id for node_id in ids if node_id != primary and self.shard(node_id) == shard]
            self.names |= {f"primary{number}": primary, f"writer{number}": _beside(primary)}
            if others:
                self.names |= {f"replica{number}": others[0], f"reader{number}": _beside(others[0])}

    # -- the end ------------------------------------------------------------------------------------------------------

    def _connectors(self) -> list[Connector]:
        return [node.redis.connector for node in self.everybody if isinstance(node, Beside)]

    def _make_peace(self) -> None:
        """Ends all faults: brokers and network recover, paused processes resume, dead ones start, twins are alone."""
        self.checker.say("--- peace")
        self.checker.looks_from_now_on()
        self._end_faults(self.nodes)
        for node in self.living():
            if node is not self.nodes[node.node_id]:
                self.ended(node)
            node.resume()
            node.reach()
        self.engine.after(0.5, self._restart_all)

    def _restart_all(self) -> None:
        for node_id, node in self.nodes.items():
            if not node.alive:
                self.restart(node_id, "same")
        for server in self.servers():
            primary = self.primaries[self.shard(server.node_id)]
            if server.redis.primary != (HOST, port_of(primary)):
                self.follow(server)
        self._peace = all(node.alive and not node.leaving for node in self.nodes.values())
        self.engine.after(0.5, self._restart_all)


def _beside(server: str) -> str:
    return f"c{server[1:]}"


def _fields(settings: Settings) -> dict[str, str]:
    """The configuration of all connectors."""
    fields = connector_fields(settings) | {
        "connector.class": "deelog.RedisConnector",
        "cache.value.format": "json",
        "topic.creation.default.replication.factor": "1",
        "commit.interval.ms": "10",
    }
    if settings["shards"] > 1:
        fields["segment.count"] = str(SLOTS)
    if settings["sentinels"]:
        places = (f"{HOST}:{watched_at(f's{number}')}" for number in range(1, settings["sentinels"] + 1))
        fields |= {"redis.sentinels": ",".join(places), "redis.sentinel.master": MASTER}
    return fields
