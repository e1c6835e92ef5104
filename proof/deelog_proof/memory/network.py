"""TCP in memory between the loops of one engine: streams and protocols run on it as they are.

Bytes of one direction arrive in order, in pieces of any size, after a drawn time; where the direction is cut they wait
until it heals. What a receiver has not taken fills the sender's buffer beyond `WINDOW`, which pauses its protocol. A
connection that is aborted, or whose process is killed, is seen as ended after the bytes on their way, or as reset
instead of some of them: both happen.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio import transports
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop

WINDOW: Final = 256 * 1024
"""Bytes on the way, or at the receiver, that do not count as the sender's: what the kernels hold."""
CONNECT_SECONDS: Final = 130.0
"""How long Linux tries to connect where nothing answers."""
AGAIN_SECONDS: Final = 1.0
FIRST_PORT: Final = 20_000
ANYWHERE: Final = ("", "0.0.0.0", "::")

Address = tuple[str, int]


class Network:
    """`slow` has what multiplies the delays of a node, by its name."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.slow: dict[str, float] = {}
        self.sends: Callable[[NodeLoop, bytes], None] = lambda loop, data: None
        """Called before a node sends these bytes."""
        self._cut: set[tuple[str, str]] = set()
        self._listeners: dict[Address, Server] = {}
        self._connections: dict[Connection, None] = {}
        self._port = FIRST_PORT

    def random(self, pair: tuple[str, str]) -> Random:
        """The chance of what passes from one node to another."""
        return self.engine.stream(f"net {pair[0]} {pair[1]}")

    def delay(self, pair: tuple[str, str]) -> float:
        """How long bytes take, in seconds."""
        drawn = self.random(pair).expovariate(1500.0) + 0.0002
        return drawn * max(self.slow.get(name, 1.0) for name in pair)

    def cut(self, from_: str, to: str) -> None:
        """Nothing arrives in this direction."""
        self._cut.add((from_, to))

    def part(self, one: str, other: str) -> None:
        """Cuts both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def is_cut(self, pair: tuple[str, str]) -> bool:
        """Whether nothing arrives in this direction."""
        return pair in self._cut

    def heal(self, one: str, other: str) -> None:
        """Ends the cuts of both directions: what was held back arrives, in order."""
        self._cut -= {(one, other), (other, one)}
        for connection in list(self._connections):
            connection.healed()

    def break_between(self, one: str, other: str) -> None:
        """Ends all connections of two nodes."""
        for connection in list(self._connections):
            if {end.loop.name for end in connection.ends} == {one, other}:
                for end in connection.ends:
                    end.reset()

    def killed(self, loop: NodeLoop) -> None:
        """See `loop.Network`."""
        self._listeners = {at: server for at, server in self._listeners.items() if server.loop is not loop}
        for connection in list(self._connections):
            for end in connection.ends:
                if end.loop is loop:
                    end.gone()

    async def listen(self, loop: NodeLoop, factory: Callable[[], Any], host: Any, port: Any) -> Server:
        """See `loop.Network`."""
        at = host or "", int(port or 0) or self._free_port()
        if at in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{at} is in use")
        server = self._listeners[at] = Server(self, loop, factory, at)
        return server

    def _free_port(self) -> int:
        self._port += 1
        return self._port

    def closed(self, server: Server) -> None:
        """A server does not listen any more."""
        if self._listeners.get(server.at) is server:
            del self._listeners[server.at]

    async def connect(self, loop: NodeLoop, factory: Callable[[], Any], host: Any, port: Any) -> tuple[Any, Any]:
        """See `loop.Network`."""
        answer: asyncio.Future[Connection] = loop.create_future()
        at = str(host), int(port)
        self.engine.after(self.delay((loop.name, loop.name)), self._knock, loop, at, answer, self.engine.now)
        connection = await answer
        protocol = factory()
        connection.ends[0].made(protocol)
        return connection.ends[0], protocol

    def _knock(self, loop: NodeLoop, at: Address, answer: asyncio.Future[Connection], begin: float) -> None:
        places = [at, *((anywhere, at[1]) for anywhere in ANYWHERE)]
        server = next((self._listeners[place] for place in places if place in self._listeners), None)
        pair = loop.name, loop.name if server is None else server.loop.name
        if self.is_cut(pair) or self.is_cut(pair[::-1]):
            if self.engine.now - begin < CONNECT_SECONDS:
                self.engine.after(AGAIN_SECONDS, self._knock, loop, at, answer, begin)
            else:
                loop.call_soon(_fail, answer, TimeoutError(errno.ETIMEDOUT, f"{at}: no answer"))
        elif server is None:
            loop.call_later(self.delay(pair), _fail, answer, ConnectionRefusedError(errno.ECONNREFUSED, f"{at}"))
        else:
            connection = Connection(self, loop, server)
            self._connections[connection] = None
            loop.call_later(self.delay(pair), _connected, answer, connection)

    def over(self, connection: Connection) -> None:
        """A connection has ended on both sides."""
        self._connections.pop(connection, None)


