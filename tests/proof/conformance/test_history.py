"""When a topic agrees with what was written, and what is said where it does not."""

from __future__ import annotations

import pytest

from deelog_proof.conformance.history import Change, History, Reset, Step, Write

A1, A2, B1, NO_A, CLEAR = Write("a", "1"), Write("a", "2"), Write("b", "1"), Write("a", None), Write(None, None)
EMPTY = Reset("start", {})
CREATE_A, UPDATE_A, DELETE_A = Change("c", "a", "1"), Change("u", "a", "2"), Change("d", "a", None)


@pytest.mark.parametrize(
    ("writes", "steps"),
    [
        ([], []),
        ([], [EMPTY]),
        ([A1, A2, NO_A], [EMPTY, CREATE_A, UPDATE_A, DELETE_A]),
        ([A1, A2, B1], [EMPTY, CREATE_A, Reset("signal", {"a": "2"}), Change("c", "b", "1")]),
        ([A1, NO_A, A1, A2], [Reset("start", {"a": "1"}), UPDATE_A]),  # after the first write, or after the third
        ([A1, NO_A, A1], [Reset("start", {"a": "1"}), DELETE_A, CREATE_A]),
        ([A1, CLEAR, A1], [EMPTY, CREATE_A, Reset("clear", {}), CREATE_A]),
        ([A1, A2, NO_A], [Reset("start", {})]),
    ],
)
def test_what_agrees(writes: list[Write], steps: list[Step]) -> None:
    assert History({}, writes).contradiction(steps) is None


@pytest.mark.parametrize(
    ("writes", "steps", "problem"),
    [
        ([A1], [CREATE_A], "before any reset"),
        ([A1], [EMPTY], "missing: Write(key='a', value='1')"),
        ([A1], [], "ends after 0 of 1 writes"),
        ([A1, A2], [EMPTY, UPDATE_A], "cannot come after 0 of 2 writes"),
        ([A1, NO_A, B1], [EMPTY, CREATE_A, Change("c", "b", "1")], "next write is Write(key='a', value=None)"),
        ([A1], [EMPTY, CREATE_A, CREATE_A], "next write is nothing"),
        ([A1], [EMPTY, Change("u", "a", "1")], "cannot come after"),
        ([A1, A2], [EMPTY, CREATE_A, UPDATE_A, Reset("signal", {"a": "1"})], "cannot come after 2 of 2"),
        ([A1, B1], [EMPTY, Reset("signal", {"b": "1"})], "cannot come after 0 of 2"),
        ([A1, CLEAR], [EMPTY, CREATE_A], "missing: Write(key=None, value=None)"),
    ],
)
def test_what_contradicts(writes: list[Write], steps: list[Step], problem: str) -> None:
    found = History({}, writes).contradiction(steps)
    assert found is not None
    assert problem in found


def test_entries_of_the_start_must_be_sent() -> None:
    assert History({"a": "1"}).contradiction([]) == "the topic ends after 0 of 0 writes; missing: nothing"
    assert History({"a": "1"}).contradiction([Reset("start", {"a": "1"})]) is None


def test_a_part_of_a_history() -> None:
    history = History({"a": "0", "b": "0"}, [A1, CLEAR, B1, CLEAR, A2])
    assert history.content == {"a": "2"}
    assert history.keys == {"a", "b"}
    assert history.of({"a"}) == History({"a": "0"}, [A1, CLEAR, A2])
    assert history.of({"b"}) == History({"b": "0"}, [CLEAR, B1, CLEAR])
