"""The metrics and counters of a grid node: entries, backups and their lag, the view. Of a pair without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.metrics.families import COUNTER, GAUGE
from deelog_connector.runtime import Stats
from deelog_interceptors.grid.metrics import GridMetrics, GridNode, stats
from deelog_interceptors.grid.replication.session import StreamState
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from tests.interceptors.grid.replication.pair import A, B, Pair, put

MEMBERS = {m: Registration(m, "h:1", "h:2") for m in (A, B)}


class Node:
    """The first of a pair, as a node of two copies. B is in sync, and holds two entries."""

    def __init__(self, pair: Pair) -> None:
        self.pair, replica = pair, pair.a
        self.member, self.leaving = A, False
        self.store, self.replicator, self.backup, self.roles = (
            replica.store,
            replica.replicator,
            replica.backup,
            replica.roles,
        )
        self.settings = SimpleNamespace(copies=2)
        self.clients = SimpleNamespace(executed=7)
        self.connector = SimpleNamespace(sink=replica.core, stats=Stats())
        self.view = View(5, A, MEMBERS, (SegmentState(State.ONLINE, 1, A, (A, B), (A, B)),))
        self.controller_service = SimpleNamespace(holds=True, terms=1, views=2, deaths=3, detection_ms=[4.0])
        self.may_acknowledge = True

    def leased(self) -> bool:
        return self.may_acknowledge

    @property
    def real(self) -> GridNode:
        return cast(GridNode, self)

    def values(self) -> dict[tuple[str, ...], Any]:
        """By name and labels."""
        found: dict[tuple[str, ...], Any] = {}
        for family in GridMetrics(self.real, "p", "c").figures():
            assert family.kind == (COUNTER if family.name.endswith("_total") else GAUGE)
            assert family.labels[:2] == ("name", "cache")
            for (prefix, cache, *labels), value in family.samples:
                assert (prefix, cache) == ("p", "c")
                found[(family.name.removeprefix("deelog_"), *labels)] = value
        return found


def with_node(test: Callable[[Node], Awaitable[None]]) -> None:
    async def work() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        put(pair.a, "a", "1")
        put(pair.a, "b", "1")
        await pair.settle()
        await test(Node(pair))

    asyncio.run(work())


def test_it_is_read_on_the_loop_of_its_node() -> None:
    async def test(node: Node) -> None:
        assert GridMetrics(node.real, "p", "c").loop is asyncio.get_running_loop()

    with_node(test)


def test_what_keeps_a_node_from_being_ready_is_one_thing_at_a_time() -> None:
    async def test(node: Node) -> None:
        metrics = GridMetrics(node.real, "p", "c")
        assert metrics.problems() == []
        node.may_acknowledge = False
        assert metrics.problems() == [
            "the node may not acknowledge writes: the controller does not answer its heartbeats"
        ]
        node.view = node.view._replace(members={B: MEMBERS[B]})
        assert metrics.problems() == ["no view names a@1 yet"]
        node.leaving = True
        assert metrics.problems() == ["the node is being stopped"]

    with_node(test)


def test_it_is_not_ready_while_no_segment_has_an_owner() -> None:
    async def test(node: Node) -> None:
        metrics, rows = GridMetrics(node.real, "p", "c"), node.view.rows
        offline = [row._replace(state=State.OFFLINE) for row in rows]
        node.view = node.view._replace(rows=tuple(offline))
        assert metrics.problems() == ["no segment has an owner yet"]
        node.view = node.view._replace(rows=(*offline[:-1], rows[-1]))
        assert metrics.problems() == []

    with_node(test)


def test_counters_are_those_of_its_parts() -> None:
    async def test(node: Node) -> None:
        node.replicator.acknowledged, node.replicator.timed_out, node.replicator.unreplicated = 1, 2, 3
        node.store.evicted, node.store.expired = 4, 5
        told = node.values()
        names = ("commands", "acknowledged", "timed_out", "evicted", "expired")
        assert [told[f"{name}_total",] for name in names] == [7, 1, 2, 4, 5]
        assert told["unreplicated_operations",] == 3
        assert (told["grid_members",], told["grid_topology_id",], told["grid_controller",]) == (2, 5, True)
        assert told["grid_under_replicated_segments",] == 0
        node.view = node.view._replace(controller=B, rows=(node.view.rows[0]._replace(in_sync=(A,)),))
        told = node.values()
        assert (told["grid_controller",], told["grid_under_replicated_segments",]) == (False, 1)
        assert told["grid_offline_segments",] == 0
        node.view = node.view._replace(rows=(node.view.rows[0]._replace(state=State.OFFLINE, primary=None),))
        assert node.values()["grid_offline_segments",] == 1

    with_node(test)


def test_entries_are_told_by_role() -> None:
    async def test(node: Node) -> None:
        told = node.values()
        assert (told["entries", "primary"], told["entries", "backup"]) == (2, 0)
        node.pair.view(3, B, B, A)
        told = node.values()
        assert (told["entries", "primary"], told["entries", "backup"]) == (0, 2)

    with_node(test)


def test_a_backup_that_has_answered_all_has_no_lag() -> None:
    async def test(node: Node) -> None:
        told = node.values()
        assert told["backup_streams", "b", "streaming"] == 1
        assert (told["backup_lag_operations", "b"], told["backup_lag_seconds", "b"]) == (0, 0.0)

    with_node(test)


def test_a_backup_lags_by_what_it_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        (operation, *_) = node.pair.a.core.operations_after(0, 1) or []
        monkeypatch.setattr(node.store, "now_us", lambda: operation.ts_us + 3_000_000)
        session = node.pair.a.segment.sessions[B]
        session.answered, session.stage = 1, StreamState.RECOVERING
        told = node.values()
        assert (told["backup_lag_operations", "b"], told["backup_lag_seconds", "b"]) == (1, 3.0)
        assert told["backup_streams", "b", "recovering"] == 1
        monkeypatch.setattr(node.store, "now_us", lambda: operation.ts_us - 1)
        assert node.values()["backup_lag_seconds", "b"] == 0.0

    with_node(test)


def test_a_backup_without_a_stream_is_told_as_such_and_a_backup_tells_of_none() -> None:
    async def test(node: Node) -> None:
        node.pair.a.segment.sessions.clear()
        told = node.values()
        assert told["backup_streams", "b", "none"] == 1
        assert (told["backup_lag_operations", "b"], told["backup_lag_seconds", "b"]) == (0, 0.0)
        node.pair.a.segment.members = (A, B)
        assert node.values()["backup_streams", "b", "none"] == 1
        node.pair.view(3, B, B, A)
        assert not [key for key in node.values() if key[0].startswith("backup")]

    with_node(test)


def test_the_counters_of_reports_are_json() -> None:
    async def test(node: Node) -> None:
        grid = stats(node.real)["grid"]
        assert (grid["member"], grid["topology_id"], grid["controller"], grid["members"]) == (A, 5, A, 2)
        assert (grid["segments"], grid["entries"]) == ({"primary": 1}, {"primary": 2, "backup": 0})
        assert (grid["in_sync"], grid["under_replicated"], grid["moving"]) == (1, 0, 0)
        assert (grid["commands"], grid["operations"], grid["streams"]) == (7, 2, {"streaming": 1})
        assert grid["caught_up"] == {"operations": 1, "state": 0}
        assert grid["transitions"] == {"none→primary": 1}
        assert grid["office"] == {"holds": True, "terms": 1, "views": 2, "deaths": 3, "detection_ms": [4.0]}
        node.view = node.view._replace(rows=(node.view.rows[0]._replace(in_sync=(B,), target=B),))
        grid = stats(node.real)["grid"]
        assert (grid["in_sync"], grid["offline"], grid["under_replicated"], grid["moving"]) == (0, 0, 1, 1)
        lost = node.view.rows[0]._replace(state=State.OFFLINE, primary=None, in_sync=(A, B))
        node.view = node.view._replace(rows=(lost,))
        assert (stats(node.real)["grid"]["offline"], stats(node.real)["grid"]["under_replicated"]) == (1, 0)
        assert stats(node.real).keys() == {*Stats.__dataclass_fields__, "grid"}
        node.roles.apply_ms = 1.23456
        node.replicator.stale_answers, node.backup.applied, node.backup.refused, node.backup.states = 1, 2, 3, 4
        grid = stats(node.real)["grid"]
        assert [grid[name] for name in ("stale_answers", "applied", "refused_frames", "states_taken")] == [1, 2, 3, 4]
        assert grid["view_apply_ms"] == 1.235

    with_node(test)
