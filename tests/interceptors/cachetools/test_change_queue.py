"""What a change counts for in the queue: as much as its operation does in the op log."""

from __future__ import annotations

import pytest

from deelog_interceptors.cachetools.change_queue import ChangeQueue, charge
from deelog_interceptors.cachetools.serialize import Raw, encoded
from deelog_schemas.operation import Operation, Reason, Trace, TracedOperation


@pytest.mark.parametrize("trace", [None, (("traceparent", b"00-1"), ("tracestate", b"a=b"))])
@pytest.mark.parametrize(("key", "value"), [("key", "value"), (b"\xff", b"12345"), ("key", None), ("", "")])
def test_a_change_is_charged_what_its_operation_takes(key: Raw, value: Raw | None, trace: Trace | None) -> None:
    made = Operation(1, 1, Reason.PUT, encoded(key), None if value is None else encoded(value), None, 0, False)
    operation = made if trace is None else TracedOperation.of(made, trace)
    assert charge(key, value, trace) == operation.size


def test_a_queue_begins_empty_and_without_room() -> None:
    queue = ChangeQueue()
    assert (list(queue.queue), queue.taken, queue.limit) == ([], 0, 0)
    assert (queue.writing, queue.removing) == (False, Reason.REMOVE)
