"""The capture with the connector's core on Kafka in memory, beside two servers: one is primary, the other follows.

Then by itself, rule by rule. Bad input: sources that are none, of other streams; answers to older questions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from deelog_connector.cache_side import Budget, Counted
from deelog_connector.core.effects import Effect, SteppedDown
from deelog_connector.core.settings import CacheState, StreamState
from deelog_connector.runtime.executor import ask_stream
from deelog_interceptors.redis.capture import LOST, UNKNOWN, Capture
from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.source import Anchor, Source, encode_source
from deelog_interceptors.redis.stream import Arguments
from deelog_interceptors.redis.tape import Tape
from deelog_interceptors.redis.view import View, alone
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Reason
from deelog_schemas.positions import PositionState
from tests.connector.world import SEGMENTS, Node, World, entry_of
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
        self.rows: dict[int, tuple[str, list[bytes], list[Image], int]] = {}
        self.attach()

    def cache_state(self) -> CacheState | StreamState:
        self.capture = Capture(self.member, self.tape(0))
        return self.capture

    def tape(self, offset: int) -> Tape:
        return Tape(self.source.lineage, offset, 0, 0, SEGMENTS, Plain())

    @property
    def source(self) -> Server:
        return self.world.servers[self.server]

    def attach(self) -> None:
        """What a process does first: reads the positions, and goes on where Kafka has all of the stream."""
        self.follow()
        place = self.capture.resumes_at(self.source.lineage, self.view)
        self.world.starts += place is None
        self.reads.clear()
        self.rows.clear()
        offset = self.source.end if place is None else place[0]
        self.capture.replaced(self.tape(offset), place is not None)
        self.role()

    @property
    def view(self) -> View:
        return alone(self.world.primary_server == self.server, SEGMENTS)

    def role(self) -> None:
        self.capture.take(self.view, self.capture.outranked)

    def forked(self, offset: int) -> None:
        """Its server goes on from there as another one."""
        if self.capture.tape.offset > offset:
            self.attach()
            return
        self.reads.clear()
        self.rows.clear()
        self.capture.goes_on_as(self.source.lineage)
        self.role()

    def io(self) -> bool:
        """Some of what the shell does."""
        capture, source, chance = self.capture, self.source, self.chance
        did = False
        if self.world.does(0.7):
            capture.progress()
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
        for segment, reset_id in capture.segments_to_read(SEGMENTS).items():
            did = True
            if self.rows.get(segment, ("",))[0] != reset_id:
                self.rows[segment] = reset_id, list(source.of(segment, SEGMENTS)), [], source.end
            _, keys, images, listed = self.rows[segment]
            if keys and self.world.does(0.7):
                key = keys.pop()
                images.append(Image(key, source.state.get(key), None, source.end))
            elif not keys:
                del self.rows[segment]
                capture.rows_read(segment, reset_id, images, listed)
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
        core = self.nodes[f"n{int(self.primary_server)}"].core
        assert core.unwritten() == 0
        for segment in range(SEGMENTS):
            core.release(segment)
        self.settle(steps=200)
        assert self.phases() == ["released"] * SEGMENTS
        for segment in range(SEGMENTS):
            self.primary[segment] = self.nodes[f"n{int(self.primary_server)}"]

    def told(self, segment: int) -> list[tuple[bytes, bytes]]:
        """Every value that is in the topic, with its key, in order."""
        found = []
        codec = self.nodes["n0"].encoder._codec
        for record in self.records(segment):
            if record.header.kind in (Kind.CHANGE, Kind.READ):
                key, entry = entry_of(codec, record)
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
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 30))])
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


class Recording:
    """A sink that says what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.positions: dict[int, PositionState] = {}
        self.withheld: set[int] = set()
        self.room = 1 << 40
        self.budget = Budget(4, 1 << 40)

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def call(*given: object, **named: object) -> bool:
            self.calls.append((name, *given))
            return True

        return call

    def has_room(self, size: int) -> bool:
        return size <= self.room

    def last_sequence(self, segment: int) -> int:
        return 5

    def highest_claim(self) -> int:
        return 3

    def withholds(self, segment: int) -> bool:
        return segment in self.withheld

    def position(self, segment: int) -> PositionState | None:
        return self.positions.get(segment)

    def took(self, name: str) -> list[tuple[object, ...]]:
        found = [call[1:] for call in self.calls if call[0] == name]
        self.calls = [call for call in self.calls if call[0] != name]
        return found


@dataclass
class Alone:
    """A capture with nothing behind it; `changed` counts its calls."""

    changed: int = 0

    def __post_init__(self) -> None:
        self.sink = Recording()
        tape = Tape(Lineage((("one", 0),)), 100, 0, 0, SEGMENTS, Plain())
        self.capture = Capture("n@1", tape, self._count)
        self.capture.sink = self.sink  # type: ignore[assignment]
        self.capture.take(PRIMARY)
        self.sink.calls.clear()
        self.capture.acknowledged(1 << 40)

    def _count(self) -> None:
        self.changed += 1

    def opened(self) -> Alone:
        """With each segment written from sequence 5 on."""
        for segment in range(SEGMENTS):
            self.capture.count(segment, 1, position(5))
        self.capture.offset_is(100)
        for segment in range(SEGMENTS):
            self.capture.decided(segment, 5)
        self.sink.calls.clear()
        return self


