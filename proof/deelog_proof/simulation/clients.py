"""Clients of the cache: they write to the primary in some node's view, and record the replies.

A node handles a command as `grid.resp` and `Node.prepare` do, without the bytes of RESP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.resp.connection import Blocked
from deelog_interceptors.grid.settings import ACK_SECONDS
from deelog_proof.simulation.context import Context, Write
from deelog_proof.simulation.process import Process
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import OVERHEAD

_TRIES: Final = 4
PADDING: Final = b"."
_OK: Final = b"+OK\r\n"


class Clients:
    """All clients as one. A refused command is retried a few times; one without a reply is not."""

    def __init__(self, world: Context) -> None:
        self.world = world
        self.random = world.engine.stream("clients")

    def write(self, key: bytes, value: bytes | None, ttl: int | None) -> None:
        """SET or DEL."""
        if value is not None:
            value += PADDING * self.world.size
        write = Write(key, value, segment=segment_of(key, self.world.segments))
        self.world.checker.writes.append(write)
        self._send(write, ttl, _TRIES)

    def clear(self, segment: int) -> None:
        """FLUSHALL's share of a segment."""
        write = Write(b"", None, segment=segment)
        self.world.checker.writes.append(write)
        self._send(write, None, _TRIES)

    def read(self, key: bytes) -> None:
        """GET: counts as a use for the eviction policy."""
        node = self._where(segment_of(key, self.world.segments))
        if node is not None:
            segment = node.store.segments[segment_of(key, self.world.segments)]
            if segment.role is Role.PRIMARY:
                self.world.engine.after(self._delay(), node.now, node.store.find, segment, key)

    def _delay(self) -> float:
        return self.random.expovariate(1000.0) + 0.0002

    def _where(self, segment: int) -> Process | None:
        """The primary in the view of some live node, mostly of an up-to-date one."""
        living = [n for n in self.world.living() if n.view.topology_id]
        if not living:
            return None
        asked = self.random.choice(living)
        if self.random.random() < 0.7:
            asked = max(living, key=lambda n: n.view.topology_id)
        primary = asked.view.rows[segment].primary
        return self.world.find(primary) if primary is not None else None

    def _send(self, write: Write, ttl: int | None, tries: int) -> None:
        node = self._where(write.segment)
        if node is None:
            self._refused(write, ttl, tries)
        else:
            write.status = "unknown"  # until a reply comes
            self._later(node.now, self._begin, node, write, ttl, tries)

    def _refused(self, write: Write, ttl: int | None, tries: int) -> None:
        write.status = "failed"
        if tries > 1:
            self.world.engine.after(self.random.uniform(0.01, 0.2), self._send, write, ttl, tries - 1)

    def _begin(self, node: Process, write: Write, ttl: int | None, tries: int) -> None:
        node.loop.create_task(self._execute(node, write, ttl, tries))

    async def _execute(self, node: Process, write: Write, ttl: int | None, tries: int) -> None:
        """As `Connection` does: a command that cannot run now waits, and is answered with an error in the end."""
        segment = node.store.segments[write.segment]
        size = OVERHEAD + len(write.key) + len(write.value or b"")
        try:
            async with asyncio.timeout(ACK_SECONDS):
                while segment.role is Role.PRIMARY:
                    try:
                        node.grid.prepare(segment, size)
                        break
                    except Blocked as blocked:
                        await blocked.until()
        except TimeoutError:
            self._later(self._refused, write, ttl, tries)
            return
        if segment.role is not Role.PRIMARY:
            self._later(self._refused, write, ttl, tries)
            return
        sequence = self._apply(node, segment, write, ttl)
        if sequence is None:
            self._later(self._answered, write)
            return
        write.position = (segment.epoch, sequence)
        waiter = _Waiter(self, write)
        reply = node.grid.replicator.reply(waiter, _OK, ((segment, sequence),))
        if isinstance(reply, Pending):
            waiter.pending = reply
        else:
            self._later(self._answered, write)

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        self.world.engine.after(self._delay(), call, *args)

    @staticmethod
    def _apply(node: Process, segment: Segment, write: Write, ttl: int | None) -> int | None:
        if not write.key:
            return node.store.clear(segment)
        if write.value is None:
            stored = node.store.find(segment, write.key)
            return None if stored is None else node.store.remove(segment, write.key)
        expires_at = None if ttl is None else node.store.now_ms() + ttl
        return node.store.put(segment, write.key, write.value, expires_at)

    def _answered(self, write: Write) -> None:
        write.status, write.acked_at = "acked", self.world.engine.now
        self.world.counts["acked"] += 1
        self.world.checker.answered(write)

    def replied(self, write: Write, reply: bytes) -> None:
        """The reply to a write that had to wait."""
        if reply == _OK:
            self._later(self._answered, write)


class _Waiter:
    """`pending.ReplyTo` of one command."""

    def __init__(self, clients: Clients, write: Write) -> None:
        self._clients, self._write = clients, write
        self.pending: Pending | None = None

    def flush(self) -> None:
        """See `ReplyTo`."""
        if self.pending is not None and self.pending.left == 0:
            reply, self.pending = self.pending.reply, None
            self._clients.replied(self._write, reply)
