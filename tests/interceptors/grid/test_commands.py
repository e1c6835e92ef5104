"""Commands as bytes in and bytes out, on one primary without a network: the protocol's edges and every refusal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, cast

import hiredis
import pytest

from deelog_connector.core import ConnectorCore
from deelog_connector.core import Settings as CoreSettings
from deelog_connector.core.segment import Phase
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.node import Node
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.resp import admin
from deelog_interceptors.grid.resp.cluster import short_id
from deelog_interceptors.grid.resp.commands import TABLE, Dispatcher
from deelog_interceptors.grid.resp.connection import Clients, Connection
from deelog_interceptors.grid.resp.host import Host
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from deelog_schemas.config import parse
from deelog_schemas.keys import segment_of, slot_of
from deelog_schemas.operation import Entry, Operation
from tests.connector.cache import run

SEGMENTS = 4
ME, OTHER = "n1@1", "n2@2"


class NoState:
    def entries(self, segment: int) -> list[Entry]:
        return []

    def get(self, segment: int, key: bytes) -> Entry | None:
        return None


class FakeNode:
    """What commands need of a node, without Kafka and peers; all but the last segment are this node's."""

    member = ME
    leaving = False
    client_port = 7001
    clock = time
    started = 0.0
    prepare = Node.prepare

    def leased(self) -> bool:
        return True

    def __init__(self, **config: str) -> None:
        given = {"topic.prefix": "p", "cache.name": "c", "node.id": "n1", "bootstrap.servers": "h:1"}
        self.settings = Settings.of(
            parse(given | {"segment.count": str(SEGMENTS), "topic.creation.default.partitions": "2"} | config)
        )
        core = ConnectorCore(ME, CoreSettings(SEGMENTS, 2), NoState())
        self.core = core
        self.operations: list[Operation] = []
        self.store = Store(self.settings, core, self._captured, time)
        self.replicator = Replicator(self.store, {}, True, lambda _: None, lambda: None, self.fail, lambda: True, time)
        self.roles = Roles(ME, self.store, core, self.replicator, Backup(self.store, core), lambda: None, time)
        self.view = View(0, ME, {}, ())
        self.follow()
        self.clients = Clients(Dispatcher(cast(Host, self)), self.settings.max_entry_bytes, 100)

    def follow(self, **changes: Any) -> None:
        mine = SegmentState(State.ONLINE, self.view.topology_id + 1, ME, (ME,), (ME,))._replace(**changes)
        foreign = SegmentState(State.ONLINE, 1, OTHER, (OTHER,), (OTHER,))
        rows = (*(mine for _ in range(SEGMENTS - 1)), foreign)
        members = {
            ME: Registration(ME, "127.0.0.1:7001", "127.0.0.1:1"),
            OTHER: Registration(OTHER, "10.0.0.2:7002", "h:2"),
        }
        self.view = View(self.view.topology_id + 1, ME, members, rows)
        self.roles.apply(self.view)

    def _captured(self, segment: Any, operation: Operation) -> None:
        self.operations.append(operation)
        self.replicator.operation(segment, operation)

    @staticmethod
    def fail(error: BaseException) -> None:
        raise error

    async def role_changed(self) -> None:
        await asyncio.sleep(0)

    role_changed_soon = role_changed

    def stats(self) -> dict[str, Any]:
        return {"grid": {}}


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.closed = True


class Client:
    def __init__(self, served: FakeNode) -> None:
        self.connection = Connection(served.clients)
        self.wire = Wire()
        self.connection.connection_made(self.wire)

    def raw(self, data: bytes) -> bytes:
        """What is answered to these bytes."""
        self.wire.written = b""
        self.connection.data_received(data)
        return self.wire.written

    def __call__(self, *arguments: str | bytes | int) -> Any:
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        reader = hiredis.Reader()
        reader.feed(self.raw(request))
        return reader.gets()

    def error(self, *arguments: str | bytes | int) -> str:
        answer = self(*arguments)
        assert isinstance(answer, hiredis.ReplyError), answer
        return str(answer)


