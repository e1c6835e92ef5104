"""The op log: order, budget, pruning, truncation, and which operations coalescing keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from deelog_connector.core.oplog import Budget, OpLog
from deelog_schemas.operation import Operation, Reason


def operation(sequence: int, key: bytes = b"k", value: bytes | None = b"v", existed: bool = True) -> Operation:
    return Operation(1, sequence, Reason.PUT, key, value, None, 0, existed)


def filled(keys: bytes, budget: Budget | None = None) -> OpLog:
    """One operation per letter, from sequence 1 on; its value is its sequence."""
    log = OpLog(budget or Budget(1000, 1_000_000))
    for sequence, key in enumerate(keys, 1):
        log.append(operation(sequence, bytes([key]), b"%d" % sequence))
    return log


def sequences(operations: Sequence[Operation] | OpLog) -> list[int]:
    return [o.sequence for o in operations]


def test_the_oldest_operation() -> None:
    log = filled(b"")
    assert (log.oldest, len(log)) == (None, 0)
    log = filled(b"ab")
    assert log.oldest is not None
    assert (log.oldest.sequence, len(log)) == (1, 2)


def test_pruning_drops_what_kafka_holds() -> None:
    log = filled(b"abcde")
    assert log.prune(2) == 2
    assert (sequences(log), log.complete_from) == ([3, 4, 5], 3)
    assert log.prune(1) == 0
    assert log.complete_from == 3
    assert log.prune(3) == 1
    assert log.complete_from == 4
    assert log.prune(9) == 2
    assert (len(log), log.complete_from) == (0, 10)


def test_cutting_drops_the_end_and_returns_it_in_order() -> None:
    log = filled(b"abcde")
    assert sequences(log.cut(3)) == [4, 5]
    assert (sequences(log), log.complete_from) == ([1, 2, 3], 1)
    assert log.cut(3) == []


def test_a_restart_drops_everything() -> None:
    log = filled(b"abc")
    assert log.restart(7) == 3
    assert (len(log), log.complete_from) == (0, 7)


@pytest.mark.parametrize(
    ("sequence", "upto", "limit", "expected"),
    [
        (0, 9, 9, [1, 2, 3, 4, 5]),
        (2, 9, 9, [3, 4, 5]),
        (2, 4, 9, [3, 4]),
        (2, 9, 2, [3, 4]),
        (5, 9, 9, []),
        (2, 9, 0, []),
        (2, 2, 9, []),
    ],
)
def test_operations_of_a_range(sequence: int, upto: int, limit: int, expected: list[int]) -> None:
    assert sequences(filled(b"abcde").after(sequence, upto, limit)) == expected
    assert filled(b"").after(sequence, upto, limit) == []


def test_operations_of_a_range_where_some_were_coalesced() -> None:
    log = filled(b"aaabab")
    assert log.coalesce(0, 5) == 3
    assert sequences(log) == [4, 5, 6]
    assert [sequences(log.after(low, 9, 9)) for low in range(7)] == [[4, 5, 6]] * 4 + [[5, 6], [6], []]


def test_the_keys_of_what_is_pending() -> None:
    log = filled(b"abca")
    assert log.keys_after(0) == {b"a", b"b", b"c"}
    assert log.keys_after(2) == {b"c", b"a"}
    assert log.keys_after(4) == set()


def test_coalescing_keeps_the_newest_operation_of_a_key_within_the_range() -> None:
    log = filled(b"aabaa")
    assert log.coalesce(1, 4) == 1
    assert [(o.sequence, o.value) for o in log] == [(1, b"1"), (3, b"3"), (4, b"4"), (5, b"5")]


def test_a_coalesced_operation_says_what_was_there_before_the_first_one() -> None:
    log = OpLog(Budget(10, 1000))
    log.append(operation(1, existed=False))
    log.append(operation(2, value=b"new", existed=True))
    assert log.coalesce(0, 2) == 1
    (merged,) = log
    assert (merged.sequence, merged.value, merged.existed) == (2, b"new", False)


@pytest.mark.parametrize(
    ("change", "complete"),
    [
        (lambda log: None, [1, 1, 5, 5, 1, 1, 1]),  # up to the one that others gave way to
        (lambda log: log.coalesce(3, 6), [1, 1, 5, 5, 1, 7, 1]),  # two runs
        (lambda log: log.coalesce(5, 6), [1, 1, 5, 5, 1, 1, 1]),  # nothing gave way
        (lambda log: (log.append(operation(8, b"a")), log.coalesce(3, 8)), [1, 1, *[9] * 5]),  # one over the other
        (
            lambda log: (log.append(operation(8)._replace(reason=Reason.CLEAR)), log.coalesce(5, 8)),
            [1, 1, 5, 5, 1, 1, 9],
        ),
        (lambda log: log.prune(3), [4, 4, 5, 5, 4, 4, 4]),
        (lambda log: log.prune(5), [6] * 7),
        (lambda log: log.cut(4), [1, 1, 5, 5, 1, 1, 1]),
        (lambda log: log.cut(3), [4] * 7),  # what gave way to 4 is gone with it
        (lambda log: log.restart(1), [1] * 7),
    ],
)
def test_a_part_of_what_gave_way_may_be_written_elsewhere(
    change: Callable[[OpLog], object], complete: list[int]
) -> None:
    log = filled(b"xaaabbb")
    assert log.coalesce(1, 5) == 2
    change(log)
    assert [log.complete_behind(sequence) for sequence in range(7)] == complete


def test_what_can_be_coalesced_into_a_run_of_a_size() -> None:
    log = OpLog(Budget(1000, 1_000_000))
    small, large = operation(1).size, operation(1, value=b"v" * 100).size
    for each in (
        operation(1),
        operation(2, b"a", b"v" * 100),
        operation(3, b"b", b"v" * 100),
        operation(4, b"a", b"v"),
        operation(5, b"b", b"v"),
    ):
        log.append(each)
    assert log.fitting(0, 5, 2 * large + 2 * small) == 5
    assert log.fitting(0, 5, 2 * large + 3 * small) == 5
    assert log.fitting(0, 5, 2 * large + small) == 5
    assert log.fitting(0, 5, 2 * large + small - 1) == 2
    assert log.fitting(0, 2, large + small) == 2
    assert log.fitting(1, 4, 2 * large) == 4
    assert log.fitting(0, 5, small - 1) == 0
    assert log.fitting(2, 5, large - 1) == 2


def test_a_clear_replaces_all_before_it_and_nothing_is_merged_across_it() -> None:
    log = filled(b"aba")
    log.append(Operation(1, 4, Reason.CLEAR, b"", None, None, 0, True))
    log.append(operation(5, b"c"))
    log.append(Operation(1, 6, Reason.CLEAR, b"", None, None, 0, True))
    log.append(operation(7, b"a", existed=False))
    log.append(operation(8, b"b", existed=False))
    log.append(operation(9, b"a", existed=True))
    log.append(Operation(1, 10, Reason.CLEAR, b"", None, None, 0, True))
    assert log.coalesce(1, 9) == 5
    assert sequences(log) == [1, 6, 8, 9, 10]
    assert [o.existed for o in log] == [True, True, False, False, True]


def test_the_budget_is_that_of_what_is_in_the_logs() -> None:
    budget = Budget(1000, 1_000_000)
    one, other = filled(b"aabca", budget), filled(b"xy", budget)
    for step in (
        lambda: one.coalesce(0, 2),
        lambda: one.prune(2),
        lambda: one.cut(4),
        lambda: other.restart(3),
        lambda: one.prune(3),
    ):
        step()
        assert budget.operations == len(one) + len(other)
        assert budget.bytes == sum(o.size for log in (one, other) for o in log)
    assert budget.operations == 1


def test_room_ends_at_either_limit() -> None:
    size = operation(1).size
    budget = Budget(2, 10 * size)
    assert budget.has_room(10 * size)
    assert not budget.has_room(10 * size + 1)
    log = OpLog(budget)
    log.append(operation(1))
    assert budget.has_room(9 * size)
    assert not budget.has_room(9 * size + 1)
    log.append(operation(2))
    assert not budget.has_room(0)
    assert budget.overdrawn == 0
    log.append(operation(3))
    assert budget.overdrawn == 1
    by_bytes = Budget(100, size)
    log = OpLog(by_bytes)
    for sequence in (1, 2, 3):
        log.append(operation(sequence))
    assert by_bytes.overdrawn == 2
