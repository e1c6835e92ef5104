"""Metrics of a connector beside a server: its link, and what it has read and not written."""

from __future__ import annotations

import asyncio
from typing import Protocol

from deelog_connector.metrics.families import COUNTER, GAUGE, MetricFamily, placed
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.capture import Capture
from deelog_interceptors.redis.sentinels import Sentinels
from deelog_interceptors.redis.values import Values


class Beside(Protocol):
    """What is measured of `RedisNode`."""

    address: Address
    capture: Capture
    values: Values
    sentinels: Sentinels | None

    @property
    def is_attached(self) -> bool:
        """Whether the server's stream is being read."""


class RedisMetrics:
    """A connector as a `Source` of the metrics server, beside what it has in common with others."""

    def __init__(self, node: Beside, prefix: str, cache: str) -> None:
        self._node, self._where = node, (prefix, cache)
        self.loop = asyncio.get_running_loop()

    def problems(self) -> list[str]:
        """What keeps it from being ready."""
        node, outranked = self._node, len(self._node.capture.outranked)
        if not node.is_attached:
            return [f"{node.address} gives no stream"]
        if node.sentinels is not None and node.capture.view.is_primary and not node.capture.view.writes:
            why = node.sentinels.problem or f"the Sentinels name {node.sentinels.named}"
            return [f"{node.address} says that it is primary: {why}"]
        if outranked:
            return [f"{node.address}: another connector has claimed {outranked} segments that this one is to write"]
        return []

    def figures(self) -> list[MetricFamily]:
        """All of them."""
        node, capture = self._node, self._node.capture
        tape, view = capture.tape, capture.view
        rows: tuple[tuple[str, str, str, float], ...] = (
            ("attached", GAUGE, "Whether the server's stream is being read.", node.is_attached),
            ("primary", GAUGE, "Whether the server is primary.", view.is_primary),
            ("segments", GAUGE, "Segments that the connector is to write.", len(view.writes)),
            ("outranked_segments", GAUGE, "Of them those that another connector has claimed.", len(capture.outranked)),
            ("offset", GAUGE, "Up to where the stream was read.", tape.offset),
            ("acknowledged_offset", GAUGE, "Up to where each replica that counts has it.", capture.acked),
            ("held_changes", GAUGE, "Changes that are kept until Kafka has them.", tape.length()),
            ("shed_segments_total", COUNTER, "Segments of others that were dropped to hold less.", capture.shed),
            ("passed_over_total", COUNTER, "Changes of keys that cannot be captured.", tape.passed_over),
            ("named_total", COUNTER, "Keys that went, and the server has told why.", tape.named),
            ("unavailable_total", COUNTER, "Values that were too large to be told.", node.values.unavailable),
        )
        if node.sentinels is not None:
            agreeing = node.sentinels.agreeing
            rows += (("agreeing_sentinels", GAUGE, "Sentinels that say what a majority says.", agreeing),)
        found = [
            MetricFamily(f"deelog_stream_{name}", help_, kind, (), [((), value)]) for name, kind, help_, value in rows
        ]
        return [*placed(found, *self._where)]
