"""What the contract of servers (`test_redis_server.py`) does not show of entries in memory. Bad input: odd options."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from deelog_proof.memory.redis_keyspace import OK, Keyspace, Refused

NOW = 1_000_000


class Made:
    """A keyspace, and what it has streamed."""

    def __init__(self) -> None:
        self.streamed: list[tuple[int, Sequence[bytes]]] = []
        self.keyspace = Keyspace(lambda database, words: self.streamed.append((database, list(words))))

    def run(self, line: str, now_ms: int = NOW, database: int = 0) -> object:
        return self.keyspace.run(database, line.encode().split(), now_ms)


@pytest.fixture
def made() -> Made:
    return Made()


def test_relative_times_are_streamed_as_moments(made: Made) -> None:
    made.run("SET a 1 EX 5")
    made.run("EXPIRE a 7")
    made.run("PEXPIRE a 8", database=1)
    assert [b" ".join(words) for _, words in made.streamed] == [b"SET a 1 PXAT 1005000", b"PEXPIREAT a 1007000"]


def test_what_has_expired_is_gone_for_whoever_asks_and_streamed_once(made: Made) -> None:
    made.run("SET a 1 PX 10")
    made.run("SET b 1 PX 10")
    assert made.run("GET a", NOW + 9) == b"1"
    assert made.run("GET a", NOW + 10) is None
    made.keyspace.expire(NOW + 10)
    assert [words for _, words in made.streamed[2:]] == [[b"DEL", b"a"], [b"DEL", b"b"]]
    assert made.run("SCAN 0", NOW + 10) == [b"0", []]


def test_a_replica_hides_what_has_expired_until_its_primary_deletes_it(made: Made) -> None:
    made.keyspace.is_replica = True
    made.keyspace.apply(0, [b"SET", b"a", b"1", b"PXAT", b"5"])
    made.keyspace.apply(0, [b"APPEND", b"a", b"2"])
    assert made.run("GET a") is None
    assert made.keyspace.databases[0][b"a"].value == b"12"


def test_a_pass_of_scan_lists_what_is_there_throughout(made: Made) -> None:
    chance = random.Random(1)
    kept = {f"k{number}" for number in range(50)}
    for key in kept:
        made.run(f"SET {key} 1")
    found, cursor = list[str](), "0"
    while True:
        for _ in range(3):
            made.run(f"SET x{chance.randrange(30)} 1")
            made.run(f"DEL x{chance.randrange(30)}")
        answer = made.run(f"SCAN {cursor} COUNT 7")
        assert isinstance(answer, list)
        cursor = answer[0].decode()
        found += [key.decode() for key in answer[1]]
        if cursor == "0":
            break
    assert kept <= set(found)
    assert len(found) == len(set(found))


def test_the_place_of_a_renamed_entry_and_its_expiry_go_along(made: Made) -> None:
    made.run("SET a 1 PX 10")
    assert made.run("RENAME a b") is OK
    assert made.run("PEXPIRETIME b") == NOW + 10
    assert made.run("EXISTS a") == 0


@pytest.mark.parametrize("line", ["SET a", "SET a 1 EX", "SET a 1 EX x", "SET a 1 SOON 5", "NONSENSE", "RENAME a b"])
def test_what_is_no_command_changes_nothing(made: Made, line: str) -> None:
    with pytest.raises(Refused):
        made.run(line)
    assert (made.streamed, made.keyspace.databases[0]) == ([], {})
