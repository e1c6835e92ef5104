"""The end of a load: everything is written, the Spark job has read it, and short-lived entries have expired."""

from __future__ import annotations

import time
from typing import Any

from deelog_proof.audit.topics import end_offsets
from deelog_proof.harness.child import until
from deelog_proof.harness.environment import Environment
from deelog_schemas.operation import Entry

_DRAIN_SECONDS = 120.0
_SOON_MS = 600_000


def drain(environment: Environment[Any]) -> dict[bytes, Entry]:
    """Waits until nothing changes any more and returns the entries of the caches.

    Raises `TimeoutError` with what did not settle.
    """
    show, cluster = environment.show, environment.cluster
    show.say("load over; waiting until short-lived entries have expired, all is written and the Spark job has read it")
    cluster.wait_whole()
    held: dict[bytes, Entry] = {}

    def settled() -> bool:
        held.clear()
        held.update(cluster.dump())
        soon = time.time() * 1000 + _SOON_MS
        return all(entry.expires_at is None or entry.expires_at > soon for entry in held.values())

    until(settled, _DRAIN_SECONDS, "short-lived entries to expire", 0.5)
    until(lambda: unwritten(environment) == 0, _DRAIN_SECONDS, "the nodes to write all that they captured", 0.2)

    ends: dict[int, int] = {}

    def level() -> bool:
        environment.supervise()
        ends.update(end_offsets(environment.kafka.bootstrap, environment.topics.changes))
        return environment.has_read(ends)

    try:
        until(level, _DRAIN_SECONDS, "the Spark job to read the change topic to its end", 0.2)
    except TimeoutError as error:
        read = (environment.progress() or {}).get("input_offsets")
        raise TimeoutError(f"{error}: {ends}; it is at {read}, and its log {environment.diff.tail()}") from error
    final: dict[bytes, Entry] = cluster.dump()
    return final


def unwritten(environment: Environment[Any]) -> int:
    """Operations and due resets that are not in Kafka yet, over all nodes; -1 where a node does not reply."""
    total = 0
    for node in environment.cluster.nodes:
        stats = environment.monitor.poll(node)
        if stats is None:
            return -1
        total += int(stats["unwritten"])
    return total