def position(sequence: int, member: str = "n@1", end: int = 100, low: int = 100, source: str = "") -> PositionState:
    text = source or encode_source(Source("one", Anchor(100, 5), Anchor(end, sequence), low, 0))
    return PositionState(1, sequence, 0, 0, 0, 0, 0, 0, "t", member, text)


OF_A, OF_D = segment_of(b"a", SEGMENTS), segment_of(b"d", SEGMENTS)
PRIMARY, REPLICA = alone(True, SEGMENTS), alone(False, SEGMENTS)


def test_it_is_promoted_and_demoted_with_all_segments() -> None:
    alone = Alone()
    alone.capture.take(REPLICA)
    assert alone.sink.took("demote") == [(segment,) for segment in range(SEGMENTS)]
    alone.capture.take(PRIMARY)
    assert alone.sink.took("promote") == [(segment, 5) for segment in range(SEGMENTS)]
    alone.capture.take(PRIMARY)
    assert alone.sink.calls == []
    alone.opened().capture.stepped_down(OF_A, "a higher claim")
    assert alone.capture.outranked == {OF_A}
    assert not alone.capture.tape.segments[OF_A].is_open
    alone.capture.take(PRIMARY, alone.capture.outranked)
    assert alone.sink.took("promote") == [(OF_A, 6)]
    assert not alone.capture.outranked
    alone.capture.stepped_down(OF_A, "a higher claim")
    alone.capture.take(REPLICA, alone.capture.outranked)
    assert not alone.capture.outranked
    assert alone.sink.took("promote") == []


def test_it_counts_once_the_stream_is_read_so_far() -> None:
    alone = Alone()
    alone.capture.count(OF_A, 7, position(5))
    assert (alone.capture.wants_offset, alone.changed) == (True, 1)
    alone.capture.offset_is(150)
    assert not alone.capture.wants_offset
    alone.capture.fed([([b"SET", b"a", b"1"], 140)], 1)
    assert alone.sink.took("counted") == []
    alone.capture.fed([([b"SET", b"a", b"1"], 150)], 1)
    assert alone.sink.took("counted") == [(OF_A, 7, Counted(((1, 7),), 6))]
    alone.capture.decided(OF_A, 6)
    assert alone.sink.took("resumed") == [(OF_A,)]
    assert alone.changed == 2
    alone.capture.progress()
    assert [call[:4] for call in alone.sink.took("append")] == [(OF_A, "put", b"a", b"1")]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Counted()),
        (position(5, source="no JSON"), Counted(lost=LOST)),
        (position(5, source=" "), Counted(lost=LOST)),
        (position(5, end=90, low=90), Counted(lost=LOST)),
        (position(9, end=300, low=90), Counted(((1, 5),), 6)),
    ],
)
def test_what_is_counted(state: PositionState | None, expected: Counted) -> None:
    alone = Alone()
    alone.capture.count(OF_A, 7, state)
    alone.capture.offset_is(100)
    assert alone.sink.took("counted") == [(OF_A, 7, expected)]
    alone.capture.decided(OF_A, None)
    assert alone.sink.took("resumed") == [(OF_A,)]
    assert not alone.capture.tape.segments[OF_A].is_open


def test_where_a_new_process_goes_on() -> None:
    alone = Alone()
    lineage = Lineage((("one", 0), ("two", 200)))
    assert alone.capture.resumes_at(lineage, PRIMARY) is None
    alone.sink.positions = {0: position(5, source="none"), 1: position(5, low=150), 2: position(5, low=201)}
    assert alone.capture.resumes_at(lineage, PRIMARY) == (150, 0)
    assert alone.capture.resumes_at(Lineage((("three", 0),)), REPLICA) is None


def test_keys_are_read_once_and_again_where_that_failed() -> None:
    alone = Alone().opened()
    capture = alone.capture
    capture.fed([([b"INCR", b"a"], 110), ([b"INCR", b"d"], 120), ([b"INCR", b"a"], 130)], 1)
    both = {(OF_A, b"a"), (OF_D, b"d")}
    (first,) = capture.keys_to_read(1)
    (second,) = capture.keys_to_read(9)
    assert {first, second} == both
    assert capture.keys_to_read(9) == []
    capture.images_read([], [first])
    assert capture.keys_to_read(9) == [first]
    assert capture.waits(130)
    capture.images_read([(first[0], Image(first[1], b"1", None, 140)), (second[0], Image(second[1], b"1", None, 140))])
    assert alone.sink.took("append") == [], "the stream is not read so far"
    capture.fed([([b"PING"], 140)], 1)
    assert {(call[0], call[2]) for call in alone.sink.took("append")} == both
    assert capture.waits(130), "it is not in Kafka"
    for segment in (OF_A, OF_D):
        capture.position_read(segment, position(9, end=140))
    assert not capture.waits(140)
    capture.fed([([b"INCR", b"a"], 150)], 1)
    assert capture.keys_to_read(9) == [(OF_A, b"a")]


