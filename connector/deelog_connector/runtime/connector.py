"""The connector: one for each cache of a node, on an asyncio loop. It has a core, and around it a shell, which a
restart replaces.

The core runs on the loop's thread, between two awaits, so that it needs no lock and a cache on the same loop sees it
consistent. Everything else, Kafka, clocks, chance and threads, is behind the port (`kafka_port`).

Weighed in docs/decisions.md, "The core runs on the cache's loop".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Callable, Container, Mapping
from typing import Final

from deelog_connector.cache_side import CacheSide, Sink, StreamSide
from deelog_connector.core import ConnectorCore
from deelog_connector.core.effects import Cause
from deelog_connector.core.segment import Phase
from deelog_connector.errors import NodeSuperseded
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import Clock, KafkaPort
from deelog_connector.kept_topic import ReadTopic
from deelog_connector.runtime.configured import settings_of
from deelog_connector.runtime.context import Context
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.runtime.run_state import Event, Hold, RunState
from deelog_connector.runtime.shell import Shell
from deelog_connector.runtime.stats import Stats
from deelog_connector.signals.incremental_snapshots import Snapshots
from deelog_connector.signals.notifications import Notifications, ranges
from deelog_connector.signals.processor import Signals
from deelog_connector.signals.segment_progress import SegmentProgress
from deelog_connector.transforms.pipeline import Pipeline
from deelog_schemas.config import Config
from deelog_schemas.errors import DeelogError
from deelog_schemas.notifications import heartbeat_key, heartbeat_value
from deelog_schemas.signals import Progress, encode_progress, progress_key

log = logging.getLogger(__name__)

ANNOUNCE_SECONDS: Final = 0.3
"""Interval of notifications; one covers all segments that changed meanwhile."""
_LOOK_SECONDS: Final = 0.02


class Connector:
    """One connector: all segments of one cache, on one node.

    `member` is `<node.id>@<incarnation>`, `connector_name` the short name in the source schema (`grid`,
    `cachetools`). Call `start` once, `stop` at the end; watch `failure`, which gets the exception when the connector
    cannot go on (then the process should end), and `finished`, which is done once there is nothing more to capture
    (`snapshot.mode=initial_only`; then stop it). Not thread-safe: everything on the loop's thread. `port` is of this
    connector alone, which closes it; by default it is librdkafka's.
    """

    def __init__(
        self,
        config: Config,
        member: str,
        cache_side: CacheSide | StreamSide,
        *,
        connector_name: str,
        port: KafkaPort | None = None,
    ) -> None:
        self.member = member
        self._port = port = port or Librdkafka()
        self.observed = EventMeter()
        pipeline = Pipeline.of(config, port.clock, self.observed.piped)
        first_number = uuid.UUID(port.new_id()).int & 0xFFFF_FFFF
        self.core = core = ConnectorCore(member, settings_of(config, pipeline), cache_side, first_number)
        self.state = RunState()
        """The holds that keep it from writing."""
        self._halted: DeelogError | None = None
        self._prepared: set[Shell] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception after which the connector cannot go on; cancelled by `stop`."""
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = False
        """Whether the positions topic was read to its end."""
        self._dropped = 0
        """Announcements that earlier shells could not send."""
        self._changed, self._pruned = asyncio.Event(), asyncio.Event()
        self._full_since: float | None = None
        """Since when writes wait for room and nothing was pruned."""
        cache = config.topics.cache
        self._notifications = Notifications(config, cache, self._send, port)
        self._progress = SegmentProgress(self._notifications, member)
        self.snapshots = Snapshots(core, cache, member, self._note, self._notifications)
        self.signals = Signals(config, self)
        self._context = Context(
            connector_name=connector_name,
            core=core,
            cache_side=cache_side,
            signals=self.signals,
            snapshots=self.snapshots,
            meter=self.observed,
            port=port,
            failure=self.failure,
            wake=self.wake,
            positions=ReadTopic(),
            pruned=self._was_pruned,
            halt=self._halt,
            closed=lambda: self.state.closed,
        )
        self._shell = Shell(self._context, config, pipeline, proven=False)

    def _send(self, topic: str, key: bytes, value: bytes) -> None:
        self._shell.clients.send(topic, key, value)

    def _note(self, progress: Progress) -> None:
        key = progress_key(self.config["topic.prefix"])
        self._shell.clients.send(self.config.topics.signal, key, encode_progress(progress), 0)

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Creates and audits the topics, reads the positions topic to its end, and starts.

        Raises `KafkaUnusable` where brokers or topics are not usable, `MapError` where the topic was
        written with another number of segments or partitions, `RecordError` on a foreign record, `RegistryError` where
        a schema registry is configured and does not serve, `NodeSuperseded` where the positions tell of a process of
        this node that is newer, by the clock of its start.
        """
        try:
            await self._shell.open()
            await self._shell.start()
            newer = self.core.newer_process()
            if newer is not None:
                raise NodeSuperseded(newer, self.member)
        except Exception:
            await self.stop(release=False)
            raise
        self._serve()

    def _serve(self) -> None:
        self.started = True
        for work in (self._drive, self._announce):
            self._shell.tasks.spawn(work())

    async def stop(self, release: bool = True, seconds: float | None = None) -> None:
        """Writes what is acknowledged and releases the segments, then closes every client. Logs what is left.

        Capture must have ended. With `release=False` it just closes: the next start then resets. The release takes at
        most `seconds`, or two transactions' timeouts.
        """
        self.apply(Event.LEAVE)  # a restart no longer begins with it
        if release and not self.failure.done():
            self.end()
            await self._release_all(seconds or self.config["transaction.timeout.ms"] / 1000 * 2)
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        if self._closing is None:  # a failed start has stopped it already
            self._progress.announce()
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)
        if not self.failure.done():
            self.failure.cancel()

    async def _release_all(self, seconds: float) -> None:
        mine = [segment.number for segment in self.core.primaries()]
        for number in mine:
            self.core.release(number)
        self.wake()
        until = self._port.clock.monotonic() + seconds
        while left := [s for s in self.core.primaries() if s.phase is not Phase.RELEASED and not s.stopped_by]:
            if self._port.clock.monotonic() > until or self.failure.done() or self.halted:
                log.warning("%d of %d segments are not released: their next owner resets them", len(left), len(mine))
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _close(self) -> None:
        try:
            await self._shell.close()
            for shell in list(self._prepared):
                await self.discard(shell)
        finally:
            await self._port.close()

    # -- for the interceptor --------------------------------------------------------------------------------------

    @property
    def sink(self) -> Sink:
        """Receives the changes of the cache."""
        return self.core

    @property
    def clock(self) -> Clock:
        """By which it measures."""
        return self._port.clock

    @property
    def config(self) -> Config:
        """The present configuration: a restart may replace it."""
        return self._shell.config

    def wake(self) -> None:
        """Polls the core soon, not only after the commit interval."""
        self._changed.set()

    async def make_room(self, segment: int, size: int) -> None:
        """Returns once `size` bytes may be appended, by `oplog.overflow`: block, coalesce or reset.

        Who gives up waiting before `max.block.ms` and comes again, as a client does whose command is answered with an
        error, waits for what is left of it. Once that is over nobody waits until Kafka has taken something: an outage
        costs the writers `max.block.ms`, not as much for each reset.
        """
        policy = self.config["oplog.overflow"]
        core = self.core
        if policy == "coalesce":
            core.coalesce_all()
        elif policy == "block" and not core.paused:  # no room is made while nothing is written
            now = self._port.clock.monotonic()
            since = self._full_since = now if self._full_since is None else self._full_since
            until = since + self.config["max.block.ms"] / 1000
            while not core.has_room(size) and (left := until - self._port.clock.monotonic()) > 0:
                core.counts.overflow["block"] += 1
                self._pruned.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._pruned.wait()
        core.make_room(segment, size)

    def _was_pruned(self) -> None:
        self._full_since = None
        self._pruned.set()

    # -- run state ------------------------------------------------------------------------------------------------

    @property
    def halted(self) -> DeelogError | None:
        """Why nothing is written until `resume()`: a transform failed, and the failure is not skipped.

        Unlike a `failure` it keeps the process alive, and captured changes in the op log: the cache is worth more than
        its changes. If the node ended, the next owner would take over its operations and fail too.
        """
        return self._halted if Hold.HALTED in self.state.holds else None

    def pause(self) -> None:
        """From the next transaction on nothing is written. Op logs keep captured changes up to their limit; then a
        reset is due. A stop writes what was captured all the same."""
        if self.state.ending:
            log.warning("the connector is at its end: it is not paused")
        self.apply(Event.PAUSE)

    def resume(self) -> None:
        """Writes again, beginning with what was captured meanwhile, or with the change that halted it."""
        self.apply(Event.RESUME)

    def end(self) -> None:
        """Ends pauses, and refuses further ones, so that it writes what it captured. Call `stop` then."""
        self.apply(Event.END)

    def apply(self, event: Event) -> None:
        """Applies an event to the run state."""
        self.state = self.state.after(event)
        self.core.paused, self.core.closed = self.state.paused, self.state.closed
        self.wake()

    def _halt(self, error: DeelogError) -> None:
        log.error("the connector stops writing: %s", error)
        self._halted = error
        self.apply(Event.HALT)

    async def suspend(self, seconds: float) -> None:
        """Writes what is acknowledged by now, unless paused, and closes the producer.

        Capture goes on into the op log. Apply `STOP` or `CONTINUE` afterwards. Raises `TimeoutError` where Kafka does
        not accept it within `seconds`, and why it halted meanwhile; the connector then goes on as before.
        """
        drains, core = not self.state.paused, self.core
        until = self._port.clock.monotonic() + seconds
        try:
            if drains:
                self.apply(Event.DRAIN)
                acknowledged = [(s.number, s.epoch, s.acked) for s in core.primaries()]
                await self._wait_for(
                    lambda: self.halted is not None or all(self._is_written(*one) for one in acknowledged), until
                )
                if self.halted is not None:
                    raise self.halted
            self.apply(Event.SUSPEND)
            # Both at the same moment: while it waits to have read back, a takeover may begin a scan. Without the wait,
            # offsets would still move after the stop.
            await self._wait_for(lambda: core.idle and (not drains or self._has_read_back()), until)
            if not self.state.closed:
                raise TimeoutError("the connector ends")
        except BaseException:
            self.apply(Event.CONTINUE)
            raise
        core.close_producer()
        await self._shell.clients.session.discard()

    # -- restart --------------------------------------------------------------------------------------------------

    async def prepared(self, config: Config) -> Shell:
        """A shell of `config`, which has the same topics, for `replace` or `discard`. This one goes on meanwhile.

        Raises `KafkaUnusable`, `ConfigError` or `RegistryError` where `config` does not work.
        """
        pipeline = Pipeline.of(config, self._port.clock, self.observed.piped)
        shell = Shell(self._context, config, pipeline, proven=True)
        self._prepared.add(shell)
        try:
            await shell.open()
        except BaseException:
            await self.discard(shell)
            raise
        return shell

    async def discard(self, shell: Shell) -> None:
        """Closes a prepared shell, unless the connector has closed it at its end."""
        if shell in self._prepared:
            self._prepared.remove(shell)
            await asyncio.shield(shell.close())

    async def replace(self, shell: Shell) -> None:
        """Ends the present shell, with what is under way in it, and starts this one around the same core.

        It goes on to its end, or to that of the connector, even if the caller is cancelled.
        """
        self._prepared.remove(shell)
        self._replacing = asyncio.get_running_loop().create_task(self._replace(shell))
        await asyncio.wait([self._replacing])
        if not self._replacing.cancelled():  # by `stop`: whoever restarts other connectors too goes on with them
            self._replacing.result()

    @property
    def max_message_bytes(self) -> int | None:
        """Of the change topic, as it was seen last: a change is seen within a minute. None before the start."""
        return self._shell.clients.max_message_bytes

    def repair(self, segments: Container[int]) -> None:
        """Resets those of these segments that a refused record stopped."""
        for segment in self.core.primaries():
            if segment.number in segments and segment.phase is Phase.STOPPED:
                self.core.request_reset(segment.number, "refused")
        self.wake()

    async def _replace(self, shell: Shell) -> None:
        old, closing, config = self._shell, asyncio.ensure_future(self._shell.close()), shell.config
        self._shell = shell  # so that `stop` closes it
        try:
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await closing
                raise
            self._dropped += old.clients.dropped
            self.core.renew()
            self.core.configured(settings_of(config, shell.pipeline))
            self.signals.configured(config)
            self._notifications.configured(config)
            self.apply(Event.RENEW)
            await shell.start()
        except Exception as error:
            shell.tasks.fail(error)  # the state is neither the old nor the new one
            raise
        self._serve()

    def _is_written(self, segment: int, epoch: int, sequence: int) -> bool:
        """Whether Kafka is known to hold the segment up to `sequence`, or this node no longer writes it in `epoch`."""
        seg = next((s for s in self.core.primaries() if s.number == segment and s.epoch == epoch), None)
        if seg is None or seg.phase in (Phase.STOPPED, Phase.RELEASED):
            return True
        return seg.phase is Phase.WRITING and seg.owed is None and (seg.written or 0) >= sequence

    def _has_read_back(self) -> bool:
        """Whether the positions of all committed operations were read back."""
        return all(s.phase is not Phase.WRITING or (s.written or 0) >= s.sent for s in self.core.primaries())

    async def _wait_for(self, condition: Callable[[], bool], until: float) -> None:
        while not condition():
            if self.failure.done():
                self.failure.result()
            if self._port.clock.monotonic() > until:
                why = "Kafka did not take what there is to write in time"
                if withheld := self.core.withheld:
                    why += f": no records go to partitions {ranges(withheld)}; pause the connector first, to stop "
                    why += "with what is not written"
                raise TimeoutError(why)
            await asyncio.sleep(_LOOK_SECONDS)

    # -- counters -------------------------------------------------------------------------------------------------

    @property
    def failed_transactions(self) -> Mapping[Cause, int]:
        """Transactions that were not committed, by cause."""
        return self.observed.failed

    @property
    def stats(self) -> Stats:
        """A copy of the counters."""
        return Stats.of(
            self.core,
            zombie_commits_refused=self.observed.failed[Cause.FENCED],
            signals=self.signals.counts,
            snapshots=self.snapshots.running,
            announcements_dropped=self._dropped + self._shell.clients.dropped,
            halted=str(self.halted or ""),
            **self.observed.piped,
        )

    # -- the loop -------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        core, clock, carry_out_all = self.core, self._port.clock, self._shell.executor.carry_out_all
        while True:
            self._changed.clear()
            carry_out_all(core.poll(clock.monotonic(), clock.time_ns() // 1000))
            self.snapshots.work(clock.monotonic())
            self._progress.look(core.primaries())
            if core.finished and not self.finished.done():
                self.finished.set_result(None)
            wait = max(0.001, core.next_poll(clock.monotonic()) or self.config["commit.interval.ms"] / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):  # not `wait_for`: of Python 3.11 it may swallow a cancellation
                    await self._changed.wait()

    async def _announce(self) -> None:
        """Sends notifications of segments, and heartbeats."""
        key = heartbeat_key(self.config["topic.prefix"], self.config["key.converter.schemas.enable"])
        last, clock, interval = -math.inf, self._port.clock, self.config["heartbeat.interval.ms"] / 1000
        while True:
            await asyncio.sleep(min(ANNOUNCE_SECONDS, interval))
            self._progress.announce()
            due = clock.monotonic() >= last + interval
            if due and any(s.phase is Phase.WRITING for s in self.core.primaries()):
                last = clock.monotonic()
                value = heartbeat_value(
                    self._port.clock.time_ns() // 1_000_000, self.config["value.converter.schemas.enable"]
                )
                self._shell.clients.send(self.config.topics.heartbeat, key, value, 0)
