"""Commands as bytes in and bytes out, on one primary without a network."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import hiredis

from deelog_connector.core import ConnectorCore
from deelog_connector.core import Settings as CoreSettings
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.node import Node
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.resp.commands import Dispatcher
from deelog_interceptors.grid.resp.connection import Clients
from deelog_interceptors.grid.resp.host import Host
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from deelog_schemas.config import parse
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Operation
from tests.interceptors.grid.replication.pair import NoState

SEGMENTS = 4

ME, OTHER = "n1@1", "n2@2"


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
        self.clients = Clients(Dispatcher(cast(Host, self)), self.settings.entry_limit.most, 100, lambda: 0.0)

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
    def __init__(self, clients: Clients) -> None:
        self.connection = clients()
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


def here(name: str = "k") -> str:
    """A key whose segment this node is primary of."""
    return next(key for n in range(100) if segment_of((key := f"{name}{n}").encode(), SEGMENTS) != SEGMENTS - 1)


def foreign() -> str:
    return next(key for n in range(100) if segment_of((key := f"f{n}").encode(), SEGMENTS) == SEGMENTS - 1)


K = here()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def answered(client: Client) -> None:
    """Returns once the command that waits was answered."""
    assert client.connection._task is not None
    await client.connection._task