def test_only_what_is_acknowledged_is_told() -> None:
    alone = Alone().opened()
    alone.capture.acked = 0
    alone.capture.acknowledged(110)
    alone.capture.fed([([b"SET", b"a", b"1"], 110), ([b"SET", b"a", b"2"], 120)], 1)
    assert [call[3] for call in alone.sink.took("append")] == [b"1"]
    alone.capture.acknowledged(90)
    assert alone.capture.acked == 110
    alone.capture.acknowledged(120)
    assert [call[3] for call in alone.sink.took("append")] == [b"2"]


def test_rows_are_given_once_they_are_acknowledged() -> None:
    alone = Alone().opened()
    capture = alone.capture
    capture.acked = 0
    capture.fed([([b"SET", b"a", b"0"], 110)], 1)
    before = alone.changed
    capture.read_rows(OF_A, "r1")
    assert alone.changed == before + 1
    assert (capture.segments_to_read(9), capture.waits(0)) == ({OF_A: "r1"}, True)
    capture.rows_read(OF_A, "r0", [], 110)
    capture.rows_read(OF_A, "r1", [Image(b"a", b"1", None, 120)], 110)
    capture.rows_read(OF_D, "r1", [], 110)
    assert capture.segments_to_read(9) == {}
    capture.fed([([b"SET", b"a", b"1"], 120)], 1)
    capture.acknowledged(119)
    assert alone.sink.took("rows_read") == []
    capture.acknowledged(120)
    assert alone.sink.took("rows_read") == [(OF_A, "r1", [Entry(b"a", b"1", None)])]
    assert (OF_A, 5) in alone.sink.took("acked")
    assert alone.sink.took("append") == [], "the row shows it"
    assert not capture.waits(0)
    capture.fed([([b"SET", b"a", b"2"], 130)], 1)
    assert capture.waits(130)
    capture.take(REPLICA)
    assert not capture.waits(130), "it is not this connector's to write"


def test_what_was_read_of_another_stream_is_void() -> None:
    alone = Alone().opened()
    capture = alone.capture
    capture.acked = 500
    capture.fed([([b"INCR", b"a"], 110)], 1)
    (key,) = capture.keys_to_read(9)
    capture.images_read([(OF_A, Image(b"a", b"old", None, 150))])
    capture.read_rows(OF_D, "r1")
    capture.rows_read(OF_D, "r1", [Image(b"d", b"old", None, 150)], 110)
    capture.count(2, 1, None)
    capture.offset_is(150)
    capture.goes_on_as(Lineage((("one", 0), ("two", 110))))
    assert (capture.tape.lineage.id, capture.acked) == ("two", 110)
    assert capture.segments_to_read(9) == {OF_D: "r1"}
    assert capture.keys_to_read(9) == [key]
    capture.offset_is(150)
    capture.fed([([b"PING"], 150)], 1)
    assert alone.sink.took("append") == []
    assert [call[0] for call in alone.sink.took("counted")] == [2]


def test_a_stream_that_goes_on_as_it_was_keeps_what_was_read() -> None:
    alone = Alone().opened()
    alone.capture.fed([([b"INCR", b"a"], 110)], 1)
    alone.capture.keys_to_read(9)
    alone.capture.images_read([(OF_A, Image(b"a", b"1", None, 150))])
    alone.capture.goes_on_as(Lineage((("one", 0),)))
    alone.capture.fed([([b"PING"], 150)], 1)
    assert [call[3] for call in alone.sink.took("append")] == [b"1"]


def test_what_is_not_listed_must_be_acknowledged_too() -> None:
    alone = Alone().opened()
    alone.capture.acked = 0
    alone.capture.read_rows(OF_A, "r1")
    alone.capture.rows_read(OF_A, "r1", [], 120)
    alone.capture.fed([([b"PING"], 120)], 1)
    alone.capture.acknowledged(119)
    assert alone.sink.took("rows_read") == []
    alone.capture.acknowledged(120)
    assert alone.sink.took("rows_read") == [(OF_A, "r1", [])]


def test_what_was_cleared_while_it_was_listed_is_listed_again() -> None:
    alone = Alone().opened()
    alone.capture.read_rows(OF_A, "r1")
    alone.capture.rows_read(OF_A, "r1", [], 120)
    alone.capture.fed([([b"FLUSHDB"], 120)], 1)
    assert alone.sink.took("rows_read") == []
    assert alone.capture.segments_to_read(9) == {OF_A: "r1"}
    alone.capture.rows_read(OF_A, "r1", [], 120)
    assert alone.sink.took("rows_read") == [(OF_A, "r1", [])]


def test_rows_that_nobody_waits_for_are_dropped() -> None:
    alone = Alone().opened()
    alone.sink.rows_read = lambda *given: False  # type: ignore[attr-defined]
    alone.capture.read_rows(OF_A, "r1")
    alone.capture.rows_read(OF_A, "r1", [Image(b"a", b"1", None, 100)], 100)
    assert not alone.capture.tape.segments[OF_A].is_open


