"""The op logs' budget: coalescing, overflow, and whose op log gives way."""

from __future__ import annotations

from deelog_schemas.header import Kind
from tests.connector.world import (
    key_of,
    started,
)


def test_nothing_over_a_hole() -> None:
    world, (n0, _) = started()
    for i in range(5):
        world.put(key_of(0, i), b"v")
    n0.core.overflow(0)
    world.put(key_of(0, 1), b"w")
    world.settle()
    kinds = world.kinds(0)[4:]
    assert kinds[0] == "RESET_BEGIN"
    assert kinds[-1] == "RESET_END"
    assert "CHANGE" not in kinds
    assert world.reader(0).resets == ["initial", "overflow"]
    world.check()


def test_room_is_made_of_backups_op_logs_first() -> None:
    """A primary's that is dropped is a reset, a backup's only where a takeover follows."""
    world, (n0, n1) = started()
    world.own(1, n1, n0)
    world.settle()
    for i in range(5):
        world.put(key_of(0, i), b"v")
    for i in range(3):
        world.put(key_of(1, i), b"v")
    n0.core.budget.max_operations = 8
    assert not n0.core.has_room(1)
    n0.core.make_room(0, 1)
    assert n0.core.counts.overflows == {"backup": 1}
    assert (n0.core.complete_from(0), n0.core.complete_from(1)) == (1, 4)
    n0.core.budget.max_operations = 5
    n0.core.make_room(0, 1)
    assert n0.core.counts.overflows == {"backup": 1, "reset": 1}
    world.settle()
    assert world.reader(0).resets == ["initial", "overflow"]
    assert world.reader(1).resets == ["initial"]
    world.check()


def test_a_stopped_segment_gives_up_its_op_log_first() -> None:
    world, (n0, _) = started()
    world.broker.refuse.add(n0.encoder._codec.key(key_of(0)))
    world.put(key_of(0), b"bad")
    world.settle()
    core = n0.core
    core.budget.max_operations = 100
    for number in range(98):
        world.put(key_of(0, 1), b"%d" % number)
    world.put(key_of(1), b"a", acked=False)
    core.make_room(1, 100)
    assert core.has_room(100)
    assert (core.phase(0), core._segments[0].owed) == ("stopped", "overflow")
    assert core._segments[1].owed is None
    world.broker.refuse.clear()
    world.ack(1)
    core.request_reset(0, "restart")
    world.settle()
    world.check()


def test_coalesce_acked() -> None:
    world, (n0, _n1) = started()
    k, j = key_of(0), key_of(0, 1)
    world.put(k, b"1")
    world.put(j, b"2")
    world.put(k, b"3")
    world.put(k, b"4", acked=False)
    assert n0.core.coalesce(0) == 1  # k@1 gives way to k@3; k@4 may never have happened
    world.settle()
    changes = [r for r in world.records(0) if r.header.kind is Kind.CHANGE]
    assert [r.header.sequence for r in changes] == [2, 3]
    assert b'"op":"c"' in (changes[1].value or b"")  # it keeps the first one's `existed`
    world.ack(0)
    world.settle()
    world.check()
