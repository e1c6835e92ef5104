"""A Redis server in memory, which clients, replicas and connectors reach by TCP as they do a real one.

It has the commands of `redis_keyspace.py`, and of replication: a stream with an id and offsets, a backlog, PSYNC from
primaries and replicas, promotion, and a snapshot where a stream does not go on. What it has in common with real servers
`tests/proof/memory/test_redis_server.py` runs on both.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final, NamedTuple

import hiredis

from deelog_interceptors.grid.resp import replies
from deelog_interceptors.redis.link import packed
from deelog_proof.memory.redis_cluster import ClusterNode
from deelog_proof.memory.redis_keyspace import OK, WRITES, Keyspace, Refused, Reply, Status, Words, dumped
from deelog_schemas.keys import slot_of

NO_ID: Final = "0" * 40
_ACK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.1
_PING_SECONDS: Final = 10.0
_EXPIRE_SECONDS: Final = 0.1
_PIECE: Final = 1 << 16
_NOTHING: Final = object()
"""Where no reply is sent."""


class Connection:
    """Of a client, a replica or a connector."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.database = 0
        self.queued: list[Words] | None = None
        """Within MULTI."""
        self.port = 0
        """Where a replica listens; a connector does not."""
        self.keyless = False
        """Whether a snapshot is wanted without keys."""
        self.acked = 0
        self.asking = False
        """Whether the next command may be for a slot that is on its way here."""
        self.aborted = False
        """Whether a command of the transaction was refused."""
        self.held: bytearray | None = None
        """What it is not sent yet: behind a snapshot nothing is, until it has acknowledged something."""

    def send(self, data: bytes) -> None:
        """Of the stream."""
        if self.held is not None:
            self.held += data
        else:
            self.writer.write(data)

    def acknowledged(self, offset: int) -> None:
        """It has the stream up to there."""
        self.acked = max(self.acked, offset)
        held, self.held = self.held, None
        if held:
            self.writer.write(bytes(held))


@dataclass
class Stream:
    """What a server sends to its replicas: up to `offset`, the last bytes of it in `backlog` behind `begin`."""

    id: str
    id_before: str = NO_ID
    fork: int = -1
    """The first offset that is not the id's before."""
    offset: int = 0
    backlog: bytearray | None = None
    begin: int = 0

    def add(self, data: bytes, most: int) -> None:
        """Further bytes; at most so many are kept. Without a backlog nothing is counted but the command."""
        if self.backlog is None:
            self.offset += 1
            return
        self.offset += len(data)
        self.backlog += data
        self.trim(most)

    def trim(self, most: int) -> None:
        """Keeps at most so many bytes."""
        if self.backlog is not None and len(self.backlog) > most:
            gone = len(self.backlog) - most
            del self.backlog[:gone]
            self.begin += gone

    def has(self, id_: str, wanted: int) -> bool:
        """Whether it goes on for who has that id and wants the byte at that offset next."""
        known = id_ == self.id or (id_ == self.id_before and wanted <= self.fork)
        return known and self.backlog is not None and self.begin < wanted <= self.offset + 1

    def renamed(self, id_: str) -> None:
        """Goes on with another id."""
        self.id_before, self.fork, self.id = self.id, self.offset + 1, id_


class Saved(NamedTuple):
    """What a server has saved; `id` is empty where that says nothing of its stream."""

    databases: bytes
    id: str
    offset: int
    database: int
    """That of the last command of the stream."""