@pytest.fixture
def served() -> FakeNode:
    return FakeNode()


@pytest.fixture
def client(served: FakeNode) -> Client:
    return Client(served)


def here(name: str = "k") -> str:
    """A key whose segment this node is primary of."""
    return next(key for n in range(100) if segment_of((key := f"{name}{n}").encode(), SEGMENTS) != SEGMENTS - 1)


def foreign() -> str:
    return next(key for n in range(100) if segment_of((key := f"f{n}").encode(), SEGMENTS) == SEGMENTS - 1)


K = here()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_set_get_and_their_options(client: Client) -> None:
    assert client("SET", K, "1") == b"OK"
    assert client("set", K, "2", "GET") == b"1"
    assert client("SET", K, "3", "NX") is None
    assert client("SET", K, "3", "NX", "GET") == b"2"
    assert client("SET", K, "3", "XX", "PX", 5000) == b"OK"
    assert 4000 < client("PTTL", K) <= 5000
    assert client("SET", K, "4", "KEEPTTL") == b"OK"
    assert client("PTTL", K) > 4000
    assert client("SET", K, "5") == b"OK"
    assert client("TTL", K) == -1
    assert client("SET", here("other"), "x", "XX") is None
    assert client("GET", K) == b"5"
    assert client("SETEX", K, 100, "6") == b"OK"
    assert client("TTL", K) == 100
    assert client("PERSIST", K) == 1
    assert client("PERSIST", K) == 0
    assert client("TYPE", K) == b"string"
    assert client("EXISTS", K, K) == 2
    assert client("MGET", K, K) == [b"6", b"6"]
    assert client("DEL", K, K) == 1
    assert client("GET", K) is None
    assert client("TYPE", K) == b"none"
    assert client("PTTL", K) == -2


def test_a_time_in_the_past_removes(client: Client, served: FakeNode) -> None:
    client("SET", K, "1")
    assert client("PEXPIREAT", K, now_ms() - 1) == 1
    assert client("GET", K) is None
    client("SET", K, "1")
    for _ in range(2):  # the second finds nothing to remove
        assert client("SET", K, "2", "PXAT", now_ms() - 1) == b"OK"
    assert client("GET", K) is None
    assert [o.reason for o in served.operations] == ["put", "remove", "put", "remove"]