def test_what_is_not_known_resets_what_is_written() -> None:
    alone = Alone().opened()
    alone.capture.stepped_down(OF_D, "a higher claim")
    alone.capture.fed([([b"NEWLY", b"x"], 110)], 1)
    assert {call[0] for call in alone.sink.calls if call[0] == "request_reset"}
    assert sorted(alone.sink.took("request_reset")) == [(s, UNKNOWN) for s in range(SEGMENTS) if s != OF_D]
    alone.capture.fed([([b"PING"], 120)], 1)
    assert alone.sink.took("request_reset") == []


def test_it_is_full_where_too_much_waits_for_kafka() -> None:
    alone = Alone().opened()
    alone.capture.fed([([b"SET", b"a", b"1"], offset) for offset in (110, 120, 130)], 1)
    assert not alone.capture.is_full()
    alone.capture.fed([([b"SET", b"a", b"1"], 140)], 1)
    assert alone.capture.is_full()
    before = alone.changed
    alone.capture.position_read(OF_A, position(6, end=110))
    assert not alone.capture.is_full()
    assert alone.changed == before + 1
    alone.sink.room = -1
    assert alone.capture.is_full()


def test_positions_of_others_do_not_prune_what_is_written_here() -> None:
    alone = Alone().opened()
    alone.capture.fed([([b"SET", b"a", b"1"], 110)], 1)
    alone.capture.position_read(OF_A, position(6, member="m@1", end=110))
    alone.capture.position_read(OF_A, position(6, source="no JSON"))
    assert len(alone.capture.tape.segments[OF_A].told) == 1
    alone.capture.released(OF_A)
    alone.capture.position_read(OF_A, position(6, member="m@1", end=110))
    assert not alone.capture.tape.segments[OF_A].waiting


def test_corrections_are_for_what_is_written() -> None:
    alone = Alone().opened()
    alone.changed = 0
    alone.capture.correct(OF_A, frozenset({b"a"}))
    assert alone.changed == 1
    alone.capture.progress()
    assert alone.capture.keys_to_read(9) == [(OF_A, b"a")]
    alone.capture.released(OF_A)
    alone.capture.correct(OF_A, frozenset({b"a"}))
    assert not alone.capture.tape.segments[OF_A].waiting


def test_another_stream_forgets_what_was_asked_of_the_last_one() -> None:
    alone = Alone().opened()
    capture = alone.capture
    capture.fed([([b"INCR", b"a"], 110)], 1)
    capture.keys_to_read(9)
    capture.read_rows(OF_D, "r1")
    capture.count(2, 1, None)
    capture.take(REPLICA)
    capture.take(PRIMARY)
    assert capture.segments_to_read(9) == {}
    assert not capture.wants_offset
    assert len(capture.tape.segments[OF_A].waiting) == 1
    other = Tape(Lineage((("three", 0),)), 7, 0, 0, SEGMENTS, Plain())
    capture.replaced(other)
    assert capture.tape is other
    assert capture.acked == 0


def test_who_was_promoted_after_this_server_supersedes_it() -> None:
    alone = Alone()
    alone.capture.stepped_down(2, "a higher claim")
    assert not alone.capture.is_superseded()
    other = encode_source(Source("two", Anchor(100, 5), Anchor(100, 5), 100, 0))
    for epoch, source, expected in ((4, other, False), (5, other, True), (5, "", False), (5, "no JSON", False)):
        alone.sink.positions = {2: position(5, source=source)._replace(epoch=epoch)}
        assert alone.capture.is_superseded() is expected, (epoch, source)
    alone.sink.positions = {1: position(5, source=other)._replace(epoch=5)}
    assert not alone.capture.is_superseded(), "nobody has claimed that one"


@pytest.mark.parametrize(("unread", "rank"), [(True, 0), (True, 1), (False, 0)])
def test_what_could_not_be_read_at_the_claim_is_no_later_claim(unread: bool, rank: int) -> None:
    """But of a later view it is."""
    alone = Alone()
    alone.sink.withheld = {2} if unread else set()
    alone.capture.take(PRIMARY, frozenset({2}))
    there = position(5, source=encode_source(Source("two", Anchor(100, 5), Anchor(100, 5), 100, 0, rank=rank)))
    alone.sink.positions = {2: there._replace(epoch=9)}
    alone.capture.stepped_down(2, "a higher claim")
    assert alone.capture.is_superseded() is (not unread or rank == 1)
    alone.sink.positions = {2: there._replace(epoch=10)}
    assert alone.capture.is_superseded()


