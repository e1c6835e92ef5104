"""Connections in memory, as asyncio's streams and protocols see them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import Forbidden, NodeLoop
from deelog_proof.memory.network import CONNECT_SECONDS, WINDOW, Network

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PORT = 7000


class Pair:
    """A server and a client, each a node."""

    def __init__(self, seed: int = 1) -> None:
        self.engine = Engine(seed)
        self.network = Network(self.engine)
        self.server, self.client = (NodeLoop(self.engine, name, self.network) for name in ("server", "client"))
        self.accepted: list[Streams] = []
        self._opened: list[Streams] = []
        """Kept: a writer that is freed before it is closed warns."""
        self.ended: asyncio.Future[None] = self.server.create_future()

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append((reader, writer))
        await self.ended

    def listen(self, serve: Serve | None = None, port: int = PORT) -> asyncio.AbstractServer:
        async def start() -> asyncio.AbstractServer:
            return await asyncio.start_server(serve or self._keep, "127.0.0.1", port)

        server: asyncio.AbstractServer = self.server.run_until_complete(start())
        return server

    def open(self, port: int = PORT) -> Streams:
        streams: Streams = self.client.run_until_complete(asyncio.open_connection("127.0.0.1", port))
        self._opened.append(streams)
        return streams

    def connected(self) -> tuple[Streams, Streams]:
        """The streams of the client, and those of the server."""
        self.listen()
        streams = self.open()
        self.engine.run(lambda: self.accepted)
        return streams, self.accepted[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.server.bury()
    pair.client.bury()


def open_connection() -> Awaitable[Streams]:
    return asyncio.open_connection("127.0.0.1", PORT)


def test_what_is_written_is_read(pair: Pair) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
        writer.close()

    async def talk() -> list[bytes]:
        reader, writer = await open_connection()
        writer.write(b"a\nb\n")
        writer.write(b"c\n")
        writer.write_eof()
        found = [line async for line in reader]
        writer.close()
        await writer.wait_closed()
        return found

    pair.listen(echo)
    assert pair.client.run_until_complete(talk()) == [b"A\n", b"B\n", b"C\n"]
    assert not pair.network._connections


def test_bytes_come_in_order_in_pieces_of_any_size(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    sizes: list[int] = []

    async def read() -> bytes:
        found = b""
        while len(found) < 3000:
            some = await reader.read(999)
            sizes.append(len(some))
            found += some
        return found

    expected = b"".join(b"%03d" % number for number in range(1000))
    for number in range(1000):
        pair.client.within(writer.write, b"%03d" % number)
    assert pair.server.run_until_complete(read()) == expected
    assert any(size % 3 for size in sizes)


def test_addresses(pair: Pair) -> None:
    server = pair.listen(port=0)
    host, port = server.sockets[0].getsockname()  # type: ignore[attr-defined]
    assert (host, port > 0) == ("127.0.0.1", True)
    _, writer = pair.open(port)
    pair.engine.run(lambda: pair.accepted)
    assert writer.get_extra_info("peername") == (host, port)
    assert pair.accepted[0][1].get_extra_info("peername") == writer.get_extra_info("sockname")


def test_an_address_is_listened_at_once(pair: Pair) -> None:
    server = pair.listen()
    with pytest.raises(OSError, match="in use"):
        pair.listen()
    server.close()
    pair.listen()


def test_a_server_that_names_no_port_gets_one_of_its_own(pair: Pair) -> None:
    servers = [pair.listen(port=0) for _ in range(3)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]  # type: ignore[attr-defined]
    assert len(set(ports)) == 3
    streams = [pair.open(port) for port in ports]
    names = [writer.get_extra_info("sockname") for _, writer in streams]
    assert len({*names, *ports}) == 6


def test_a_server_serves_until_it_is_closed(pair: Pair) -> None:
    server = pair.listen()
    assert server.is_serving()
    assert server.get_loop() is pair.server
    server.close()
    assert not server.is_serving()
    with pytest.raises(ConnectionRefusedError):
        pair.open()
    other = pair.listen()
    server.close()  # closed already: the one that listens now goes on
    pair.open()
    assert other.is_serving()


def test_nobody_listens(pair: Pair) -> None:
    with pytest.raises(ConnectionRefusedError):
        pair.open()
    server = pair.listen()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        pair.open()


def test_encryption_is_forbidden(pair: Pair) -> None:
    async def case() -> None:
        with pytest.raises(Forbidden):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", PORT, ssl=True)

    pair.client.run_until_complete(case())


# -- back pressure ----------------------------------------------------------------------------------------------------


def test_a_reader_that_does_not_read_holds_the_writer_up(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    count = 100

    async def write() -> None:
        for _ in range(count):
            writer.write(bytes(WINDOW // 10))
            await writer.drain()

    writing = pair.client.create_task(write())
    pair.engine.run(seconds=10)
    assert not writing.done()
    assert 0 < writer.transport.get_write_buffer_size() < 2 * WINDOW
    assert len(pair.server.run_until_complete(reader.readexactly(count * (WINDOW // 10)))) > 0
    pair.engine.run(writing.done)
    pair.engine.run(seconds=1)
    assert writer.transport.get_write_buffer_size() == 0


def test_what_was_written_before_close_arrives(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    pair.client.within(writer.write, bytes(5 * WINDOW))
    pair.client.within(writer.close)
    pair.engine.run(seconds=1)
    assert len(pair.server.run_until_complete(reader.read())) == 5 * WINDOW
    pair.client.run_until_complete(writer.wait_closed())


def test_nothing_is_written_after_the_end(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    pair.client.within(writer.write_eof)
    with pytest.raises(RuntimeError, match="after write_eof"):
        pair.client.within(writer.write, b"x")
    assert pair.server.run_until_complete(reader.read()) == b""


# -- the end of a connection ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["abort", "kill"])
def test_an_end_is_seen_with_or_without_the_bytes_on_their_way(end: str) -> None:
    seen: set[str] = set()
    for seed in range(40):
        pair = Pair(seed)
        (_, writer), (reader, _) = pair.connected()
        pair.client.within(writer.write, b"last words")
        pair.client.within(writer.transport.abort) if end == "abort" else pair.client.kill()
        try:
            seen.add(pair.server.run_until_complete(reader.read()).decode())
        except ConnectionResetError:
            seen.add("reset")
        assert not pair.client.errors
        pair.engine.run(seconds=1)
        pair.server.within(pair.accepted[0][1].close)
        pair.engine.run(seconds=1)
        assert not pair.network._connections
        pair.server.bury()
        pair.client.bury()
    assert {"last words", "reset"} <= seen


def test_both_ends_at_once(pair: Pair) -> None:
    (_, writer), _ = pair.connected()
    pair.client.within(writer.transport.abort)
    pair.server.kill()
    assert not pair.network._connections


def test_a_killed_process_does_not_listen(pair: Pair) -> None:
    pair.listen()
    pair.server.kill()
    with pytest.raises(ConnectionRefusedError):
        pair.open()


def test_who_writes_to_a_closed_end_is_told(pair: Pair) -> None:
    (_, writer), (_, other) = pair.connected()
    pair.server.within(other.close)

    async def write() -> None:
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    with pytest.raises(ConnectionResetError):
        pair.client.run_until_complete(write())


def test_a_protocol_that_fails_loses_its_connection(pair: Pair) -> None:
    class Failing(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(Failing, "127.0.0.1", PORT)

    pair.server.run_until_complete(listen())
    reader, writer = pair.open()
    pair.client.within(writer.write, b"x")

    async def read() -> None:
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass

    pair.client.run_until_complete(read())
    assert [str(error["message"]) for error in pair.server.errors] == ["data_received() failed"]


# -- cuts, pauses -----------------------------------------------------------------------------------------------------


def test_a_cut_holds_bytes_back_until_it_heals(pair: Pair) -> None:
    (_, writer), (reader, other) = pair.connected()
    pair.network.part("server", "client")
    for number in range(10):
        pair.client.within(writer.write, b"%d" % number)
    reading = pair.server.create_task(reader.readexactly(10))
    pair.engine.run(seconds=100)
    assert not reading.done()
    pair.network.heal("server", "client")
    pair.engine.run(reading.done)
    assert reading.result() == b"0123456789"
    assert not other.is_closing()


def test_no_byte_arrives_behind_one_that_is_lost() -> None:
    """A connection ends while one part of what was sent is held back, and another is on its way."""
    found = set()
    for seed in range(40):
        pair = Pair(seed)
        (_, writer), (reader, other) = pair.connected()
        pair.network.part("server", "client")
        pair.client.within(writer.write, b"first ")
        pair.engine.run(seconds=1)
        pair.client.within(writer.write, b"second")
        pair.client.within(writer.transport.abort)
        pair.network.heal("server", "client")
        with contextlib.suppress(ConnectionResetError):
            found.add(pair.server.run_until_complete(reader.read(100)))
        other.transport.abort()
        pair.server.bury()
        pair.client.bury()
    assert found
    assert all(b"first second".startswith(data) for data in found), found


def test_a_part_is_a_cut_of_both_directions(pair: Pair) -> None:
    ways = [("server", "client"), ("client", "server")]
    pair.network.part("server", "client")
    assert [pair.network.is_cut(way) for way in ways] == [True, True]
    pair.network.heal("client", "server")
    assert [pair.network.is_cut(way) for way in ways] == [False, False]
    pair.network.cut("server", "client")
    assert [pair.network.is_cut(way) for way in ways] == [True, False]


def test_a_cut_goes_on_though_another_one_heals(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    pair.network.cut("client", "server")
    pair.client.within(writer.write, b"x")
    pair.engine.run(seconds=1)
    pair.network.heal("server", "somebody else")
    reading = pair.server.create_task(reader.readexactly(1))
    pair.engine.run(seconds=1)
    assert not reading.done()
    pair.network.heal("server", "client")
    assert pair.server.run_until_complete(reading) == b"x"


def test_what_is_sent_is_told_before_it_is(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    sent: list[tuple[str, bytes]] = []
    pair.network.sends = lambda loop, data: sent.append((loop.name, data))
    for data in (b"x", b"", b"yz"):
        pair.client.within(writer.write, data)
    assert sent == [("client", b"x"), ("client", b"yz")]
    assert pair.server.run_until_complete(reader.readexactly(3)) == b"xyz"


def test_one_direction_may_be_cut(pair: Pair) -> None:
    (client_reader, writer), (reader, other) = pair.connected()
    pair.network.cut("server", "client")
    pair.client.within(writer.write, b"there")
    assert pair.server.run_until_complete(reader.readexactly(5)) == b"there"
    pair.server.within(other.write, b"back")
    reading = pair.client.create_task(client_reader.readexactly(4))
    pair.engine.run(seconds=100)
    assert not reading.done()


def test_a_connection_waits_for_a_cut_to_heal(pair: Pair) -> None:
    pair.listen()
    pair.network.part("server", "client")
    connecting = pair.client.create_task(open_connection())
    pair.engine.run(seconds=CONNECT_SECONDS / 2)
    assert not connecting.done()
    pair.network.heal("server", "client")
    pair.engine.run(connecting.done)
    _, writer = connecting.result()
    writer.close()


def test_a_connection_does_not_wait_for_ever(pair: Pair) -> None:
    pair.listen()
    pair.network.part("server", "client")
    with pytest.raises(TimeoutError):
        pair.open()


def test_who_no_longer_waits_for_a_connection_has_none(pair: Pair) -> None:
    pair.listen()
    connecting = pair.client.create_task(open_connection())
    pair.client.call_later(0.0001, connecting.cancel)
    pair.engine.run(seconds=10)
    assert connecting.cancelled()
    for reader, _ in pair.accepted:
        assert reader.at_eof() or reader.exception() is not None


def test_connections_break(pair: Pair) -> None:
    (client_reader, writer), (reader, _) = pair.connected()
    pair.client.within(writer.write, b"lost")
    pair.network.break_between("server", "client")
    for loop, end in ((pair.server, reader), (pair.client, client_reader)):
        with pytest.raises(ConnectionResetError):
            loop.run_until_complete(end.read(4))
    assert not pair.network._connections


def test_a_paused_process_accepts_and_answers_later(pair: Pair) -> None:
    pair.listen()
    pair.server.pause()
    _, writer = pair.open()
    pair.client.within(writer.write, b"x")
    pair.engine.run(seconds=10)
    assert not pair.accepted
    pair.server.resume()
    pair.engine.run(lambda: pair.accepted)
    assert pair.server.run_until_complete(pair.accepted[0][0].readexactly(1)) == b"x"


def test_a_slow_node(pair: Pair) -> None:
    (_, writer), (reader, _) = pair.connected()
    pair.network.slow["server"] = 10_000.0
    before = pair.engine.now
    pair.client.within(writer.write, b"x")
    pair.server.run_until_complete(reader.readexactly(1))
    assert pair.engine.now - before > 1


def test_a_protocol_pauses_its_reading(pair: Pair) -> None:
    seen: list[bytes] = []

    class Pausing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            transport.pause_reading()
            assert not transport.is_reading()
            asyncio.get_running_loop().call_later(5, transport.resume_reading)

        def data_received(self, data: bytes) -> None:
            seen.append(data)

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(Pausing, "127.0.0.1", PORT)

    pair.server.run_until_complete(listen())
    _, writer = pair.open()
    pair.client.within(writer.write, b"x")
    pair.engine.run(seconds=4)
    assert not seen
    pair.engine.run(seconds=4)
    assert seen == [b"x"]


def test_an_end_reads_until_it_pauses_or_is_closed(pair: Pair) -> None:
    (_, writer), _ = pair.connected()
    transport = writer.transport
    assert isinstance(transport, asyncio.Transport)
    assert transport.is_reading()
    transport.pause_reading()
    assert not transport.is_reading()
    transport.resume_reading()
    assert transport.is_reading()
    assert not transport.is_closing()
    pair.client.within(transport.close)
    assert (transport.is_reading(), transport.is_closing()) == (False, True)


def test_half_of_those_that_end_at_once_lose_what_is_on_its_way() -> None:
    """The other end sees an orderly end, or a reset."""
    seen: list[bool] = []
    for seed in range(40):
        pair = Pair(seed)
        (_, writer), (reader, _) = pair.connected()
        pair.client.within(writer.transport.abort)
        pair.engine.run(seconds=1)
        seen.append(reader.exception() is None and reader.at_eof())
        pair.server.bury()
        pair.client.bury()
    assert 10 < sum(seen) < 30