def _fail(answer: asyncio.Future[Connection], error: OSError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _connected(answer: asyncio.Future[Connection], connection: Connection) -> None:
    if answer.done():
        connection.ends[0].gone()  # nobody waits for it any more
    else:
        answer.set_result(connection)


class _Socket:
    def __init__(self, at: Address) -> None:
        self._at = at

    def getsockname(self) -> Address:
        return self._at


class Server(asyncio.AbstractServer):
    """What `create_server` returns."""

    def __init__(self, network: Network, loop: NodeLoop, factory: Callable[[], Any], at: Address) -> None:
        self.network, self.loop, self.factory, self.at = network, loop, factory, at
        self.sockets = [_Socket(at)]
        self._serving = True

    def close(self) -> None:
        self._serving = False
        self.network.closed(self)

    async def wait_closed(self) -> None:
        pass

    def is_serving(self) -> bool:
        return self._serving

    def get_loop(self) -> NodeLoop:
        return self.loop

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        await self.loop.create_future()


class Connection:
    """Two ends: of who connected, and of who listened."""

    def __init__(self, network: Network, loop: NodeLoop, server: Server) -> None:
        client = (server.at[0] or "127.0.0.1", network._free_port())
        names = loop.name, server.loop.name
        self.ends = (
            Transport(network, self, loop, names, client, server.at),
            Transport(network, self, server.loop, names[::-1], server.at, client),
        )
        for end, other in zip(self.ends, self.ends[::-1], strict=True):
            end.peer = other
        server.loop.call_soon(self._accept, server)

    def _accept(self, server: Server) -> None:
        if not self.ends[1].is_closing():
            self.ends[1].made(server.factory())

    def healed(self) -> None:
        """Some cut has ended."""
        for end in self.ends:
            end.healed()


class Transport(transports._FlowControlMixin):
    """One end of a connection. `pair` is the direction in which it sends."""

    peer: Transport

    def __init__(
        self,
        network: Network,
        connection: Connection,
        loop: NodeLoop,
        pair: tuple[str, str],
        own: Address,
        other: Address,
    ) -> None:
        super().__init__({"sockname": own, "peername": other}, loop)
        self.network, self.connection, self.loop, self.pair = network, connection, loop, pair
        self._protocol: Any = None
        self._reading = True
        self._early: deque[bytes] = deque()
        """What has come and is not taken yet."""
        self._ended = False
        """Whether the other end sends no more."""
        self._held: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """What a cut holds back."""
        self._drops = False
        """Whether something that was held back is lost, and with it all that was sent behind it."""
        self._last = 0.0
        """When the last bytes arrive."""
        self._outstanding = 0
        """Bytes that the other end has not taken."""
        self._closing = self._lost = self._silent = False

    def made(self, protocol: Any) -> None:
        """Its protocol begins."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._lost:  # before anybody took it
            self.loop.call_soon(self._tell, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        self._take()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if self._silent:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.network.sends(self.loop, bytes(data))
        for piece in self._pieces(bytes(data)):
            self._outstanding += len(piece)
            self._send(self.peer._received, piece)
        if self._protocol is not None:
            self._maybe_pause_protocol()  # type: ignore[attr-defined]

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        random = self.network.random(self.pair)
        if len(data) > 1 and random.random() < 0.3:
            at = random.randrange(1, len(data))
            yield data[:at]
            yield data[at:]
        else:
            yield data

    def _send(self, call: Callable[..., None], *args: Any) -> None:
        """Has something happen at the other end, after all that was sent before."""
        self._last = max(self._last, self.network.engine.now + self.network.delay(self.pair))
        self.network.engine.at(self._last, self._arrive, call, args)

    def _arrive(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._drops and call == self.peer._received:
            return
        if self.network.is_cut(self.pair):
            self._held.append((call, args))
        else:
            self.peer.loop.call_soon(call, *args)

    def _drop_held(self) -> None:
        self._drops |= bool(self._held)
        self._held.clear()

    def healed(self) -> None:
        """Some cut has ended, perhaps its own."""
        while self._held and not self.network.is_cut(self.pair):
            call, args = self._held.popleft()
            self.peer.loop.call_soon(call, *args)

    def _taken(self, count: int) -> None:
        self._outstanding -= count
        if self._protocol is None:
            return
        self._maybe_resume_protocol()  # type: ignore[attr-defined]
        if self._closing and not self.get_write_buffer_size():
            self._lose(None)

    def get_write_buffer_size(self) -> int:
        return max(0, self._outstanding - WINDOW)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._silent and not self._closing:
            self._silent = True
            self._send(self.peer._end)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        if self._closing:
            self._send(self.peer.reset)  # as a kernel answers for a socket that is closed
        else:
            self._early.append(data)
            self._take()

    def _end(self) -> None:
        self._ended = True
        self._take()

    def _take(self) -> None:
        while self._early and self._reading and self._protocol is not None and not self._closing:
            data = self._early.popleft()
            self._send(self.peer._taken, len(data))
            try:
                self._protocol.data_received(data)
            except Exception as error:  # noqa: BLE001 - as asyncio does it
                self.loop.call_exception_handler({"message": "data_received() failed", "exception": error})
                self.abort()
        if self._ended and not self._early and self._reading and self._protocol is not None and not self._closing:
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.loop.call_soon(self._take)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Ends it once all is sent."""
        if self._closing:
            return
        self.write_eof()
        self._closing = True
        if not self.get_write_buffer_size():
            self._lose(None)

    def abort(self) -> None:
        """Ends it now."""
        if not self._lost:
            self._leave()
            self._lose(None)

    def gone(self) -> None:
        """Its process has ended, or never took it."""
        if not self._lost:
            self._lost = True
            self._leave()
            self._over()

    def reset(self) -> None:
        """It is broken. Bytes on their way are lost."""
        self._drop_held()
        if not self._lost:
            self._closing = True
            self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _leave(self) -> None:
        """The other end hears that this one is closed: after the bytes on their way, or instead of some of them."""
        self._closing = True
        if self.network.random(self.pair).random() < 0.5:
            self._send(self.peer._end)
        else:
            self._drop_held()
            self._last = 0.0  # the reset may come before them
            self._send(self.peer.reset)

    def _lose(self, error: Exception | None) -> None:
        self._lost = True
        self._over()
        self.loop.call_soon(self._tell, error)

    def _over(self) -> None:
        if self.peer._lost:
            self.network.over(self.connection)

    def _tell(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
