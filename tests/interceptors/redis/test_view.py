"""Whose segments are, of what a server says. Bad input: no line of its own, no slots."""

from __future__ import annotations

import pytest

from deelog_interceptors.redis.view import View, alone, of_cluster, of_sentinels

A, B, C = (name * 40 for name in "abc")
PRIMARY = f"""\
{A} 10.0.0.1:7001@17001,host-1 myself,master - 0 0 7 connected 0-2 9 [2->-{B}] [5-<-{B}]
{B} 10.0.0.2:7001@17001,host-2 master - 0 0 8 connected 3-8
{C} 10.0.0.3:7001@17001,,tls-port=0,shard-id=x slave {A} 0 0 7 connected
"""


def test_a_server_that_is_alone() -> None:
    everything = frozenset(range(3))
    assert alone(True, 3) == View(True, everything, frozenset())
    assert alone(False, 3) == View(False, frozenset(), everything)
    assert alone(False, 3, always=True) == View(False, everything, frozenset())
    assert alone(True, 3, always=True) == View(True, everything, frozenset())


def test_a_server_that_sentinels_watch() -> None:
    """A primary that they do not name keeps what comes: they may be about to."""
    everything, none = frozenset(range(3)), frozenset[int]()
    assert of_sentinels(True, True, 3) == View(True, everything, none)
    assert of_sentinels(True, False, 3) == View(True, none, everything)
    assert of_sentinels(False, False, 3) == View(False, none, everything)
    assert of_sentinels(False, True, 3) == View(False, none, everything), "they have not heard yet"


def test_a_primary_of_a_cluster() -> None:
    """What comes is not its own yet, what goes not any more."""
    found = of_cluster(PRIMARY.encode())
    assert found == View(True, frozenset({0, 1, 9}), frozenset(), frozenset({2}), 7)


def test_a_replica_of_a_cluster() -> None:
    text = PRIMARY.replace("myself,master", "master").replace(" slave ", " myself,slave ")
    assert of_cluster(text.encode()) == View(False, frozenset(), frozenset({0, 1, 2, 9}), rank=7)
    away = text.replace(f"slave {A}", "slave -")
    assert of_cluster(away.encode()) == View(False, frozenset(), frozenset())


def test_a_slot_that_is_said_to_move_and_is_not_there() -> None:
    text = PRIMARY.replace("0-2 9", "0-1")
    assert of_cluster(text.encode()) == View(True, frozenset({0, 1}), frozenset(), frozenset(), 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PRIMARY.replace("myself,", ""),
        PRIMARY.replace("slave", "myself,slave"),
        PRIMARY.replace("0-2", "0-16384"),
        PRIMARY.replace("0-2", "zero"),
        PRIMARY.replace("0 7 connected", "0 seven connected"),
        PRIMARY.replace("[2->-", "[two->-"),
    ],
)
def test_what_is_no_view(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        of_cluster(text.encode())
