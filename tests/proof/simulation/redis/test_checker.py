"""What is wrong is noticed, and named: each part of the checker has failed once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deelog_interceptors.redis.node import RedisNode
from deelog_interceptors.redis.segment_tape import SegmentTape, TapedChange
from deelog_proof.memory.engine import Engine
from deelog_proof.simulation import run as runs
from deelog_proof.simulation.redis.checker import Covered, Place, RedisChecker, Write
from deelog_proof.simulation.redis.world import RedisWorld
from deelog_proof.simulation.script import parse
from deelog_schemas.header import Kind
from deelog_schemas.records import decode

SCRIPT = "cache redis\n0.1 write SET k1 v1\n0.1 write SET k1 v2\n"


def world_of(script: str = SCRIPT) -> RedisWorld:
    return RedisWorld(parse(script))


def broken(world: RedisWorld) -> str:
    """What is wrong in the end."""
    violation = world.run().violation
    assert violation is not None
    return str(violation)


@pytest.fixture
def drops(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has connectors drop a change with this value."""
    monkeypatch.setattr(runs, "PEACE", 5.0)

    def drop(value: bytes) -> None:
        add = SegmentTape.add

        def kept(self: SegmentTape, change: TapedChange) -> None:
            if change.value != value:
                add(self, change)

        monkeypatch.setattr(SegmentTape, "add", kept)

    return drop


def test_a_change_that_is_missing_in_the_end(drops: Any) -> None:
    drops(b'{"type":"string","value":"v2"}')
    assert "alive: not at rest" in broken(world_of())


def test_a_change_that_is_missing_in_between(drops: Any) -> None:
    drops(b'{"type":"string","value":"v1"}')
    assert "told: segment" in broken(world_of())


def test_a_delete_that_is_missing_in_between(drops: Any) -> None:
    drops(None)
    script = "cache redis\n0.1 write SET k1 v1\n0.11 write DEL k1\n0.12 write SET k1 v2\n"
    assert "told: segment" in (text := broken(world_of(script)))
    assert "value=None" in text


def test_changes_of_a_key_that_are_told_in_another_order() -> None:
    world = world_of()
    assert world.run().violation is None
    told = world.checker._told
    first, second = [key for key in told if key[0] == b"k1"]
    told[first], told[second] = told[second], told[first]
    world.checker._all_is_told()
    assert "v2" in (text := str(world.checker.violation))
    assert text.endswith("is told before what came before it")


@pytest.mark.parametrize(
    ("write", "covered"),
    [
        (Write(b"k", b"v", Place(1, 50), 2.0, True), True),  # the rows are of a later place
        (Write(b"k", b"v", Place(0, 20), 2.0, True), True),
        (Write(b"k", b"v", Place(0, 31), 3.5, True), False),  # behind the fork
        (Write(b"k", b"v", Place(1, 51), 4.1, True), False),  # the reset had ended
        (Write(b"k", b"v", Place(1, 51), 3.5, True), False),  # there must be a row of it
        (Write(b"k", b"v", Place(1, 51), 2.5, True), True),  # another one came, of which there is a row
        (Write(b"k", b"v", Place(1, 51), 3.6, False), True),  # it expired, or so
        (Write(b"k", None, Place(1, 51), 3.5, True), True),  # it has no row
        (Write(b"other", b"v", Place(1, 51), 3.1, True), True),  # all was emptied behind it
        (Write(b"other", b"v", Place(1, 51), 3.6, True), False),
    ],
)
def test_what_a_reset_covers(write: Write, covered: bool) -> None:
    checker = RedisChecker(SimpleNamespace(engine=Engine(1), partitions=2, segments=4, shards=1))
    checker._touched[b"k"], checker._emptied = [2.0, 2.5, 2.8, 4.5], [3.2]
    assert checker._is_covered(write, Covered({1: 50, 0: 30}, 4.0, 0)) is covered


@pytest.mark.parametrize(
    ("more", "reason", "found"),
    [
        ("", "stream_lost", True),
        ("", "unknown_command", True),
        ("set backlog 300\n", "stream_lost", False),
        ("0.3 trim r1 0\n", "stream_lost", False),
        ("0.3 crash r2\n0.4 restart r2\n", "stream_lost", False),
        ("0.3 failover r2\n", "stream_lost", False),
        ("0.3 write SWAPDB 0 1\n", "stream_lost", False),
        ("0.3 write SWAPDB 0 1\n", "unknown_command", False),
    ],
)
def test_a_reset_that_nothing_called_for(more: str, reason: str, found: bool) -> None:
    world = world_of("cache redis\n" + more * more.startswith("set") + SCRIPT[12:] + more * more.startswith("0"))
    assert world.run().violation is None
    world.checker.counts[f"reset {reason}"] = 1
    world.checker._were_called_for()
    assert (world.checker.violation is not None) is found
    assert not found or str(world.checker.violation).startswith("needless: 1 resets")


def test_rows_that_are_not_those_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deelog_schemas.fold.digest_of", lambda entries: "another")
    assert "digest: " in broken(world_of())


def test_an_exception_of_a_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("of a test")

    monkeypatch.setattr(RedisNode, "_warn", fail)
    assert "ValueError('of a test')" in broken(world_of())


def test_a_position_that_is_written_twice() -> None:
    world = world_of()
    assert world.run().violation is None
    logs = [world.kafka.logs["p.c", partition] for partition in range(2)]
    records = [record for log in logs for record in log.read(log.first, log.end)[0]]
    world.checker._record(next(record for record in records if decode(*record).header.kind is Kind.CHANGE))
    assert world.checker.violation is not None
    assert world.checker.violation.part == "twice"


def test_what_is_taken_back_without_a_failover() -> None:
    world = world_of()
    assert world.run().violation is None
    world.nodes["c1"].core.counts.corrections = 1  # type: ignore[attr-defined]
    world.connectors = lambda: [SimpleNamespace(member="c1", core=SimpleNamespace(primaries=lambda: [1]))]  # type: ignore
    world.checker.violation = None
    world.checker.final()
    assert str(world.checker.violation).startswith("taken: 1 changes are taken back")


def test_two_that_write() -> None:
    world = world_of()
    assert world.run().violation is None
    world.checker.final()
    assert str(world.checker.violation) == "health: there are the writers []"


@pytest.mark.parametrize(
    ("primary", "offset", "found"), [(None, 7, True), (None, 0, False), (("127.0.0.1", 7001), 7, False)]
)
def test_who_passes_for_a_replica(primary: tuple[str, int] | None, offset: int, found: bool) -> None:
    world = world_of()
    assert world.run().violation is None
    redis = SimpleNamespace(primary=primary, acknowledged_by_guests=offset, stream=SimpleNamespace(id=""))
    world.servers = lambda: [SimpleNamespace(member="r9@1", redis=redis)]  # type: ignore
    world.connectors = list  # type: ignore[method-assign]
    world.checker.sample()
    assert (world.checker.violation is not None) is found
    assert not found or str(world.checker.violation).startswith("guest: a connector acknowledges to r9@1")


def test_who_keeps_too_much() -> None:
    world = world_of()
    assert world.run().violation is None
    budget = SimpleNamespace(operations=11, max_operations=9, overdrawn=1)
    node = SimpleNamespace(member="c1", core=SimpleNamespace(budget=budget))
    world.connectors = lambda: [node]  # type: ignore
    world.checker.sample()
    assert str(world.checker.violation) == "limit: c1 holds 11 operations"
