"""Fences: whom a takeover fences, and how often."""

from __future__ import annotations

from deelog_connector.core.effects import Cause, Fence
from tests.connector.world import (
    key_of,
    started,
)


def test_fencing() -> None:
    """The old primary, cut off, has a transaction open; it must not come after the new one's ACTIVE."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    world.settle(n1)
    assert ("n1", "n0") in world.fences
    n0.finish()
    assert world.refused == [("n0", Cause.FENCED)]
    world.settle()
    world.check()


def test_fence_once() -> None:
    """Two nodes that swap segments must come to rest."""
    world, (n0, n1) = started()
    world.own(1, n1, n0)
    world.settle()
    before = len(world.fences)
    world.own(0, n1, n0)
    world.own(1, n0, n1)
    world.settle()
    assert len(world.fences) - before <= 3
    assert n1.core.phase(0) == n0.core.phase(1) == "writing"
    world.check()


def test_recheck_keeps_place() -> None:
    """Fenced for another segment before its own FENCE, a node still fences the old primary."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    for _ in range(60):
        if n1.core.phase(0) == "fence":
            break
        world.now += 0.1
        n1.follow()
        for effect in n1.core.poll(world.now, 0):
            if not isinstance(effect, Fence) or not effect.segments:
                n1.carry_out(effect, False)
    world.broker.init("n1")
    n1.core._transactions.reopen()
    assert n1.core.phase(0) == "fence"
