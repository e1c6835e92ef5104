"""How resets and takeovers of segments are told together."""

from __future__ import annotations

from typing import Any

from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.segment import Phase, Reset, Segment
from deelog_connector.signals.segment_progress import INITIAL, OWNER, RESET, SegmentProgress
from deelog_schemas.operation import Entry, Reason
from tests.connector.signals.told import ALL, RecordedNotifications
from tests.connector.world import World


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
