"""The shell around the core: one connector of one node, on an asyncio loop.

The core runs on the loop's thread, between two awaits, so that it needs no lock and a cache on the same loop sees it
consistent. Everything that blocks (produce and commit, the tail of the positions topic, scans, fences, questions to
the brokers) runs in a few threads of its own and comes back as an event.

Weighed: a thread that owns core and producer, with queues to the cache (every capture crosses threads, and a reset
must stop the cache to read it), the client's asyncio producer (its commit still blocks a thread, and one transaction
is under way at a time anyway), and this.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from tenacity import (
    AsyncRetrying,
    before_sleep_log,
    retry_all,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_delay,
    stop_never,
    stop_when_event_set,
    wait_exponential_jitter,
)
from tenacity.stop import StopBaseT

from deelog_connector.cache_side import CacheSide, ReplicaSink
from deelog_connector.core import ConnectorCore, Settings
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
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.best_effort import BestEffortProducer
from deelog_connector.kafka.consumer import can_read, still_holds
from deelog_connector.kafka.fencing import fence
from deelog_connector.kafka.opening import REQUEST_SECONDS, KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.records import InRecord, WriteFailed
from deelog_connector.kafka.scanner import Scanner
from deelog_connector.kafka.tail import Tail
from deelog_connector.kafka.topics import audit, ensure_topics
from deelog_connector.kafka.writer import Writer
from deelog_connector.runtime.encode import Decoder, Encoder
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.signals.incremental_snapshots import Snapshots
from deelog_connector.signals.notifications import Notifications
from deelog_connector.signals.processor import Signals
from deelog_connector.signals.segment_progress import SegmentProgress
from deelog_connector.transforms.dead_letters import DeadLetterEncoder
from deelog_connector.transforms.pipeline import SLOW_SECONDS, PipedItem, Pipeline, TransformFailed
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.errors import DeelogError
from deelog_schemas.formats import codec_of, connected
from deelog_schemas.member import node_id_of
from deelog_schemas.notifications import heartbeat_key, heartbeat_value
from deelog_schemas.positions import ClaimState, decode_state
from deelog_schemas.records import ON_POSITIONS, decode
from deelog_schemas.signals import encode_progress, progress_key

log = logging.getLogger(__name__)

SCAN_SECONDS: Final = 15.0
"""How long a scan waits for its own record behind somebody's open transaction before it calls for a fence."""
WATCH_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 2.0
"""How long a scan for what consumers hold goes on before others of its partition have their turn."""
RETRY_SECONDS: Final = 0.2
DENIED_SECONDS: Final = 1.0
TELL_SECONDS: Final = 0.3
"""How often notifications of many segments are put together and told."""
SCANNERS: Final = 4

T = TypeVar("T")


class SupersededError(DeelogError):
    """A newer process with the same `node.id` is alive; this one must end."""

    exit_code = 6


class RetriesExhausted(DeelogError):
    """Kafka could not be written to, as often in a row as `errors.max.retries` allows."""

    exit_code = 9


class MapError(DeelogError):
    """The topic was written with another map of segments."""

    exit_code = 5


@dataclass(slots=True)
class Stats:
    """Counters of a connector, for reports. `takeover_ms`: from promotion to writing, one for each takeover."""

    takeovers: int = 0
    takeover_ms: list[float] = field(default_factory=list)
    resets: dict[str, int] = field(default_factory=dict)
    reset_rows: int = 0
    reset_deletes: int = 0
    written: int = 0
    pruned: int = 0
    transactions: int = 0
    fenced: int = 0
    zombie_commits_refused: int = 0
    corrections: int = 0
    overflow: dict[str, int] = field(default_factory=dict)
    unwritten: int = 0
    stopped: dict[int, str] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)
    snapshot_rows: int = 0
    snapshots: list[str] = field(default_factory=list)
    """Ids of the incremental snapshots that are not complete."""
    announcements_dropped: int = 0
    filtered: int = 0
    """Changes and rows that `skipped.operations` or a transform left out, `erroneous` those that one failed on. Of a
    transaction that was tried again they count again."""
    erroneous: int = 0
    halted: str = ""
    """Why nothing is written until `resume()`."""


