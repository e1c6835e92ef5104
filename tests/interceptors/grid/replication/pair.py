"""A primary and a backup in one process, their frames carried one by one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, cast

from deelog_connector.core import ConnectorCore
from deelog_connector.core import Settings as CoreSettings
from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.frames import AnyFrame, Ask
from deelog_interceptors.grid.replication.peers import Incoming, Link
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from deelog_schemas.config import parse
from deelog_schemas.operation import Entry, Operation

A, B = "a@1", "b@1"


class NoState:
    def entries(self, segment: int) -> list[Entry]:
        return []

    def get(self, segment: int, key: bytes) -> Entry | None:
        return None


def _carried(frame: AnyFrame) -> AnyFrame:
    async def read() -> AnyFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(frames.encode(frame))
        return await frames.read(reader, 32)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(read())
    return frames._decoder.decode(frames.encode(frame)[4:])


class Wire:
    """Both ends of one connection from `member` to another: what each sent and the other has not read yet."""

    def __init__(self, dialled_by: str, to: str) -> None:
        self.member = to
        self.ready = True
        self.queued = 0
        self.states = asyncio.Semaphore(2)
        self.there: deque[AnyFrame] = deque()
        self.back: deque[AnyFrame] = deque()
        self.incoming = _In(dialled_by, self.back)

    def send(self, frame: AnyFrame) -> None:
        self.there.append(_carried(frame))

    async def drain(self) -> None:
        await asyncio.sleep(0)


class _In:
    def __init__(self, member: str, back: deque[AnyFrame]) -> None:
        self.member, self._back = member, back
        self.asked: list[Ask] = []

    def send(self, frame: AnyFrame) -> None:
        self._back.append(_carried(frame))


class Replica:
    """One node with one segment, without sockets."""

    def __init__(self, member: str, other: str, entries: int = 10_000, acks_all: bool = True) -> None:
        config = {"topic.prefix": "p", "cache.name": "c", "node.id": "x", "bootstrap.servers": "h:1"}
        more = {"segment.count": "1", "topic.creation.default.partitions": "1", "cache.max.entries": str(entries)}
        self.member = member
        self.leased = True
        self.wakes = 0
        self.pokes = 0
        self.core = ConnectorCore(member, CoreSettings(1, 1, max_operations=10_000), NoState())
        self.links: dict[str, Link] = {}
        self.store = Store(Settings.of(parse(config | more)), self.core, self._captured, time)
        self.replicator = Replicator(
            self.store, self.links, acks_all, lambda _: None, self._poked, self.fail, lambda: self.leased, time
        )
        self.backup = Backup(self.store, self.core)
        self.roles = Roles(member, self.store, self.core, self.replicator, self.backup, self._woken, time)
        self.connect(other)

    def connect(self, other: str) -> None:
        self.wire = Wire(self.member, other)
        self.links[other] = cast(Link, self.wire)
        self.incoming = cast(Incoming, self.wire.incoming)

    def _captured(self, segment: Segment, operation: Operation) -> None:
        self.replicator.operation(segment, operation)

    def _woken(self) -> None:
        self.wakes += 1

    def _poked(self) -> None:
        self.pokes += 1

    @staticmethod
    def fail(error: BaseException) -> None:
        raise error

    @property
    def segment(self) -> Segment:
        return self.store.segments[0]

    @property
    def entries(self) -> dict[bytes, bytes]:
        return {entry.key: entry.value for entry in self.store.entries(self.segment)}


class Pair:
    def __init__(self, entries_of_b: int = 10_000, acks_all: bool = True) -> None:
        self.a, self.b = Replica(A, B, acks_all=acks_all), Replica(B, A, entries_of_b)
        self.a.backup.up(self.b.incoming)
        self.b.backup.up(self.a.incoming)

    def view(
        self, number: int, primary: str, *in_sync: str, to: str = A + B, epoch: int | None = None, **row: Any
    ) -> None:
        """Both (or one) apply a view; epoch = its number by default."""
        state = SegmentState(State.ONLINE, epoch or number, primary, in_sync, (A, B))._replace(**row)
        members = {m: Registration(m, "h:1", "h:2") for m in (A, B)}
        for replica in (self.a, self.b):
            if replica.member in to:
                replica.roles.apply(View(number, A, members, (state,)))

    async def settle(self) -> None:
        """Carries frames until there are none."""
        for _ in range(200):
            await asyncio.sleep(0)
            for one, other in ((self.a, self.b), (self.b, self.a)):
                while one.wire.there:
                    other.backup.frame(one.incoming, one.wire.there.popleft())
                while one.wire.back:
                    one.replicator.frame(cast(Link, one.wire), one.wire.back.popleft())

    def requests(self, replica: Replica, now: float = 0.0) -> list[tuple[str, str]]:
        return [(r.kind, r.member) for r in replica.replicator.requests(now, 1.0)]


def put(replica: Replica, key: str, value: str) -> int:
    return replica.store.put(replica.segment, key.encode(), value.encode(), None)


class Client:
    """Counts its flushes."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1
