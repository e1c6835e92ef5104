"""How nodes agree on an incremental snapshot: who reads which segments, when it is complete, its notifications."""

from __future__ import annotations

from typing import Any

from deelog_connector.core.effects import SnapshotRead, SnapshotRefused
from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.segment import Phase, Reset, Segment
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.signals.incremental_snapshots import AGAIN_SECONDS, MAX_PASSES, MAX_RUNNING, Snapshots
from deelog_connector.signals.notifications import Notifications, ranges
from deelog_connector.signals.segment_progress import INITIAL, OWNER, RESET, SegmentProgress
from deelog_schemas.operation import Entry, Reason
from deelog_schemas.signals import Progress
from tests.connector.cache import config_of
from tests.connector.world import SEGMENTS, Node, World, key_of

ALL = list(range(SEGMENTS))


class RecordedNotifications(Notifications):
    """Keeps the notifications instead of sending them."""

    def __init__(self) -> None:
        config = config_of("127.0.0.1:1", "p", notification_sink_topic_name="notes")
        super().__init__(config, "c", lambda *record: None, Librdkafka())
        self.sent: list[tuple[str, str, str | None, dict[str, Any]]] = []

    def notify(self, aggregate: str, kind: str, identity: str | None = None, **more: object) -> None:
        super().notify(aggregate, kind, identity, **more)
        self.sent.append((aggregate, kind, identity, more))

    def kinds(self, identity: str) -> list[str]:
        """The kinds of the notifications, without those that come several times a second."""
        return [kind for _, kind, one, _ in self.sent if one == identity and kind != "IN_PROGRESS"]


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


def test_resets_and_takeovers_are_told_together() -> None:
    world, told = World(nodes=2), RecordedNotifications()
    n0, n1 = world.nodes.values()
    watchers = {n0: SegmentProgress(told, n0.member), n1: SegmentProgress(told, n1.member)}

    def settle() -> list[tuple[str, str, str]]:
        told.sent.clear()
        for _ in range(40):
            world.now += 0.1
            for node, watcher in watchers.items():
                node.step()
                watcher.look(node.core.primaries())
        for watcher in watchers.values():
            watcher.announce()
        return [(aggregate, kind, str(more["segments"])) for aggregate, kind, _, more in told.sent]

    for segment in ALL:
        world.own(segment, n0, n1)
    assert settle() == [
        ("Owner Change", "STARTED", "0-3"),
        ("Owner Change", "COMPLETED", "0-3"),
        ("Initial Snapshot", "STARTED", "0-3"),
        ("Initial Snapshot", "COMPLETED", "0-3"),
    ]
    assert settle() == []
    n0.core.request_reset(1, "signal")
    n0.core.request_reset(3, "overflow")
    assert settle() == [("Segment Reset", "STARTED", "1,3"), ("Segment Reset", "COMPLETED", "1,3")]
    assert told.sent[0][3]["reason"] == "overflow,signal"
    n0.core.request_reset(1, "signal")
    told.sent.clear()
    for _ in range(40):
        world.now += 0.1
        n0.step()
        watchers[n0].look(n0.core.primaries())
        if told.sent == []:
            n0.core.request_reset(3, "signal")
        watchers[n0].announce()
    kinds = [(kind, more["segments"]) for _, kind, _, more in told.sent]
    assert kinds[-1] == ("COMPLETED", "1,3")
    assert ("IN_PROGRESS", "1") in kinds
    world.clear(0)
    assert settle() == []
    world.own(2, n1, n0)
    assert settle() == [("Owner Change", "STARTED", "2"), ("Owner Change", "COMPLETED", "2")]
    assert told.sent[0][3]["member"] == n1.member


class Watch:
    """Two segments, whose phases the test sets, and what is told of them."""

    def __init__(self) -> None:
        self.told, self.budget = RecordedNotifications(), Budget(1000, 1000)
        self.segments = [Segment(number, 0, OpLog(self.budget)) for number in range(2)]
        self.progress = SegmentProgress(self.told, "n1")

    def now(self, *numbers: int, announce: bool = True) -> list[tuple[Any, ...]]:
        """Looks at these primaries; what was told: aggregate, kind, segments, reason, rows."""
        self.progress.look([self.segments[number] for number in numbers])
        if announce:
            self.progress.announce()
        more = ("segments", "reason", "total_rows_scanned")
        sent = [(aggregate, kind, *(told[name] for name in more)) for aggregate, kind, _, told in self.told.sent]
        self.told.sent.clear()
        return sent