@pytest.mark.parametrize("once", ["decided", "lost", "known before"])
def test_a_claim_is_unread_only_until_it_is_decided(once: str) -> None:
    alone = Alone()
    alone.sink.withheld = {2}
    there = position(5, source=encode_source(Source("two", Anchor(100, 5), Anchor(100, 5), 100, 0)))
    if once == "known before":
        alone.sink.positions = {2: there}
    alone.capture.take(PRIMARY, frozenset({2}))
    alone.sink.withheld.clear()
    if once == "decided":
        alone.capture.count(2, 1, None)
        alone.capture.offset_is(100)
        alone.capture.decided(2, None)
    elif once == "lost":
        alone.sink.positions = {2: there}
        alone.capture.take(REPLICA)
        alone.capture.take(PRIMARY)
    alone.sink.positions = {2: there._replace(epoch=9)}
    alone.capture.stepped_down(2, "a higher claim")
    assert alone.capture.is_superseded()


@pytest.mark.parametrize("fork", [110, 115])
def test_a_row_that_shows_a_change_of_a_stream_that_is_lost(fork: int) -> None:
    """The change at that offset may be another one: the key's row says nothing of it."""
    alone = Alone()
    alone.capture.tape.lineage = Lineage((("one", 0), ("two", fork)))
    alone.capture.count(OF_A, 1, position(5, source=encode_source(SHOWN)))
    alone.capture.offset_is(120)
    alone.capture.fed([([b"SET", b"a", b"1"], 110), ([b"INCR", b"a"], 115), ([b"PING"], 120)], 1)
    alone.capture.decided(OF_A, 5)
    alone.capture.images_read([(OF_A, Image(b"a", b"2", None, 120))])
    told = [(call[1], call[3]) for call in alone.sink.took("append")]
    assert told == ([("put", b"2")] if fork == 115 else [("put", b"1"), ("put", b"2")])


SHOWN = Source("one", Anchor(100, 5), Anchor(100, 5), 100, 0, {b"a": 115})
EVERYTHING = frozenset(range(SEGMENTS))


def ranked(segment: int, rank: int, *, low: int = 100, end: int = 100, name: str = "one") -> PositionState:
    source = Source(name, Anchor(90, 5), Anchor(end, 5), low, 0, rank=rank)
    return position(5, source=encode_source(source))._replace(epoch=9)


def test_in_a_cluster_the_later_view_supersedes() -> None:
    alone = Alone()
    alone.capture.take(View(True, EVERYTHING, frozenset(), rank=4))
    alone.capture.stepped_down(2, "a higher claim")
    for rank, name, expected in ((3, "two", False), (4, "two", True), (4, "one", False), (5, "one", True)):
        alone.sink.positions = {2: ranked(2, rank, name=name)}
        assert alone.capture.is_superseded() is expected, (rank, name)


def test_each_slot_is_claimed_as_it_comes_and_released_before_it_goes() -> None:
    alone = Alone().opened()
    capture, rest = alone.capture, EVERYTHING - {OF_A}
    capture.fed([([b"INCR", b"a"], 110)], 1)
    capture.take(View(True, rest, frozenset(), frozenset({OF_A}), 4))
    assert alone.sink.calls == [("release", OF_A)]
    alone.sink.calls.clear()
    assert capture.keys_to_read(9) == []
    capture.fed([([b"SET", b"a", b"2"], 120)], 1)
    capture.take(View(True, rest, frozenset(), frozenset({OF_A}), 4))
    assert alone.sink.calls == []
    capture.take(View(True, rest, frozenset(), rank=4))
    assert alone.sink.calls == [("demote", OF_A)]
    alone.sink.calls.clear()
    capture.take(View(True, EVERYTHING, frozenset(), rank=6))
    assert alone.sink.calls == [("promote", OF_A, 5)]
    assert not capture.tape.segments[OF_A].waiting, "what came meanwhile comes as rows"


def test_a_move_that_is_taken_back_is_a_new_claim() -> None:
    alone = Alone().opened()
    capture, rest = alone.capture, EVERYTHING - {OF_A}
    capture.take(View(True, rest, frozenset(), frozenset({OF_A}), 4))
    capture.released(OF_A)
    capture.take(View(True, EVERYTHING, frozenset(), rank=4))
    assert alone.sink.calls == [("release", OF_A), ("promote", OF_A, 5)]


def test_a_slot_that_moves_while_it_is_taken_over_is_not_released() -> None:
    alone = Alone()
    alone.capture.take(View(True, EVERYTHING - {OF_A}, frozenset(), frozenset({OF_A}), 4))
    assert alone.sink.calls == [("demote", OF_A)]


def test_where_a_new_process_goes_on_in_a_cluster() -> None:
    """Behind a position of another rank the segment may have been another's: its own place counts."""
    alone = Alone()
    lineage, here = Lineage((("one", 0),)), View(True, frozenset({0, 1, 2}), frozenset(), rank=4)
    alone.sink.positions = {0: ranked(0, 4, low=150), 1: ranked(1, 4, low=170), 3: ranked(3, 4, low=190)}
    assert alone.capture.resumes_at(lineage, here) == (170, 0), "who has written that had all others' changes, too"
    alone.sink.positions[2] = ranked(2, 3, low=120)
    assert alone.capture.resumes_at(lineage, here) == (120, 0)
    assert alone.capture.resumes_at(lineage, here, 120) == (120, 0)
    assert alone.capture.resumes_at(lineage, here, 121) == (170, 0), "the server has forgotten that"
    assert alone.capture.resumes_at(lineage, here, 171) is None


