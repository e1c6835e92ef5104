"""The capture with the connector's core on Kafka in memory, beside two servers: one is primary, the other follows."""

from __future__ import annotations

import random

import pytest

from deelog_connector.core.effects import Effect, SteppedDown
from deelog_connector.core.settings import CacheState, StreamState
from deelog_connector.runtime.executor import ask_stream
from deelog_interceptors.redis.capture import Capture
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.stream import Arguments
from deelog_interceptors.redis.tape import Tape
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Reason
from tests.connector.world import SEGMENTS, Node, World, _entry
from tests.interceptors.redis.model import KEYS, Plain, Server


class StreamNode(Node):
    """A connector beside one server."""

    world: StreamWorld

    def __init__(self, world: StreamWorld, member: str) -> None:
        self.server = member[1] == "1"
        self.chance = world.chance
        self.reads: list[tuple[int, Image]] = []
        super().__init__(world, member)
        self.capture.sink = self.core
        self.rows: dict[int, tuple[str, list[bytes], list[Image]]] = {}
        self.attach()

    def cache_state(self) -> CacheState | StreamState:
        self.capture = Capture(self.member, self.tape(0), 10_000)
        return self.capture

    def tape(self, offset: int) -> Tape:
        return Tape(self.source.lineage, offset, 0, 0, SEGMENTS, Plain())

    @property
    def source(self) -> Server:
        return self.world.servers[self.server]

    def attach(self) -> None:
        """What a process does first: reads the positions, and goes on where Kafka has all of the stream."""
        self.follow()
        place = self.capture.resumes_at(self.source.lineage)
        self.world.starts += place is None
        self.reads.clear()
        self.rows.clear()
        offset = self.source.end if place is None else place[0]
        self.capture.replaced(self.tape(offset))
        self.role()

    def role(self) -> None:
        if self.world.primary_server == self.server:
            self.capture.promote()
        else:
            self.capture.demote()

    def forked(self, offset: int) -> None:
        """Its server goes on from there as another one."""
        self.reads.clear()
        self.rows.clear()
        self.capture.forked(self.source.lineage, min(offset, self.capture.tape.offset), 0)
        self.role()

    def io(self) -> bool:
        """Some of what the shell does."""
        capture, source, chance = self.capture, self.source, self.chance
        did = False
        if self.world.does(0.7) and capture.tape.offset < source.end:
            behind = source.between(capture.tape.offset, source.end)
            upto = source.end if self.world.calm else chance.choice(behind)[1]
            capture.fed(source.between(capture.tape.offset, upto), 1)
            did = True
        if self.world.does(0.7) and capture.wants_offset:
            capture.offset_is(source.end)
            did = True
        if self.world.does(0.5):
            found = capture.keys_to_read(chance.randint(1, 3))
            self.reads += [(s, Image(key, source.state.get(key), None, source.end)) for s, key in found]
            did |= bool(found)
        if self.reads and self.world.does(0.5):
            number = chance.randint(1, len(self.reads))
            capture.images_read(self.reads[:number])
            del self.reads[:number]
            did = True
        for segment, reset_id in capture.segments_to_read():
            did = True
            if self.rows.get(segment, ("",))[0] != reset_id:
                self.rows[segment] = reset_id, list(source.of(segment, SEGMENTS)), []
            _, keys, images = self.rows[segment]
            if keys and self.world.does(0.7):
                key = keys.pop()
                images.append(Image(key, source.state.get(key), None, source.end))
            elif not keys:
                capture.rows_read(segment, reset_id, images)
        acked = self.world.replicated() if self.world.acks_all else source.end
        if acked > capture.acked:
            capture.acknowledged(acked)
            did = True
        return did

    def step(self, hang: bool = False) -> bool:
        if self.capture.outranked:
            self.role()  # in an epoch above that of who has claimed too late
        worked = self.io()
        return super().step(hang) or worked

    def carry_out(self, effect: Effect, hang: bool) -> bool:
        ask_stream(self.capture, effect)
        if isinstance(effect, SteppedDown):
            self.capture.stepped_down(effect.segment, effect.reason)
        return super().carry_out(effect, hang)


