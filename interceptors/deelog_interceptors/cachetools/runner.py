"""The connector of one captured cache, on the loop of its host.

It drains the queue on a fixed tick instead of being woken: waking a loop costs the writer some 5 µs, and a
transaction waits `commit.interval.ms` anyway.

A cache of one process owns all segments: the epoch is one above the highest claim, every segment is reset once at the
start, since the cache of a new process holds other entries, and an operation is acknowledged as soon as it has a
position. What changes before that, while Kafka is away perhaps, is in the mirror alone, and in that reset.

Weighed in docs/decisions.md, "`capture()` does not wait for Kafka".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from deelog_connector.cache_side import CaptureSink
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, NodeSuperseded
from deelog_connector.metrics.shared_server import MetricsShare
from deelog_connector.runtime import Connector, Stats
from deelog_interceptors.cachetools.change_queue import ChangeQueue
from deelog_interceptors.cachetools.errors import CaptureFailed
from deelog_interceptors.cachetools.metrics import CaptureMetrics
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.refused import Refused
from deelog_interceptors.cachetools.serialize import Raw, encoded
from deelog_interceptors.cachetools.telling import CaptureContext, Skipped
from deelog_interceptors.hosting.connector_thread import ConnectorThread
from deelog_interceptors.hosting.process import behind
from deelog_schemas.config import Config
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.keys import segment_of
from deelog_schemas.member import Member
from deelog_schemas.operation import OVERHEAD, Entry, Operation

_LOG: Final = logging.getLogger("deelog.cachetools")
_SLICE: Final = 64
"""Changes drained before the thread lets go of the interpreter lock: about 0.2 ms."""
_RESTS: Final = 100
"""After so many ticks without a change they are `_RESTING` times as long: an idle cache costs little."""
_RESTING: Final = 5
_HERE_SECONDS: Final = 1.0
"""`start()` waits so long for what needs no Kafka: it takes milliseconds, unless other caches are being restarted."""
_FIRST_WAIT_SECONDS: Final = 0.5
"""Before a start that Kafka did not answer is tried again; then twice as long, up to:"""
_LONGEST_WAIT_SECONDS: Final = 10.0
_FREE_BYTES: Final = 1 << 20
"""What the queue takes at a time until there is an op log."""
_MAX_STEP_DOWNS: Final = 3
"""Other processes may claim the segments this often in a row before the capture fails."""
_SETTLED_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 1.0
"""Beyond the time that a stop has: for the release of what is written, and to close."""


class Runner:
    """Runs the connector until `stop()`, until it fails (`failed` is called once), or until the snapshot of
    `snapshot.mode=initial_only` is complete (`finished` is called).
    """

    def __init__(
        self,
        config: Config,
        mirror: Mirror,
        changes: ChangeQueue,
        skipped: Skipped,
        failed: Callable[[BaseException], None],
        finished: Callable[[], None],
        host: ConnectorThread,
    ) -> None:
        self._host = host
        self._work: concurrent.futures.Future[None] | None = None
        self._config, self._mirror, self._change_queue, self._failed = config, mirror, changes, failed
        self._skipped = skipped
        self.refused = Refused(str(config["cache.name"]), EntryLimit.of(config), mirror, skipped)
        self._finished = finished
        self._name, self._segments = str(config["cache.name"]), int(config["segment.count"])
        self._tick = min(0.02, max(0.001, config["commit.interval.ms"] / 5000))
        self._max_block = config["max.block.ms"] / 1000
        self._joined: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once the connector is made, and its ports are open. Cancelled by whoever does not wait for it."""
        self.streaming: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once Kafka has all segments as they were, and their changes follow; gets what has ended it before."""
        self.start_error: BaseException | None = None
        """Why Kafka could not be used at the last try."""
        self._begin, self._stop = threading.Event(), threading.Event()
        self._stop_seconds, self._stop_by = 0.0, math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connector: Connector | None = None
        self._connectors: dict[str, Connector] = {}
        """That one by name, for the metrics."""
        self._served: MetricsShare | None = None
        self._failure: BaseException | None = None
        """Was passed to `failed`."""
        self._unstreamed = set(range(self._segments))
        """Segments of which the first reset is not in Kafka."""
        self._sink: CaptureSink | None = None
        """The core, once the segments are promoted."""
        self.stop_error: BaseException | None = None

    def start(self) -> None:
        """Begins to start. Raises what is wrong in this process: a transform, a port in use."""
        self._work = self._host.spawn(self._run())
        try:
            self._joined.result(_HERE_SECONDS)
        except TimeoutError:
            if not self._joined.cancel():  # it came just now
                self._joined.result()

    def goes_on(self) -> bool:
        """Whether it takes changes."""
        return self._work is not None and not self._work.done() and not self._stop.is_set()

    @property
    def stats(self) -> Stats:
        """The connector's counters."""
        return Stats() if self._connector is None else self._connector.stats

    def begin(self, context: CaptureContext) -> None:
        """The mirror is loaded: from now on it follows the queue. Raises what has failed since the start."""
        self.refused.context = context
        self._begin.set()
        if self._failure is not None:
            raise self._failure

    def ask_to_stop(self, seconds: float) -> None:
        """Begins what `stop()` waits for."""
        until = time.monotonic() + seconds
        if until < self._stop_by:
            self._stop_seconds, self._stop_by = seconds, until
        self._stop.set()

    def grace(self) -> float:
        """The seconds that a stop has left, with those beyond its time: a second at most."""
        return min(1.0, max(0.0, self._stop_by + _GRACE_SECONDS - time.monotonic()))

    def stop(self, seconds: float) -> None:
        """Writes what was captured and releases the segments. Sets `stop_error` where `seconds` are not enough.

        What a request to Kafka under way holds up ends by itself, behind this. May be called again where a signal
        interrupted it.
        """
        self.ask_to_stop(seconds)
        if self._work is None:
            return
        left = self._host.spawn(self._left(self._work))
        concurrent.futures.wait([self._work], max(0.0, self._stop_by + _GRACE_SECONDS - time.monotonic()))
        if self._work.done():
            left.result()
        else:
            hint = "a request to Kafka, or a transform, is under way"
            self.stop_error = self.stop_error or CaptureFailed(
                f"it did not end within {self._stop_seconds:g} s: {hint}"
            )
        self._work = None

    async def _left(self, work: concurrent.futures.Future[None]) -> None:
        await asyncio.wait([asyncio.wrap_future(work)])
        await self._host.leave(self._name, self._connector)
        if self._served is not None:
            self._served.close()

    def make_room(self, raw_key: Raw, size: int) -> None:
        """Called by a writer, under the user's lock: waits as `oplog.overflow` says, about `max.block.ms` at most."""
        loop, work = self._loop, self._work
        if loop is None or work is None or work.done():
            return
        segment = segment_of(encoded(raw_key), self._segments)
        waiting = asyncio.run_coroutine_threadsafe(self._make_room(segment, size), loop)
        try:
            waiting.result(self._max_block + 10)
        except (concurrent.futures.CancelledError, TimeoutError) as error:
            waiting.cancel()
            if self._stop.is_set():  # closed meanwhile: it is written without capture
                return
            raise CaptureFailed("the connector made no room in the op log; see Capture.failure") from error

    async def _make_room(self, segment: int, size: int) -> None:
        self._drain_all()
        if self._sink is not None and self._connector is not None:
            await self._connector.make_room(segment, size)
        self._publish()

    # -- on the loop ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._main()
        except Exception as error:  # noqa: BLE001 - raised by start() or stop(), or reported as `failure`
            self._report(error)
        else:
            if not self.streaming.done():
                self.streaming.set_result(None)  # it was stopped before the look, and has written all

    def _report(self, error: BaseException) -> None:
        if not self.streaming.done():
            self.streaming.set_exception(error)
        with suppress(concurrent.futures.InvalidStateError):
            self._joined.set_exception(error)
        if not self._joined.cancelled() and self._joined.exception() is error:
            return  # `start()` raises it
        if self._stop.is_set():
            self.stop_error = self.stop_error or error
        elif self._failure is None:
            self._failure = error
            self._failed(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        side = MirrorCacheSide(self._mirror, self.refused)

        try:
            connector = await self._started(asyncio.ensure_future(self._start(side)))
            self.refused.look(connector)
            self._promote(range(self._segments), "start")
            await self._serve(side)
        except BaseException as error:
            self._report(error)  # before writers that wait for room are cancelled with this loop
            if self._connector is not None:
                failure = self._connector.failure
                if not failure.done() and isinstance(error, Exception):
                    failure.set_exception(error)  # REST and the metrics ask for it
                    failure.exception()  # else the loop logs that nobody did
                await self._connector.stop(release=False)
            raise
        await self._finish(connector)

    async def _start(self, side: MirrorCacheSide) -> Connector:
        after, wait = "", _FIRST_WAIT_SECONDS
        while True:
            try:
                return await self._start_as(side, after)
            except NodeSuperseded as error:
                after = behind(error, time.time_ns())
            except KafkaUnavailable as error:
                if isinstance(error, KafkaUnauthorized):
                    raise
                self.start_error = error
                _LOG.warning("cache %s: %s; its changes wait, and Kafka is tried again", self._name, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _start_as(self, side: MirrorCacheSide, after: str) -> Connector:
        member = str(Member.starting(self._config["node.id"], time.time_ns(), after))

        def made(config: Config) -> Connector:
            self._connector = Connector(config, member, side, connector_name="cachetools")
            side.acked = self._connector.sink.acked
            return self._connector

        connector = self._connectors[self._name] = await self._host.join(self._name, made)
        if self._served is None:
            prefix = self._config["topic.prefix"]
            measured = CaptureMetrics(self._change_queue, self._mirror, self._skipped, prefix, self._name)
            self._served = MetricsShare(self._config, self._connectors, [measured])
        with suppress(concurrent.futures.InvalidStateError):
            self._joined.set_result(None)
        await connector.start()
        return connector

    async def _started(self, starting: asyncio.Future[Connector]) -> Connector:
        """Keeps the mirror up to date meanwhile. A stop waits for the start, since Kafka has nothing of the cache."""
        try:
            while not (starting.done() and self._begin.is_set()):
                if starting.done():
                    starting.result()
                    self._raise_failure()
                if self._stop.is_set() and (not self._begin.is_set() or time.monotonic() > self._stop_by):
                    raise CaptureFailed(
                        f"Kafka has nothing of it, the next start sends it whole: {self.why_not_streaming}"
                    ) from self.start_error
                drained = 0
                if self._begin.is_set():
                    drained = self._drain()
                    self._publish()
                await asyncio.sleep(0 if drained else self._tick)
            return await starting
        finally:
            if starting.cancel():
                await asyncio.wait([starting])

    @property
    def why_not_streaming(self) -> str:
        """What it waits for."""
        if self._sink is not None:
            first = f"{len(self._unstreamed)} of {self._segments} segments wait for their first reset"
            return self.refused.why or first
        return "Kafka has not answered yet" if self.start_error is None else str(self.start_error)

    async def _serve(self, side: MirrorCacheSide) -> None:
        rests = 0
        while not self._stop.is_set():
            drained = self._drain()
            rests = 0 if drained else rests + 1
            self._publish()
            if self._connector is not None:
                self.refused.look(self._connector)
            if side.lost:
                await self._take_back(side)
            self._raise_failure()
            if self._connector is not None and self._connector.finished.done():
                self._stop_seconds, self._stop_by = _SETTLED_SECONDS, time.monotonic() + _SETTLED_SECONDS
                self._finished()
                return
            if not self.streaming.done() and self._all_have_streamed():
                self.streaming.set_result(None)
            # Each turn of the loop lets go of the interpreter lock: writers wait for one slice at most.
            await asyncio.sleep(0 if drained else self._tick * (_RESTING if rests > _RESTS else 1))

    def _all_have_streamed(self) -> bool:
        assert self._sink is not None
        self._unstreamed = self._not_writing(self._sink, self._unstreamed)
        return not self._unstreamed

    @staticmethod
    def _not_writing(sink: CaptureSink, segments: Iterable[int]) -> set[int]:
        return {s for s in segments if sink.phase(s) != "writing"}

    async def _finish(self, connector: Connector) -> None:
        self._drain_all()
        await self._host.end(connector)
        sink, segments, late = connector.sink, range(self._segments), False
        while self._not_writing(sink, segments) or sink.unwritten():
            late = time.monotonic() > self._stop_by
            if late or connector.failure.done() or connector.halted or connector.stats.stopped:
                break
            await asyncio.sleep(self._tick)
        withheld = connector.stats.withheld
        release = not late or bool(withheld)  # the other partitions' segments are written
        if late:  # now: to close may take longer than there is time
            left = [s for s in segments if not release or sink.withholds(s)]
            self._report(self._unwritten(connector, withheld, left))
        await connector.stop(release=release, seconds=max(_GRACE_SECONDS, self._stop_by - time.monotonic()))
        if left := [s for s in segments if sink.phase(s) != "released"]:
            self._report(self._unwritten(connector, withheld, left))

    def _unwritten(self, connector: Connector, withheld: list[int], left: list[int]) -> CaptureFailed:
        stopped = connector.stats.stopped
        why = f"; segment {min(stopped)} was stopped: {stopped[min(stopped)]}" if stopped else ""
        why = f"; partitions {withheld} take no records" if withheld else why
        why = f"; {connector.halted}" if connector.halted else why
        return CaptureFailed(
            f"{len(left)} of {self._segments} segments could not be written to their end within "
            f"{self._stop_seconds:g} s; the next start repairs them by a reset{why}"
        )

    def _promote(self, segments: Iterable[int], reason: str) -> None:
        assert self._connector is not None
        sink = self._connector.sink
        epoch = sink.highest_claim() + 1
        for segment in segments:
            sink.promote(segment, epoch, reason)
            # This process is the only owner: all that it captured in earlier epochs is acknowledged.
            sink.acked(segment, sink.last_sequence(segment))
        self._sink = sink
        self._publish()
        self._connector.wake()

    async def _take_back(self, side: MirrorCacheSide) -> None:
        """Another process claimed segments of this one. There is no controller that could have assigned them."""
        now = time.monotonic()
        side.step_downs = 1 if now - side.stepped_down_at > _SETTLED_SECONDS else side.step_downs + 1
        side.stepped_down_at = now
        if side.step_downs > _MAX_STEP_DOWNS:
            raise CaptureFailed(
                f"another process captures cache {self._name!r} into the same topic and takes its "
                f"segments again and again ({side.lost_why}): give one of them another cache.name or topic.prefix"
            )
        await asyncio.sleep(0.1 * 2**side.step_downs)  # the other claims of the same transaction arrive meanwhile
        _LOG.warning("taking back %d segments that another process claimed: %s", len(side.lost), side.lost_why)
        lost, side.lost = sorted(side.lost), set()
        self._promote(lost, "superseded")

    def _raise_failure(self) -> None:
        assert self._connector is not None
        if self._connector.halted is not None:  # this process is the cache's only owner: no other can take over
            raise self._connector.halted
        failure = self._connector.failure
        if failure.done() and not failure.cancelled():
            failure.result()

    def _drain(self) -> int:
        return self._mirror.drain(self._change_queue, self._sink, _SLICE)

    def _drain_all(self) -> None:
        while self._drain():
            pass

    def _publish(self) -> None:
        """Sets the writers' limit to what the op log has free. An operation is never smaller than its overhead."""
        free = _FREE_BYTES
        if self._connector is not None:
            budget = self._connector.sink.budget
            free = min(budget.max_bytes - budget.bytes, (budget.max_operations - budget.operations) * OVERHEAD)
        self._change_queue.limit = self._mirror.drained + max(0, free)


class MirrorCacheSide:
    """The `CacheSide` of a captured cache."""

    def __init__(self, mirror: Mirror, refused: Refused) -> None:
        self._mirror, self._refused = mirror, refused
        self.acked: Callable[[int, int], None] | None = None
        self.lost: set[int] = set()
        self.lost_why = ""
        self.step_downs = 0
        self.stepped_down_at = float("-inf")

    def entries(self, segment: int) -> list[Entry]:
        self._refused.leave_out(segment)
        return self._mirror.entries(segment)

    def get(self, segment: int, key: bytes) -> Entry | None:
        return self._mirror.get(segment, key)

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        """Acknowledges at once: the mirror holds these values already, and there are no backups."""
        assert self.acked is not None
        self.acked(segment, operations[-1].sequence)

    def released(self, segment: int) -> None:
        """Nothing to do: the stop goes on by itself."""

    def stepped_down(self, segment: int, reason: str) -> None:
        self.lost.add(segment)
        self.lost_why = reason