def test_in_a_cluster_a_count_begins_at_a_position_of_the_same_rank() -> None:
    for rank, expected in ((4, Counted(((9, 5),), 6)), (3, Counted(lost=LOST))):
        alone = Alone()
        alone.capture.take(View(True, EVERYTHING, frozenset(), rank=4))
        alone.sink.positions = {OF_D: ranked(OF_D, 4, low=100)}
        state = alone.sink.positions[OF_A] = ranked(OF_A, rank, low=95, end=95)
        alone.capture.count(OF_A, 7, state)
        alone.capture.offset_is(100)
        assert alone.sink.took("counted") == [(OF_A, 7, expected)], rank


@pytest.mark.parametrize(
    ("resumes", "rank", "expected"),
    [(True, 4, Counted(((9, 5),), 6)), (False, 4, Counted(lost=LOST)), (True, 5, Counted(lost=LOST))],
)
def test_what_was_low_when_the_tape_began_stays_low(resumes: bool, rank: int, expected: Counted) -> None:
    """One segment is written again before another one is counted: the position that said so is gone."""
    alone = Alone()
    capture, lineage = alone.capture, alone.capture.tape.lineage
    alone.sink.positions = {OF_A: ranked(OF_A, 4, low=100), OF_D: ranked(OF_D, 4, low=95, end=95)}
    assert capture.resumes_at(lineage, View(True, EVERYTHING, frozenset(), rank=4)) == (100, 0)
    capture.replaced(Tape(lineage, 100, 0, 0, SEGMENTS, Plain()), resumes)
    capture.take(View(True, EVERYTHING, frozenset(), rank=rank))
    alone.sink.positions[OF_A] = ranked(OF_A, 4, low=0)
    capture.count(OF_D, 7, alone.sink.positions[OF_D])
    capture.offset_is(100)
    assert alone.sink.took("counted") == [(OF_D, 7, expected)]


@pytest.mark.parametrize("resumes", [True, False])
def test_what_was_low_is_not_low_behind_a_fork(resumes: bool) -> None:
    """The server comes back with older data, of the same rank: its new stream has other changes there."""
    alone = Alone()
    capture, lineage, view = alone.capture, alone.capture.tape.lineage, View(True, EVERYTHING, frozenset(), rank=4)
    alone.sink.positions = {OF_A: ranked(OF_A, 3, low=100), OF_D: ranked(OF_D, 4, low=1000, end=300)}
    assert capture.resumes_at(lineage, view) == (100, 0)
    capture.replaced(Tape(lineage, 100, 0, 0, SEGMENTS, Plain()), resumes)
    capture.take(view)
    capture.goes_on_as(Lineage((("one", 0), ("two", 500))))
    capture.fed([([b"PING"], 500), ([b"SET", b"d", b"1"], 700), ([b"SET", b"d", b"2"], 750), ([b"PING"], 800)], 1)
    source = Source("two", Anchor(650, 5), Anchor(700, 6), 0, 0, rank=4)
    alone.sink.positions[OF_D] = position(6, source=encode_source(source))._replace(epoch=10)
    capture.count(OF_D, 7, alone.sink.positions[OF_D])
    capture.offset_is(800)
    assert alone.sink.took("counted") == [(OF_D, 7, Counted(((10, 7),), 7))]
    capture.decided(OF_D, 6)
    capture.acknowledged(800)
    assert [call[:4] for call in alone.sink.took("append")] == [(OF_D, "put", b"d", b"2")]


def test_where_the_stream_forks_a_count_asks_how_far_the_new_one_is() -> None:
    alone = Alone()
    capture, lineage = alone.capture, alone.capture.tape.lineage
    state = alone.sink.positions[OF_D] = ranked(OF_D, 0, end=300)
    capture.count(OF_D, 7, state)
    capture.offset_is(1200)
    capture.fed([([b"PING"], 150)], 1)
    changed = alone.changed
    capture.goes_on_as(Lineage((*lineage.ids, ("two", 500))))
    assert (capture.wants_offset, alone.changed > changed) == (True, True)
    capture.offset_is(700)
    capture.fed([([b"PING"], 600)], 1)
    assert alone.sink.took("counted") == []
    capture.fed([([b"PING"], 700)], 1)
    assert alone.sink.took("counted") == [(OF_D, 7, Counted(((9, 5),), 6))]


def test_a_gap_is_found_by_who_could_not_be_told() -> None:
    alone = Alone().opened()
    capture = alone.capture
    capture.count(OF_A, 2, position(5))
    capture.read_rows(OF_D, "r1")
    capture.fed([([b"NEWLY", b"x"], 110), ([b"PING"], 120)], 1)
    assert sorted(alone.sink.took("request_reset")) == [(s, UNKNOWN) for s in range(SEGMENTS) if s not in (OF_A, OF_D)]
    capture.offset_is(120)
    assert alone.sink.took("counted") == [(OF_A, 2, Counted(lost=LOST))]
    capture.rows_read(OF_D, "r1", [], 120)
    assert alone.sink.took("rows_read") == []
    assert capture.segments_to_read(9) == {OF_D: "r1"}, "what was listed before it may be anything"
    capture.rows_read(OF_D, "r1", [], 120)
    assert alone.sink.took("rows_read") == [(OF_D, "r1", [])]