class RedisServer:
    """One server. `serve()` is a task of its own loop; `wall_ms` is its clock, and `chance` draws ids.

    `cluster` is what it knows as a node of one; it reaches another one by `ask_other`, which is given its port and a
    command, and answers None where it is away.
    """

    def __init__(
        self,
        port: int,
        chance: Random,
        wall_ms: Callable[[], int],
        most_backlog: int = 1 << 20,
        cluster: ClusterNode | None = None,
    ) -> None:
        self.port, self.most_backlog, self.cluster = port, most_backlog, cluster
        self.ask_other: Callable[[int, Words], Reply | None] = lambda port, words: None
        self._chance, self._wall_ms = chance, wall_ms
        self._pending: list[tuple[int, Words]] = []
        self.keyspace = Keyspace(lambda database, words: self._pending.append((database, words)))
        self.run_id = self._drawn()
        self.stream = Stream(self._drawn())
        self.primary: tuple[str, int] | None = None
        self.loading = False
        self._selected = -1
        """The database of the last command of the stream."""
        self._links: dict[Connection, None] = {}
        self._upstream: asyncio.StreamWriter | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def is_linked(self) -> bool:
        """Whether it has its primary's stream."""
        return self._upstream is not None

    @property
    def acknowledged_by_guests(self) -> int:
        """The highest offset that a link without a port has acknowledged."""
        return max((link.acked for link in self._links if not link.port), default=0)

    def saved(self) -> Saved:
        """What it has now. Without a backlog it tells nothing of its stream."""
        stream = self.stream
        id_ = stream.id if stream.backlog is not None else ""
        return Saved(pickle.dumps(self.keyspace.databases), id_, stream.offset, max(self._selected, 0))

    def load(self, saved: Saved, follows: bool) -> None:
        """Begins with what was saved. Its stream goes on with another id, and with the same one where it `follows`."""
        self.keyspace.databases = pickle.loads(saved.databases)
        if saved.id:
            self.stream = Stream(saved.id, offset=saved.offset, backlog=bytearray(), begin=saved.offset)
            self._selected = saved.database
            if not follows:
                self.stream.renamed(self._drawn())
                self._selected = -1

    def _drawn(self) -> str:
        return f"{self._chance.getrandbits(160):040x}"

    async def serve(self) -> None:
        """Listens, and does what a server does by itself, for ever."""
        await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        loop, pinged, acked = asyncio.get_running_loop(), 0.0, 0.0
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            if self.primary is None:
                self.keyspace.expire(self._wall_ms())
                self._propagate()
                if loop.time() - pinged >= _PING_SECONDS:
                    pinged = loop.time()
                    self._feed((b"PING",))
            elif loop.time() - acked >= _ACK_SECONDS:
                acked = loop.time()
                self._acknowledge()

    # -- what is asked ------------------------------------------------------------------------------------------------

    def execute_all(self, commands: Sequence[Words], asking: bool = False) -> list[Reply]:
        """Carries out a client's transaction: the reply to each command, or `Refused`. `asking`: it was sent here."""
        refused = next(filter(None, (self._elsewhere(words, asking) for words in commands)), None)
        if refused is not None:
            return [refused] * len(commands)
        try:
            return [self._tried(words) for words in commands]
        finally:
            self._propagate()

    def _elsewhere(self, words: Words, asking: bool = False) -> Refused | None:
        return None if self.cluster is None else self.cluster.refuses(words, self.keyspace.databases[0], asking)

    def _tried(self, words: Words) -> Reply:
        try:
            return self._run(0, words)
        except Refused as error:
            return error

    def _run(self, database: int, words: Words) -> Reply:
        if self.loading:
            raise Refused("LOADING Redis is loading the dataset in memory")
        if self.primary is not None and words[0].upper() in WRITES:
            raise Refused("READONLY You can't write against a read only replica.")
        return self.keyspace.run(database, words, self._wall_ms())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        try:
            await serve(reader, writer, lambda words: self._answer(connection, words))
        finally:
            self._links.pop(connection, None)

    def _answer(self, connection: Connection, words: Words) -> None:
        name = words[0].upper()
        asking, connection.asking = connection.asking, name == b"ASKING"
        try:
            if name != b"EXEC" and (refused := self._elsewhere(words, asking)) is not None:
                connection.aborted |= connection.queued is not None
                raise refused
            if connection.queued is not None and name != b"EXEC":
                connection.queued.append(words)
                reply: Reply = Status("QUEUED")
            elif name == b"PSYNC":
                self._psync(connection, words[1].decode(), int(words[2]))
                reply = _NOTHING
            elif name == b"REPLCONF":
                reply = self._replconf(connection, words)
            elif name == b"EXEC":
                queued, connection.queued = connection.queued or [], None
                aborted, connection.aborted = connection.aborted, False
                if aborted:
                    raise Refused("EXECABORT Transaction discarded because of previous errors.")
                if (refused := next(filter(None, map(self._elsewhere, queued)), None)) is not None:
                    raise refused
                reply = [self._replied(connection, each) for each in queued]
            else:
                reply = self._reply(connection, words)
        except Refused as error:
            reply = error
        self._propagate()
        if reply is not _NOTHING:
            connection.writer.write(encoded(reply))

    def _replied(self, connection: Connection, words: Words) -> Reply:
        try:
            return self._reply(connection, words)
        except Refused as error:
            return error

    def _reply(self, connection: Connection, words: Words) -> Reply:
        match words[0].upper():
            case b"PING":
                return Status("PONG")
            case b"ASKING":
                return OK
            case b"CLUSTER":
                return self._of_cluster(*(word.decode() for word in words[1:]))
            case b"MIGRATE":
                return self.migrate(int(words[2]), words[3])
            case b"SELECT":
                connection.database = int(words[1])
                return OK
            case b"MULTI":
                connection.queued = []
                return OK
            case b"ROLE":
                return self._role()
            case b"INFO":
                return self._info(words[1].decode())
        return self._run(connection.database, words)

    def _role(self) -> Reply:
        if self.primary is None:
            replicas = [[b"127.0.0.1", b"%d" % link.port, b"%d" % link.acked] for link in self._links]
            return [b"master", self.stream.offset, replicas]
        host, port = self.primary
        state = b"connected" if self.is_linked else b"connect"
        return [b"slave", host.encode(), port, state, self.stream.offset if self.is_linked else -1]

    def _info(self, section: str) -> bytes:
        stream = self.stream
        lines: dict[str, object] = {}
        match section:
            case "replication":
                backlog = stream.backlog
                lines = {
                    "role": "master" if self.primary is None else "slave",
                    "master_link_status": "up" if self.is_linked else "down",
                    "master_replid": stream.id,
                    "master_replid2": stream.id_before,
                    "master_repl_offset": stream.offset,
                    "second_repl_offset": stream.fork,
                    "repl_backlog_active": int(backlog is not None),
                    "repl_backlog_size": self.most_backlog,
                    "repl_backlog_first_byte_offset": 0 if backlog is None else stream.begin + 1,
                    "repl_backlog_histlen": 0 if backlog is None else len(backlog),
                }
                if self.primary is not None:
                    lines |= dict(zip(("master_host", "master_port"), self.primary, strict=True))
                for number, link in enumerate(self._links):
                    lines[f"slave{number}"] = f"ip=127.0.0.1,port={link.port},state=online,offset={link.acked},lag=0"
            case "server":
                lines = {"redis_version": "7.2.0", "run_id": self.run_id}
            case "cluster":
                lines = {"cluster_enabled": int(self.cluster is not None)}
        return "".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode()

    # -- as a node of a cluster ---------------------------------------------------------------------------------------

    def _of_cluster(self, what: str, *words: str) -> Reply:
        if self.cluster is None:
            raise Refused("ERR This instance has cluster support disabled")
        match what.upper(), words:
            case "NODES", ():
                return self.cluster.nodes()
            case "MYID", ():
                return self.cluster.me.id.encode()
            case "FAILOVER", ("TAKEOVER",) if self.primary is not None:
                self.lead()
                return OK
            case "GETKEYSINSLOT", (slot, count):
                return list(islice(self._keys_in({int(slot)}), int(count)))
            case "SETSLOT", (slot, state, *id_):
                self.cluster.set_slot(int(slot), state, *id_)
                return OK
        raise Refused(f"ERR unknown subcommand '{what}'")

    def _keys_in(self, slots: Collection[int]) -> Iterator[bytes]:
        return (key for key in self.keyspace.databases[0] if slot_of(key) in slots)

    def migrate(self, port: int, key: bytes) -> Reply:
        """An entry goes to another node. Nobody is answered meanwhile. Raises `Refused`."""
        entry = self.keyspace.databases[0].get(key)
        if entry is None:
            return Status("NOKEY")
        reply = self.ask_other(port, dumped(key, entry))
        if reply is None:
            raise Refused("IOERR error or timeout reading to target instance")
        if isinstance(reply, Refused):
            raise Refused(f"ERR Target instance replied with error: {reply}")
        self.forget([key])
        return OK

    def forget(self, keys: Sequence[bytes]) -> None:
        """Deletes what is another node's."""
        self.keyspace.run(0, (b"DEL", *keys), 0)
        self._propagate()

    def hear(self, other: ClusterNode) -> None:
        """What another node says of itself."""
        assert self.cluster is not None
        follows, lost = self.cluster.hear(other)
        if follows:
            self.replicate(follows)
            return
        if keys := list(self._keys_in(lost)):
            self.forget(keys)

    def replicate(self, id_: str) -> None:
        """CLUSTER REPLICATE."""
        assert self.cluster is not None
        self.cluster.follow(id_)
        self.follow("127.0.0.1", self.cluster.members[id_].port)

    # -- the stream to replicas ---------------------------------------------------------------------------------------

    def _propagate(self) -> None:
        """What one command or transaction has changed, as one."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        self._select(pending[0][0])
        if len(pending) > 1:
            self._feed((b"MULTI",))
        for database, words in pending:
            self._select(database)
            self._feed(words)
        if len(pending) > 1:
            self._feed((b"EXEC",))

    def _select(self, database: int) -> None:
        if database != self._selected:
            self._feed((b"SELECT", b"%d" % database))
            self._selected = database

    def _feed(self, words: Words) -> None:
        self._pass_on(packed(words))

    def _pass_on(self, data: bytes) -> None:
        self.stream.add(data, self.most_backlog)
        for link in self._links:
            link.send(data)

    def _replconf(self, connection: Connection, words: Words) -> Reply:
        options = dict(zip((word.lower() for word in words[1::2]), words[2::2], strict=True))
        if b"ack" in options:
            connection.acknowledged(int(options[b"ack"]))
            return _NOTHING  # nobody answers an acknowledgement
        if b"getack" in options:
            self._acknowledge()
            return _NOTHING
        connection.port = int(options.get(b"listening-port", connection.port))
        connection.keyless |= b"rdb-filter-only" in options
        return OK

    def _psync(self, connection: Connection, id_: str, wanted: int) -> None:
        if self.loading or (self.primary is not None and not self.is_linked):
            raise Refused("NOMASTERLINK Can't SYNC while not connected with my master")
        stream, writer = self.stream, connection.writer
        if stream.has(id_, wanted) and stream.backlog is not None:
            writer.write(f"+CONTINUE {stream.id}\r\n".encode())
            writer.write(bytes(stream.backlog[wanted - 1 - stream.begin :]))
        else:
            if stream.backlog is None:
                stream = self.stream = Stream(self._drawn(), offset=stream.offset, backlog=bytearray())
                stream.begin = stream.offset
            writer.write(f"+FULLRESYNC {stream.id} {stream.offset}\r\n".encode())
            snapshot = self._snapshot(connection.keyless)
            writer.write(b"$%d\r\n" % len(snapshot) + snapshot)
            connection.held = bytearray()
            if self.primary is None:  # a replica goes on in the database of its primary's stream
                self._selected = -1
        connection.acked = 0
        self._links[connection] = None

    def _snapshot(self, keyless: bool) -> bytes:
        """Its head is as a server writes it; keys are as only this class reads them."""
        database = max(self._selected, 0)
        name, value = b"repl-stream-db", b"%d" % database
        head = b"REDIS0011\xfa%c%b%c%b\xff" % (len(name), name, len(value), value)
        return head if keyless else head + pickle.dumps((database, self.keyspace.databases))

    # -- as a replica -------------------------------------------------------------------------------------------------

    def follow(self, host: str, port: int) -> None:
        """REPLICAOF host port."""
        self._unlink()
        self.primary = (host, port)
        self.keyspace.is_replica = True
        self._following = asyncio.get_running_loop().create_task(self._follow(host, port))

    def lead(self) -> None:
        """REPLICAOF NO ONE, and of a cluster's node CLUSTER FAILOVER TAKEOVER."""
        if self.primary is None:
            return
        self._unlink()
        if self.cluster is not None:
            self.cluster.lead()
        self.primary = None
        self.keyspace.is_replica = False
        self.stream.renamed(self._drawn())
        self._selected = -1
        self._drop_links()

    def _unlink(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        self._upstream, self.loading = None, False

    def _drop_links(self) -> None:
        """Those who read its stream hear that it has another id when they come again."""
        for link in list(self._links):
            link.writer.transport.abort()
            del self._links[link]

    async def _follow(self, host: str, port: int) -> None:
        while True:
            writer: asyncio.StreamWriter | None = None
            try:
                reader, writer = await asyncio.open_connection(host, port)
                await self._linked(reader, writer)
            except (OSError, EOFError, ValueError):
                pass  # the primary is away, or not ready
            finally:
                self._upstream, self.loading = None, False
                if writer is not None:
                    writer.transport.abort()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _linked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = self.stream
        for words in ((b"REPLCONF", b"listening-port", b"%d" % self.port), (b"REPLCONF", b"capa", b"psync2")):
            writer.write(packed(words))
            await reader.readuntil(b"\r\n")
        writer.write(packed((b"PSYNC", stream.id.encode(), b"%d" % (stream.offset + 1))))
        kind, *rest = (await reader.readuntil(b"\r\n")).decode().split()
        if kind == "+CONTINUE":
            if rest[0] != stream.id:
                stream.renamed(rest[0])
                self._drop_links()
        elif kind == "+FULLRESYNC":
            self.loading = True
            size = int((await reader.readuntil(b"\r\n"))[1:])
            data = await reader.readexactly(size)
            self._selected, self.keyspace.databases = pickle.loads(data[data.index(b"\xff") + 1 :])
            begin = int(rest[1])
            self.stream = Stream(rest[0], offset=begin, begin=begin, backlog=bytearray())
            self._drop_links()
            self.loading = False
        else:
            raise ValueError(kind)
        self._upstream = writer
        self._acknowledge()
        await self._apply_all(reader)

    def _acknowledge(self) -> None:
        if self._upstream is not None:
            self._upstream.write(packed((b"REPLCONF", b"ACK", b"%d" % self.stream.offset)))

    async def _apply_all(self, reader: asyncio.StreamReader) -> None:
        parser = hiredis.Reader()
        together: list[Words] = []
        while data := await reader.read(_PIECE):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                together.append(words)
                # A transaction is carried out as one.
                if together[0] != [b"MULTI"] or words == [b"EXEC"]:
                    self._apply(together)
                    together = []
        raise EOFError

    def _apply(self, commands: Iterable[Words]) -> None:
        for words in commands:
            name = words[0].upper()
            if name == b"SELECT":
                self._selected = int(words[1])
            elif name == b"REPLCONF":
                self._acknowledge()
            elif name not in (b"PING", b"MULTI", b"EXEC"):
                self.keyspace.apply(self._selected, words)
            self._pass_on(packed(words))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Callable[[Words], None]) -> None:
    """Passes on what a client sends, command by command, until it ends the connection."""
    parser = hiredis.Reader()
    try:
        while data := await reader.read(_PIECE):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                answer(words)
            await writer.drain()
    except OSError:
        pass  # the other side has ended it
    finally:
        writer.transport.abort()


def encoded(reply: Reply) -> bytes:
    """A reply as it is sent."""
    match reply:
        case None:
            return replies.NULL2
        case Refused():
            return replies.error(str(reply))
        case Status():
            return replies.simple(reply)
        case int():
            return replies.integer(reply)
        case bytes():
            return replies.bulk(reply)
    return replies.array(map(encoded, reply))
