"""Metrics and counters of a grid node: entries, backups and their lag, the view."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from deelog_connector.metrics.families import COUNTER, GAUGE, MetricFamily, Sample, placed
from deelog_connector.runtime import Connector
from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.resp.host import Host
from deelog_interceptors.grid.topology.controller_service import ControllerService
from deelog_interceptors.grid.topology.view import State
from deelog_schemas.member import node_id_of

_NO_STREAM = "none"


class GridNode(Host, Protocol):
    """What is measured of a node."""

    leaving: bool
    connector: Connector
    backup: Backup
    roles: Roles
    controller_service: ControllerService

    def leased(self) -> bool:
        """Whether the node may acknowledge writes now."""


class GridMetrics:
    """A node as a `Source` of the metrics server."""

    def __init__(self, node: GridNode, prefix: str, cache: str) -> None:
        self._node, self._where = node, (prefix, cache)
        self.loop = asyncio.get_running_loop()

    def problems(self) -> list[str]:
        """What keeps the node from being ready."""
        node = self._node
        if node.leaving:
            return ["the node is being stopped"]
        if node.member not in node.view.members:
            return [f"no view names {node.member} yet"]
        if not node.leased():
            return ["the node may not acknowledge writes: the controller does not answer its heartbeats"]
        if _offline(node) == len(node.view.rows):
            return ["no segment has an owner yet"]
        return []

    def figures(self) -> list[MetricFamily]:
        """All of them."""
        return [*placed((*self._counted(), *self._entries(), *self._backups()), *self._where)]

    def _counted(self) -> Iterator[MetricFamily]:
        node = self._node
        view, replicator, store = node.view, node.replicator, node.store
        offline, short = _offline(node), _under_replicated(node)
        for name, kind, help_, value in (
            ("commands_total", COUNTER, "Commands of clients.", node.clients.executed),
            ("acknowledged_total", COUNTER, "Writes of clients that were acknowledged.", replicator.acknowledged),
            ("timed_out_total", COUNTER, "Writes that were not acknowledged in time.", replicator.timed_out),
            ("evicted_total", COUNTER, "Entries that the policy gave up.", store.evicted),
            ("expired_total", COUNTER, "Entries whose time was over.", store.expired),
            ("unreplicated_operations", GAUGE, "Operations that in-sync backups lack.", replicator.unreplicated),
            ("grid_members", GAUGE, "Members of the last view.", len(view.members)),
            ("grid_topology_id", GAUGE, "Number of the last view.", view.topology_id),
            ("grid_controller", GAUGE, "Whether this node is controller.", view.controller == node.member),
            ("grid_offline_segments", GAUGE, "Segments of the cluster that wait for an owner.", offline),
            ("grid_under_replicated_segments", GAUGE, "Segments of the cluster that lack a copy in sync.", short),
        ):
            yield MetricFamily(f"deelog_{name}", help_, kind, (), [((), value)])

    def _entries(self) -> Iterator[MetricFamily]:
        held = Counter({Role.PRIMARY: 0, Role.BACKUP: 0})
        for segment in self._node.store.segments:
            held[segment.role] += len(segment.data)
        samples: list[Sample] = [((str(role),), held[role]) for role in (Role.PRIMARY, Role.BACKUP)]
        yield MetricFamily("deelog_entries", "Entries of this node.", GAUGE, ("role",), samples)

    def _backups(self) -> Iterator[MetricFamily]:
        """By the backup's node id, over all segments that this node is primary of."""
        core, now_us = self._node.connector.sink, self._node.store.now_us()
        streams: Counter[tuple[str, str]] = Counter()
        lacking: Counter[str] = Counter()
        oldest: dict[str, float] = {}
        for segment in self._node.store.segments:
            for member in segment.members if segment.role is Role.PRIMARY else ():
                if member == self._node.member:
                    continue
                name, session = node_id_of(member), segment.sessions.get(member)
                streams[name, _NO_STREAM if session is None else session.stage.name.lower()] += 1
                lacks = segment.last - session.answered if session is not None else 0
                lacking[name] += lacks
                captured = core.captured_after(segment.number, segment.last - lacks) if lacks else None
                oldest[name] = min(oldest.get(name, now_us), now_us if captured is None else captured)
        lag: list[Sample] = [((name,), count) for name, count in lacking.items()]
        late: list[Sample] = [((name,), max(0.0, (now_us - at) / 1e6)) for name, at in oldest.items()]
        by: list[Sample] = [(labels, count) for labels, count in streams.items()]
        help_ = "Operations that a backup has not answered."
        yield MetricFamily("deelog_backup_lag_operations", help_, GAUGE, ("backup",), lag)
        help_ = "Age of the oldest of them; 0: none."
        yield MetricFamily("deelog_backup_lag_seconds", help_, GAUGE, ("backup",), late)
        yield MetricFamily("deelog_backup_streams", "Streams to backups by stage.", GAUGE, ("backup", "stage"), by)


def _offline(node: GridNode) -> int:
    return sum(row.state is State.OFFLINE for row in node.view.rows)


def _under_replicated(node: GridNode) -> int:
    """Of an offline segment nobody is taken out of sync: all who were may come back."""
    return sum(len(row.in_sync) < node.settings.copies for row in node.view.rows)


def stats(node: GridNode) -> dict[str, Any]:
    """Counters for reports: the connector's, and `grid`."""
    roles = Counter(str(segment.role) for segment in node.store.segments)
    replicator, backup, controller_service = node.replicator, node.backup, node.controller_service
    grid = {
        "member": node.member,
        "topology_id": node.view.topology_id,
        "controller": node.view.controller,
        "members": len(node.view.members),
        "segments": dict(roles),
        "offline": _offline(node),
        "under_replicated": _under_replicated(node),
        "moving": sum(row.target is not None for row in node.view.rows),
        "in_sync": sum(node.member in row.in_sync for row in node.view.rows),
        "entries": {
            str(role): sum(len(s.data) for s in node.store.segments if s.role is role)
            for role in (Role.PRIMARY, Role.BACKUP)
        },
        "commands": node.clients.executed,
        "operations": replicator.operations,
        "acked": replicator.acknowledged,
        "unreplicated": replicator.unreplicated,
        "timed_out": replicator.timed_out,
        "stale_answers": replicator.stale_answers,
        "streams": dict(replicator.stages()),
        "caught_up": {"operations": replicator.catch_up.operations, "state": replicator.catch_up.states},
        "applied": backup.applied,
        "refused_frames": backup.refused,
        "states_taken": backup.states,
        "evicted": node.store.evicted,
        "expired": node.store.expired,
        "transitions": dict(node.roles.transitions),
        "given_away": node.roles.given_away,
        "view_apply_ms": round(node.roles.apply_ms, 3),
        "office": {
            "holds": controller_service.holds,
            "terms": controller_service.terms,
            "views": controller_service.views,
            "deaths": controller_service.deaths,
            "detection_ms": list(controller_service.detection_ms),
        },
    }
    stats = node.connector.stats
    return {name: getattr(stats, name) for name in stats.__dataclass_fields__} | {"grid": grid}
