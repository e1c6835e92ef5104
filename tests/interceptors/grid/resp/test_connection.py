"""A connection: requests in any pieces, what is no request, and replies that wait."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Iterator

import pytest

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.resp.connection import Blocked, Clients, Connection
from deelog_interceptors.grid.settings import ACK_SECONDS, MAX_PIPELINE
from deelog_schemas.keys import segment_of
from tests.connector.cache import run
from tests.interceptors.grid.resp.served import (
    ME,
    OTHER,
    SEGMENTS,
    Client,
    FakeNode,
    K,
    answered,
)
from tests.support.memory import Memory
from tests.support.waiting import awaiting


def test_a_write_waits_until_every_in_sync_member_has_answered(served: FakeNode, client: Client) -> None:
    served.follow(in_sync=(ME, OTHER), owners=(ME, OTHER), epoch=1)
    assert client("SET", K, "1") is False  # nothing was written back
    assert client("PING") is False  # replies keep their order
    segment = served.store.segments[segment_of(K.encode(), SEGMENTS)]
    assert segment.acked == 0
    served.follow(epoch=1)
    assert client.wire.written == b"+OK\r\n+PONG\r\n"  # the view no longer names the other one
    assert segment.acked == served.replicator.acknowledged == 1
    assert client("SET", K, "2") == b"OK"
    assert served.replicator.acknowledged == 2


def test_a_write_that_is_not_acknowledged_is_answered_with_an_error(served: FakeNode, client: Client) -> None:
    served.follow(in_sync=(ME, OTHER), owners=(ME, OTHER), epoch=1)
    client("SET", K, "1")
    client.wire.written = b""
    served.replicator.expire_pendings(time.monotonic() + 60)
    assert client.wire.written.startswith(b"-TRYAGAIN ")
    client("SET", K, "2")
    client.wire.written = b""
    served.follow(primary=OTHER, in_sync=(OTHER, ME), owners=(OTHER, ME), epoch=3)
    assert client.wire.written.startswith(b"-TRYAGAIN ")


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_requests_may_come_in_any_pieces(client: Client, size: int) -> None:
    request = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$4\r\n*9\r\n\r\n" % (len(K), K.encode())
    request += b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n*1\r\n$4\r\nPING\r\n" % (len(K), K.encode())
    answers = b"".join(client.raw(piece) for piece in pieces(request * 3, size))
    assert answers == b"+OK\r\n$4\r\n*9\r\n\r\n+PONG\r\n" * 3


@pytest.mark.parametrize(
    "request_",
    [
        b"PING\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*9999999999\r\n",
        b"*99999999999999\r\n",
        b"*1\r\n:5\r\n",
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"$4\r\nPING\r\n",
        b"*1\r\n$x\r\n",
        b"\x00" * 20,
    ],
)
def test_what_is_no_request_ends_the_connection_with_an_error(client: Client, request_: bytes) -> None:
    assert client.raw(request_).startswith(b"-ERR Protocol error: ")
    assert client.wire.closed


def test_a_command_beyond_the_limit_is_not_kept(served: FakeNode) -> None:
    client = Client(served.clients)
    size = served.settings.entry_limit.most + (2 << 20)
    assert client.raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % size) == b""
    answer = client.raw(bytes(size) + b"\r\n*1\r\n$4\r\nPING\r\n")
    assert answer.startswith(b"-ERR max.entry.bytes: the command has more than ")
    assert answer.endswith(b"+PONG\r\n")
    assert b"invalid bulk length" in client.raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000000\r\n")
    assert client.wire.closed


def test_a_client_that_does_not_read_its_replies_is_not_read_from(client: Client) -> None:
    async def work() -> None:
        client.connection.pause_writing()
        assert (client.raw(b"*1\r\n$4\r\nPING\r\n"), client.wire.reading) == (b"", False)
        client.connection.resume_writing()
        assert client.wire.reading
        await asyncio.sleep(0)
        assert client.wire.written == b"+PONG\r\n"

    run(work(), 20)


class Served:
    """Runs commands for connections: `block` says how often a command waits first."""

    def __init__(self, max_connections: int = 100) -> None:
        self.now = 0.0
        self.clients = Clients(self, 100, max_connections, lambda: self.now)
        self.ran: list[list[bytes]] = []
        self.block = 0
        self.waits = 0
        self.may = asyncio.Event()
        self.pending: list[Pending] = []

    def __call__(self, connection: Connection, arguments: list[bytes]) -> bytes | Pending:
        if self.block:
            self.block -= 1
            raise Blocked("this is why", self._until)
        self.ran.append(arguments)
        if arguments[0] == b"SLOW":
            self.now += 0.02
        if arguments[0] == b"WAIT":
            self.pending.append(Pending(connection, b"+late\r\n", 0.0, left=1))
            return self.pending[-1]
        return b"+%s\r\n" % (arguments[0] * (80_000 if arguments[0] == b"LARGE" else 1))

    async def _until(self) -> None:
        self.waits += 1
        await self.may.wait()


PING, WAIT = b"*1\r\n$4\r\nPING\r\n", b"*1\r\n$4\r\nWAIT\r\n"


def test_no_more_clients_than_allowed_are_served() -> None:
    served = Served(max_connections=1)
    first, second = Client(served.clients), Client(served.clients)
    assert (second.wire.written, second.wire.closed) == (b"-ERR max number of clients reached\r\n", True)
    assert (list(served.clients.open), served.clients.accepted) == ([first.connection], 2)
    assert not first.wire.closed
    second.connection.connection_lost(None)
    first.connection.connection_lost(None)
    third = Client(served.clients)
    assert (list(served.clients.open), third.connection.number) == ([third.connection], 3)
    assert served.clients.executed == 0
    third.raw(PING * 2)
    assert served.clients.executed == 2
    third.connection.abort()
    assert third.wire.closed


def test_replies_keep_their_order_and_a_lost_connection_gets_none() -> None:
    served = Served()
    client = Client(served.clients)
    assert client.raw(PING + WAIT + PING) == b"+PING\r\n"
    served.pending[0].left = 0
    client.connection.flush()
    assert client.wire.written == b"+PING\r\n+late\r\n+PING\r\n"
    assert client.raw(WAIT) == b""
    client.connection.connection_lost(None)
    served.pending[1].left = 0
    client.connection.flush()
    assert client.wire.written == b""
    client.raw(PING)
    assert len(served.ran) == 4  # not the last one


def test_a_closing_connection_ends_after_its_last_reply() -> None:
    served = Served()
    client = Client(served.clients)
    client.raw(WAIT)
    client.connection.closing = True
    client.connection.flush()
    assert not client.wire.closed
    served.pending[0].left = 0
    client.connection.flush()
    assert client.wire.closed


def test_so_many_replies_may_wait_and_then_nothing_is_read_until_half_are_gone(memory: Memory) -> None:
    served = Served()

    async def work() -> None:
        client = Client(served.clients)
        client.raw(WAIT * (MAX_PIPELINE + 2))
        assert (len(served.ran), client.wire.reading) == (MAX_PIPELINE, False)
        for pending in served.pending[: MAX_PIPELINE // 2 - 1]:
            pending.left = 0
        client.connection.flush()
        await asyncio.sleep(0)
        assert (len(served.ran), client.wire.reading) == (MAX_PIPELINE, False)
        served.pending[MAX_PIPELINE // 2 - 1].left = 0
        client.connection.flush()
        assert client.wire.reading
        await asyncio.sleep(0)
        assert len(served.ran) == MAX_PIPELINE + 2

    memory.run(work())


def test_commands_that_take_long_leave_room_for_other_connections() -> None:
    served = Served()

    async def work() -> None:
        client, other = Client(served.clients), Client(served.clients)
        assert client.raw(b"*1\r\n$4\r\nSLOW\r\n" * 3) == b"+SLOW\r\n"
        assert not client.wire.reading
        assert other.raw(PING) == b""  # the time was for all of them
        await asyncio.sleep(0)
        assert [command[0] for command in served.ran] == [b"SLOW", b"SLOW"]
        await asyncio.sleep(0)
        assert other.wire.written == b"+PING\r\n"  # in the order in which they came
        for _ in range(4):
            await asyncio.sleep(0)
        assert client.wire.written == b"+SLOW\r\n" * 3
        assert client.wire.reading
        client.raw(b"*1\r\n$4\r\nSLOW\r\n" * 2)
        client.connection.connection_lost(None)
        await asyncio.sleep(0)
        assert [command[0] for command in served.ran].count(b"SLOW") == 4

    run(work(), 20)


def test_however_many_connections_there_are_the_loop_has_its_turns() -> None:
    served = Served()

    async def work() -> None:
        clients = [Client(served.clients) for _ in range(5)]
        for client in clients:
            client.raw(b"*1\r\n$4\r\nSLOW\r\n" * 2)
        ran = [len(served.ran)]
        for _ in range(9):
            await asyncio.sleep(0)
            ran.append(len(served.ran))
        assert ran == list(range(1, 11))  # one command that takes as long as a turn, then all else
        assert all(client.wire.written == b"+SLOW\r\n" * 2 for client in clients)

    run(work(), 20)


def test_what_waits_behind_a_reply_has_a_limit_in_bytes() -> None:
    served = Served()

    async def work() -> None:
        client = Client(served.clients)
        large = b"*1\r\n$5\r\nLARGE\r\n"
        client.raw(WAIT + large * 10)
        assert (len(served.ran), client.wire.reading) == (4, False)
        served.pending[0].left = 0
        client.connection.flush()
        for _ in range(4):
            await asyncio.sleep(0)
        assert (len(served.ran), client.wire.reading) == (11, True)
        client.connection.pause_writing()
        client.raw(large)
        assert len(served.ran) == 11

    run(work(), 20)


def test_a_wait_for_nothing_ends_in_time_and_others_run_meanwhile(memory: Memory) -> None:
    served = Served()

    async def work() -> None:
        client, other = Client(served.clients), Client(served.clients)
        served.may.set()
        served.block = 1_000_000
        client.raw(PING)
        await asyncio.sleep(0)
        blocked, served.block = served.block, 0
        assert other.raw(PING) == b"+PING\r\n"
        assert blocked > 999_000
        await answered(client)

    memory.run(work())


def test_a_command_that_cannot_run_waits_and_what_follows_it_too(memory: Memory) -> None:
    served = Served()

    async def work() -> None:
        client = Client(served.clients)
        served.block = 2
        assert client.raw(WAIT[:4]) == b""
        client.raw(WAIT[4:] + PING)
        assert (served.ran, client.wire.reading) == ([], False)
        served.may.set()
        await answered(client)
        assert (served.waits, served.ran) == (2, [[b"WAIT"], [b"PING"]])
        assert (served.clients.executed, client.wire.reading) == (4, True)

    memory.run(work())


def test_a_command_that_waits_too_long_is_answered_with_an_error(memory: Memory) -> None:
    served = Served()

    async def work() -> None:
        client = Client(served.clients)
        served.block = 1
        client.raw(PING * 2)
        begun = memory.loop.time()
        await answered(client)
        assert memory.loop.time() - begun == ACK_SECONDS
        refused = b"-TRYAGAIN this is why\r\n"
        assert client.wire.written == refused + b"+PING\r\n"
        served.block = 3
        client.raw(PING * 4)  # those that came with it do not wait as long each
        await answered(client)
        assert memory.loop.time() - begun == 2 * ACK_SECONDS
        assert client.wire.written == refused * 3 + b"+PING\r\n"
        served.block = 1
        client.raw(PING)  # what comes later waits
        await answered(client)
        assert memory.loop.time() - begun == 3 * ACK_SECONDS

    memory.run(work())


def test_a_command_that_waits_goes_with_its_connection(memory: Memory) -> None:
    served = Served()

    async def work() -> None:
        client = Client(served.clients)
        served.block = 1
        client.raw(PING)
        task = client.connection._task
        assert task is not None
        client.connection.connection_lost(None)
        await asyncio.wait([task])
        assert (task.cancelled(), served.ran) == (True, [])

    memory.run(work())


BAD = b"*2\r\n$3\r\nGET\r\n!4000000000\r\n"
"""A command's head, and an argument of no kind that there is."""