class StreamWorld(World):
    members: list[StreamNode]  # type: ignore[assignment]
    nodes: dict[str, StreamNode]  # type: ignore[assignment]

    def __init__(self, seed: int, acks_all: bool) -> None:
        self.chance, self.acks_all = random.Random(seed), acks_all
        self.servers = [Server(), Server()]
        self.primary_server = self.calm = False
        self.settled_at: int | None = None
        self.resets: list[int] = []
        self.version = self.starts = self.forks = 0
        super().__init__(2)
        self.see()

    def see(self) -> None:
        """The readers look as the node beside the primary server would."""
        for segment in range(SEGMENTS):
            self.primary[segment] = self.nodes[f"n{int(self.primary_server)}"]

    def start(self, node_id: str) -> StreamNode:
        self.incarnation += 1
        return StreamNode(self, f"{node_id}@{self.incarnation}")

    def phases(self) -> list[str]:
        core = self.nodes[f"n{int(self.primary_server)}"].core
        return [core.phase(segment) for segment in range(SEGMENTS)]

    def does(self, probability: float) -> bool:
        return self.calm or self.chance.random() < probability

    def replicated(self) -> int:
        return self.servers[not self.primary_server].end

    def command(self) -> None:
        self.version += 1
        key, value = self.chance.choice(KEYS), b"%d" % self.version
        arguments: Arguments
        match self.chance.randrange(12):
            case 0:
                arguments = [b"DEL", key, self.chance.choice(KEYS)]
            case 1:
                arguments = [b"MSET", b"a", value, b"b", value, b"c", value]
            case 2:
                arguments = [b"RENAME", key, self.chance.choice([other for other in KEYS if other != key])]
            case 3 if self.chance.random() < 0.2:
                arguments = [b"FLUSHDB"]
            case 4 | 5 | 6:
                arguments = [b"SET", key, value]
            case _:
                arguments = [b"INCR", key]
        self.servers[self.primary_server].run(arguments, value)

    def follow(self) -> None:
        one, other = self.servers[self.primary_server], self.servers[not self.primary_server]
        for arguments, offset in one.between(other.end, one.end)[: self.chance.randint(1, 4)]:
            other.commands.append((arguments, offset))
            other.states.append(one.states[len(other.commands)])

    def elect(self) -> None:
        """The other server is promoted where it is; the old one follows it, and its connector lives on or not."""
        self.forks += 1
        old, fork = self.primary_server, self.replicated()
        self.servers[not old] = self.servers[not old].promoted(f"id{self.forks}", fork)
        self.primary_server = not old
        self.servers[old] = self.servers[not old].replica(fork)
        for node in self.nodes.values():
            if node.server == old and self.chance.random() < 0.5:
                self.kill(node)
            else:
                node.forked(fork)

    def restart_server(self) -> None:
        """The primary is restarted with what is replicated."""
        self.forks += 1
        name, fork = self.primary_server, self.replicated()
        self.servers[name] = self.servers[name].promoted(f"id{self.forks}", fork)
        self.servers[not name].ids = self.servers[name].ids
        for node in self.nodes.values():
            node.forked(fork)

    def kill(self, node: StreamNode) -> None:
        node.alive = False
        self.nodes[node.node_id] = self.start(node.node_id)

    def kill_any(self) -> None:
        self.kill(self.chance.choice([*self.nodes.values()]))

    def play(self, steps: int) -> None:
        for step in range(steps):
            self.now += 0.1
            number = self.chance.random()
            if self.settled_at is None and all(phase == "writing" for phase in self.phases()):
                self.settled_at = self.version
                self.resets = [len(self.reader(segment).resets) for segment in range(SEGMENTS)]
            if number < 0.5:
                self.command()
            elif number < 0.65:
                self.follow()
            elif number < 0.988 or step < steps // 5:
                node = self.chance.choice(list(self.nodes.values()))
                if node.hanging is not None:
                    if self.chance.random() < 0.3:
                        node.finish()
                else:
                    node.step(hang=self.chance.random() < 0.2)
            else:
                self.chance.choice([self.elect, self.restart_server, self.kill_any])()

    def rest(self) -> None:
        self.calm = True
        while self.servers[0].end != self.servers[1].end:
            self.follow()
        for node in self.nodes.values():
            if node.hanging is not None:
                node.finish()
        self.settle(steps=2000)
        for segment in range(SEGMENTS):
            self.primary[segment] = self.nodes[f"n{int(self.primary_server)}"]

    def told(self, segment: int) -> list[tuple[bytes, bytes]]:
        """Every value that is in the topic, with its key, in order."""
        found = []
        codec = self.nodes["n0"].encoder._codec
        for record in self.records(segment):
            if record.header.kind in (Kind.CHANGE, Kind.READ):
                key, entry = _entry(codec, record)
                if entry is not None:
                    found.append((key, entry.value))
        return found


def sets(server: Server, segment: int, behind: int) -> list[tuple[bytes, bytes]]:
    """What the commands that carry values have set in a segment, with versions above one."""
    found: list[tuple[bytes, bytes]] = []
    for arguments, _ in server.commands:
        if arguments[0] in (b"SET", b"MSET"):
            found += zip(arguments[1::2], arguments[2::2], strict=True)  # type: ignore[arg-type]
    return [(k, v) for k, v in found if segment_of(k, SEGMENTS) == segment and int(v) > behind]


@pytest.mark.parametrize("acks_all", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_kafka_becomes_what_the_primary_has(seed: int, acks_all: bool) -> None:
    for part in range(3):
        world = StreamWorld(100 * seed + part, acks_all)
        world.play(400)
        world.rest()
        for segment in range(SEGMENTS):
            place = seed, part, segment
            reader = world.reader(segment)
            assert reader.open is None, place
            derived = {key: entry.value for key, entry in reader.entries.items()}
            assert derived == world.servers[world.primary_server].of(segment, SEGMENTS), place
            told = world.told(segment)
            resets = [reason for reason in reader.resets if reason != Reason.CLEAR]
            if acks_all and world.settled_at is not None:
                later = set(reader.resets[world.resets[segment] :])
                assert later <= {Reason.CLEAR, "open_reset"}, place  # a clear that is cut off is an open reset
            if acks_all or not world.forks:
                for key in KEYS:
                    versions = [int(value) for one, value in told if one == key]
                    assert versions == sorted(versions), (place, key)
            if (
                len(resets) == 1 and world.settled_at is not None
            ):  # the first one of all; all that came behind it is told
                missing = set(sets(world.servers[world.primary_server], segment, world.settled_at)) - set(told)
                assert not missing, place
