"""Who else of a shard has what a server has forgotten, of servers in memory whose streams are as each case says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import fields
from deelog_interceptors.redis.shard import Other, Remembered, _named_in, others
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.redis_server import NO_ID, Stream
from tests.interceptors.redis.in_memory import FIRST_PORT, Servers

OLD, NEW, FOREIGN = "a" * 40, "b" * 40, "c" * 40


def stream(oldest: int, offset: int, id_: str = OLD, before: str = NO_ID, fork: int = -1) -> Stream:
    return Stream(id_, before, fork, offset, bytearray(offset - oldest), oldest)


class Shard:
    """Servers by number; `asked_by` is what the connector beside the first one finds."""

    def __init__(self) -> None:
        self.servers = Servers(Engine(1))
        self.loop = self.servers.loop("connector")

    def add(self, number: int, its: Stream) -> None:
        self.servers.serve(number)
        self.servers[number].stream = its

    def follows(self, number: int, primary: int) -> None:
        """As it says, and as its primary says: no byte is sent."""
        self.servers[number].primary = ("127.0.0.1", FIRST_PORT + primary)
        self.named(primary, FIRST_PORT + number)

    def named(self, primary: int, port: int) -> None:
        """A replica that listens at that port is linked."""
        link = FakeLink(port)
        self.servers[primary]._links[link] = None  # type: ignore[index]

    def found(self, number: int = 1) -> list[Other]:
        found: list[Other] = self.loop.run_until_complete(self._found(number))
        return found

    async def _found(self, number: int) -> list[Other]:
        own = address(number)
        client = Client(own)
        await client.connect()
        info = fields(await client.ask_one(b"INFO", b"replication"))
        await client.close()
        return await others(own, info, Remembered.of(info))


class FakeLink:
    acked = 0

    def __init__(self, port: int) -> None:
        self.port = port


@pytest.fixture
def shard() -> Iterator[Shard]:
    made = Shard()
    yield made
    made.servers.end()


def address(number: int) -> Address:
    return Address("127.0.0.1", FIRST_PORT + number, 3)


def test_a_replica_that_has_more_is_found(shard: Shard) -> None:
    shard.add(1, stream(90, 100))
    shard.add(2, stream(20, 98))
    shard.follows(2, 1)
    (other,) = shard.found()
    # What it has not got yet is not waited for.
    assert other == Other(address(2), 20, 98)


def test_a_replica_asks_its_primary_and_its_other_replicas_and_who_remembers_most_comes_first(shard: Shard) -> None:
    shard.add(1, stream(90, 95))
    shard.add(2, stream(50, 100))
    shard.add(3, stream(10, 99))
    shard.add(4, stream(91, 99))
    for number in (1, 3, 4):
        shard.follows(number, 2)
    assert shard.found() == [Other(address(3), 10, 95), Other(address(2), 50, 95)]


@pytest.mark.parametrize(
    ("its", "upto"),
    [
        (stream(0, 300, NEW, OLD, 96), 95),
        (stream(0, 300, NEW, OLD, 91), 90),
        (stream(0, 300, NEW, OLD, 90), None),
        (stream(0, 300, FOREIGN), None),
        (stream(90, 100), None),
        (stream(0, 89), None),
        (Stream(OLD, offset=100), None),
    ],
    ids=["parted", "parted where it begins", "parted before", "another", "no more", "too little", "nothing"],
)
def test_no_more_is_read_than_both_have(shard: Shard, its: Stream, upto: int | None) -> None:
    """Behind the fork an old primary, or one that was promoted, has another stream."""
    shard.add(1, stream(90, 100))
    shard.add(2, its)
    shard.follows(2, 1)
    assert shard.found() == ([] if upto is None else [Other(address(2), 0, upto)])


def test_a_server_without_a_backlog_has_forgotten_all(shard: Shard) -> None:
    shard.add(1, Stream(OLD, offset=100))
    shard.add(2, stream(20, 100))
    shard.follows(2, 1)
    assert shard.found() == [Other(address(2), 20, 100)]


def test_who_hangs_is_not_waited_for(shard: Shard) -> None:
    """What is to be read is forgotten meanwhile."""
    shard.add(1, stream(90, 100))
    for number, oldest in ((2, 20), (3, 10)):
        shard.add(number, stream(oldest, 100))
        shard.named(1, FIRST_PORT + number)
    shard.servers.loops["r3"].pause()
    began = shard.servers.engine.now
    assert [other.address.port for other in shard.found()] == [FIRST_PORT + 2]
    assert shard.servers.engine.now - began < 1.5


def test_connectors_and_who_does_not_answer_are_left_out(shard: Shard) -> None:
    shard.add(1, stream(90, 100))
    shard.named(1, 0)
    assert shard.found() == []
    shard.named(1, FIRST_PORT + 9)
    assert shard.found() == []
    shard.named(1, FIRST_PORT + 2)
    shard.add(2, stream(20, 100))
    shard.servers[2].loading = True
    assert [other.address.port for other in shard.found()] == [FIRST_PORT + 2]
    shard.servers[1].primary = ("", 0)  # it does not know it yet
    assert [other.address.port for other in shard.found()] == [FIRST_PORT + 2]


@pytest.mark.parametrize(
    ("info", "ports"),
    [
        (
            {"master_host": "127.0.0.1", "master_port": "7002", "slave0": "ip=127.0.0.1,port=7003,state=online"},
            [7002, 7003],
        ),
        ({"master_host": "", "master_port": "7002"}, []),  # it is told later whom it follows
        ({"slave0": "ip=127.0.0.1,port="}, []),
        ({"slave0": "ip=127.0.0.1,port=0"}, []),  # a connector
        ({"slave0": "ip=127.0.0.1,port=7001"}, []),  # the own one
        ({"slaves": "ip=127.0.0.1,port=7002", "other0": "ip=127.0.0.1,port=7003"}, []),
    ],
)
def test_whom_a_server_names(info: dict[str, str], ports: list[int]) -> None:
    assert [other.port for other in _named_in(address(1), info)] == ports