@pytest.mark.parametrize("block", [1, 0])
def test_what_is_no_request_ends_its_connection_also_where_it_had_to_wait(block: int) -> None:
    """It is read by a task or a callback then, whose errors end the node."""
    served = Served()
    failures: list[object] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        client = Client(served.clients)
        served.block = block
        if block:
            client.raw(PING + BAD)
            served.may.set()
            await answered(client)
        else:
            client.raw(WAIT * MAX_PIPELINE + BAD)
            for pending in served.pending:
                pending.left = 0
            client.connection.flush()
            await asyncio.sleep(0)
        assert client.wire.written.splitlines()[-1].startswith(b"-ERR Protocol error: ")
        assert client.wire.closed
        assert client.raw(PING) == b""

    run(work(), 20)
    gc.collect()
    assert not failures


@pytest.mark.parametrize("count", [b"0", b"1048577", b"9999999999"])
def test_a_command_has_at_least_one_argument_and_at_most_a_million(count: bytes) -> None:
    client = Client(Served().clients)
    assert client.raw(b"*%s\r\n" % count) == b"-ERR Protocol error: invalid multibulk length\r\n"
    assert client.wire.closed


def test_a_header_may_come_in_pieces_but_is_no_longer_than_its_number() -> None:
    client = Client(Served().clients)
    assert client.raw(b"*") == client.raw(b"1048576\r") == client.raw(b"\n") == b""
    assert not client.wire.closed
    other = Client(Served().clients)
    assert (other.raw(b"*12345678901"), other.wire.closed) == (b"", False)
    assert other.raw(b"234").startswith(b"-ERR Protocol error: invalid multibulk length")
    assert other.wire.closed


def test_the_null_reply_is_that_of_the_protocol() -> None:
    connection = Client(Served().clients).connection
    assert (connection.null, connection.name, connection.readonly) == (b"$-1\r\n", b"", False)
    connection.protocol = 3
    assert connection.null == b"_\r\n"


def test_the_system_asks_for_a_client_that_is_silent() -> None:
    async def work() -> None:
        clients = Served().clients
        server = await asyncio.get_running_loop().create_server(clients, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await awaiting(lambda: bool(clients.open), 20, "the connection")
            (connection,) = clients.open
            assert connection._transport is not None
            plain = connection._transport.get_extra_info("socket")
            assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            writer.close()
            await writer.wait_closed()

    run(work(), 20)