def test_takeovers_are_a_round_until_the_last_has_ended() -> None:
    watch = Watch()
    one, two = watch.segments
    one.phase, one.epoch = Phase.CLAIM, 1
    assert watch.now(0) == [(OWNER, "STARTED", "0", None, None)]
    one.phase, two.phase, two.epoch = Phase.LOOK, Phase.READ, 1
    assert watch.now(0, 1) == []
    one.phase = Phase.WRITING
    assert watch.now(0, 1) == [(OWNER, "IN_PROGRESS", "0", None, None)]
    assert watch.now(0, 1) == []
    assert watch.now(0) == [(OWNER, "ABORTED", "1", None, None)]  # the other owner has it
    one.epoch, one.phase = 2, Phase.FENCE
    assert watch.now(0) == [(OWNER, "STARTED", "0", None, None)]
    one.phase = Phase.WRITING
    assert watch.now(0) == [(OWNER, "COMPLETED", "0", None, None)]
    one.phase = Phase.ACTIVE  # a recheck
    assert watch.now(0) == []


def test_a_takeover_of_which_the_end_was_not_seen_begins_again() -> None:
    watch = Watch()
    one, two = watch.segments
    one.phase = two.phase = Phase.CLAIM
    one.epoch = two.epoch = 1
    watch.now(0, 1)
    one.epoch, two.phase = 2, Phase.WRITING
    assert watch.now(0, 1) == [(OWNER, "IN_PROGRESS", "1", None, None)]
    one.epoch = 3
    watch.now(0, 1, announce=False)
    two.phase, two.epoch = Phase.CLAIM, 2
    assert watch.now(0, 1) == []
    one.phase = two.phase = Phase.WRITING
    assert watch.now(0, 1) == [(OWNER, "COMPLETED", "0-1", None, None)]


def test_a_reset_is_told_with_its_reasons_and_rows() -> None:
    watch = Watch()
    one, two = watch.segments
    one.phase = two.phase = Phase.OWED
    one.owed, two.owed = "overflow", "initial"
    assert watch.now(0, 1) == [
        (INITIAL, "STARTED", "1", "initial", None),
        (RESET, "STARTED", "0", "overflow", None),
    ]
    rows = [Entry(b"%d" % number, b"v", None) for number in range(3)]
    for segment, reason in ((one, "overflow"), (two, "initial")):
        segment.owed, segment.phase = None, Phase.ROWS
        segment.reset = Reset("r", reason, (1, 1), entries=rows)
    assert watch.now(0, 1) == []
    one.reset, one.phase = None, Phase.WRITING
    two.reset, two.phase = None, Phase.STOPPED
    assert watch.now(0, 1) == [
        (INITIAL, "ABORTED", "1", "initial", 0),
        (RESET, "COMPLETED", "0", "overflow", 3),
    ]
    one.reset = Reset("r", Reason.CLEAR, (1, 1))
    assert watch.now(0, 1) == []


def test_one_that_failed_and_succeeds_then_is_in_the_end_complete() -> None:
    watch = Watch()
    one, two = watch.segments
    one.phase = two.phase = Phase.OWED
    one.owed = two.owed = "signal"
    watch.now(0, 1)
    one.owed, one.phase = None, Phase.STOPPED
    assert watch.now(0, 1) == [(RESET, "ABORTED", "0", "signal", 0)]
    one.owed, one.phase = "signal", Phase.OWED
    assert watch.now(0, 1) == []
    for segment in watch.segments:
        segment.owed, segment.phase = None, Phase.WRITING
    assert watch.now(0, 1) == [(RESET, "COMPLETED", "0-1", "signal", 0)]


def test_ranges() -> None:
    assert [ranges(found) for found in ([], [3], [0, 1, 2, 7, 9, 8])] == ["", "3", "0-2,7-9"]
