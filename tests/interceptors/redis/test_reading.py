"""Entries of real servers with the offset at which they are so, and the keys of segments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import hiredis
import pytest

from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import LinkError, LinkLost
from deelog_interceptors.redis.stream import Omitted
from deelog_interceptors.redis.values import UNAVAILABLE, Values
from deelog_schemas.keys import segment_of
from tests.interceptors.redis.servers import NAMES, Server, running
from tests.interceptors.redis.test_address import config

T = TypeVar("T")
VALUES = Values(config(max_entry_bytes="10000"))


@pytest.fixture(scope="module", params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(request.param, tmp_path_factory.mktemp("server")) as found:
        yield found


def asking(server: Server, work: Callable[[Client], Awaitable[T]], username: str | None = None) -> T:
    async def run() -> T:
        client = Client(Address("127.0.0.1", server.port, 0, username, "word" if username else None))
        await client.connect()
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_each_type_with_its_expiry_as_of_one_offset(server: Server) -> None:
    server.ask("FLUSHALL")
    for command in (
        "SET s v PXAT 99999999999999",
        "HSET h f 1",
        "RPUSH l a b",
        "SADD t a",
        "ZADD z 1.5 m",
        "XADD x 1-1 f v",
        "XGROUP CREATE empty g 0 MKSTREAM",
        "SET gone v PX 1",
    ):
        server.ask(*command.split())
    server.ask("RPUSH", "large", *("v" * 100 for _ in range(200)))
    server.ask("RPUSH", "huge", *("v" * 1000 for _ in range(1000)))
    keys = [b"s", b"h", b"l", b"t", b"z", b"x", b"empty", b"none", b"large", b"huge"]
    found = asking(server, lambda client: reading.read(client, keys, VALUES))
    assert found.changed == []
    assert [image.key for image in found.images] == keys
    assert len({image.offset for image in found.images}) == 1
    values = {image.key.decode(): image.value and json.loads(image.value) for image in found.images}
    assert values == {
        "s": {"type": "string", "value": "v"},
        "h": {"type": "hash", "value": {"f": "1"}},
        "l": {"type": "list", "value": ["a", "b"]},
        "t": {"type": "set", "value": ["a"]},
        "z": {"type": "zset", "value": [["m", "1.5"]]},
        "x": {"type": "stream", "value": [["1-1", ["f", "v"]]]},
        "empty": {"type": "stream", "value": []},
        "none": None,
        "large": {"type": "list", "value": UNAVAILABLE},
        "huge": {"type": "list", "value": UNAVAILABLE},
    }
    assert {image.key: image.expires_at for image in found.images if image.expires_at} == {b"s": 99999999999999}


def sent(server: Server) -> int:
    """Bytes that the server has sent."""
    return int(server.client.info("stats")["total_net_output_bytes"])


def test_a_string_that_is_too_large_is_not_read(server: Server) -> None:
    server.ask("FLUSHALL")
    server.ask("SET", "small", "v" * 9_000)
    server.ask("SET", "large", "v" * 100_000)
    server.ask("SET", "grown", "v" * 4_000)
    server.ask("APPEND", "grown", "v" * 5_000)  # it has room for as much again
    before = sent(server)
    found = asking(server, lambda client: reading.read(client, [b"small", b"large", b"grown"], VALUES))
    assert sent(server) - before < 40_000
    values = [json.loads(image.value)["value"] for image in found.images if image.value]
    assert values == ["v" * 9_000, UNAVAILABLE, "v" * 9_000]


def test_what_is_too_much_for_one_transaction_is_read_later(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_BYTES", 50_000)
    server.ask("FLUSHALL")
    keys = [b"%d" % number for number in range(20)]
    for key in keys:
        server.ask("RPUSH", key.decode(), *("v" * 900 for _ in range(10)))
    server.ask("RPUSH", "huge", *("v" * 1000 for _ in range(60)))
    before = sent(server)
    found = asking(server, lambda client: reading.read(client, [b"huge", *keys], VALUES))
    assert [image.key for image in found.images] == [b"huge"], "one is read, however large"
    assert found.changed == keys
    found = asking(server, lambda client: reading.read(client, keys, VALUES))
    assert [image.key for image in found.images] == keys[: len(found.images)]
    assert [*(image.key for image in found.images), *found.changed] == keys
    assert 1 <= len(found.images) <= 5
    assert sent(server) - before < 150_000


def test_a_key_whose_type_changes_meanwhile_is_read_again(server: Server) -> None:
    class Between(Client):
        """The server's keys change between two questions."""

        async def ask(self, commands: Any) -> Any:
            if commands and tuple(commands[0]) == (b"MULTI",):
                server.ask("DEL", "a", "b", "c")
                server.ask("RPUSH", "a", "1")
                server.ask("SET", "c", "1")
            return await super().ask(commands)

    async def work() -> reading.Read:
        client = Between(Address("127.0.0.1", server.port))
        await client.connect()
        try:
            return await reading.read(client, [b"a", b"b", b"c"], VALUES)
        finally:
            await client.close()

    server.ask("FLUSHALL")
    server.ask("SET", "a", "1")
    server.ask("SET", "b", "1")
    found = asyncio.run(work())
    assert server.ask("EXISTS", "a", "b", "c") == 2
    assert found.changed == [b"a", b"c"]
    assert [(image.key, image.value) for image in found.images] == [(b"b", None)]


