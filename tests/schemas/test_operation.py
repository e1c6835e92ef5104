"""What an operation counts in the op log, and what one that replaces older ones keeps."""

from __future__ import annotations

from deelog_schemas.operation import OVERHEAD, TRACE_OVERHEAD, Operation, Reason, TracedOperation

FIRST = Operation(1, 2, Reason.PUT, b"k", b"1", None, 5, False, b"old")
LAST = Operation(1, 4, Reason.REMOVE, b"k", None, 9, 7, True, b"1")
TRACE = (("traceparent", b"00-1"), ("tracestate", b"s"))


def test_the_size_is_of_all_payload() -> None:
    assert (FIRST.size, LAST.size) == (OVERHEAD + 5, OVERHEAD + 2)
    assert LAST._replace(before=None).size == OVERHEAD + 1
    assert TracedOperation.of(FIRST, TRACE).size == FIRST.size + TRACE_OVERHEAD + 5


def test_a_merged_one_is_the_last_with_what_was_before_the_first() -> None:
    merged = LAST._replace(existed=True).merged(FIRST, LAST.reason)
    assert merged == LAST._replace(existed=False, before=b"old")
    assert (merged.position, merged.trace) == ((1, 4), ())
    traced = TracedOperation.of(LAST, TRACE).merged(FIRST, LAST.reason)
    assert (traced, traced.trace) == (merged, TRACE)
