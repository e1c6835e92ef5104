"""How nodes agree on an incremental snapshot: who reads which segments, when it is complete, its notifications."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.core import ConnectorCore
from deelog_connector.core.effects import SnapshotRead, SnapshotRefused
from deelog_connector.signals import incremental_snapshots as module
from deelog_connector.signals.incremental_snapshots import (
    AGAIN_SECONDS,
    MAX_PASSES,
    MAX_RUNNING,
    NOTE_SECONDS,
    NOTED_AT_ONCE,
    Snapshots,
)
from deelog_schemas.signals import Progress, encode_progress
from tests.connector.signals.told import ALL, RecordedNotifications
from tests.connector.world import SEGMENTS, Node, World, key_of, partition_log

INCREMENTAL = b'"snapshot":"incremental"'


class Grid:
    """The nodes of a world, each with its `Snapshots`, and their signal topic."""

    def __init__(self) -> None:
        self.world = World(nodes=2, batch=50)
        self.topic: list[Progress] = []
        self.lost = False
        self.notifications: dict[str, RecordedNotifications] = {}
        self.of: dict[str, Snapshots] = {}
        self._heard: dict[str, int] = {}
        self._read: dict[str, int] = {}
        nodes = list(self.world.nodes.values())
        for segment in ALL:
            self.world.own(segment, nodes[segment % 2], nodes[(segment + 1) % 2])
        for node in nodes:
            self.join(node)
        for segment in ALL:
            for number in range(5):
                self.world.put(key_of(segment, number), b"v")
        self.world.settle()

    def join(self, node: Node) -> Snapshots:
        """Starts a process, which has not read the topic yet."""
        notifications = self.notifications[node.member] = RecordedNotifications()
        found = self.of[node.member] = Snapshots(node.core, "c", node.member, self._note, notifications)
        self._heard[node.member] = len(node.announcements)
        self._read[node.member] = 0
        return found

    def _note(self, note: Progress) -> None:
        if not self.lost:
            self.topic.append(note)

    def step(self, read: bool = True) -> None:
        """Each node polls, works and continues to read the topic, as its connector does."""
        self.world.now += 1.0
        for node in [n for n in self.world.nodes.values() if n.alive]:
            node.step()
            snapshots, name = self.of[node.member], node.member
            for effect in node.announcements[self._heard[name] :]:
                if isinstance(effect, SnapshotRead | SnapshotRefused):
                    snapshots.heard(effect)
            self._heard[name] = len(node.announcements)
            snapshots.work(self.world.now)
            if read:
                for note in self.topic[self._read[name] :]:
                    snapshots.progressed(note)
                self._read[name] = len(self.topic)

    def ask(self, identity: str, segments: list[int] | None = None) -> set[str | None]:
        """Every node reads the signal."""
        return {self.of[n.member].ask(identity, segments) for n in self.world.nodes.values()}

    def rest(self) -> None:
        """Steps until no node has a running snapshot."""
        for _ in range(60):
            self.step()
            if not any(self.of[n.member].running for n in self.world.nodes.values() if n.alive):
                return
        raise AssertionError(f"{[s.running for s in self.of.values()]} {self.topic}")

    @property
    def both(self) -> list[RecordedNotifications]:
        return [self.notifications[n.member] for n in self.world.nodes.values()]


def test_each_owner_reads_its_segments_once_and_one_node_speaks() -> None:
    grid = Grid()
    assert grid.ask("s") == {None}
    grid.rest()
    assert sorted(s for note in grid.topic for s in note.segments) == ALL
    assert sum(note.rows for note in grid.topic) == 5 * SEGMENTS
    kinds = [told.kinds("s") for told in grid.both]
    assert kinds[0][0] == "STARTED"
    assert sorted(kind for one in kinds for kind in one) == ["COMPLETED", "STARTED", "TABLE_SCAN_COMPLETED"]
    (rows,) = [m["total_rows_scanned"] for t in grid.both for _, k, _, m in t.sent if k == "TABLE_SCAN_COMPLETED"]
    assert rows == 5 * SEGMENTS
    grid.world.check()


def test_only_so_many_snapshots_run_at_the_same_time() -> None:
    grid = Grid()
    first = grid.of[next(iter(grid.world.nodes.values())).member]
    for number in range(MAX_RUNNING):
        assert first.ask(f"{number}", None) is None
    assert "are already running" in str(first.ask("one more", None))
    assert first.ask("0", None) == "a snapshot with this id is already running"
    first.stop()
    assert first.running == []
    assert first.ask("one more", None) is None


def test_it_is_complete_with_the_last_note_and_not_before() -> None:
    grid = Grid()
    grid.ask("s", [0, 1])
    while len(grid.topic) < 2:
        grid.step(read=False)
    node = grid.of[next(iter(grid.world.nodes.values())).member]
    node.progressed(grid.topic[0])
    node.progressed(grid.topic[0])
    assert node.running == ["s"]
    node.progressed(grid.topic[1]._replace(cache="c", id="another"))
    assert node.running == ["s"]
    node.progressed(grid.topic[1])
    assert node.running == []


def test_the_next_owner_begins_what_is_not_noted_and_only_that() -> None:
    grid = Grid()
    n0, n1 = grid.world.nodes.values()
    grid.ask("s", [0, 1])
    n0.step()
    grid.of[n0.member].work(0.0)
    n0.step()
    assert grid.topic == []
    grid.world.crash(n0)
    grid.world.own(0, n1)
    grid.world.own(2, n1)
    for _ in range(40):
        grid.step()
    assert grid.of[n1.member].running == []
    assert sorted(s for note in grid.topic for s in note.segments) == [0, 1]
    assert {note.member for note in grid.topic} == {n1.member}
    late = grid.join(grid.world.restart(n0))
    late.replaying = True
    late.ask("s", [0, 1])
    for note in grid.topic:
        late.progressed(note)
    assert late.running == []


def read_unwatched() -> tuple[Grid, Node, Node]:
    """The first node has sent the rows of segment 0, and nobody has looked at the log since."""
    grid = Grid()
    first, second = grid.world.nodes.values()
    grid.world.watching = False
    grid.ask("s", [0])
    while not first.announced(SnapshotRead):
        grid.step()
    return grid, first, second


def test_rows_that_are_lost_together_with_their_owner_are_sent_again() -> None:
    """Nobody else could miss them: so the segment is not noted before two looks at the log have found it whole."""
    grid, first, second = read_unwatched()
    world = grid.world
    for _ in range(3):
        grid.step()
    for slot in partition_log(world, 0).slots:
        if slot.record is not None and INCREMENTAL in (slot.record.value or b""):
            slot.record = None
    world.leader_epoch = 1
    second.follow()
    world.crash(first)
    for segment in (0, 2):
        world.own(segment, second)
    world.watching = True
    grid.rest()
    assert world.reader(0).resets == ["initial"]
    assert len([record for record in world.records(0) if INCREMENTAL in (record.value or b"")]) == 5
    assert [(note.member, note.segments, note.rows) for note in grid.topic] == [(second.member, (0,), 5)]


def test_an_owner_that_lost_its_segment_meanwhile_notes_nothing() -> None:
    grid, first, second = read_unwatched()
    world = grid.world
    world.own(0, second, first)
    world.own(0, first, second)
    world.watching = True
    grid.rest()
    assert [(note.member, note.segments, note.rows) for note in grid.topic] == [(first.member, (0,), 5)]
    assert len(first.announced(SnapshotRead)) == 2


def test_a_note_that_got_lost_is_written_again() -> None:
    grid = Grid()
    grid.ask("s", [0])
    grid.lost = True
    for _ in range(8):
        grid.step()
    grid.lost = False
    assert grid.ask("t", [0]) == {None}
    for _ in range(int(AGAIN_SECONDS) + 2):
        grid.step()
    grid.rest()
    assert [note.id for note in grid.topic].count("s") == 1


def test_one_that_is_asked_for_meanwhile_is_added() -> None:
    grid = Grid()
    grid.ask("s")
    grid.ask("t", [0, 1])
    assert grid.ask("s") == {"a snapshot with this id is already running"}
    grid.rest()
    assert sorted(s for note in grid.topic if note.id == "t" for s in note.segments) == [0, 1]
    grid.world.check()
    for number in range(MAX_RUNNING):
        assert grid.ask(f"u{number}") == {None}
    assert grid.ask("v") == {f"{MAX_RUNNING} snapshots are already running"}
    assert grid.ask("w", [SEGMENTS]) == {f"segment {SEGMENTS} does not exist (segment.count={SEGMENTS})"}


def test_stop_ends_it_and_one_node_tells() -> None:
    grid = Grid()
    grid.ask("s")
    grid.step()
    for snapshots in grid.of.values():
        snapshots.stop()
        assert snapshots.running == []
    assert [kind for told in grid.both for kind in told.kinds("s")] == ["STARTED", "ABORTED"]
    rows = sum(n.core.counts.snapshot_rows for n in grid.world.nodes.values())
    for _ in range(5):
        grid.step()
    assert sum(n.core.counts.snapshot_rows for n in grid.world.nodes.values()) <= rows + 2 * MAX_PASSES
    assert all(n.core.snapshot_of(s) is None for n in grid.world.nodes.values() for s in ALL)


def test_a_refused_row_ends_it_on_all_nodes() -> None:
    grid = Grid()
    n0 = next(iter(grid.world.nodes.values()))
    grid.world.broker.refused.add(n0.encoder._codec.key(key_of(0)))
    grid.ask("s")
    grid.rest()
    assert sorted(kind for told in grid.both for kind in told.kinds("s")) == ["ABORTED", "STARTED"]
    grid.world.settle()
    assert {n.core.phase(s) for s in ALL for n in grid.world.nodes.values()} == {"writing", "idle"}
    grid.world.check()


class Core:
    """Eight segments, of which this node is primary of those in `mine`."""

    segments = 8

    def __init__(self, *mine: int) -> None:
        self.mine = set(mine)
        self.reads: dict[int, SimpleNamespace] = {}
        self.begun: list[int] = []
        self.stopped: list[int] = []

    def primaries(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(number=number) for number in sorted(self.mine)]

    def may_snapshot(self, segment: int) -> bool:
        return segment in self.mine

    def snapshot(self, segment: int) -> SimpleNamespace:
        self.begun.append(segment)
        self.reads[segment] = SimpleNamespace(over=False)
        return self.reads[segment]

    def snapshot_of(self, segment: int) -> SimpleNamespace | None:
        return self.reads.get(segment)

    def stop_snapshot(self, segment: int) -> None:
        self.stopped.append(segment)

    def vouching(self, segment: int) -> tuple[int, bool]:
        return (7, True) if segment in self.mine else (-1, False)


class Desk:
    """The snapshots of one node, its notes and its notifications."""

    def __init__(self, *mine: int) -> None:
        self.core, self.told, self.notes = Core(*mine), RecordedNotifications(), list[Progress]()
        self.of = Snapshots(cast(ConnectorCore, self.core), "c", "n1@1", self.notes.append, self.told)

    def read(self, segment: int, rows: int = 1, epoch: int = 7) -> None:
        """The core has read a segment."""
        self.core.reads[segment].over = True
        self.of.heard(SnapshotRead(segment, rows, epoch))

    def sent(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """The notifications since the last call."""
        found = [(kind, identity, more) for _, kind, identity, more in self.told.sent]
        self.told.sent.clear()
        return found


MINE = {"member": "n1@1"}


def test_the_node_that_begins_the_lowest_segment_tells_of_the_start() -> None:
    desk = Desk(1, 2, 5)
    desk.of.ask("s", [5, 2, 1])
    desk.of.ask("t", [0, 2])
    desk.of.work(0.0)
    assert desk.core.begun == [1, 2, 5]
    assert desk.sent() == [("STARTED", "s", {**MINE, "segments": "1-2,5"})]
    desk.of.work(1.0)
    assert (desk.core.begun, desk.sent()) == ([1, 2, 5], [])


def test_a_segment_is_read_once_for_all_that_asked_before_it_was_begun() -> None:
    desk = Desk(0, 1)
    desk.of.ask("s", [0])
    desk.of.ask("t", [0, 1])
    desk.of.work(0.0)
    desk.of.ask("late", [0])
    desk.read(0, 3)
    desk.of.work(NOTE_SECONDS)
    assert desk.notes == [Progress(identity, "c", (0,), 3, "n1@1", False) for identity in ("s", "t")]
    assert desk.core.begun == [0, 1, 0]


def test_only_so_many_segments_are_read_at_a_time() -> None:
    desk = Desk(*range(8))
    desk.core.segments = 20
    desk.core.mine = set(range(20))
    desk.of.ask("s", None)
    desk.of.work(0.0)
    assert desk.core.begun == list(range(MAX_PASSES))
    desk.read(3)
    desk.of.work(0.1)
    assert desk.core.begun == list(range(MAX_PASSES + 1))


def test_a_read_that_a_takeover_dropped_begins_again() -> None:
    desk = Desk(0)
    desk.of.ask("s", [0])
    desk.of.work(0.0)
    desk.core.reads.clear()
    desk.core.mine.clear()
    desk.of.work(0.1)
    assert desk.of._passes == {}
    desk.core.mine.add(0)
    desk.of.work(0.2)
    assert desk.core.begun == [0, 0]
    desk.core.reads[0].over = True
    del desk.core.reads[0]  # it was read, and the core tells of it next
    desk.of.work(0.3)
    assert desk.core.begun == [0, 0]


def test_notes_are_cut_to_what_readers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(encode_progress(Progress("i" * 255, "c" * 99, tuple(range(12_288, 16_384)), 1, "n@1", False))) < 65_536
    assert NOTED_AT_ONCE == 4_096
    monkeypatch.setattr(module, "NOTED_AT_ONCE", 2)
    desk = Desk(0, 1, 2)
    desk.of.ask("s", [0, 1, 2])
    desk.of.work(100.0)
    for segment in range(3):
        desk.read(segment, 1 + segment)
    desk.of.work(100.0 + NOTE_SECONDS)
    assert desk.notes == [Progress("s", "c", (0, 1), 3, "n1@1", False), Progress("s", "c", (2,), 3, "n1@1", False)]


def test_notes_are_written_at_an_interval_and_again_until_they_are_read_back() -> None:
    desk = Desk(0, 1, 2)
    desk.of.ask("s", [0, 1, 2])
    desk.of.work(100.0)
    desk.sent()
    desk.read(0, 3)
    desk.read(1, 4)
    desk.of.work(100.0 + NOTE_SECONDS - 0.1)
    assert desk.notes == []
    desk.of.work(100.0 + NOTE_SECONDS)
    assert desk.notes == [Progress("s", "c", (0, 1), 7, "n1@1", False)]
    told = {**MINE, "current_collection_in_progress": "c", "segments": "2 of this node, 3 in all"}
    assert desk.sent() == [("IN_PROGRESS", "s", told)]
    desk.of.progressed(desk.notes[0]._replace(segments=(0,), rows=3))
    desk.of.work(100.0 + AGAIN_SECONDS)
    assert len(desk.notes) == 1
    desk.of.work(100.0 + NOTE_SECONDS + AGAIN_SECONDS)
    assert desk.notes[1:] == [Progress("s", "c", (1,), 4, "n1@1", False)]


@pytest.mark.parametrize(("rows", "status"), [(3, "SUCCEEDED"), (0, "EMPTY")])
@pytest.mark.parametrize("member", ["n1@1", "n2@1"])
def test_the_writer_of_the_last_note_tells_of_the_end(
    caplog: pytest.LogCaptureFixture, rows: int, status: str, member: str
) -> None:
    caplog.set_level(logging.INFO)
    desk = Desk(0)
    desk.of.ask("s", [0, 1])
    desk.of.progressed(Progress("s", "c", (1,), 0, "n1@1", False))
    assert (desk.of.running, desk.sent()) == (["s"], [])
    desk.of.progressed(Progress("s", "c", (0,), rows, member, False))
    assert desk.of.running == []
    scanned = {**MINE, "scanned_collection": "c", "total_rows_scanned": rows, "status": status}
    ended = [("TABLE_SCAN_COMPLETED", "s", scanned), ("COMPLETED", "s", MINE)]
    assert desk.sent() == (ended if member == "n1@1" else [])
    assert f"snapshot s of c is complete: {rows} rows" in caplog.messages


def test_what_was_read_before_a_promotion_that_is_heard_of_later_is_not_noted() -> None:
    """The promotion has forgotten which rows are to be looked for."""
    desk = Desk(0, 1)
    desk.of.ask("s", [0, 1])
    desk.of.work(0.0)
    desk.read(0, epoch=6)
    desk.of.work(100.0)
    desk.of.work(200.0)
    assert (desk.notes, desk.core.begun) == ([], [0, 1, 0])


def test_a_refused_row_is_noted_and_ends_the_snapshot_where_the_note_is_read() -> None:
    desk = Desk(0, 1)
    desk.of.ask("s", [0, 1])
    desk.of.work(0.0)
    desk.sent()
    desk.of.heard(SnapshotRefused(0))
    assert desk.notes == [Progress("s", "c", (0,), 0, "n1@1", True)]
    assert desk.of.running == ["s"]
    desk.of.progressed(desk.notes[0])
    assert (desk.of.running, desk.core.stopped) == ([], [1])
    assert desk.sent() == [("ABORTED", "s", {**MINE, "reason": "refused", "segments": "0"})]
    desk.of.heard(SnapshotRead(1, 3, 7))
    desk.of.progressed(Progress("s", "c", (1,), 3, "n1@1", False))
    assert len(desk.notes) == 1


def test_only_who_owns_the_lowest_segment_left_speaks_of_a_stop_and_a_pause() -> None:
    for mine, speaks in (((0, 3), False), ((1, 3), True), ((3,), False)):
        desk = Desk(*mine)
        desk.of.ask("s", [1, 2, 3])
        desk.of.paused(True)
        desk.of.paused(False)
        desk.of.stop()
        kinds = [("PAUSED", "s", MINE), ("RESUMED", "s", MINE), ("ABORTED", "s", {**MINE, "reason": "stop-snapshot"})]
        assert desk.sent() == (kinds if speaks else [])
        assert desk.of.running == []


def test_a_segment_that_another_snapshot_wants_is_read_on() -> None:
    desk = Desk(0, 1)
    desk.of.ask("s", [0, 1])
    desk.of.ask("t", [0])
    desk.of.work(0.0)
    desk.of.progressed(Progress("s", "c", (1,), 0, "n2@1", True))
    assert (desk.of.running, desk.core.stopped) == (["t"], [1])


def test_of_what_is_older_than_this_process_nothing_is_told() -> None:
    desk = Desk(0)
    desk.of.replaying = True
    desk.of.ask("s", [0])
    desk.of.progressed(Progress("s", "c", (0,), 3, "n1@1", False))
    desk.of.ask("t", [0])
    desk.of.stop()
    assert (desk.of.running, desk.sent()) == ([], [])
    desk.of.progressed(Progress("unknown", "c", (0,), 3, "n1@1", False))
    assert desk.sent() == []
