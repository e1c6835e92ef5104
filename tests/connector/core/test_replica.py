"""How a backup catches up, and from which sequence its op log is complete then."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from deelog_connector.core.replica import Replica
from deelog_connector.core.state import NodeState
from deelog_schemas.operation import Operation, Reason, TracedOperation
from tests.connector.core.builders import node, operation, primary
from tests.connector.world import (
    key_of,
    started,
)


def test_continuity_and_transfer_is_not_ops() -> None:
    """A backup that got an operation by state transfer does not have it in its op log."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.put(key_of(0), b"a")
    world.settle()
    world.put(key_of(0), b"b")  # acknowledged, not written: only n0 and n1 have it in an op log
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


def test_captured_operations_take_the_next_positions() -> None:
    state = node()
    primary(state, 0, history=((6, 4), (7, 4)))
    replica = Replica(state)
    first = replica.append(0, Reason.PUT, b"a", b"1", 99, 5, False)
    second = replica.append(0, Reason.REMOVE, b"a", None, None, 6, True, before=b"1")
    assert (first, second) == (
        Operation(7, 5, Reason.PUT, b"a", b"1", 99, 5, False),
        Operation(7, 6, Reason.REMOVE, b"a", None, None, 6, True, b"1"),
    )
    assert list(state.segments[0].log) == [first, second]
    assert replica.history(0) == ((6, 4), (7, 6))
    assert (replica.last_sequence(0), replica.last_sequence(5), replica.history(5)) == (6, 0, ())


def test_a_captured_operation_carries_its_trace() -> None:
    state = node()
    primary(state, 0)
    trace = (("traceparent", b"00-11111111111111111111111111111111-2222222222222222-01"),)
    traced = Replica(state).append(0, Reason.PUT, b"a", b"1", None, 5, False, trace=trace)
    assert isinstance(traced, TracedOperation)
    assert traced.trace == trace
    assert [*state.segments[0].log] == [traced]


def backup(sequences: Iterable[int], max_operations: int = 1000) -> tuple[NodeState, Replica]:
    """A backup of segment 0 that has applied these operations."""
    state = node(max_operations=max_operations)
    replica = Replica(state)
    for sequence in sequences:
        replica.apply(0, operation(sequence, b"k%d" % sequence))
    return state, replica


def test_a_backup_is_complete_from_the_last_hole_on() -> None:
    _, replica = backup((1, 2))
    assert (replica.complete_from(0), replica.history(0)) == (1, ((7, 2),))
    state, replica = backup((1, 2, 5, 6))
    assert replica.complete_from(0) == 5
    assert [o.sequence for o in state.segments[0].log] == [5, 6]


def test_a_backup_without_room_drops_and_says_so() -> None:
    state, replica = backup((1, 2, 3), max_operations=2)
    assert (replica.complete_from(0), len(state.segments[0].log)) == (4, 0)
    assert (replica.last_sequence(0), state.counts.overflow) == (3, {"backup": 1})


def test_operations_for_a_backup() -> None:
    state, replica = backup(range(1, 6))
    assert [o.sequence for o in replica.operations_after(0, 3) or ()] == [4, 5]
    assert replica.operations_after(0, 5) == []
    state.segments[0].log.prune(2)
    assert replica.operations_after(0, 1) is None
    assert [o.sequence for o in replica.operations_after(0, 2) or ()] == [3, 4, 5]


def test_no_operations_for_a_backup_where_some_were_coalesced() -> None:
    state, replica = backup(())
    for sequence in range(1, 4):
        replica.apply(0, operation(sequence, b"same"))
    state.segments[0].log.coalesce(0, 2)
    assert replica.operations_after(0, 0) is None
    assert replica.operations_after(0, 1) is None, "the second one tells of what was before the first one"
    assert [o.sequence for o in replica.operations_after(0, 2) or ()] == [3]


@pytest.mark.parametrize(("sequence", "keys", "written"), [(2, [b"k3", b"k4"], 2), (4, [], 3), (9, [], 3)])
def test_truncation_names_the_keys_of_what_it_drops(sequence: int, keys: list[bytes], written: int) -> None:
    state, replica = backup(range(1, 5))
    state.segments[0].written = 3
    assert replica.truncate(0, sequence) == keys
    assert (replica.last_sequence(0), state.segments[0].written) == (min(4, sequence), written)
    assert [o.sequence for o in state.segments[0].log] == list(range(1, min(4, sequence) + 1))


def test_truncation_without_knowledge_of_the_keys() -> None:
    state, replica = backup((1, 2, 3))
    assert state.segments[0].written is None
    replica.apply(0, operation(4, b"", None, Reason.CLEAR))
    assert replica.truncate(0, 3) is None  # a clear touched every key
    assert (replica.last_sequence(0), state.segments[0].written) == (3, None)
    state.segments[0].log.prune(2)
    assert replica.truncate(0, 1) is None
    assert replica.last_sequence(0) == 3  # nothing was dropped


def test_a_backup_adopts_the_primarys_history_up_to_what_it_holds() -> None:
    for primarys, adopted in (
        (((7, 3), (8, 6)), ((7, 3),)),
        (((7, 3), (8, 3)), ((7, 3), (8, 3))),
        (((7, 3),), ((7, 3),)),
    ):
        _, replica = backup((1, 2, 3))
        replica.adopt(0, primarys)
        assert replica.history(0) == adopted
    _, replica = backup((1, 2, 3))
    with pytest.raises(AssertionError, match="truncate before adopt"):
        replica.adopt(0, ((7, 2), (8, 6)))


def test_a_state_is_vouched_for_from_its_sequence_on() -> None:
    for sequence, history in ((5, ((7, 3), (8, 5))), (6, ((7, 3), (8, 6)))):
        state, replica = backup((1, 2, 3))
        state.segments[0].written = 2
        replica.install(0, ((7, 3), (8, 6)), sequence)
        assert replica.history(0) == history
        assert (replica.complete_from(0), len(state.segments[0].log)) == (sequence + 1, 0)
        assert state.segments[0].written is None