class Connector:
    """One connector: all segments of one cache, on one node.

    `member` is `<node.id>@<incarnation>`, `connector_name` the short name in the source schema (`grid`,
    `cachetools`). Call `start` once, `stop` at the end; watch `failure`, which gets the exception when the connector
    cannot go on: the process should then end; and `finished`, which is done once there is nothing more to capture
    (`snapshot.mode=initial_only`): stop it then. Not thread-safe: everything on the loop's thread.
    """

    def __init__(self, config: Config, member: str, cache_side: CacheSide, *, connector_name: str) -> None:
        self.config = config
        self.member = member
        self._cache = cache_side
        self._topics = config.topics
        self._partitions: int = config["topic.creation.default.partitions"]
        self._pipeline = Pipeline.of(config)
        self.core = ConnectorCore(member, _settings(config, self._pipeline), cache_side)
        self._connector_name = connector_name
        self._encoder: Encoder
        self._decoder: Decoder
        self.observed = EventMeter()
        self._brokers = KafkaAdmin(config)
        self._writer: Writer | None = None
        self._threads = ThreadPoolExecutor(SCANNERS + 4, thread_name_prefix="deelog")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="deelog-writer")
        self._scanners: asyncio.Queue[Scanner] = asyncio.Queue(SCANNERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = threading.Event()
        self._readers: list[asyncio.Task[None]] = []
        self._yielding = threading.Event()
        """Set while the producer is to be closed: a session that does not come is waited for no longer."""
        self._readers_end = threading.Event()
        """Set while a restart waits for the readers to close their own clients."""
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._causes: Counter[Cause] = Counter()
        self._has_read = False
        self._announcer = BestEffortProducer(config)
        cache = self._topics.cache
        notifications = Notifications(config, cache, self._announcer)
        self._watcher = SegmentProgress(notifications, member)
        key, topic = progress_key(config["topic.prefix"]), self._topics.signal
        self.snapshots = Snapshots(
            self.core,
            cache,
            member,
            lambda progress: self._announcer.send(topic, key, encode_progress(progress), 0),
            notifications,
        )
        self._signals = Signals(config, {cache: self})
        self.started = False
        """The positions topic was read to its end."""
        self._errors = 0
        """Of the producer, since the last transaction that was committed."""
        self.halted: DeelogError | None = None
        """Why nothing is written until `resume()`: a transform failed, and may not. Unlike a `failure` it leaves the
        process alive, and what was captured in the op log: a cache is worth more than its changes, and a node that
        ended for it would hand its operations to the next one, to end there."""
        self.wants_pause = False
        """Whether somebody asked for a pause that nobody has ended: it outlasts a restart, a stop and a halt."""
        self.held = False
        """While it is being stopped or restarted: pauses and resumes are wishes until that is over."""
        self.ending = False
        """It writes what it captured and ends: nobody pauses it any more."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Makes and audits the topics, reads the positions topic to its end, and starts to work.

        Raises `KafkaUnusable` where brokers or topics are not as they must be, `MapError` where the topic was
        written with another number of segments or partitions, `RecordError` on a foreign record, `RegistryError` where
        a schema registry is asked for and does not serve.
        """
        # First of all, so that nothing is written, not even a topic, where records could not be.
        await self._blocking(self._choose_codec)
        await self._blocking(ensure_topics, self._brokers, self.config)
        limit = await self._blocking(audit, self._brokers, self.config)
        self._writer = self._new_writer(self.config, limit)
        for _ in range(SCANNERS):
            self._scanners.put_nowait(Scanner(self.config, self._topics.changes))
        self.core.topic_is(await self._at_start(self._blocking, self._brokers.topic_id, self._topics.changes))
        await self._at_start(self._watch_ends)
        self.observed.kafka_answered(time.monotonic())
        caught_up = asyncio.Event()
        self._readers = [self._spawn(self._follow(caught_up))]
        waiter: asyncio.Future[Any] = asyncio.ensure_future(caught_up.wait())
        await asyncio.wait({waiter, self.failure}, return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done():
            waiter.cancel()
            await self.stop(release=False)
            self.failure.result()
        await self._follow_signals()
        if "file" in self.config["signal.enabled.channels"]:
            self._spawn(self._signals.watch_file(self._blocking, self._stopping))
        self.started = True
        self._spawn(self._drive())
        self._spawn(self._watch())
        self._spawn(self._tell())

    def _new_writer(self, config: Config, max_message_bytes: int) -> Writer:
        identity = self._topics.transactional_id_node(node_id_of(self.member))
        return Writer(config, identity, max_message_bytes, self._writer is not None and self._writer.has_written)

    async def _follow_signals(self) -> None:
        if "kafka" in self.config["signal.enabled.channels"]:
            blocking = partial(self._at_start, self._blocking)
            await self._signals.catch_up(blocking)
            self._readers.append(self._spawn(self._signals.follow(blocking, self._readers_end)))

    def _choose_codec(self) -> None:
        config = self.config
        codec = codec_of(connected(config, self._connector_name), self._connector_name)
        self._encoder = Encoder(
            codec,
            self._topics.changes,
            self._topics.positions,
            self.member,
            config["tombstones.on.delete"],
            config["tracing.headers.enabled"],
            _context(config),
            DeadLetterEncoder(config) if config["event.processing.failure.handling.mode"] == "dead-letter" else None,
        )
        self._decoder = Decoder(codec, self.core.segments)

    async def stop(self, release: bool = True) -> None:
        """Writes what is acknowledged and releases the segments, then closes every client. Bounded; logs what is left.

        Capture must have ended. With `release=False` it just closes: the next start then resets.
        """
        if release and not self.failure.done():
            self.end()
            await self._release_all()
        self._stopping.set()
        self._readers_end.set()
        if self._writer:
            self._writer.closing = True
        if self._pipeline:
            self._pipeline.closing.set()
        self._changed.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._close)
        if not self.failure.done():
            self.failure.cancel()

    async def _release_all(self) -> None:
        mine = [s.number for s in self.core.primaries()]
        for number in mine:
            self.core.release(number)
        self.wake()
        until = time.monotonic() + self.config["transaction.timeout.ms"] / 1000 * 2
        while time.monotonic() < until and not self.failure.done() and not self.halted:
            left = [s.number for s in self.core.primaries() if s.phase != "released" and not s.stopped_by]
            if not left:
                return
            await asyncio.sleep(0.02)
        log.warning("%d of %d segments are not released: their next owner resets them", len(left), len(mine))

    def _close(self) -> None:
        self._writing.shutdown(wait=True, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._scanners.empty():
            self._scanners.get_nowait().close()
        if self._writer:
            self._writer.discard()
        self._watcher.tell()
        self._announcer.close()
        self._brokers.close()

    # -- for the interceptor --------------------------------------------------------------------------------------

    @property
    def sink(self) -> ReplicaSink:
        """What takes the changes of the cache."""
        return self.core

    def wake(self) -> None:
        """Something changed that should not wait for the commit interval."""
        self._changed.set()

    @property
    def paused(self) -> bool:
        """Whether nothing is written to Kafka for now."""
        return self.core.paused

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it, and not a restart for a moment."""
        return self.core.closed and not self.held

    def pause(self) -> None:
        """From the next transaction on nothing is written; op logs keep what is captured, to their limit, and then
        a reset is owed. A stop writes what was captured all the same."""
        if self.ending:
            log.warning("the connector is at its end: it is not paused")
            return
        self.wants_pause = True
        self.core.paused = self.core.paused or not self.held

    def resume(self) -> None:
        """Writes again, beginning with what was captured meanwhile; after a halt, with what it failed on."""
        self.wants_pause, self.halted = False, None
        if not self.held:
            self.core.paused = self.core.closed = False
            self.wake()

    def let_go(self, stopped: bool) -> None:
        """Behind a `suspend` and what was done meanwhile: it is stopped, or as is wished by now."""
        self.held = False
        if not stopped:
            self.core.closed, self.core.paused = False, self.wants_pause
            self.halted = None
        self.wake()

    def end(self) -> None:
        """It writes what it captured, whoever paused it, and nobody pauses it any more: call `stop` then."""
        self.ending, self.held = True, False
        self.resume()

    async def suspend(self, seconds: float, write_out: bool) -> None:
        """Pauses, and closes the producer; with `write_out` writes first what is acknowledged by now, unless paused.

        Capture goes on into the op log. Call `let_go` behind it. Raises `TimeoutError` where Kafka does not take it
        within `seconds`, and has gone on then as is wished.
        """
        was_paused, was_closed, writer = self.paused, self.core.closed, self._writer
        self.held = True
        until = time.monotonic() + seconds
        assert writer is not None
        try:
            if write_out and not was_paused:
                marks = [(s.number, s.epoch, s.acked) for s in self.core.primaries()]
                await self._wait_for(lambda: all(self._holds(*mark) for mark in marks), until)
            self.core.paused = self.core.closed = True
            # What waits for Kafka gives up: nothing of it is needed, and Kafka may be away for as long as it likes.
            self._yielding.set()
            writer.closing = not write_out
            await self._wait_for(lambda: self.core.idle, until)
            if write_out and not was_paused:  # else the offsets of what is stopped would still move
                await self._wait_for(self._has_read_back, until)
        except BaseException:
            self.let_go(was_closed)
            raise
        finally:
            self._yielding.clear()
            writer.closing = False
        if not was_closed:
            self.core.close_producer()
            await self._write_thread(writer.discard)

    async def restart(self, config: Config) -> None:
        """Closes every client of a suspended connector and makes them anew by `config`, which has the same topics.

        Raises `KafkaUnusable` where Kafka does not answer to `config`; nothing is changed then.
        """
        assert self.core.closed, "suspend it first"
        brokers = KafkaAdmin(config)
        limit = await self._blocking(audit, brokers, config)
        # All that can be wrong with the configuration shows before anything is closed.
        writer = self._new_writer(config, limit)
        await self._blocking(writer.settings)
        await self._blocking(can_read, config)
        try:
            await self._replace(config, brokers, writer)
        except Exception as error:
            if not self.failure.done():  # neither as before nor as asked for
                self.failure.set_exception(error)
            raise

    async def _replace(self, config: Config, brokers: KafkaAdmin, writer: Writer) -> None:
        self._readers_end.set()
        # They end by themselves: a consumer that is closed under the thread that reads from it takes the process along.
        await asyncio.gather(*self._readers)
        self._readers_end.clear()
        self._brokers.close()
        await self._blocking(self._announcer.renew(config))
        for _ in range(SCANNERS):
            scanner = await self._scanners.get()  # where one is at work, once it is done
            await self._blocking(scanner.close)
            self._scanners.put_nowait(Scanner(config, self._topics.changes))
        self.config, self._brokers, self._writer = config, brokers, writer
        self.core.configured(_settings(config, self._pipeline))
        self._signals.config = config
        self._encoder.tombstones = config["tombstones.on.delete"]
        # The positions topic is read from its beginning, as at a start, before anything may be written.
        caught_up = asyncio.Event()
        self._readers = [self._spawn(self._follow(caught_up))]
        await self._follow_signals()
        await self._wait_for(caught_up.is_set, float("inf"))

    def _holds(self, segment: int, epoch: int, sequence: int) -> bool:
        """Whether Kafka is known to hold a segment of ours up to there; also where it is no longer ours to write."""
        seg = next((s for s in self.core.primaries() if s.number == segment and s.epoch == epoch), None)
        if seg is None or seg.phase in ("stopped", "released"):
            return True
        return seg.phase == "writing" and seg.owed is None and (seg.written or 0) >= sequence

    def _has_read_back(self) -> bool:
        """Whether the positions of all that was committed have come back."""
        return all(s.phase != "writing" or (s.written or 0) >= s.sent for s in self.core.primaries())

    async def _wait_for(self, condition: Callable[[], bool], until: float) -> None:
        while not condition():
            if self.failure.done():
                self.failure.result()
            if time.monotonic() > until:
                raise TimeoutError("Kafka did not take what there is to write in time")
            await asyncio.sleep(0.02)

    async def make_room(self, segment: int, size: int) -> None:
        """Returns once `size` bytes may be appended, by `oplog.overflow`: block, coalesce or reset."""
        policy = self.config["oplog.overflow"]
        core = self.core
        if policy == "coalesce":
            core.coalesce_all()
        elif policy == "block" and not core.paused:  # nobody makes room while nothing is written
            until = time.monotonic() + self.config["max.block.ms"] / 1000
            while not core.has_room(size) and (left := until - time.monotonic()) > 0:
                core.counts.overflows["block"] += 1
                self._room.clear()
                try:
                    await asyncio.wait_for(self._room.wait(), left)
                except TimeoutError:
                    break
        core.make_room(segment, size)

    @property
    def failed_transactions(self) -> Mapping[Cause, int]:
        """How many transactions were not committed, by cause."""
        return self._causes

    @property
    def signals(self) -> Mapping[str, int]:
        """Signals by outcome."""
        return self._signals.counts

    @property
    def stats(self) -> Stats:
        """A copy of the counters."""
        counts = self.core.counts
        return Stats(
            takeovers=counts.takeovers,
            takeover_ms=[round(s * 1000, 1) for s in counts.takeover_seconds],
            resets=dict(counts.resets),
            reset_rows=counts.reset_rows,
            reset_deletes=counts.reset_deletes,
            written=counts.written,
            pruned=counts.pruned,
            transactions=counts.transactions,
            fenced=counts.fenced,
            zombie_commits_refused=self._causes[Cause.FENCED],
            corrections=counts.corrections,
            overflow=dict(counts.overflows),
            unwritten=self.core.unwritten(),
            stopped={s.number: s.stopped_by for s in self.core.primaries() if s.stopped_by},
            signals=dict(self._signals.counts),
            snapshot_rows=counts.snapshot_rows,
            snapshots=self.snapshots.running,
            announcements_dropped=self._announcer.dropped,
            filtered=self._pipeline.counts["filtered"] if self._pipeline else 0,
            erroneous=self._pipeline.counts["erroneous"] if self._pipeline else 0,
            halted=str(self.halted or ""),
        )

    # -- the loop -------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        core = self.core
        while not self._stopping.is_set():
            self._changed.clear()
            for effect in core.poll(time.monotonic(), time.time_ns() // 1000):
                self._carry_out(effect)
            self.snapshots.work(time.monotonic())
            self._watcher.look(core.primaries())
            if core.finished and not self.finished.done():
                self.finished.set_result(None)
            wait = max(0.001, core.next_poll(time.monotonic()) or self.config["commit.interval.ms"] / 1000)
            try:
                await asyncio.wait_for(self._changed.wait(), wait)
            except TimeoutError:
                continue

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Commit):
            self._spawn(self._commit(effect))
        elif isinstance(effect, Scan):
            self._spawn(self._scan(effect))
        elif isinstance(effect, OpenProducer):
            self._spawn(self._open())
        elif isinstance(effect, Fence):
            self._spawn(self._fence(effect))
        elif isinstance(effect, Corrected):
            self._cache.corrected(effect.segment, list(effect.operations))
        elif isinstance(effect, Released):
            self._cache.released(effect.segment)
        elif isinstance(effect, SteppedDown):
            log.warning("segment %d: stepped down, %s", effect.segment, effect.reason)
            self._cache.stepped_down(effect.segment, effect.reason)
        elif isinstance(effect, SnapshotRead | SnapshotRefused):
            self.snapshots.heard(effect)
        elif isinstance(effect, Superseded):
            raise SupersededError(f"{effect.by} is a newer process with this node.id; {self.member} ends")

    async def _open(self) -> None:
        assert self._writer is not None
        try:
            await self._retrying(self._write_thread, self._writer.open, stop=stop_when_event_set(self._yielding))
        except WriteFailed as error:
            log.warning("no session is opened: %s", error)
            self.core.opening_given_up()
        else:
            self.core.producer_opened()
        self.wake()

    async def _commit(self, effect: Commit) -> None:
        writer = self._writer
        assert writer is not None
        began = time.monotonic()
        try:
            items = await self._piped(effect)
            await self._write_thread(lambda: writer.commit(self._encoder.records(items)))
        except WriteFailed as error:
            log.log(logging.ERROR if error.denied else logging.WARNING, "transaction not committed: %s", error)
            self._causes[error.cause] += 1
            if error.denied:  # until somebody grants the right again: nothing is lost meanwhile, and nobody is hurried
                await asyncio.sleep(DENIED_SECONDS)
            self.core.commit_failed(effect.token, error.cause)
            self._count(error)
        except TransformFailed as error:
            self._halt(error)
            self.core.commit_failed(effect.token, Cause.LOST)
        else:
            self.observed.committed(self._encoder.tally, time.monotonic() - began)
            if self._pipeline is not None:
                counts = self._pipeline.counts
                self.observed.filtered, self.observed.erroneous = counts["filtered"], counts["erroneous"]
            self._errors = 0
            self.core.committed(effect.token)
        self.wake()

    async def _piped(self, effect: Commit) -> Sequence[PipedItem]:
        pipeline = self._pipeline
        if pipeline is None:
            return effect.items
        work = asyncio.ensure_future(self._write_thread(pipeline, effect.items))
        while not (await asyncio.wait({work}, timeout=SLOW_SECONDS))[0]:
            since, alias = pipeline.at or (time.monotonic(), "")
            log.warning(
                "transform %s: %.0f s on one record; nothing is written meanwhile", alias, time.monotonic() - since
            )
        items: list[PipedItem] = work.result()
        return items

    def _halt(self, error: DeelogError) -> None:
        log.error("the connector stops writing: %s", error)
        self.halted, self.core.paused = error, True

    def _count(self, error: WriteFailed) -> None:
        """Raises `RetriesExhausted` after one error too many; that a node is fenced is how a takeover works."""
        most = self.config["errors.max.retries"]
        if error.cause is not Cause.LOST:
            return
        self._errors += 1
        if 0 <= most < self._errors:
            raise RetriesExhausted(
                f"{self._errors} errors in a row, errors.max.retries={most} allows no more: {error}; mend what it "
                "names and start again, or allow more"
            ) from error

    async def _fence(self, effect: Fence) -> None:
        ids = [self._topics.transactional_id_node(n) for n in sorted(effect.node_ids)]
        log.info("fencing %s for %d segments", ", ".join(sorted(effect.node_ids)), len(effect.segments))
        fences = (self._retrying(self._blocking, fence, self.config, one) for one in ids)
        await asyncio.gather(*fences)
        self.core.fenced(effect.segments)
        self.wake()

    async def _scan(self, effect: Scan) -> None:
        wanted, early = set(effect.until), False
        while not self._stopping.is_set():
            scanner = await self._scanners.get()  # at most SCANNERS at once; each comes back when it is done
            try:
                early = await self._blocking(self._read_up_to, scanner, effect, wanted)
                self._has_read = True
                break
            except (KafkaUnusable, ConfigError) as error:
                passing = isinstance(error, KafkaUnavailable) and not isinstance(error, KafkaUnauthorized)
                if not passing and not self._has_read:
                    raise
                log.warning("%s; trying again", error)
                await self._blocking(scanner.close)
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._scanners.put_nowait(scanner)
        if wanted and not early:
            log.error(
                "partition %d of %s: own record not readable after %.0f s; an open transaction of another client "
                "holds it back",
                effect.partition,
                self._topics.changes,
                SCAN_SECONDS,
            )
        self.core.scan_ended(effect.partition, early or not wanted)
        self.wake()

    def _read_up_to(self, scanner: Scanner, effect: Scan, wanted: set[bytes]) -> bool:
        """In a thread: hands over batches until all that is wanted was among them; whether it ended early instead."""
        loop, until = self.failure.get_loop(), time.monotonic() + GATHER_SECONDS
        for batch in scanner.read(effect.partition, effect.from_offset, SCAN_SECONDS):
            records = self._decoder.scanned(batch, effect.keys)
            loop.call_soon_threadsafe(self.core.scanned, effect.partition, records)
            wanted.difference_update(r.key for r in records)
            if not wanted or self._stopping.is_set():
                return False
            if effect.keys and time.monotonic() > until:
                return True
        return False

    async def _follow(self, caught_up: asyncio.Event) -> None:
        """The tail of the positions topic: it prunes, and shows one's own claims."""
        topic = self._topics.positions
        made = partial(Tail, self.config, topic, self._partitions, serves=self.started)
        tail = await self._at_start(self._blocking, made)
        try:
            while not self._readers_end.is_set():
                for raw in await self._blocking(tail.read, 0.1):
                    self._state_read(raw)
                if tail.caught_up:
                    caught_up.set()
        finally:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, tail.close))

    def _state_read(self, raw: InRecord) -> None:
        record = decode(raw.topic, raw.partition, raw.offset, raw.key, raw.value, raw.headers, ON_POSITIONS)
        try:
            read = decode_state(record.key, record.value, record.header.kind)
        except DeelogError as error:
            raise type(error)(f"{raw.topic}[{raw.partition}]@{raw.offset}: {error}") from error
        state = read.state
        if isinstance(state, ClaimState) and (state.segments, state.partitions) != (
            self.core.segments,
            self._partitions,
        ):
            raise MapError(
                f"{raw.topic}[{raw.partition}]@{raw.offset}: {state.member} claims with "
                f"segment.count={state.segments} on {state.partitions} partitions, this node has {self.core.segments} "
                f"on {self._partitions}: set segment.count and topic.creation.default.partitions to what the topic was "
                "made with"
            )
        self.core.state_read(read)
        self._room.set()
        if state is not None and not isinstance(state, ClaimState):
            return
        self.wake()

    async def _watch(self) -> None:
        """Ends, leader epochs and the topic's id, every second: what Kafka can do to us."""
        while not self._stopping.is_set():
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self._watch_ends()
                topic_id = await self._blocking(self._brokers.topic_id, self._topics.changes)
            except (KafkaUnusable, ConfigError) as error:  # a file of secrets that is just being written, among others
                log.warning("Kafka does not answer: %s", error)
                self.observed.kafka_away = str(error)
                continue
            self.observed.kafka_answered(time.monotonic())
            self.core.topic_is(topic_id)
            self.wake()

    async def _watch_ends(self) -> None:
        for end in await self._blocking(self._brokers.ends, self._topics.changes, range(self._partitions)):
            offset, epoch = self.core.end_of(end.partition)
            intact: bool | None = None
            if self.core.doubts(end.partition, end.offset, end.leader_epoch):
                topic = self._topics.changes
                intact = await self._blocking(still_holds, self.config, topic, end.partition, offset, epoch)
            lost = self.core.end_read(end.partition, end.offset, end.leader_epoch, intact)
            if lost:
                log.error(
                    "%s[%d] was truncated to %d: segments %s are reset",
                    self._topics.changes,
                    end.partition,
                    end.offset,
                    lost,
                )

    async def _tell(self) -> None:
        """Notifications of what the watcher saw, and heartbeats."""
        key = heartbeat_key(self.config["topic.prefix"], self.config["key.converter.schemas.enable"])
        last = -math.inf
        while not self._stopping.is_set():
            interval = self.config["heartbeat.interval.ms"] / 1000  # a restart may have changed it
            await asyncio.sleep(min(TELL_SECONDS, interval))
            self._watcher.tell()
            due = time.monotonic() >= last + interval
            if due and any(s.phase == "writing" for s in self.core.primaries()):
                last = time.monotonic()
                schemas = self.config["value.converter.schemas.enable"]
                self._announcer.send(
                    self._topics.heartbeat, key, heartbeat_value(time.time_ns() // 1_000_000, schemas), 0
                )
            self._announcer.poll()

    # -- threads and tasks ----------------------------------------------------------------------------------------

    async def _blocking(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    async def _write_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._writing, call, *args)

    async def _retrying(self, run: Callable[..., Awaitable[Any]], *args: Any, stop: StopBaseT = stop_never) -> None:
        async def once() -> None:
            try:
                await run(*args)
            except WriteFailed as error:
                self._count(error)
                raise

        await self._again_on(WriteFailed, stop, once)

    async def _at_start(self, run: Callable[..., Awaitable[T]], *args: Any) -> T:
        # Partitions of a topic that was just made, or of a broker that is just back, have no leader for a moment.
        # Later, in a restart, Kafka may be away for as long as it likes.
        stop = stop_never if self.started else stop_after_delay(REQUEST_SECONDS)
        error = (KafkaUnusable, ConfigError) if self.started else KafkaUnavailable
        return await self._again_on(error, stop, run, *args)

    async def _again_on(
        self,
        error: type[Exception] | tuple[type[Exception], ...],
        stop: StopBaseT,
        run: Callable[..., Awaitable[T]],
        *args: Any,
    ) -> T:
        # What a node that starts is refused ends it; one that runs asks on.
        ends = () if self.started else KafkaUnauthorized
        retry = retry_all(retry_if_exception_type(error), retry_if_not_exception_type(ends))
        longest = self.config["retriable.restart.connector.wait.ms"] / 1000
        wait = wait_exponential_jitter(multiplier=0.1, max=longest)
        said = before_sleep_log(log, logging.WARNING)
        return await AsyncRetrying(retry=retry, stop=stop, wait=wait, before_sleep=said, reraise=True)(run, *args)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self.failure.done() and not self._stopping.is_set():
            log.error("the connector cannot go on: %s", error)
            self.failure.set_exception(error)


def _context(config: Config) -> tuple[tuple[str, str], ...]:
    """Debezium's context headers."""
    if not config["extended.headers.enabled"]:
        return ()
    told = {
        "connectorLogicalName": config["topic.prefix"],
        "taskId": "0",
        "connectorName": config["name"],
        "runId": str(uuid.uuid4()),
    }
    return tuple((f"__debezium.context.{name}", value) for name, value in told.items())


def _settings(config: Config, pipeline: Pipeline | None) -> Settings:
    return Settings(
        segments=config["segment.count"],
        partitions=config["topic.creation.default.partitions"],
        max_batch_size=config["max.batch.size"],
        chunk_size=config["incremental.snapshot.chunk.size"],
        commit_interval=config["commit.interval.ms"] / 1000,
        heartbeat_interval=config["heartbeat.interval.ms"] / 1000,
        patience=SCAN_SECONDS,
        max_operations=config["max.queue.size"],
        max_bytes=config["max.queue.size.in.bytes"],
        acks_all=config["cache.acks"] == "all",
        reset_strategy=Strategy(config["reset.strategy"]),
        reset_interval=config["reset.interval.ms"] / 1000,
        snapshot_mode=SnapshotMode(config["snapshot.mode"]),
        may_skip=pipeline is not None and pipeline.may_skip,
    )


__all__ = ["Connector", "MapError", "RetriesExhausted", "Stats", "SupersededError"]
