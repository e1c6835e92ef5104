"""A consumer group: who has the partition, how long, and who is next."""

from __future__ import annotations

import pytest

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.group import Group

TIMEOUT = 6.0


@pytest.fixture
def engine() -> Engine:
    return Engine(1)


@pytest.fixture
def group(engine: Engine) -> Group:
    return Group(engine)


def test_the_first_to_join_has_the_partition_and_keeps_it(group: Group) -> None:
    assert (group.holder, group.generation, group.changes, "a" in group) == (None, 0, 0, False)
    group.join("a", "n1", TIMEOUT)
    assert (group.holder, group.generation, group.changes, "a" in group) == ("a", 1, 1, True)
    group.join("b", "n1", TIMEOUT)
    assert (group.holder, group.generation, group.changes, "b" in group) == ("a", 2, 1, True)


def test_the_first_by_its_client_has_it_when_one_leaves(group: Group) -> None:
    for member, client_id in (("a", "n3"), ("b", "n2"), ("c", "n1")):
        group.join(member, client_id, TIMEOUT)
    group.leave("a")
    assert (group.holder, group.generation, group.changes, "a" in group) == ("c", 4, 2, False)
    group.leave("b")
    assert (group.holder, group.generation, group.changes) == ("c", 5, 2)
    group.leave("c")
    assert (group.holder, group.generation, group.changes) == (None, 6, 2)


def test_it_names_the_clients_that_belong_to_it_now(engine: Engine, group: Group) -> None:
    group.join("a", "n1@1", TIMEOUT)
    group.join("b", "n2@1", 2 * TIMEOUT)
    group.join("c", "n1@2", 2 * TIMEOUT)
    assert group.clients == {"n1@1", "n2@1", "n1@2"}
    group.leave("b")
    engine.run(seconds=1.5 * TIMEOUT)
    assert group.clients == {"n1@2"}


def test_who_stands_aside_is_passed_over_until_it_stands(group: Group) -> None:
    group.join("b", "n2", TIMEOUT)
    group.join("a", "n1", TIMEOUT, aside=True)
    group.leave("b")
    assert (group.holder, set(group.clients)) == (None, {"n1"})
    group.stand("a")
    assert group.holder == "a"


def test_who_is_no_member_cannot_leave(group: Group) -> None:
    group.join("a", "n1", TIMEOUT)
    group.leave("b")
    assert (group.holder, group.generation) == ("a", 1)


def test_a_silent_member_is_taken_out_after_its_timeout(engine: Engine, group: Group) -> None:
    group.join("a", "n1", TIMEOUT)
    engine.run(seconds=1)
    group.join("b", "n1", 100.0)
    engine.run(lambda: group.holder == "b")
    assert (engine.now, "a" in group, group.changes) == (6.0, False, 2)


def test_a_member_that_is_heard_of_stays_and_is_taken_out_later(engine: Engine, group: Group) -> None:
    group.join("a", "n1", TIMEOUT)
    engine.after(4.0, group.hear, "a")
    engine.after(9.0, group.hear, "a")
    engine.run(seconds=14.9)
    assert "a" in group
    engine.run(lambda: "a" not in group)
    assert engine.now == 15.0


def test_a_member_that_left_and_joined_again_is_not_taken_out_by_its_first_timeout(
    engine: Engine, group: Group
) -> None:
    group.join("a", "n1", TIMEOUT)
    group.leave("a")
    engine.run(seconds=10)
    assert group.generation == 2
    group.join("a", "n1", TIMEOUT)
    engine.run(seconds=5.9)
    assert "a" in group


def test_the_silence_while_the_coordinator_was_away_is_not_the_members(engine: Engine, group: Group) -> None:
    for member in ("a", "b"):
        group.join(member, "n1", TIMEOUT)
    engine.after(5.0, group.hear_all)
    engine.run(seconds=10.9)
    assert (group.holder, "b" in group, group.generation) == ("a", True, 2)
    engine.run(seconds=0.2)
    assert (group.holder, "b" in group) == (None, False)
