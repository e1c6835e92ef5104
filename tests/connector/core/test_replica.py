"""How a backup catches up, and what it can vouch for then."""

from __future__ import annotations

from tests.connector.world import (
    key_of,
    started,
)


def test_continuity_and_transfer_is_not_ops() -> None:
    """A backup that got an operation as state cannot vouch for it."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.put(key_of(0), b"a")
    world.settle()
    world.put(key_of(0), b"b")  # acknowledged, not written: only n0 and n1 have it as an operation
    n0.core.operations_after(0, 0)
    assert world.primary[0] is n0
    world.backups[0].append(n2)
    assert world.catch_up(0, n2) == "state"
    world.crash(n0)
    world.crash(n1)
    world.own(0, n2)
    world.settle()
    assert world.reader(0).resets[1:] == ["hole"]
    for segment in (1, 2, 3):
        del world.primary[segment]
    world.check()


def test_catch_up_by_ops() -> None:
    """A backup that missed the last operation gets it as an operation, and can resume two failovers later."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.backups[0].append(n2)
    world.catch_up(0, n2)
    world.put(key_of(0), b"a")
    world.settle()
    world.backups[0].remove(n2)
    world.put(key_of(0), b"b")
    world.crash(n0)
    world.own(0, n1, n2)
    world.crash(n1)
    world.own(0, n2)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    assert world.reader(0).entries[key_of(0)].value == b"b"
