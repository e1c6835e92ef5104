"""One process: the objects of grid and connector, and their shells as events.

It may crash between any two effects: a transaction is appended in parts, then committed, then its response arrives,
each as an event of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

from deelog_connector.core import ConnectorCore
from deelog_connector.core import Settings as CoreSettings
from deelog_connector.core.effects import (
    Cause,
    Commit,
    Corrected,
    Effect,
    Fence,
    OpenProducer,
    Released,
    Scan,
    SnapshotRead,
    SnapshotRefused,
    SteppedDown,
    Superseded,
)
from deelog_connector.errors import NodeSuperseded
from deelog_connector.kafka_port import OutRecord
from deelog_connector.runtime.encode import Decoder, Encoder
from deelog_interceptors.grid.data.policy import peek
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.frames import AnyFrame, Heard, Heartbeat
from deelog_interceptors.grid.replication.peers import Incoming, Link
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.topology.lease import Lease
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.requests import Request
from deelog_interceptors.grid.topology.view import Registration, View
from deelog_proof.simulation.context import Context
from deelog_proof.simulation.controller_seat import ControllerSeat
from deelog_proof.simulation.filtering import pipeline
from deelog_proof.simulation.kafka import CHANGES, POSITIONS
from deelog_proof.simulation.network import SimLink
from deelog_proof.simulation.tasks import Task
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.operation import Entry, Operation
from deelog_schemas.positions import decode_state
from deelog_schemas.records import ON_POSITIONS, decode

RETRY = 0.02
"""Seconds before a request is sent again to unavailable brokers."""
WATCH = 0.2
SCAN = 3.0


class Gone(Exception):
    """The process ends by itself, as intended."""


class Node:
    """`member` is `<node.id>@<incarnation>`. All calls come through `now` and `after`, which delay them in a pause."""

    def __init__(self, world: Context, node_id: str, incarnation: int) -> None:
        self.world, self.engine, self.kafka = world, world.engine, world.kafka
        self.node_id, self.member = node_id, f"{node_id}@{incarnation}"
        self.random = self.engine.stream(f"node {node_id}")
        self.alive, self.paused = True, False
        self.skew = world.skews.get(node_id, 0.0)
        self.leaving = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._soon: list[Callable[[], None]] = []
        self._connector()
        self._grid()
        self._begin()

    def _connector(self) -> None:
        w = self.world
        settings = CoreSettings(
            w.segments,
            w.partitions,
            max_batch_size=w.batch,
            chunk_size=w.chunk,
            commit_interval=0.02,
            heartbeat_interval=0.5,
            patience=SCAN,
            max_operations=w.max_operations,
            acks_all=w.acks_all,
            reset_strategy=w.strategy,
            reset_interval=w.reset_interval,
            may_skip=w.skips > 0,
        )
        self._pipeline = pipeline(w.skips)
        self.core = ConnectorCore(self.member, settings, self)
        codec = JsonCodec(CHANGES, "grid", "p", "c")
        self._encoder = Encoder(codec, CHANGES, POSITIONS, self.member, w.tombstones, clock=time)
        self._decoder = Decoder(codec)
        self.session = 0
        self.core.topic_is(self.kafka.topics[CHANGES].id)
        self._tails = dict.fromkeys(range(w.partitions), 0)
        self._caught_up: set[int] = set()
        self._woken = self._driving = False
        self._timer = 0

    def _grid(self) -> None:
        w = self.world
        self.links: dict[str, SimLink] = {}
        links = cast(dict[str, Link], self.links)
        self.lease = Lease(w.lease)
        self.store = Store(w.grid_settings, self.core, self._captured, self.clock_us)
        self.replicator = Replicator(
            self.store, links, w.acks_all, self._level_reached, self.poke, self._failed, self.leased, lambda: self
        )
        self.backup = Backup(self.store, self.core)
        self.roles = Roles(self.member, self.store, self.core, self.replicator, self.backup, self.wake)
        self.registry = Registry("p.c.topology", w.segments, self._view_read, self._registry_read)
        self.registry.own, self.registry.token = self.member, f"token {self.member}"
        self.controller = ControllerSeat(self, w)
        self._topology_read = 0
        self._beats = 0
        self._turned = 0.0
        self._registered: Any = None
        self._serving = False

    # -- events -----------------------------------------------------------------------------------------------------

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Calls later, unless the process has ended by then; a pause puts it off."""
        self.engine.after(delay, self.now, call, *args)

    def now(self, call: Callable[..., None], *args: Any) -> None:
        """Calls now, or when the pause is over."""
        if not self.alive:
            return
        if self.paused:
            self._deferred.append((call, args))
            return
        try:
            call(*args)
            while self._soon:
                self._soon.pop(0)()
        except (Gone, NodeSuperseded):
            self.world.ended(self)
        except Exception as error:  # noqa: BLE001 - the checker reports it
            self.world.checker.broken(f"{self.member}: {error!r}", error)

    def resume(self) -> None:
        """SIGCONT: the calls that were held back happen now."""
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for call, args in deferred:
            self.after(0.0, call, *args)

    def call_soon(self, call: Callable[[], None]) -> None:
        """See `session.Loop`."""
        self._soon.append(call)

    def create_task(self, work: Coroutine[Any, Any, None]) -> Task:
        """See `session.Loop`."""
        return Task(work, lambda step: self.after(self.random.expovariate(2000.0), step))

    def clock_us(self) -> int:
        """This machine's wall clock, in Unix microseconds."""
        return 1_700_000_000_000_000 + int((self.engine.now + self.skew) * 1e6)

    def _failed(self, error: BaseException) -> None:
        self.world.checker.broken(f"{self.member}: {error!r}", error)

    def request(self, call: Callable[[], None]) -> None:
        """A request to the brokers: it arrives after a delay, and is retried while they are unavailable."""
        self.after(self.random.expovariate(800.0) + 0.0005, self._request, call)

    def _request(self, call: Callable[[], None]) -> None:
        if self.kafka.up and self.node_id not in self.world.no_kafka:
            call()
        else:
            self.after(RETRY, self._request, call)

    # -- life -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.request(self._tail)
        self.request(self._topology)

    def _caught_up_now(self) -> None:
        """As `Connector.start` and `Node.start`: the positions topic is read; polls the core, registers, heartbeats."""
        self._look_at_ends()
        self._driving = True
        self.after(0.0, self._drive)
        self.after(WATCH, self._watch)
        self._registered = self.registry.expect(self.registry.token)
        self.request(self._register)

    def _register(self) -> None:
        me = Registration(self.member, f"{self.node_id}:1", f"{self.node_id}:2")
        key, value = self.registry.registration(me)
        self.kafka.publish(key, value)

    def _served(self) -> None:
        self._serving = True
        self._turned = self.engine.now
        self.controller.start()
        self._beat_regularly()

    def leave(self) -> None:
        """SIGTERM: hands over its segments, releases the rest, and ends."""
        self.leaving = True
        self.poke()
        self.engine.after(3.0, self.world.ended, self)
        self._leaving()

    def _leaving(self) -> None:
        if not any(self.member in (*row.in_sync, row.primary) for row in self.registry.view.rows):
            self.world.ended(self)
        else:
            self.after(0.02, self._leaving)

    # -- the topology topic -------------------------------------------------------------------------------------------

    def _topology(self) -> None:
        records = self.kafka.topology[self._topology_read :][: self.random.randrange(1, 6)]
        if self.node_id in self.world.blind:
            records = []
        if records:
            self._topology_read += len(records)
            self.registry.read(records)
        if self._registered is not None and self._registered.is_set():
            self._registered = None
            self._served()
        self.after(self.random.uniform(0.002, 0.015), self._request, self._topology)

    def _registry_read(self) -> None:
        if self.registry.overwritten and self._beats > 0:
            self.registry.overwritten = False
            self.request(self._register)
        self._dial()
        self.controller.changed()

    def _view_read(self, view: View) -> None:
        self.world.checker.view_applied(self, view)
        self._dial()
        self.roles.apply(view)
        self.poke()

    def _dial(self) -> None:
        """As `Node._dial`."""
        wanted = {*self.registry.view.members, self.registry.controller or self.member} - {self.member}
        for name in [name for name in self.links if name not in wanted]:
            self.links.pop(name).close()
        for name in sorted(wanted - self.links.keys()):
            self.links[name] = SimLink(self.world.network, self, name)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Sends a heartbeat soon."""
        if self._serving:
            self.after(0.002, self._beat)

    def _beat_regularly(self) -> None:
        self._beat()
        view = self.registry.view
        lacking = [s for s in self.store.segments if s.role is Role.PRIMARY and len(s.sessions) < len(s.members)]
        if lacking:
            self.replicator.follow(lacking, view.topology_id)
        self.store.expire_due(self.clock_us() // 1000)
        self.after(self.world.failure_timeout / 5, self._beat_regularly)

    def _beat(self) -> None:
        """As `Node._beat`."""
        controller = self.registry.controller
        if controller is None:
            return
        self._notice_pause()
        self._beats += 1
        requests: list[Request] = [*self.roles.requests()]
        requests += self.replicator.requests(self.engine.now, self.world.failure_timeout)
        beat = Heartbeat(self._beats, self.registry.view.topology_id, self.leaving, requests)
        self.lease.sent(beat.number, self.engine.now)
        if controller == self.member:
            self._heard(self.member, self.controller.heartbeat(self.member, beat))
        elif controller in self.links:
            self.links[controller].send(beat)

    def leased(self) -> bool:
        """As `Node._leased`."""
        return not self.world.acks_all or self.lease.holds(self.engine.now)

    def _heard(self, member: str, answer: Heard | None) -> None:
        """As `Node._heard`."""
        if answer is None or member != self.registry.controller:
            return
        held = self.leased()
        self.lease.heard(answer, self.registry.view.topology_id)
        if not held and self.leased():
            self.world.counts["leases"] += 1
            self.replicator.renewed()

    def _notice_pause(self) -> None:
        if self.engine.now - self._turned > self.world.failure_timeout:
            self.controller.doubt()
        self._turned = self.engine.now

    # -- links --------------------------------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """See `peers.LinkEvents`."""
        segments = [s for s in self.store.segments if s.role is Role.PRIMARY and link.member in s.members]
        self.replicator.follow(segments, self.registry.view.topology_id)
        self.poke()

    def link_frame(self, link: Link, frame: AnyFrame) -> None:
        """See `peers.LinkEvents`."""
        if isinstance(frame, Heard):
            self._heard(link.member, frame)
        else:
            self.replicator.frame(link, frame)

    def link_down(self, link: Link) -> None:
        """See `peers.LinkEvents`."""
        self.replicator.link_down(link)

    def link_refused(self, member: str) -> None:
        """See `peers.LinkEvents`."""
        self.controller.refused(member)

    def incoming_up(self, connection: Any) -> None:
        """See `peers.IncomingEvents`."""
        self.backup.up(cast(Incoming, connection))

    def incoming_frame(self, connection: Incoming, frame: AnyFrame) -> None:
        """See `peers.IncomingEvents`."""
        if isinstance(frame, Heartbeat):
            self._notice_pause()
            answer = self.controller.heartbeat(connection.member, frame)
            if answer is not None:
                connection.send(answer)
        else:
            self.backup.frame(connection, frame)

    def incoming_down(self, connection: Any) -> None:
        """See `peers.IncomingEvents`."""
        self.backup.down(cast(Incoming, connection))

    # -- the cache's side of the connector ----------------------------------------------------------------------------

    def _captured(self, segment: Segment, operation: Operation) -> None:
        self.world.checker.captured(self, segment, operation)
        self.replicator.operation(segment, operation)

    def _level_reached(self, segment: Segment) -> None:
        self.roles.level_reached(segment)
        self.wake()

    def entries(self, segment: int) -> list[Entry]:
        """See `CacheState`."""
        return list(self.store.entries(self.store.segments[segment]))

    def get(self, segment: int, key: bytes) -> Entry | None:
        """See `CacheState`."""
        value = peek(self.store.segments[segment].data, key)
        return None if value is None else Entry(key, *value)

    # -- the connector's shell ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: polls the core soon."""
        if self._driving and not self._woken:
            self._woken = True
            self.after(self.random.expovariate(3000.0), self._drive)

    def _drive(self, timer: int = -1) -> None:
        if timer >= 0 and timer != self._timer:
            return  # the core was polled meanwhile
        self._woken = False
        self._timer += 1
        now = self.engine.now
        for effect in self.core.poll(now, self.clock_us()):
            self._carry_out(effect)
        for segment in sorted(self.world.snapshots):  # after the notifications: a complete one does not begin again
            if self.core.may_snapshot(segment):
                self.core.snapshot(segment)
                self.world.checker.snapshot_begun(self, segment)
        self.after(max(0.001, self.core.next_poll(now) or 0.02), self._drive, self._timer)

    def _carry_out(self, effect: Effect) -> None:
        self.world.checker.effect(self, effect)
        if isinstance(effect, Commit):
            items = effect.items if self._pipeline is None else self._pipeline(effect.items)
            records = list(self._encoder.records(items))
            self.request(lambda: self._append(effect, records, self.world.parts(self, len(records))))
        elif isinstance(effect, Scan):
            self.request(lambda: self._scan(effect, effect.from_offset, set(effect.until), self.engine.now + SCAN))
        elif isinstance(effect, OpenProducer):
            self.request(self._open)
        elif isinstance(effect, Fence):
            self._fence(effect, sorted(effect.node_ids))
        elif isinstance(effect, Corrected):
            segment = self.store.segments[effect.segment]
            for operation in effect.operations:
                segment.last = operation.sequence
                self.world.checker.captured(self, segment, operation)
                self.replicator.operation(segment, operation)
        elif isinstance(effect, Released):
            self.store.segments[effect.segment].released = True
            self.poke()
        elif isinstance(effect, SteppedDown):
            self.roles.stepped_down(effect.segment, effect.reason)
            self.poke()
        elif isinstance(effect, SnapshotRead | SnapshotRefused):
            self.world.snapshots.discard(effect.segment)
            self.world.checker.snapshot_over(effect.segment, isinstance(effect, SnapshotRead))
        elif isinstance(effect, Superseded):
            raise Gone

    def _open(self) -> None:
        self.session = self.kafka.init(self.node_id, self.node_id)
        self.request(self._opened)

    def _opened(self) -> None:
        self.core.producer_opened()
        self.wake()

    def _append(self, effect: Commit, records: list[OutRecord], parts: list[int]) -> None:
        """Appends the next part; other events may happen between two parts."""
        count = parts[0]
        cause = self.kafka.append(self.node_id, self.session, records[:count])
        if cause is not None:
            self.request(lambda: self._answer(effect, cause))
            return
        if len(parts) > 1:
            self.request(lambda: self._append(effect, records[count:], parts[1:]))
        else:
            self.request(lambda: self._end(effect))
            self.world.hangs(self)

    def _end(self, effect: Commit) -> None:
        cause = self.kafka.commit(self.node_id, self.session)
        if cause is None and self.world.loses_answer(self):
            cause = Cause.LOST
        self.request(lambda: self._answer(effect, cause))

    def _answer(self, effect: Commit, cause: Cause | None) -> None:
        if cause is None:
            self.core.committed(effect.token)
        else:
            self.world.counts[f"commit_{cause}"] += 1
            self.core.commit_failed(effect.token, cause)
        self.wake()

    def _fence(self, effect: Fence, left: list[str]) -> None:
        if not left:
            self.core.fenced(effect.segments)
            self.wake()
            return

        def fence() -> None:
            self.kafka.init(left[0], self.node_id)
            self._fence(effect, left[1:])

        self.request(fence)

    def _scan(self, effect: Scan, at: int, wanted: set[bytes], until: float) -> None:
        log = self.kafka.logs[CHANGES, effect.partition]
        if not log.first <= at <= log.end:
            at = log.first
        read, following = log.read(at, self.random.choice((1, 7, 50, 5000)))
        records = self._decoder.scanned(read, effect.keys)
        self.core.scanned(effect.partition, records)
        wanted.difference_update(r.key for r in records)
        early = bool(effect.keys and wanted) and self.random.random() < 0.1
        if not wanted or early or self.engine.now > until:
            self.world.counts["scans_in_vain"] += bool(wanted) and not early
            self.core.scan_ended(effect.partition, early or not wanted)
            self.wake()
        else:
            delay = 0.0005 if following > at else 0.01
            self.after(delay, self._request, lambda: self._scan(effect, following, wanted, until))

    def _tail(self) -> None:
        for partition, at in self._tails.items():
            log = self.kafka.logs[POSITIONS, partition]
            read, following = log.read(at, self.random.choice((3, 20, 1000)))
            self._tails[partition] = following
            for raw in read:
                record = decode(*raw, ON_POSITIONS)
                self.core.state_read(decode_state(record.key, record.value, record.header.kind))
            if read:
                self.wake()
            if following >= log.stable:
                self._caught_up.add(partition)
        if not self._driving and len(self._caught_up) == self.world.partitions:
            self._caught_up_now()
        self.after(self.random.uniform(0.001, 0.02), self._request, self._tail)

    def _watch(self) -> None:
        """As `Connector._watch`."""
        self.request(self._look_at_ends)
        self.after(WATCH, self._watch)

    def _look_at_ends(self) -> None:
        for partition in range(self.world.partitions):
            log = self.kafka.logs[CHANGES, partition]
            intact = None
            if self.core.doubts(partition, log.stable, log.epoch):
                intact = log.holds(*self.core.end_of(partition))
            self.core.end_read(partition, log.stable, log.epoch, intact)
        self.core.topic_is(self.kafka.topics[CHANGES].id)
        self.wake()
