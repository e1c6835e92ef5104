"""Scans: they wait for a record of our own, serve several segments, and resume."""

from __future__ import annotations

from deelog_connector.core.effects import Scan
from deelog_connector.core.reset_strategy import Strategy
from tests.connector.world import (
    World,
    key_of,
    started,
)


def test_read_to_own_record() -> None:
    """An open transaction of anybody hides the claim: nothing is decided until it is gone."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.own(1, n2, n0)
    world.settle()
    world.put(key_of(1), b"a")
    n2.step(hang=True)  # segment 1 is on segment 0's partition
    world.own(0, n1)
    for _ in range(20):
        n1.step()
    assert n1.core.phase(0) == "look"
    n2.finish()
    world.settle()
    assert n1.core.phase(0) == "writing"
    world.check()


def test_a_takeover_does_not_wait_for_what_consumers_hold() -> None:
    """Both on one partition: the scan for keys comes after that of the takeover."""
    world = World(1, strategy=Strategy.TOMBSTONES)
    node = world.nodes["n0"]
    for segment in (0, 1):
        world.own(segment, node)
    world.settle()
    node.core.request_reset(0, "signal")
    world.own(1, node)
    scans = []
    carry_out = node.carry_out

    def note(effect: object, hang: bool) -> bool:
        if type(effect).__name__ == "Scan":
            scans.append((bool(effect.keys), {s.number for s in node.core.primaries() if s.listens}))  # type: ignore[attr-defined]
        return carry_out(effect, hang)  # type: ignore[arg-type]

    node.carry_out = note  # type: ignore[method-assign]
    world.settle()
    assert (False, {0, 1}) in scans  # both waited, and the takeover was served
    assert all(not keys or waiting == {0} for keys, waiting in scans)
    world.check()


def test_a_scan_that_ends_early_goes_on_where_it_was() -> None:
    """Rows of a segment are adjacent: the last record of the first segment is far below what was read."""
    world = World(1, strategy=Strategy.TOMBSTONES)
    node = world.nodes["n0"]
    for segment in (0, 1):
        world.own(segment, node)
    world.settle()
    for segment in (0, 1):
        for number in range(20):
            world.put(key_of(segment, number), b"v")
        world.settle()
    for segment in (0, 1):
        node.core.request_reset(segment, "signal")
    starts: list[int] = []
    carry_out = node.carry_out

    def a_little(effect: object, hang: bool) -> bool:
        if not isinstance(effect, Scan) or not effect.keys:
            return carry_out(effect, hang)  # type: ignore[arg-type]
        starts.append(effect.from_offset)
        log = world.broker.logs["p.c", effect.partition]
        found = log.read("p.c", effect.partition, effect.from_offset)[:5]
        node.core.scanned(effect.partition, node.decoder.scanned(found, effect.keys))
        node.core.scan_ended(effect.partition, True)
        return True

    node.carry_out = a_little  # type: ignore[method-assign]
    world.settle()
    assert starts == sorted(set(starts))
    assert len(starts) > 8
    world.check()