def test_a_gap_between_the_count_and_the_decision() -> None:
    alone = Alone()
    alone.capture.count(OF_A, 1, position(5))
    alone.capture.offset_is(100)
    alone.capture.fed([([b"NEWLY", b"x"], 110)], 1)
    alone.capture.decided(OF_A, 5)
    assert alone.sink.took("request_reset") == [(OF_A, UNKNOWN)]


def of(key: bytes, *offsets: int) -> list[tuple[Arguments, int]]:
    """A SET of the key at each of these offsets."""
    return [([b"SET", key, b"1"], offset) for offset in offsets]


def test_what_others_write_gives_way() -> None:
    """Beside a replica, and where somebody else has claimed a segment: the stream is read on."""
    alone = Alone()
    alone.capture.take(REPLICA)
    alone.capture.fed(of(b"a", 110) + of(b"d", 120) + of(b"a", 130), 1)
    assert alone.capture.shed == 0
    alone.capture.fed(of(b"d", 140), 1)
    assert (alone.capture.shed, alone.capture.tape.length()) == (1, 2)
    assert not alone.capture.is_full()


def test_what_cannot_give_way_is_not_looked_at_for_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is held: while rows are read the stream is read on, however much that is."""
    alone, looks = Alone().opened(), list[int]()
    shed = Tape.shed

    def noted(tape: Tape, segments: set[int], most: int) -> int:
        looks.append(tape.length())
        return shed(tape, segments, most)

    monkeypatch.setattr(Tape, "shed", noted)
    alone.capture.read_rows(OF_D, "r1")
    alone.capture.fed(of(b"a", *range(110, 200, 10)), 1)
    assert looks == [], "there is nobody whose changes could"
    alone.capture.stepped_down(OF_D, "a higher claim")
    for offset in range(200, 300, 10):
        alone.capture.fed(of(b"a", offset), 1)
    assert looks == [*range(looks[0], looks[-1] + 1, 2)]
    assert 3 <= len(looks) <= 6


def test_a_segment_that_somebody_else_has_claimed_holds_up_no_other() -> None:
    alone = Alone().opened()
    alone.capture.stepped_down(OF_A, "a higher claim")
    alone.capture.fed(of(b"a", 110, 120, 130) + of(b"d", 140), 1)
    assert (alone.capture.shed, alone.capture.tape.length(), alone.capture.waits(140)) == (1, 1, True)
    alone.capture.fed(of(b"d", 150, 160, 170), 1)
    assert alone.capture.is_full(), "what it writes itself is kept"
    assert alone.capture.shed == 1
    alone.capture.stepped_down(OF_D, "a higher claim")
    assert not alone.capture.waits(170), "it is not this one's to write"


def test_a_full_tape_that_waits_for_the_stream_is_read_on() -> None:
    for begin in ("count", "rows", "images"):
        alone = Alone().opened()
        capture = alone.capture
        capture.fed([([b"INCR", b"a"], offset) for offset in (110, 120, 130, 140)], 1)
        assert capture.is_full()
        if begin == "count":
            capture.count(OF_D, 1, None)
            assert not capture.is_full()
            capture.offset_is(150)
        elif begin == "rows":
            capture.read_rows(OF_D, "r1")
        else:
            capture.images_read([(OF_A, Image(b"a", b"1", None, 150))])
        assert not capture.is_full(), begin


def went(key: bytes, *offsets: int) -> list[tuple[Arguments, int]]:
    """A DEL of the key at each of these offsets."""
    return [([b"DEL", key], offset) for offset in offsets]


def test_what_goes_is_told_once_it_is_known_why() -> None:
    alone = Alone().opened()
    capture = alone.capture
    assert capture.heard_at is None
    capture.hears(100)
    capture.fed(went(b"a", 110) + of(b"a", 120), 1)
    assert alone.sink.took("append") == []
    capture.heard(130, {b"a": ["expire"]})
    assert capture.heard_at == 130
    assert alone.sink.took("append") == [], "the stream is not read so far"
    capture.heard(150, {b"d": ["evict"]})
    capture.fed(went(b"d", 130), 1)
    told = [call[1:3] for call in alone.sink.took("append")]
    assert [pair for pair in told if pair[1] == b"a"] == [("expire", b"a"), ("put", b"a")]
    assert [pair for pair in told if pair[1] == b"d"] == [("remove", b"d")]
    capture.fed(went(b"d", 150), 1)
    assert [call[1:3] for call in alone.sink.took("append")] == [("evict", b"d")]
    assert capture.tape.named == 2


def test_where_nobody_hears_it_nothing_waits() -> None:
    alone = Alone().opened()
    capture = alone.capture
    capture.hears(100)
    capture.fed(went(b"a", 110), 1)
    capture.heard(120, {b"a": ["expire"]})
    capture.unheard()
    assert [call[1:3] for call in alone.sink.took("append")] == [("remove", b"a")]
    assert capture.heard_at is None
    capture.fed(went(b"a", 120), 1)
    assert [call[1:3] for call in alone.sink.took("append")] == [("remove", b"a")]
    capture.hears(120)
    capture.fed(went(b"a", 130), 1)
    assert alone.sink.took("append") == [], "it is heard again from 120 on"


def test_a_full_tape_does_not_wait_to_hear_why() -> None:
    """It is not read on, perhaps not up to what was heard."""
    alone = Alone().opened()
    alone.capture.hears(100)
    alone.capture.heard(1000, {b"a": ["expire"]})
    alone.capture.fed(went(b"a", 110, 120, 130), 1)
    assert alone.sink.took("append") == []
    alone.capture.fed(went(b"a", 140), 1)
    assert len(alone.sink.took("append")) == 4


def test_what_is_heard_far_ahead_of_the_stream_is_dropped() -> None:
    alone = Alone().opened()
    alone.capture.hears(100)
    alone.capture.fed(went(b"a", 110), 1)
    alone.capture.heard(200, {})
    for number in range(1000):
        alone.capture.heard(201 + number, {b"a": ["expire"]})
    assert len(alone.capture._hints) == 64
    assert alone.capture.heard_at == 1200
    alone.capture.fed(went(b"a", 201, 1200), 1)
    assert [call[1] for call in alone.sink.took("append")] == ["remove", "expire", "remove"]


def test_what_was_heard_beside_another_stream_is_void() -> None:
    for other in ("goes on", "replaced"):
        alone = Alone().opened()
        capture = alone.capture
        capture.hears(100)
        capture.heard(150, {b"a": ["expire"]})
        if other == "replaced":
            capture.replaced(Tape(Lineage((("three", 0),)), 7, 0, 0, SEGMENTS, Plain()))
        else:
            capture.goes_on_as(Lineage((("one", 0),)))
            assert capture.heard_at == 150, "it is the same one"
            capture.goes_on_as(Lineage((("one", 0), ("two", 100))))
        assert capture.heard_at is None, other
        assert not capture._hints


def reasons_of(alone: Alone, key: bytes) -> list[object]:
    """Why that key changed, by what was handed over since the last call."""
    return [call[1] for call in alone.sink.took("append") if call[2] == key]


@pytest.mark.parametrize("how", ["full", "dropped", "in a row", "too early"])
def test_where_an_expiry_is_not_here_any_more_a_delete_is_not_taken_for_it(how: str) -> None:
    """The key expires at 110, and is deleted by hand later: one of both is told."""
    alone = Alone().opened()
    capture = alone.capture
    if how != "too early":
        capture.hears(100)
    if how == "in a row":
        capture.read_rows(OF_A, "r1")
    capture.fed(went(b"a", 110), 1)
    if how == "full":
        capture.fed(of(b"d", 120, 130, 135), 1)
        assert reasons_of(alone, b"a") == ["remove"]
        capture.position_read(OF_A, position(6, end=140))
        capture.position_read(OF_D, position(8, end=140))
    elif how == "too early":
        assert reasons_of(alone, b"a") == ["remove"]
        capture.hears(100)
    elif how == "in a row":
        capture.fed(of(b"a", 120), 1)
        capture.rows_read(OF_A, "r1", [Image(b"a", b"1", None, 125)], 105)
        capture.fed(of(b"d", 126), 1)
    else:
        capture.read_rows(OF_A, "r1")
        capture.rows_read(OF_A, "r1", [], 110)
    capture.fed(of(b"a", 145) + went(b"a", 150), 1)
    capture.heard(160, {b"a": ["expire"]})
    capture.fed(of(b"d", 160), 1)
    assert reasons_of(alone, b"a") == ["put", "remove"]
    assert capture.tape.named == 0


def test_where_nothing_went_nothing_waits() -> None:
    """Also in all that is too far ahead to be kept."""
    alone = Alone().opened()
    capture = alone.capture
    capture.hears(100)
    for number in range(3000):
        capture.heard(101 + number, {b"a": ["expire"]} if number < 70 else {})
    capture.fed(of(b"a", 164), 1)
    assert reasons_of(alone, b"a") == ["put"]
    capture.fed(of(b"a", 1000), 1)
    assert reasons_of(alone, b"a") == ["put"]


def test_a_server_that_is_started_anew_holds_up_nothing() -> None:
    """It answers before it has read its data, and has no offset then."""
    alone = Alone().opened()
    alone.sink.room = 0
    alone.capture.fed(of(b"a", 110), 1)
    alone.capture.hears(0)
    alone.capture.heard(0, {b"a": ["expire"]})
    alone.sink.room = 1 << 40
    alone.capture.progress()
    assert reasons_of(alone, b"a") == ["put"]