@pytest.mark.parametrize("then", ["SET big small", "DEL big", "HDEL big f", "HSET big g 1"])
def test_what_was_too_large_is_told_so_only_if_it_still_is(server: Server, then: str) -> None:
    """Another client changes it once its size is known."""

    class Between(Client):
        async def ask(self, commands: Any) -> Any:
            if commands and tuple(commands[0]) == (b"MULTI",):
                server.ask(*then.split())
            return await super().ask(commands)

    async def work() -> reading.Read:
        client = Between(Address("127.0.0.1", server.port))
        await client.connect()
        try:
            return await reading.read(client, [b"big"], VALUES)
        finally:
            await client.close()

    server.ask("FLUSHALL")
    server.ask("HSET", "big", "f", "x" * 900_000, "small", "1")
    found = asyncio.run(work())
    gone, same = then == "DEL big", then == "HSET big g 1"
    assert found.changed == ([] if gone or same else [b"big"])
    values = [image.value and json.loads(image.value)["value"] for image in found.images]
    assert values == ([None] if gone else [UNAVAILABLE] if same else [])


def test_other_questions_come_between_two_pages_of_keys(server: Server) -> None:
    server.ask("FLUSHALL")
    server.ask("MSET", *(word for number in range(5000) for word in (f"k{number}", "v")))

    async def work(client: Client) -> int:
        pages = 0

        async def between() -> None:
            nonlocal pages
            pages += 1
            assert await client.ask_one(b"EXISTS", b"k1") == 1

        listed = await reading.keys_of(client, range(4), 4, VALUES, between=between)
        assert sum(map(len, listed.values())) == 5000
        return pages

    assert asking(server, work) >= 5


def test_the_keys_of_segments(server: Server) -> None:
    server.ask("FLUSHALL")
    keys = {f"k{number}".encode() for number in range(3000)}
    server.ask("MSET", *(word for key in keys for word in (key.decode(), "v")))
    found = asking(server, lambda client: reading.keys_of(client, frozenset({1, 3}), 4, VALUES))
    assert found.keys() == {1, 3}
    for segment, listed in found.items():
        assert len(listed) == len(set(listed))
        assert set(listed) == {key for key in keys if segment_of(key, 4) == segment}


