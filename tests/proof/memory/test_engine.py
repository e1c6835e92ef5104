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


@pytest.mark.parametrize("how", ["at", "after"])
def test_events_at_the_same_time_run_in_the_order_in_which_they_were_added(how: str) -> None:
    engine, seen = Engine(1), list[int]()
    engine.run(seconds=3)
    for number in reversed(range(20)):
        getattr(engine, how)(1, seen.append, number)
    engine.run()
    assert seen == list(reversed(range(20)))


def test_what_should_have_happened_happens_now() -> None:
    engine, seen = Engine(1), list[float]()
    engine.run(seconds=3)
    engine.at(1, lambda: seen.append(engine.now))
    engine.at(4, lambda: seen.append(engine.now))
    engine.run()
    assert seen == [3.0, 4.0]


def test_a_step_is_the_next_event() -> None:
    engine, seen = Engine(1), list[str]()
    assert (engine.now, engine.steps) == (0.0, 0)
    assert not engine.step()
    engine.after(1, seen.append, "a")
    engine.after(2, seen.append, "b")
    assert engine.step()
    assert (seen, engine.now, engine.steps) == (["a"], 1.0, 1)
    assert engine.step()
    assert (seen, engine.now, engine.steps) == (["a", "b"], 2.0, 2)
    assert not engine.step()


def test_the_order_of_two_runs_is_the_same_if_their_events_are() -> None:
    def order(*moments: float) -> int:
        engine = Engine(1)
        for moment in moments:
            engine.at(moment, int)
        engine.run()
        return engine.order

    assert order() == 0
    assert order(1, 2, 2) == order(2, 1, 2)
    assert len({order(1), order(2), order(1, 2), order(1, 2, 2)}) == 4


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
    assert engine.steps == 100
    with pytest.raises(TimeoutError, match="50 steps without an end"):
        engine.run(steps=50)
    assert engine.steps == 150


def test_a_stream_of_numbers_is_its_names() -> None:
    one, other = Engine(1), Engine(1)
    one.stream("b").random()
    assert one.stream("a").random() == other.stream("a").random() != Engine(2).stream("a").random()
    assert one.stream("a").random() == other.stream("a").random() != Engine(1).stream("a").random()
