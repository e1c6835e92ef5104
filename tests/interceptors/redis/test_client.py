"""Questions to a server. Bad input: no server, a wrong password, a server that hangs up, one that sends garbage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest

from deelog_connector.devkafka.ports import free_ports
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import LinkError, LinkLost
from tests.interceptors.redis.servers import Server, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("server"), "--requirepass", "word", password="word") as found:
        yield found


def test_many_questions_have_their_answers_in_order(server: Server) -> None:
    async def work() -> None:
        client = Client(Address("127.0.0.1", server.port, 3, None, "word"))
        assert not client.is_connected
        await client.connect()
        assert client.is_connected
        large = b"x" * 3_000_000
        answers = await client.ask(
            [(b"SET", b"k", large), (b"GET", b"k"), (b"NONE",), (b"INCR", b"n"), (b"GET", b"no")]
        )
        assert answers[:2] == [b"OK", large]
        assert isinstance(answers[2], hiredis.ReplyError)
        assert answers[3:] == [1, None]
        assert await client.ask([]) == []
        assert await client.ask_one(b"DBSIZE") == 2
        await client.close()
        await client.close()
        assert not client.is_connected
        with pytest.raises(LinkLost, match="there is no connection"):
            await client.ask_one(b"PING")

    asyncio.run(work())
    server.ask("SELECT", "3")
    assert server.ask("DBSIZE") == 2, "the database of the address"


def test_who_is_refused(server: Server) -> None:
    async def work(address: Address, *command: bytes) -> None:
        client = Client(address)
        try:
            await client.connect()
            await client.ask_one(*command)
        finally:
            await client.close()

    with pytest.raises(LinkError, match="AUTH was refused: WRONGPASS"):
        asyncio.run(work(Address("127.0.0.1", server.port, 0, "nobody", "wrong")))
    with pytest.raises(LinkError, match="GET was refused: NOAUTH"):
        asyncio.run(work(Address("127.0.0.1", server.port), b"GET", b"k"))
    with pytest.raises(LinkError, match="SELECT was refused"):
        asyncio.run(work(Address("127.0.0.1", server.port, 99, None, "word")))


def test_no_server(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(LinkLost, match="does not answer"):
        asyncio.run(Client(Address("127.0.0.1", port)).connect())


@pytest.mark.parametrize("sent", [b"", b"+OK\r\nwhat is this\r\n", b"$5\r\nab"])
def test_a_connection_that_breaks(sent: bytes) -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(sent)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            client = Client(Address("127.0.0.1", listening.sockets[0].getsockname()[1]))
            await client.connect()
            try:
                with pytest.raises(LinkLost):
                    await client.ask([(b"PING",), (b"PING",)])
            finally:
                await client.close()

    asyncio.run(work())