def test_conditions_of_expire(client: Client) -> None:
    assert client("EXPIRE", K, 100) == 0
    client("SET", K, "1")
    assert client("EXPIRE", K, 100, "XX") == 0
    assert client("EXPIRE", K, 100, "GT") == 0
    assert client("EXPIRE", K, 100, "NX") == 1
    assert client("EXPIRE", K, 200, "NX") == 0
    assert client("EXPIRE", K, 50, "GT") == 0
    assert client("EXPIRE", K, 50, "LT") == 1
    assert client("TTL", K) == 50
    client("PERSIST", K)
    assert client("EXPIRE", K, 70, "LT") == 1  # below no time at all
    assert client("EXPIREAT", K, now_ms() // 1000 + 200) == 1
    assert now_ms() + 100_000 < client("PEXPIRETIME", K) <= now_ms() + 200_000
    assert client.error("EXPIRE", K, 1, "NX", "XX").startswith("ERR NX and XX")


def test_an_entry_past_its_time_is_expired_and_captured_once(
    client: Client, served: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)
    client("SET", K, "1", "PX", 1)
    assert client("GET", K) == b"1"
    now += 1
    assert client("GET", K) is None
    assert client("GET", K) is None
    assert [o.reason for o in served.operations] == ["put", "expire"]
    client("SET", K, "2", "PX", 1)
    assert served.store.expire_due(now) == 0.001
    now += 1
    assert served.store.expire_due(now) is None
    assert [o.reason for o in served.operations] == ["put", "expire", "put", "expire"]
    assert served.store.expired == 2


@pytest.mark.parametrize("by", ["a view", "a pause"])
def test_what_came_due_while_the_segment_took_no_writes_expires_once_it_does(
    client: Client, served: FakeNode, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A hand-over that comes to nothing: who was to be primary is gone, or the connector is paused meanwhile."""
    now = now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)
    client("SET", K, "1", "PX", 1)
    epoch = served.view.rows[0].epoch
    served.follow(target=OTHER, epoch=epoch)
    now += 1
    assert served.store.expire_due(now) is None  # nothing can be captured for a segment that is given away
    assert [o.reason for o in served.operations] == ["put"]
    if by == "a view":
        served.follow()
    else:
        served.core.paused = True
        assert served.roles.hand_over()
    assert served.store.expire_due(now) is None
    assert [o.reason for o in served.operations] == ["put", "expire"]
    assert client("GET", K) is None


def test_a_stopped_segment_that_is_to_move_takes_writes(served: FakeNode, client: Client) -> None:
    """Its release cannot be written; what stopped it can be deleted."""
    client("SET", K, "1")
    number = next(s.number for s in served.store.segments if len(s.data))
    served.core._segments[number].phase = Phase.STOPPED
    served.follow(target=OTHER, epoch=served.view.rows[0].epoch)
    assert not served.store.segments[number].closed
    assert client("DEL", K) == 1


def test_a_command_that_no_op_log_can_hold_is_refused() -> None:
    """Waiting would make no room for it."""
    served = FakeNode(**{"max.queue.size.in.bytes": "2000000", "max.entry.bytes": "900000"})
    client = Client(served)
    client("SET", K, "1")
    served.core.budget.max_bytes = 1000
    assert client.error("DEL", *[K] * 10).startswith("ERR captured, this takes")
    assert client("GET", K) == b"1"
    assert not served.core.counts.overflow


def test_eviction_is_captured_before_the_write_that_caused_it() -> None:
    served = FakeNode(**{"cache.max.entries": str(SEGMENTS * 2)})
    client = Client(served)
    keys = [f"{{{K}}}{n}" for n in range(3)]
    for key in keys[:2]:
        client("SET", key, "v")
    client("GET", keys[0])
    client("SET", keys[2], "v")
    found = [(o.reason, o.key.decode(), o.sequence) for o in served.operations]
    assert found[2:] == [("evict", keys[1], 3), ("put", keys[2], 4)]
    assert client("DBSIZE") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("SET", b"\xff" + K.encode(), "v"), "cache.key.format"),
        (("SET", K, b"\xff"), "cache.value.format"),
        (("SET", "{" + K + "}", b"x" * 101), "max.entry.bytes"),
        (("SETEX", K, "10", b"\xff"), "cache.value.format"),
        (("SET", K, "v", "EX", "0"), "ERR invalid expire time in 'set' command"),
        (("SET", K, "v", "EX", "x"), "ERR value is not an integer or out of range"),
        (("SET", K, "v", "NX", "XX"), "ERR syntax error"),
        (("SET", K, "v", "EX"), "ERR syntax error"),
        (("SET", K, "v", "EX", "1", "PX", "1"), "ERR syntax error"),
        (("SET", K, "v", "KEEPTTL", "EX", "1"), "ERR syntax error"),
        (("SET", K, "v", "EX", str(1 << 62)), "ERR invalid expire time in 'set' command"),
        (("EXPIRE", K, str(-(1 << 62))), "ERR invalid expire time in 'expire' command"),
        (("SET", K), "ERR wrong number of arguments for 'set' command"),
        (("NOPE", "a"), "ERR unknown command 'NOPE', with args beginning with: 'a'"),
        (("DEL", "a", "b"), "CROSSSLOT Keys in request don't hash to the same slot"),
        (("SELECT", "1"), "ERR SELECT is not allowed in cluster mode"),
        (("HELLO", "4"), "NOPROTO"),
        (("SCAN", "99999"), "ERR invalid cursor"),
        (("CLUSTER", "NOPE"), "ERR unknown subcommand 'NOPE'"),
        (("DEELOG.DUMP", "99"), "segment.count"),
    ],
)
def test_what_is_refused_says_why_and_changes_nothing(arguments: tuple[str | bytes, ...], words: str) -> None:
    served = FakeNode(**{"max.entry.bytes": "100"})
    assert words in Client(served).error(*arguments)
    assert served.operations == []


def test_reserved_keys_are_refused_and_the_empty_key_is_not(served: FakeNode, client: Client) -> None:
    reserved = next(k for n in range(99) if segment_of((k := b"\0deelog/%d" % n), SEGMENTS) != SEGMENTS - 1)
    assert "reserved" in client.error("SET", reserved, "v")
    if segment_of(b"", SEGMENTS) != SEGMENTS - 1:
        assert client("SET", "", "empty") == b"OK"
        assert client("GET", "") == b"empty"


def test_bytes_are_taken_where_the_formats_say_so() -> None:
    client = Client(FakeNode(**{"cache.key.format": "bytes", "cache.value.format": "bytes"}))
    assert client("SET", b"{%s}\xff" % K.encode(), b"\xfe\x00") == b"OK"
    assert client("GET", b"{%s}\xff" % K.encode()) == b"\xfe\x00"


def test_another_primary_is_named(client: Client, served: FakeNode) -> None:
    async def run() -> None:
        slot = client("CLUSTER", "KEYSLOT", foreign())
        assert client.error("GET", foreign()) == f"MOVED {slot} 10.0.0.2:7002"
        served.view.members.pop(OTHER)
        assert client.error("GET", foreign()) == "CLUSTERDOWN Hash slot not served"

    asyncio.run(run())


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


def test_scan_gives_each_key_that_stays_whatever_happens_meanwhile(client: Client) -> None:
    keys = {key for n in range(2000) if segment_of((key := f"s{n}").encode(), SEGMENTS) != SEGMENTS - 1}
    for key in keys:
        client("SET", key, "v")
    found: set[str] = set()
    cursor, rounds = 0, 0
    while rounds == 0 or cursor:
        answer, batch = client("SCAN", cursor, "COUNT", 50)
        cursor = int(answer)
        found |= {key.decode() for key in batch}
        rounds += 1
        client("SET", here(f"new{rounds}"), "v")
        assert rounds < 1000
    assert found >= keys
    assert rounds > 10
    match = client("SCAN", 0, "COUNT", 100_000, "MATCH", "s1[0-4]?")[1]
    assert sorted(match) == sorted(k.encode() for k in keys if len(k) == 4 and k[:2] == "s1" and k[2] in "01234")
    assert client("SCAN", 0, "COUNT", 100_000, "TYPE", "hash")[1] == []


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"a*c", b"abbc", b"abb"),
        (b"a?c", b"a\nc", b"ac"),
        (b"a[^b]c", b"axc", b"abc"),
        (b"a\\*c", b"a*c", b"abc"),
        (b"a.c", b"a.c", b"abc"),
        (b"[", b"[", b"x"),
        (b"a[b-d]", b"ac", b"ae"),
        (b"a[x&&y]", b"a&", b"a["),
        (b"a[[b]", b"a[", b"ac"),
    ],
)
def test_patterns(pattern: bytes, yes: bytes, no: bytes) -> None:
    assert admin.glob(pattern).fullmatch(yes)
    assert not admin.glob(pattern).fullmatch(no)


def test_flushall_is_one_operation_for_each_segment_with_entries(client: Client, served: FakeNode) -> None:
    for number in range(50):
        if segment_of((key := f"x{number}").encode(), SEGMENTS) != SEGMENTS - 1:
            client("SET", key, "v")
    before = len(served.operations)
    assert client("FLUSHALL") == b"OK"
    assert client("FLUSHALL", "ASYNC") == b"OK"
    assert client("DBSIZE") == 0
    assert [o.reason for o in served.operations[before:]] == ["clear"] * (SEGMENTS - 1)


def test_hello_changes_the_protocol_and_its_null(client: Client) -> None:
    assert client.raw(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode())) == b"$-1\r\n"
    assert client("HELLO", 3)[b"proto"] == 3
    assert client.raw(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode())) == b"_\r\n"
    assert client("HELLO", 2, "SETNAME", "me")[:2] == [b"server", b"redis"]
    assert client("CLIENT", "GETNAME") == b"me"


def test_command_and_cluster_tell_clients_where_keys_go(client: Client) -> None:
    told = {info[0].decode(): info for info in client("COMMAND")}
    assert set(told) == {name.decode().lower() for name in TABLE}
    assert told["get"][1:6] == [2, ["readonly", "fast"], 1, 1, 1] or told["get"][1] == 2
    assert client("COMMAND", "COUNT") == len(TABLE)
    slots = client("CLUSTER", "SLOTS")
    assert [(first, last, node[1]) for first, last, node in slots] == [(0, 12287, 7001), (12288, 16383, 7002)]
    assert client("CLUSTER", "MYID") == short_id(ME).encode()
    assert b"cluster_state:ok" in client("CLUSTER", "INFO")
    assert client("CLUSTER", "NODES").decode().splitlines() == [
        f"{short_id(ME)} 127.0.0.1:7001@1 myself,master - 0 0 1 connected 0-12287",
        f"{short_id(OTHER)} 10.0.0.2:7002@2 master - 0 0 2 connected 12288-16383",
    ]
    assert len(client("CLUSTER", "SHARDS")) == 2
    assert b"deelog_member:n1@1" in client("INFO", "server")
    for key in (keys := [f"{{{K}}}{number}" for number in range(3)]):
        client("SET", key, "v")
    slot, others = client("CLUSTER", "KEYSLOT", K), client("CLUSTER", "KEYSLOT", foreign())
    counts = [client("CLUSTER", "COUNTKEYSINSLOT", each) for each in (slot, slot + 1, others, -1, 16384)]
    assert counts == [3, 0, 0, 0, 0]
    assert client("CLUSTER", "GETKEYSINSLOT", slot, 2) == [key.encode() for key in keys[:2]]
    for wrong in (("COUNTKEYSINSLOT",), ("GETKEYSINSLOT", slot), ("KEYSLOT",)):
        assert "unknown subcommand" in client.error("CLUSTER", *wrong)


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
    client = Client(served)
    assert client.raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000000\r\n") == b""
    chunk = b"x" * 262_144
    answers = b"".join(client.raw(chunk) for _ in range(12) if not client.wire.closed)
    assert b"invalid bulk length" in answers
    assert client.wire.closed


async def answered(client: Client) -> None:
    """Returns once the command that waits was answered."""
    assert client.connection._task is not None
    await client.connection._task


def test_a_backup_serves_reads_to_who_asked_for_them_and_redirects_after_one_wait(served: FakeNode) -> None:
    async def work() -> None:
        client = Client(served)
        served.follow(primary=OTHER, in_sync=(OTHER, ME), owners=(OTHER, ME))
        assert client("GET", K) is False  # no answer yet
        assert client.connection.waited
        await answered(client)
        moved = b"-MOVED %d 10.0.0.2:7002\r\n" % slot_of(K.encode())
        assert (client.wire.written, client.connection.waited) == (moved, False)
        assert client("READONLY") == b"OK"
        assert client.raw(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode())) == b"$-1\r\n"
        client("SET", K, "v")
        assert client.connection.waited
        await answered(client)
        assert client.wire.written == moved
        assert client("READWRITE") == b"OK"
        client("GET", K)
        await answered(client)
        assert client.wire.written == moved

    run(work(), 20)


def test_a_closed_segment_lets_writes_wait_and_answers_reads(served: FakeNode, client: Client) -> None:
    segment = served.store.segments[segment_of(K.encode(), SEGMENTS)]

    async def work() -> None:
        opened = asyncio.Event()
        served.role_changed = opened.wait  # type: ignore[method-assign, assignment]
        segment.stepped_down = True
        assert client("GET", K) is None
        request = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\nv\r\n" % (len(K), K.encode())
        assert client.raw(request + b"*1\r\n$4\r\nPING\r\n") == b""
        await asyncio.sleep(0)
        assert (client.wire.written, client.wire.reading, len(served.operations)) == (b"", False, 0)
        segment.stepped_down = False
        opened.set()
        await answered(client)
        assert (client.wire.written, client.wire.reading) == (b"+OK\r\n+PONG\r\n", True)

    run(work(), 20)


def test_integers_are_written_as_redis_writes_them(client: Client) -> None:
    for bad in ("01", "+1", " 1", "1_0", 2**63, -(2**63) - 1, "x"):
        assert client.error("SCAN", bad) == "ERR value is not an integer or out of range"


def test_what_is_told_of_commands_and_of_the_node(client: Client, served: FakeNode) -> None:
    get, nothing, mget = client("COMMAND", "INFO", "GET", "nope", "mget")
    assert (get[:2], get[3:6], nothing, mget[3:6]) == ([b"get", 2], [1, 1, 1], None, [1, -1, 1])
    assert client("COMMAND", "INFO") == client("COMMAND")
    ping = next(info for info in client("COMMAND") if info[0] == b"ping")
    assert ping[3:6] == [0, 0, 0]
    for arity in (("GET",), ("GET", K, K), ("MGET",), ("get",)):
        assert client.error(*arity) == f"ERR wrong number of arguments for '{arity[0].lower()}' command"
    second = Client(served)
    assert [each("CLIENT", "ID") for each in (client, second)] == [1, 2]
    assert [second("CLIENT", "GETNAME"), second.connection.readonly] == [None, False]
    told = client("INFO", "clients", "Keyspace").decode()
    assert told.split("\r\n") == ["# Clients", "connected_clients:2", "maxclients:100", "", "# Keyspace", ""]
    client("SET", K, "v")
    assert "db0:keys=1," in client("INFO").decode()
    uptime = client("INFO", "server").decode().partition("uptime_in_seconds:")[2].partition("\r")[0]
    assert abs(int(uptime) - time.monotonic()) < 60
    number = segment_of(K.encode(), SEGMENTS)
    assert client("DEELOG.DUMP", number)[3:] == [[K.encode(), b"v", -1]]
    assert client.error("DEELOG.DUMP", SEGMENTS) == client.error("DEELOG.DUMP", -1)
    client("PEXPIREAT", K, now_ms() + 100_000)
    assert client("DEELOG.DUMP", number)[3][2] > now_ms()


def test_options_that_are_none(client: Client) -> None:
    for wrong in (("FLUSHALL", "x"), ("FLUSHALL", "SYNC", "x"), ("SCAN", 0, "COUNT"), ("SCAN", 0, "COUNT", 0)):
        assert client.error(*wrong) == "ERR syntax error"
    assert client("SET", f"[b-a]{{{K}}}", "v") == b"OK"
    assert client("SCAN", 0, "MATCH", f"[b-a]{{{K}}}")[1] == [f"[b-a]{{{K}}}".encode()]
    assert client.error("SCAN", 16384) == client.error("SCAN", -1) == "ERR invalid cursor"
    assert client.error("HELLO", 3, "x").endswith("HELLO option 'x'")
    assert "no password" in client.error("HELLO", 3, "AUTH", "u", "p")
    assert client("SCAN", 16383)[0] == b"0"
    assert client("QUIT") == b"OK"
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
