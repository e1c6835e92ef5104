"""Time and order."""

from __future__ import annotations

import pytest

from deelog_proof.memory.engine import Engine


def test_events_run_in_the_order_of_their_times() -> None:
    engine, seen = Engine(1), list[str]()
    engine.after(2, seen.append, "c")
    engine.after(1, seen.append, "a")
    engine.at(1, seen.append, "b")
    engine.run()
    assert seen == ["a", "b", "c"]


def test_a_run_ends_when_its_condition_holds() -> None:
    engine, seen = Engine(1), list[int]()
    for number in range(5):
        engine.after(number, seen.append, number)
    engine.run(lambda: 2 in seen)
    assert (seen, engine.now) == ([0, 1, 2], 2.0)


def test_a_run_ends_after_its_time() -> None:
    engine, seen = Engine(1), list[int]()
    engine.after(5, seen.append, 5)
    engine.run(seconds=4)
    assert (seen, engine.now) == ([], 4.0)


def test_a_condition_that_does_not_come() -> None:
    engine = Engine(1)
    with pytest.raises(TimeoutError, match="nothing is left to happen"):
        engine.run(lambda: False)
    engine.after(10, print)
    with pytest.raises(TimeoutError, match="waited 5 s in vain"):
        engine.run(lambda: False, seconds=5)


def test_a_livelock_ends() -> None:
    engine = Engine(1)

    def again() -> None:
        engine.after(0, again)

    again()
    with pytest.raises(TimeoutError, match="100 steps without an end"):
        engine.run(steps=100)


def test_a_stream_of_numbers_is_its_names() -> None:
    one, other = Engine(1), Engine(1)
    one.stream("b").random()
    assert one.stream("a").random() == other.stream("a").random() != Engine(2).stream("a").random()
