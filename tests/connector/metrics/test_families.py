"""The metrics of a connector as plain values. Kafka is not asked: the connector has not started."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.core.durations import Durations
from deelog_connector.core.effects import Cause
from deelog_connector.core.segment import Phase
from deelog_connector.errors import TransformFailed
from deelog_connector.metrics.families import COUNTER, GAUGE, HISTOGRAM, MetricFamily, figures, merged, placed
from deelog_connector.runtime.run_state import Event
from deelog_schemas import __version__
from deelog_schemas.operation import Reason
from tests.connector.cache import Cache
from tests.connector.metrics.test_health import of_a

STREAMING, SNAPSHOT = "streaming", "snapshot"


def values(cache: Cache, now: float = 0.0, wall: float = 0.0) -> dict[tuple[str, ...], Any]:
    """By name, without what all names begin with, and by the labels that distinguish samples."""
    found: dict[tuple[str, ...], Any] = {}
    for family in figures("c", cache.connector, now, wall):
        name = family.name.removeprefix("debezium_metrics_").removeprefix("deelog_")
        common = {"plugin": "deelog", "name": "p", "cache": "c", "table": "c"}
        for labels, value in family.samples:
            given = dict(zip(family.labels, labels, strict=True))
            assert {label: given[label] for label in common.keys() & given.keys()}.items() <= common.items()
            key = (name, *(text for label, text in given.items() if label not in common))
            assert key not in found
            found[key] = value
    return found


def test_families_of_one_name_are_joined() -> None:
    one = MetricFamily("a", "A.", GAUGE, ("x",), [(("1",), 1)])
    other, second = one._replace(samples=[(("2",), 2)]), one._replace(name="b")
    assert list(merged([one, second, other])) == [one._replace(samples=[(("1",), 1), (("2",), 2)]), second]
    assert one.samples == [(("1",), 1)]


def test_families_are_placed_by_prefix_and_cache() -> None:
    one = MetricFamily("a", "A.", GAUGE, ("x",), [(("1",), 1)])
    assert list(placed([one], "p", "c")) == [
        one._replace(labels=("name", "cache", "x"), samples=[(("p", "c", "1"), 1)])
    ]


def test_a_connector_that_has_done_nothing_tells_of_each_counter() -> None:
    def test(cache: Cache) -> None:
        told = values(cache)
        for context in (STREAMING, SNAPSHOT):
            assert told["MilliSecondsSinceLastEvent", context] == -1
            assert told["TotalNumberOfEventsSeen", context] == 0
            assert told["NumberOfEventsFiltered", context] == told["NumberOfEventsSkipped", context] == 0
            assert told["MaxQueueSizeInBytes", context] == cache.core.budget.max_bytes
        assert told["MilliSecondsBehindSource", STREAMING] == -1
        assert told["Connected", STREAMING] is False
        assert (told["SnapshotCompleted", SNAPSHOT], told["SnapshotRunning", SNAPSHOT]) == (False, False)
        assert (told["kafka_up",], told["paused",]) == (False, False)
        resets = {key[1] for key in told if key[0] == "resets_total"}
        assert len(resets) == 18
        assert {"initial", "signal", "unclean_election"} <= resets
        assert {key[1] for key in told if key[0] == "oplog_overflows_total"} == {"block", "coalesce", "reset", "backup"}
        assert {key[1] for key in told if key[0] == "transactions_failed_total"} == set(map(str, Cause))
        assert told["info", "n1", "n1@1", __version__] == 1
        phases = {key[2] for key in told if key[:2] == ("segments", "primary")}
        assert phases == set(map(str, Phase)) - {"idle"}
        assert ("segments", "backup", "idle") in told

    of_a(test)


def test_kinds_follow_from_names() -> None:
    def test(cache: Cache) -> None:
        for family in figures("c", cache.connector, 0.0, 0.0):
            histogram = isinstance(family.samples[0][1] if family.samples else 0, Durations)
            counter = family.name.endswith("_total")
            durations = family.name in ("deelog_phase_seconds", "deelog_takeover_seconds", "deelog_commit_seconds")
            assert family.kind == (COUNTER if counter else HISTOGRAM if durations else GAUGE)
            assert durations or not histogram
            assert family.help.endswith(".") or ";" in family.help or ":" in family.help

    of_a(test)


def test_what_was_written_is_told_by_kind_and_age() -> None:
    def test(cache: Cache) -> None:
        seen = cache.connector.observed
        seen.creates, seen.updates, seen.deletes, seen.rows = 1, 2, 4, 8
        seen.piped.update(filtered=3, erroneous=5)
        seen.change_us, seen.row_us, seen.behind_us = 98_000_000, 97_000_000, 1500
        told = values(cache, wall=100.0)
        assert [told[f"TotalNumberOf{kind}EventsSeen", STREAMING] for kind in ("Create", "Update", "Delete")] == [
            1,
            2,
            4,
        ]
        assert (told["TotalNumberOfEventsSeen", STREAMING], told["TotalNumberOfEventsSeen", SNAPSHOT]) == (7, 8)
        assert told["RowsScanned", SNAPSHOT] == 8
        assert (told["NumberOfEventsFiltered", STREAMING], told["NumberOfEventsFiltered", SNAPSHOT]) == (3, 0)
        assert told["NumberOfErroneousEvents", STREAMING] == 5
        assert told["MilliSecondsSinceLastEvent", STREAMING] == 2000
        assert told["MilliSecondsSinceLastEvent", SNAPSHOT] == 3000
        assert told["MilliSecondsBehindSource", STREAMING] == 1.5
        assert values(cache, wall=90.0)["MilliSecondsSinceLastEvent", STREAMING] == 0

    of_a(test)


def test_counters_are_those_of_the_core_and_of_the_signals() -> None:
    def test(cache: Cache) -> None:
        counts = cache.core.counts
        counts.written, counts.pruned, counts.transactions, counts.reset_rows = 1, 2, 3, 4
        counts.fenced, counts.corrections, counts.truncations, counts.scans_in_vain = 5, 6, 7, 8
        counts.resets.update(signal=9, odd=10)
        counts.overflow.update(block=11)
        cache.core.budget.overdrawn = 12
        cache.connector.observed.failed[Cause.LOST] = 13
        cache.connector.signals.counts.update(log=14)
        told = values(cache)
        names = ("operations_written", "operations_pruned", "transactions", "reset_rows", "fences", "corrections")
        more = ("truncations", "scans_in_vain")
        assert [told[f"{name}_total",] for name in (*names, *more)] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert (told["resets_total", "signal"], told["resets_total", "odd"], told["resets_total", "start"]) == (
            9,
            10,
            0,
        )
        assert (told["oplog_overflows_total", "block"], told["oplog_overdrawn_total",]) == (11, 12)
        assert told["transactions_failed_total", str(Cause.LOST)] == 13
        assert told["signals_total", "log"] == 14

    of_a(test)


def test_what_waits_is_told_in_operations_bytes_and_age() -> None:
    def test(cache: Cache) -> None:
        cache.own_all()
        for number in range(3):
            cache.core.append(number, Reason.PUT, b"k", b"v", None, 50_000_000 + number * 1_000_000, False)
        budget = cache.core.budget
        told = values(cache, wall=60.0)
        assert (told["oplog_operations",], told["oplog_bytes",]) == (3, budget.bytes)
        for context in (STREAMING, SNAPSHOT):
            assert told["CurrentQueueSizeInBytes", context] == budget.bytes > 0
            assert told["QueueTotalCapacity", context] == budget.max_operations
            assert told["QueueRemainingCapacity", context] == budget.max_operations - 3
        age = "oldest_unverified_change_seconds"
        assert (told[age, "primary"], told[age, "backup"]) == (10.0, 0.0)
        cache.core.demote(0)
        told = values(cache, wall=60.0)
        assert (told[age, "primary"], told[age, "backup"]) == (9.0, 10.0)
        assert values(cache, wall=1.0)[age, "backup"] == 0.0
        budget.operations = budget.max_operations + 5
        assert values(cache)["QueueRemainingCapacity", STREAMING] == 0

    of_a(test)


def test_segments_are_told_by_role_and_phase_and_make_a_snapshot_of_their_resets() -> None:
    def snapshot(cache: Cache) -> list[Any]:
        told = values(cache)
        names = ("RemainingTableCount", "SnapshotRunning", "SnapshotPaused", "SnapshotCompleted")
        return [bool(told[name, SNAPSHOT]) for name in names]

    def test(cache: Cache) -> None:
        cache.own_all()
        segments = list(cache.core.primaries())
        for segment in segments:
            segment.phase, segment.owed = Phase.WRITING, None
        segments[0].phase, segments[1].phase = Phase.RELEASING, Phase.RELEASED
        told = values(cache)
        assert told["segments", "primary", "writing"] == 6
        assert told["segments", "primary", "releasing"] == told["segments", "primary", "released"] == 1
        assert (told["TotalTableCount", SNAPSHOT], told["segments", "backup", "idle"]) == (1, 0)
        assert snapshot(cache) == [False, False, False, True]
        segments[2].owed = "signal"
        assert snapshot(cache) == [True, False, False, False]
        segments[2].phase = Phase.ROWS
        assert snapshot(cache) == [True, True, False, False]
        cache.connector.apply(Event.PAUSE)
        assert snapshot(cache) == [True, True, True, False]
        assert values(cache)["paused",] is True
        segments[2].phase, segments[2].owed = Phase.STOPPED, None
        assert snapshot(cache) == [True, False, False, False]
        cache.core.demote(5)
        assert values(cache)["segments", "backup", "idle"] == 1

    of_a(test)


def test_a_refused_row_is_an_aborted_snapshot() -> None:
    def test(cache: Cache) -> None:
        assert values(cache)["SnapshotAborted", SNAPSHOT] is False
        cache.core.counts.resets_aborted = 1
        assert values(cache)["SnapshotAborted", SNAPSHOT] is True

    of_a(test)


@pytest.mark.parametrize("how", ["halted", "failed"])
def test_it_is_connected_while_it_works(how: str) -> None:
    def test(cache: Cache) -> None:
        cache.connector.started = True
        assert values(cache)["Connected", STREAMING] is True
        if how == "halted":
            cache.connector._halt(TransformFailed("why"))
        else:
            cache.connector.failure.set_exception(TransformFailed("why"))
            assert cache.connector.failure.exception() is not None
        assert values(cache)["Connected", STREAMING] is False

    of_a(test)


def test_kafka_is_up_while_it_answers() -> None:
    def test(cache: Cache) -> None:
        cache.connector.observed.kafka_answered(100.0)
        assert values(cache, now=110.0)["kafka_up",] is True
        assert values(cache, now=200.0)["kafka_up",] is False

    of_a(test)


def test_durations_are_those_of_phases_takeovers_and_commits() -> None:
    def test(cache: Cache) -> None:
        told = values(cache)
        timing = cache.core.timing
        assert told["takeover_seconds",] is timing.takeovers
        assert told["commit_seconds",] is cache.connector.observed.commits
        assert {key[1]: told[key] for key in told if key[0] == "phase_seconds"} == {
            str(phase): spent for phase, spent in timing.phases.items()
        }
        assert told["SnapshotDurationInSeconds", SNAPSHOT] == round(timing.reset_seconds(0.0), 3)

    of_a(test)
