"""What the core asks of a cache in another process, whose changes come as a stream."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import Correct, Count, Decided, Effect, PositionRead, ReadRows, SnapshotRead
from deelog_connector.core.history import History
from deelog_connector.core.segment import Counted
from deelog_connector.core.settings import CacheState, StreamState
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Reason
from tests.connector.world import SEGMENTS, Node, World

KEY, OTHER = b"a", b"e"
SEGMENT = segment_of(KEY, SEGMENTS)
assert segment_of(OTHER, SEGMENTS) == SEGMENT


class Source(StreamState):
    """Says the sequence, and the epochs before."""

    def source(self, segment: int, sequence: int, past: History) -> str:
        return f"{sequence} {list(past)}"


class StreamNode(Node):
    def cache_state(self) -> CacheState | StreamState:
        self.asked: list[Effect] = []
        return Source()

    def carry_out(self, effect: Effect, hang: bool) -> bool:
        if isinstance(effect, Count | Decided | ReadRows | Correct):
            self.asked.append(effect)
        return super().carry_out(effect, hang)

    def next(self) -> Effect:
        """What it is asked next."""
        for _ in range(60):
            if self.asked:
                return self.asked.pop(0)
            self.world.now += 0.1
            self.step()
        raise AssertionError("it asks nothing")

    def put(self, *values: bytes, key: bytes = KEY, reason: str = Reason.PUT, skipped: int = 0) -> None:
        for value in values:
            operation = self.core.append(SEGMENT, reason, key, value, None, 1, True, skipped=skipped)
            self.core.acked(SEGMENT, operation.sequence)

    def position(self) -> tuple[int, int, str]:
        state = self.core.position(SEGMENT)
        assert state is not None
        return state.epoch, state.sequence, state.source


class StreamWorld(World):
    def start(self, node_id: str) -> StreamNode:
        self.incarnation += 1
        return StreamNode(self, f"{node_id}@{self.incarnation}")

    def takes(self, name: str, epoch: int) -> tuple[StreamNode, Count]:
        """The node is promoted, and asked to count."""
        node = self.nodes[name]
        assert isinstance(node, StreamNode)
        self.primary[SEGMENT] = node
        node.core.promote(SEGMENT, epoch)
        asked = node.next()
        assert isinstance(asked, Count)
        return node, asked

    def rest(self) -> None:
        self.settle(*(node for node in self.nodes.values()))

    def entries(self) -> dict[bytes, bytes]:
        return {key: entry.value for key, entry in self.reader(SEGMENT).entries.items()}


@pytest.fixture
def world() -> StreamWorld:
    return StreamWorld(2)


def written(world: StreamWorld) -> StreamNode:
    """The first node has reset the segment, and written three operations."""
    node, asked = world.takes("n0", 1)
    assert asked.position is None
    node.core.counted(SEGMENT, asked.generation, Counted())
    assert node.next() == Decided(SEGMENT, None)
    node.core.resumed(SEGMENT)
    rows = node.next()
    assert isinstance(rows, ReadRows)
    assert node.core.rows_read(SEGMENT, rows.reset_id, [Entry(KEY, b"0", None)])
    node.put(b"1", b"2", b"3")
    world.rest()
    assert node.position() == (1, 3, "3 []")
    assert world.entries() == {KEY: b"3"}
    assert not node.asked
    return node


def test_a_first_takeover_is_counted_and_reset(world: StreamWorld) -> None:
    node = written(world)
    assert world.reader(SEGMENT).resets == ["initial"]
    heard = [effect for effect in node.announced(PositionRead) if effect.segment == SEGMENT]
    assert heard[-1].state.sequence == 3


def test_what_is_not_in_kafka_takes_the_new_epoch(world: StreamWorld) -> None:
    first = written(world)
    first.alive = False
    node, asked = world.takes("n1", 2)
    assert asked.position is not None
    assert asked.position.sequence == 3
    node.core.counted(SEGMENT, asked.generation, Counted(((1, 5),), 4))
    assert node.next() == Decided(SEGMENT, 3)
    node.core.resumed(SEGMENT)
    assert node.core.history(SEGMENT) == ((1, 3), (2, 3))
    node.put(b"4", b"5")
    world.settle(node)
    assert node.position() == (2, 5, "5 [(1, 3)]")
    assert world.entries() == {KEY: b"5"}
    assert world.reader(SEGMENT).resets == ["initial"]


def test_what_the_stream_does_not_have_is_corrected(world: StreamWorld) -> None:
    first = written(world)
    first.put(b"6", key=OTHER)
    world.rest()
    first.alive = False
    node, asked = world.takes("n1", 2)
    node.core.counted(SEGMENT, asked.generation, Counted(((1, 3),), 4))
    assert node.next() == Decided(SEGMENT, 3)
    node.core.resumed(SEGMENT)
    assert node.next() == Correct(SEGMENT, frozenset({OTHER}))
    for _ in range(4):
        node.put(b"4")
        world.settle(node)
    state = node.core.position(SEGMENT)
    assert state is not None
    read_from = state.read_from
    phantom = next(r for r in world.records(SEGMENT) if r.header.position == (1, 4))
    assert read_from <= phantom.offset, "who comes next has to find it"
    node.put(b"", key=OTHER, reason=Reason.CORRECT)
    for _ in range(4):
        world.settle(node)
        node.put(b"5")
    world.settle(node)
    assert world.entries() == {KEY: b"5", OTHER: b""}
    state = node.core.position(SEGMENT)
    assert state is not None
    assert state.read_from > phantom.offset
    assert node.core.counts.corrections == 1


def test_a_stream_that_has_lost_something_is_reset(world: StreamWorld) -> None:
    written(world).alive = False
    node, asked = world.takes("n1", 2)
    node.core.counted(SEGMENT, asked.generation - 1, Counted(((1, 3),), 4))
    node.core.counted(SEGMENT, asked.generation, Counted(lost="gone"))
    assert node.next() == Decided(SEGMENT, None)
    node.core.resumed(SEGMENT)
    rows = node.next()
    assert isinstance(rows, ReadRows)
    assert not node.core.rows_read(SEGMENT, "another", [])
    assert not node.core.rows_read(SEGMENT + 1, rows.reset_id, [])
    assert node.core.rows_read(SEGMENT, rows.reset_id, [Entry(OTHER, b"7", None)])
    assert not node.core.rows_read(SEGMENT, rows.reset_id, [])
    node.core.acked(SEGMENT, node.core.last_sequence(SEGMENT))
    world.settle(node)
    assert not node.asked
    assert world.entries() == {OTHER: b"7"}
    assert world.reader(SEGMENT).resets == ["initial", "gone"]


def test_what_gives_way_is_missed_by_nobody(world: StreamWorld) -> None:
    first = written(world)
    first.put(b"9", skipped=2)
    first.put(b"10")
    first.put(b"12", skipped=1)
    world.rest()
    state = first.core.position(SEGMENT)
    assert state is not None
    assert (state.sequence, state.coalesced_to, state.coalesced) == (9, 9, 3)
    first.alive = False
    node, asked = world.takes("n1", 2)
    node.core.counted(SEGMENT, asked.generation, Counted(((1, 9),), 10))
    assert node.next() == Decided(SEGMENT, 9)
    node.core.resumed(SEGMENT)
    world.settle(node)
    assert world.reader(SEGMENT).resets == ["initial"]


def test_nothing_is_renewed_or_released_before_the_stream_has_heard(world: StreamWorld) -> None:
    written(world).alive = False
    node, asked = world.takes("n1", 2)
    node.core.counted(SEGMENT, asked.generation, Counted(((1, 5),), 4))
    assert node.next() == Decided(SEGMENT, 3)
    node.core.release(SEGMENT)
    world.settle(node)
    assert node.core.unwritten() == 1
    assert node.core.phase(SEGMENT) == "writing"
    node.core.resumed(SEGMENT)
    node.put(b"4", b"5")
    world.settle(node)
    assert node.core.phase(SEGMENT) == "released"
    assert world.entries() == {KEY: b"5"}


def test_one_that_is_promoted_again_counts_again(world: StreamWorld) -> None:
    node = written(world)
    segment = next(s for s in node.core.primaries() if s.number == SEGMENT)
    segment.corrected_at, segment.wrong = 9, {OTHER}
    node.core.append(SEGMENT, Reason.PUT, KEY, b"lost", None, 1, True)  # not acknowledged: it is on the tape
    again, asked = world.takes("n0", 5)
    assert again is node
    assert node.core.history(SEGMENT) == ((5, 0),)
    segment = next(s for s in node.core.primaries() if s.number == SEGMENT)
    assert (segment.corrected_at, segment.wrong) == (0, set()), "what was corrected is another epoch's"
    node.core.counted(SEGMENT, asked.generation, Counted(((1, 3),), 4))
    assert node.next() == Decided(SEGMENT, 3)
    node.core.resumed(SEGMENT)
    node.put(b"4")
    world.settle(node)
    assert world.entries() == {KEY: b"4"}
    assert [r.header.position for r in world.records(SEGMENT) if r.header.kind is Kind.CHANGE][-1] == (5, 4)


def test_a_stream_that_begins_anew_below_what_was_written_is_drained(world: StreamWorld) -> None:
    node = written(world)
    again, asked = world.takes("n0", 5)
    assert again is node
    node.core.counted(SEGMENT, asked.generation, Counted(lost="gone"))
    assert node.next() == Decided(SEGMENT, None)
    node.core.resumed(SEGMENT)
    rows = node.next()
    assert isinstance(rows, ReadRows)
    node.core.rows_read(SEGMENT, rows.reset_id, [])
    world.rest()
    assert node.position()[:2] == (5, 0)
    assert node.core.written(SEGMENT) == 0
    assert node.core.unwritten() == 0
    node.core.release(SEGMENT)
    world.rest()
    assert node.core.phase(SEGMENT) == "released"


def test_what_a_takeover_is_not_any_more_is_told_to_nobody(world: StreamWorld) -> None:
    written(world).alive = False
    node, asked = world.takes("n1", 2)
    node.core.counted(SEGMENT, asked.generation, Counted(((1, 3),), 4))
    while node.core.phase(SEGMENT) != "writing":
        world.now += 0.1
        node.follow()
        for effect in node.core.poll(world.now, 1):
            node.carry_out(effect, False)
        if node.core.phase(SEGMENT) == "writing":
            node.core.demote(SEGMENT)
            break
    world.settle(node)
    assert not node.asked


def test_a_snapshot_is_a_reset(world: StreamWorld) -> None:
    node = written(world)
    node.core.snapshot(SEGMENT)
    rows = node.next()
    assert isinstance(rows, ReadRows)
    assert node.core.rows_read(SEGMENT, rows.reset_id, [Entry(OTHER, b"7", None)])
    world.rest()
    assert world.reader(SEGMENT).resets == ["initial", "snapshot"]
    assert node.announced(SnapshotRead) == [SnapshotRead(SEGMENT, 1, 1)]