@pytest.mark.parametrize(("count", "listed"), [(8, {0}), (32, {0, 1}), (200, set(range(13)))])
def test_of_too_many_keys_those_of_the_first_segments_are_listed(
    server: Server, monkeypatch: pytest.MonkeyPatch, count: int, listed: set[int]
) -> None:
    """As many segments as there may be keys of, and at least a sixteenth of all: SCAN goes through all keys."""
    server.ask("FLUSHALL")
    keys = {f"k{number}".encode() for number in range(8000)}
    server.ask("MSET", *(word for key in keys for word in (key.decode(), "v")))
    monkeypatch.setattr(reading, "_MOST_LISTED", 1000 if count == 8 else 1)
    found = asking(server, lambda client: reading.keys_of(client, range(count), count, VALUES))
    assert found.keys() == listed
    for segment, those in found.items():
        assert set(those) == {key for key in keys if segment_of(key, count) == segment}


def test_the_keys_that_commands_write(server: Server) -> None:
    """By the server: what only reads, what has no keys, what it does not know, and what was too long to be kept."""
    told: list[tuple[list[bytes | Omitted], list[bytes] | None]] = [
        ([b"SET", b"k", b"v"], [b"k"]),
        ([b"COPY", b"a", b"b"], [b"b"]),
        ([b"GET", b"k"], []),
        ([b"ZUNIONSTORE", b"to", b"2", b"a", b"b"], [b"to"]),
        ([b"SET", b"k", Omitted(1 << 30)], [b"k"]),
        ([b"SET", b"", b"v"], [b""]),
        ([b"SET", Omitted(1 << 30), b"v"], None),
        ([b"PING"], None),
        ([b"NOSUCH", b"k"], None),
        ([b"SET"], None),
    ]
    commands = [command for command, _ in told]
    assert asking(server, lambda client: reading.keys_written(client, commands)) == [keys for _, keys in told]
    server.ask("ACL", "SETUSER", "some", "reset", "on", ">word", "~*", "+@all", "-command|getkeysandflags")
    assert asking(server, lambda client: reading.keys_written(client, commands), "some") == [None] * len(told)


def test_a_server_that_is_busy_is_asked_again_which_keys_a_command_writes() -> None:
    class Busy(Client):
        async def ask(self, commands: Any) -> Any:
            return [hiredis.ReplyError("BUSY Redis is busy running a script.") for _ in commands]

    with pytest.raises(LinkLost, match="BUSY"):
        asyncio.run(reading.keys_written(Busy(Address("127.0.0.1", 1)), [[b"NEWLY", b"k"]]))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([0, 0, 0], [[0, 1, 2]]),
        ([127, 1, 1], [[0, 1], [2]]),
        ([1, 300, 1, 127], [[0], [1], [2, 3]]),
        ([300, 0], [[0], [1]]),
        ([0, 129], [[0], [1]]),
    ],
)
def test_segments_are_read_together(sizes: list[int], expected: list[list[int]]) -> None:
    assert list(reading.batches({number: [b"key"] * size for number, size in enumerate(sizes)})) == expected


def test_what_a_server_says_of_its_role() -> None:
    primary = [b"master", 42, [[b"10.0.0.1", b"0", b"40"], [b"10.0.0.2", b"7002", b"41"]]]
    replica = [b"slave", b"10.0.0.1", 7001, b"connected", 41]
    assert (reading.is_primary(primary), reading.offset_of(primary)) == (True, 42)
    assert (reading.is_primary(replica), reading.offset_of(replica)) == (False, 41)
    with pytest.raises(LinkLost, match="its primary's stream"):
        reading.offset_of([b"slave", b"10.0.0.1", 7001, b"connect", -1])
    assert reading.replicas_of(primary) == [("10.0.0.1", 0, 40), ("10.0.0.2", 7002, 41)]


@pytest.mark.parametrize("command", ["memory|usage", "multi", "type", "role"])
def test_who_may_not_read(server: Server, command: str) -> None:
    server.ask("ACL", "SETUSER", "some", "reset", "on", ">word", "~*", "+@all", f"-{command}")

    async def work(client: Client) -> object:
        return await reading.read(client, [b"k"], VALUES)

    with pytest.raises(LinkError):
        asking(server, work, "some")
