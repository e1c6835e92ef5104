"""One grid node: entries, replication, clients and connector, on one asyncio loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from deelog_connector.errors import TopologyError
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import KafkaPort
from deelog_connector.metrics.shared_server import MetricsShare
from deelog_connector.runtime import Connector, Lifecycle
from deelog_interceptors.grid.data.expiry import ExpiryTimer
from deelog_interceptors.grid.data.policy import peek
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.metrics import GridMetrics, stats
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.frames import AnyFrame, Heard, Heartbeat, Hello
from deelog_interceptors.grid.replication.peers import Incoming, Link, Links, PeerListener
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.resp import admin, cluster, strings
from deelog_interceptors.grid.resp.commands import Dispatcher
from deelog_interceptors.grid.resp.connection import MOVES, Blocked, Clients
from deelog_interceptors.grid.settings import LEAVE_SECONDS, MAX_CONNECTIONS, Settings
from deelog_interceptors.grid.topology.controller_service import ControllerService
from deelog_interceptors.grid.topology.lease import Lease
from deelog_interceptors.grid.topology.liveness import BEATS
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.requests import Request
from deelog_interceptors.grid.topology.topic import TopologyTopic
from deelog_interceptors.grid.topology.view import Registration, View
from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, DeelogError, FieldError
from deelog_schemas.member import Member
from deelog_schemas.operation import Entry, Operation

log = logging.getLogger(__name__)

COMMAND_MODULES: Final = (admin, strings, cluster)
"""Importing them fills the table of commands."""

_SWEEP_SECONDS: Final = 0.25
_BEAT_SOON_SECONDS: Final = 0.005
_REDIRECT_SECONDS: Final = 0.05
_IDLE_SECONDS: Final = 0.1
_REGISTER_SECONDS: Final = 0.5


class NodeError(DeelogError):
    """The node cannot go on; the message is one line."""


class Node:
    """`await start()`, serve, watch `failure`, `await stop()`. Everything on one loop's thread.

    `new_port` makes a port to Kafka: one for the grid, one for the connector.
    """

    def __init__(self, config: Config, new_port: Callable[[], KafkaPort] = Librdkafka, *, after: str = "") -> None:
        """`after` is an earlier process of this node, whose clock may have been ahead."""
        self.settings = settings = Settings.of(config)
        self._port = port = new_port()
        self.clock = clock = port.clock
        self.member = str(Member.starting(settings.node_id, clock.time_ns(), after))
        self.started = clock.monotonic()
        self.client_port = self.peer_port = 0
        self.leaving = self._ends = False
        self.serves = False
        """Whether a view has named it."""
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self._config = config
        self._topology = TopologyTopic(config, port)
        hello = Hello(settings.cluster, self.member, settings.segments)
        self._links = Links(hello, self)
        self._listener = PeerListener(hello, self)
        self.connector = Connector(config, self.member, self, connector_name="grid", port=new_port())
        self.finished = self.connector.finished
        self.lifecycle = Lifecycle(config, {config["cache.name"]: self.connector})
        self.sources = (GridMetrics(self, config["topic.prefix"], config["cache.name"]),)
        core = self.connector.sink
        self._lease = Lease(settings.lease)
        self._lapsed = False
        """Whether it was found not to hold, and something may wait for it."""
        self.store = Store(settings, core, self.captured, clock)
        self.replicator = Replicator(
            self.store,
            self._links,
            settings.acks_all,
            self._level_reached,
            self._beat_soon,
            self.failed,
            self.leased,
            clock,
        )
        self.backup = Backup(self.store, core)
        self.roles = Roles(self.member, self.store, core, self.replicator, self.backup, self.connector.wake, clock)
        self._registry = Registry(config.topics.topology, settings.segments, self.view_read, self._registry_read)
        self._registry.own, self._registry.token = self.member, port.new_id()
        self.controller_service = ControllerService(
            config,
            port,
            self.member,
            self._registry,
            settings,
            floor=core.highest_claim,
            on_error=self.failed,
            on_refused=self._refused,
        )
        self.clients = Clients(Dispatcher(self), settings.entry_limit.most, MAX_CONNECTIONS, self.clock.monotonic)
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._role_changed: asyncio.Future[None] = self._loop.create_future()
        self._expiry = ExpiryTimer(self.store, self._loop)
        self._beat_timer: asyncio.TimerHandle | None = None
        self._beats = 0
        self._turned: tuple[float, float] | None = None
        """When this process last ran, by both clocks."""
        self._lease_renewed: asyncio.Future[None] = self._loop.create_future()
        self._served: MetricsShare | None = None

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The last view."""
        return self._registry.view

    @property
    def addresses(self) -> tuple[str, str]:
        """Where clients and where other nodes reach this one."""
        host = self.settings.advertised_host
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{self.client_port}", f"{shown}:{self.peer_port}"

    def stats(self) -> dict[str, Any]:
        return stats(self)

    async def start(self) -> None:
        """Returns once a view names this member. Raises `DeelogError` with a message of one line."""
        self._served = MetricsShare(self._config, self.lifecycle.connectors, self.sources)
        await self._listen()
        self.connector.failure.add_done_callback(self._connector_failed)
        await self.connector.start()
        await self._topology.create()
        self._spawn(self._topology.follow(self._registry.read, self._topology_lost), "topology")
        # Registered only now: a registered incarnation has fenced the producers of the older ones.
        read = self._registry.expect(self._registry.token)
        await self._register()
        reading = asyncio.ensure_future(read.wait())
        # A topic that hides it does so until the next commit of a controller. One that lives has made it by then.
        patience = self.settings.session_timeout + self.settings.failure_timeout
        waited: set[asyncio.Future[Any]] = {reading, self.failure}
        await asyncio.wait(waited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        self.controller_service.start()
        await self._or_failure(reading)
        self._turned = self._time()
        for work in (self._beat_regularly, self._sweep):
            self._spawn(work(), work.__name__)
        await self._or_failure(self._until(lambda: self.member in self.view.members))
        self.serves = True

    async def _register(self) -> None:
        client, peer = self.addresses
        record = self._registry.registration(Registration(self.member, client, peer))
        await self._topology.publish(*record)

    async def _register_sometime(self) -> None:
        """Registers again once Kafka answers."""
        while True:
            try:
                await self._register()
                return
            except TopologyError as error:
                log.warning("%s; trying again", error)
            await asyncio.sleep(_REGISTER_SECONDS)

    async def stop(self) -> None:
        """Controlled shutdown: releases the segments, waits until others are elected, and closes everything."""
        if not self.failure.done():
            self.leaving = True
            await self.lifecycle.end()  # ends a pause, so that releases are written
            self._beat_soon()
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._or_failure(self._until(self._has_left))
            except (TimeoutError, DeelogError) as error:
                why = str(error) or "no time left"  # a TimeoutError has no text
                log.warning("%s could not hand over all of its segments: %s", self.member, why)
        self._ends = True
        for segment in self.store.segments:
            segment.releasing = True  # capture has ended
        await self.connector.stop(release=not self.failure.done())
        await self._close()

    async def _listen(self) -> None:
        settings = self.settings
        try:
            self._server = await self._loop.create_server(self.clients, settings.client_host, settings.client_port)
            self.client_port = self._server.sockets[0].getsockname()[1]
        except OSError as error:
            raise self._taken("cache.listen", error) from error
        try:
            self.peer_port = await self._listener.listen(settings.peer_host, settings.peer_port)
        except OSError as error:
            raise self._taken("cache.peer.listen", error) from error

    def _taken(self, field: str, error: OSError) -> ConfigError:
        problem = f"cannot be listened on ({error.strerror}): name another port or host"
        return ConfigError([FieldError(field, problem, str(self._config[field]))])

    async def abort(self) -> None:
        """After a failed start: closes everything and releases nothing."""
        self._failure_seen()
        await self.connector.stop(release=False)
        await self._close()

    async def _close(self) -> None:
        self._beats = -1
        for task in self._tasks:
            task.cancel()
        self._expiry.cancel()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        await self.controller_service.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._links.dial({})
        await self._listener.close()
        if self._server is not None:
            self._server.close()
        for connection in list(self.clients.open):
            connection.abort()
        if self._served is not None:
            await self._port.work(self._served.close)  # in a thread: it may be waiting for this loop
        await self._port.close()  # last: requests to Kafka that nobody waits for take their time

    async def _or_failure(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, self.failure}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            raise _as_deelog_error(self.failure.exception())
        task.result()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.wait({self._role_changed}, timeout=_IDLE_SECONDS)

    def _has_left(self) -> bool:
        others = any(not m.leaving for m in self.view.members.values() if m.member != self.member)
        return not others or all(self.member not in row.holders for row in self.view.rows)

    def failed(self, error: BaseException) -> None:
        """The node cannot go on."""
        if not self.failure.done():
            self.failure.set_exception(_as_deelog_error(error))

    def _refused(self, error: Exception) -> None:
        """An ACL is missing: ends a node that is starting. A node that holds entries logs it and serves on."""
        if self.member in self.view.members:
            log.error("%s", error)
        else:
            self.failed(error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed(error)

    def _connector_failed(self, failure: asyncio.Future[None]) -> None:
        if not failure.cancelled() and (error := failure.exception()) is not None:
            self.failed(error)

    def _failure_seen(self) -> None:
        for failure in (self.failure, self.connector.failure):
            if failure.done() and not failure.cancelled():
                failure.exception()

    # -- topology ---------------------------------------------------------------------------------------------------

    def _registry_read(self) -> None:
        if self._registry.must_register and self._beats > 0:
            self._spawn(self._register_sometime(), "register again")
        self._dial()
        self.controller_service.changed()

    def _topology_lost(self) -> None:
        """The topic was made again, or has lost records: what stands in memory is written anew."""
        if self._beats >= 0:  # a node that is starting waits for its own record
            self._spawn(self._register_sometime(), "register again")
        self.controller_service.lost()

    def view_read(self, view: View) -> None:
        """Follows a new view."""
        self._dial()
        self.roles.apply(view)
        self._expiry.run_at(0.0)
        self._roles_changed()
        self._beat_soon()

    def _roles_changed(self) -> None:
        changed, self._role_changed = self._role_changed, self._loop.create_future()
        changed.set_result(None)

    def _dial(self) -> None:
        """A link to each other member of the view, and to the controller."""
        if self._beats >= 0:
            self._links.dial(self._registry.peer_addresses())

    def _beat_soon(self) -> None:
        if self._beat_timer is None:
            self._beat_timer = self._loop.call_later(_BEAT_SOON_SECONDS, self._beat)

    async def _beat_regularly(self) -> None:
        while True:
            self._beat()
            lacking = [s for s in self.store.segments if s.role is Role.PRIMARY and len(s.sessions) < len(s.members)]
            if lacking:
                self.replicator.follow(lacking, self.view.topology_id)
            if not self._ends and self.roles.hand_over():
                self._expiry.run_at(0.0)
                self._roles_changed()
            await asyncio.sleep(self.settings.failure_timeout / BEATS)

    def _beat(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        controller = self._registry.controller
        if controller is None or self._beats < 0:
            return
        self._notice_pause()
        now, wall = self._time()
        self._beats += 1
        requests: list[Request] = [*self.roles.requests()]
        requests += self.replicator.requests(now, self.settings.failure_timeout)
        beat = Heartbeat(self._beats, self.view.topology_id, self.leaving, requests)
        self._lease.sent(beat.number, now, wall)
        if controller == self.member:
            self._heard(self.member, self.controller_service.heartbeat(self.member, beat))
        elif controller in self._links:
            self._links[controller].send(beat)

    def _heard(self, member: str, answer: Heard | None) -> None:
        """The controller answered a heartbeat."""
        if answer is None or member != self._registry.controller:
            return
        self._lease.heard(answer, self.view.topology_id)
        # Not: whether it has just begun to hold. A clock that was put back lets it hold again without an answer.
        if self._lapsed and self._lease.holds(*self._time()):
            self._lapsed = False
            renewed, self._lease_renewed = self._lease_renewed, self._loop.create_future()
            renewed.set_result(None)
            self.replicator.renewed()

    def _time(self) -> tuple[float, float]:
        """Seconds of the monotonic clock, and of that of the day."""
        return self.clock.monotonic(), self.clock.time_ns() / 1e9

    def _notice_pause(self) -> None:
        turned = self._time()
        if self._turned is not None:  # a slow start is no pause
            stopped = max(turned[0] - self._turned[0], turned[1] - self._turned[1])
            if stopped > self.settings.failure_timeout:
                log.warning("%s was stopped for %.1f s", self.member, stopped)
                self.controller_service.doubt()
        self._turned = turned

    # -- LinkEvents, IncomingEvents ----------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        segments = [s for s in self.store.segments if s.role is Role.PRIMARY and link.member in s.members]
        self.replicator.follow(segments, self.view.topology_id)
        self._beat_soon()

    def link_frame(self, link: Link, frame: AnyFrame) -> None:
        if isinstance(frame, Heard):
            self._heard(link.member, frame)
        else:
            self.replicator.frame(link, frame)

    def link_down(self, link: Link) -> None:
        self.replicator.link_down(link)

    def link_refused(self, member: str) -> None:
        self.controller_service.refused(member)

    def incoming_up(self, connection: Incoming) -> None:
        self.backup.up(connection)

    def incoming_frame(self, connection: Incoming, frame: AnyFrame) -> None:
        if isinstance(frame, Heartbeat):
            self._notice_pause()
            answer = self.controller_service.heartbeat(connection.member, frame)
            if answer is not None:
                connection.send(answer)
        else:
            self.backup.frame(connection, frame)

    def incoming_down(self, connection: Incoming) -> None:
        self.backup.down(connection)

    # -- writes -------------------------------------------------------------------------------------------------------

    def prepare(self, segment: Segment, size: int) -> None:
        """Raises `Blocked` unless `size` bytes may be captured and replicated now."""
        if segment.closed:
            raise Blocked(MOVES, self.role_changed)
        if not self.leased():
            raise Blocked("this node may not acknowledge: the controller does not answer it", self._renewed_lease)
        if not self.store.core.has_room(size):
            raise Blocked("the op log is full", lambda: self.connector.make_room(segment.number, size))
        if not self.replicator.has_room():
            raise Blocked("the backups do not keep up", self.replicator.room)

    async def role_changed(self) -> None:
        """Returns at the next view."""
        await asyncio.wait({self._role_changed})

    async def role_changed_soon(self) -> None:
        """Returns at the next view, or after 50 ms."""
        await asyncio.wait({self._role_changed}, timeout=_REDIRECT_SECONDS)

    def leased(self) -> bool:
        held = not self.settings.acks_all or self._lease.holds(*self._time())
        if not held:
            self._lapsed = True
        return held

    async def _renewed_lease(self) -> None:
        self._beat_soon()
        await asyncio.wait({self._lease_renewed})

    def captured(self, segment: Segment, operation: Operation) -> None:
        """An operation is in the op log: replicates it."""
        self.replicator.operation(segment, operation)
        if operation.expires_at is not None:
            self._expiry.run_at(operation.expires_at / 1000)

    def _level_reached(self, segment: Segment) -> None:
        self.roles.level_reached(segment)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.replicator.expire_pendings(self.clock.monotonic())

    # -- CacheSide ----------------------------------------------------------------------------------------------------

    def entries(self, segment: int) -> list[Entry]:
        return list(self.store.entries(self.store.segments[segment]))

    def get(self, segment: int, key: bytes) -> Entry | None:
        value = peek(self.store.segments[segment].data, key)
        return None if value is None else Entry(key, *value)

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        held = self.store.segments[segment]
        for operation in operations:
            held.last = operation.sequence
            self.replicator.operation(held, operation)

    def released(self, segment: int) -> None:
        self.store.segments[segment].released = True
        self._beat_soon()

    def stepped_down(self, segment: int, reason: str) -> None:
        self.roles.stepped_down(segment)
        self._beat_soon()


def _as_deelog_error(error: BaseException | None) -> DeelogError:
    if isinstance(error, DeelogError):
        return error
    internal = NodeError(f"internal error: {error!r}")
    internal.__cause__ = error
    return internal
