"""The connector of one captured cache, on the loop of its host.

It drains the queue on a fixed tick instead of being woken: waking a loop costs the writer some 5 µs, and a
transaction waits `commit.interval.ms` anyway.

A cache of one process owns all segments: the epoch is one above the highest claim, every segment is reset once at the
start, since the cache of a new process holds other entries, and an operation is acknowledged as soon as it has a
position.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from deelog_connector.errors import NodeSuperseded
from deelog_connector.metrics.shared_server import MetricsShare
from deelog_connector.runtime import Connector, Stats
from deelog_interceptors.cachetools.change_queue import ChangeQueue
from deelog_interceptors.cachetools.errors import CaptureFailed
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.serialize import Raw, encoded
from deelog_interceptors.hosting.connector_thread import ConnectorThread
from deelog_interceptors.hosting.process import behind
from deelog_schemas.config import Config
from deelog_schemas.keys import segment_of
from deelog_schemas.member import Member
from deelog_schemas.operation import OVERHEAD, Entry, Operation

_LOG: Final = logging.getLogger("deelog.cachetools")
_SLICE: Final = 64
"""Changes drained before the thread lets go of the interpreter lock: about 0.2 ms."""
_MAX_STEP_DOWNS: Final = 3
"""Other processes may claim the segments this often in a row before the capture fails."""
_SETTLED_SECONDS: Final = 60.0


class Runner:
    """Runs the connector until `stop()`, until it fails (`failed` is called once), or until the snapshot of
    `snapshot.mode=initial_only` is complete (`finished` is called).
    """

    def __init__(
        self,
        config: Config,
        mirror: Mirror,
        changes: ChangeQueue,
        failed: Callable[[BaseException], None],
        finished: Callable[[], None],
        host: ConnectorThread,
    ) -> None:
        self._host = host
        self._work: concurrent.futures.Future[None] | None = None
        self._config, self._mirror, self._change_queue, self._failed = config, mirror, changes, failed
        self._finished = finished
        self._tick = min(0.02, max(0.001, config["commit.interval.ms"] / 5000))
        self._max_block = config["max.block.ms"] / 1000
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._begin, self._stop = threading.Event(), threading.Event()
        self._stop_seconds = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connector: Connector | None = None
        self._served: MetricsShare | None = None
        self._failure: BaseException | None = None
        """Was passed to `failed`."""
        self._owns = False
        """Whether the segments were promoted. Until then changes stay in the queue, without positions."""
        self.stop_error: BaseException | None = None

    def start(self, seconds: float) -> None:
        """Returns once the connector has read its topics. Raises what failed, or `TimeoutError`."""
        self._work = self._host.spawn(self._run())
        self._started.result(seconds)

    @property
    def stats(self) -> Stats:
        """The connector's counters. Only after `start()`."""
        assert self._connector is not None
        return self._connector.stats

    def begin(self) -> None:
        """Takes over all segments; the mirror is loaded. Raises what has failed since the start."""
        self._begin.set()
        if self._failure is not None:
            raise self._failure

    def ask_to_stop(self, seconds: float) -> None:
        """Begins what `stop()` waits for."""
        if not self._stop.is_set():
            self._stop_seconds = seconds
            self._stop.set()

    def stop(self, seconds: float) -> None:
        """Writes what was captured and releases the segments. Sets `stop_error` where `seconds` are not enough.

        May be called again where a signal interrupted it.
        """
        self.ask_to_stop(seconds)
        if self._work is not None:
            self._work.result()
            self._host.spawn(self._host.leave(self._config["cache.name"])).result()
            self._work = None
        if self._served is not None:
            self._served.close()

    def make_room(self, raw_key: Raw, size: int) -> None:
        """Called by a writer, under the user's lock: waits as `oplog.overflow` says, about `max.block.ms` at most."""
        loop, work = self._loop, self._work
        if loop is None or work is None or work.done():
            return
        segment = segment_of(encoded(raw_key), self._config["segment.count"])
        waiting = asyncio.run_coroutine_threadsafe(self._make_room(segment, size), loop)
        try:
            waiting.result(self._max_block + 10)
        except (concurrent.futures.CancelledError, TimeoutError) as error:
            waiting.cancel()
            if self._stop.is_set():  # closed meanwhile: it is written without capture
                return
            raise CaptureFailed("the connector made no room in the op log; see Capture.failure") from error

    async def _make_room(self, segment: int, size: int) -> None:
        assert self._connector is not None
        self._drain_all()
        await self._connector.make_room(segment, size)
        self._publish()

    # -- on the loop ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._main()
        except Exception as error:  # noqa: BLE001 - raised by start() or stop(), or reported as `failure`
            self._report(error)

    def _report(self, error: BaseException) -> None:
        if not self._started.done():
            self._started.set_exception(error)
        elif error is self._started.exception():
            return  # `start()` raises it
        elif self._stop.is_set():
            self.stop_error = self.stop_error or error
        elif self._failure is None:
            self._failure = error
            self._failed(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        side = MirrorCacheSide(self._mirror)

        try:
            connector = await self._unless_stopped(self._start(side))
            self._started.set_result(None)
            await self._until(self._begin)
            if self._begin.is_set():
                self._promote(range(self._config["segment.count"]), "start")
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
        after = ""
        while True:
            try:
                return await self._start_as(side, after)
            except NodeSuperseded as error:
                after = behind(error, time.time_ns())

    async def _start_as(self, side: MirrorCacheSide, after: str) -> Connector:
        member = str(Member.starting(self._config["node.id"], time.time_ns(), after))

        def made(config: Config) -> Connector:
            self._connector = Connector(config, member, side, connector_name="cachetools")
            side.acked = self._connector.sink.acked
            return self._connector

        cache = self._config["cache.name"]
        connector = await self._host.join(cache, made)
        if self._served is not None:
            self._served.close()
        self._served = MetricsShare(self._config, {cache: connector})
        await connector.start()
        return connector

    async def _unless_stopped(self, start: Coroutine[Any, Any, Connector]) -> Connector:
        starting = asyncio.ensure_future(start)
        while not starting.done():
            await asyncio.wait([starting], timeout=0.1)
            if self._stop.is_set():
                starting.cancel()
                await asyncio.wait([starting])
                raise CaptureFailed("closed before the connector was ready")
        return await starting

    async def _until(self, event: threading.Event) -> None:
        while not (event.is_set() or self._stop.is_set()):
            await asyncio.sleep(self._tick)
            self._raise_failure()

    async def _serve(self, side: MirrorCacheSide) -> None:
        while not self._stop.is_set():
            drained = self._drain()
            self._publish()
            if side.lost:
                await self._take_back(side)
            self._raise_failure()
            if self._connector is not None and self._connector.finished.done():
                self._stop_seconds = _SETTLED_SECONDS
                self._finished()
                return
            # Each turn of the loop lets go of the interpreter lock: writers wait for one slice at most.
            await asyncio.sleep(0 if drained else self._tick)

    async def _finish(self, connector: Connector) -> None:
        if not self._begin.is_set():
            await connector.stop(release=False)
            return
        self._drain_all()
        await self._host.end(connector)
        sink, segments = connector.sink, range(self._config["segment.count"])
        until, late = time.monotonic() + self._stop_seconds, False
        while any(sink.phase(s) != "writing" for s in segments) or sink.unwritten():
            late = time.monotonic() > until
            if late or connector.failure.done() or connector.halted or connector.stats.stopped:
                break
            await asyncio.sleep(self._tick)
        withheld = connector.stats.withheld
        await connector.stop(release=not late or bool(withheld))  # the other partitions' segments are written
        left, stopped = [s for s in segments if sink.phase(s) != "released"], connector.stats.stopped
        if left:
            why = f"; segment {min(stopped)} was stopped: {stopped[min(stopped)]}" if stopped else ""
            why = f"; partitions {withheld} take no records" if withheld else why
            why = f"; {connector.halted}" if connector.halted else why
            raise CaptureFailed(
                f"{len(left)} of {len(segments)} segments could not be written to their end within "
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
        self._owns = True
        self._publish()
        self._connector.wake()

    async def _take_back(self, side: MirrorCacheSide) -> None:
        """Another process claimed segments of this one. There is no controller that could have assigned them."""
        now = time.monotonic()
        side.step_downs = 1 if now - side.stepped_down_at > _SETTLED_SECONDS else side.step_downs + 1
        side.stepped_down_at = now
        if side.step_downs > _MAX_STEP_DOWNS:
            raise CaptureFailed(
                f"another process captures cache {self._config['cache.name']!r} into the same topic and takes its "
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
        assert self._connector is not None
        if not self._owns:
            return 0
        return self._mirror.drain(self._change_queue, self._connector.sink, _SLICE)

    def _drain_all(self) -> None:
        while self._drain():
            pass

    def _publish(self) -> None:
        """Sets the writers' limit to what the op log has free. An operation is never smaller than its overhead."""
        assert self._connector is not None
        budget = self._connector.sink.budget
        free = min(budget.max_bytes - budget.bytes, (budget.max_operations - budget.operations) * OVERHEAD)
        self._change_queue.limit = self._mirror.drained + max(0, free)


class MirrorCacheSide:
    """The `CacheSide` of a captured cache."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.acked: Callable[[int, int], None] | None = None
        self.lost: set[int] = set()
        self.lost_why = ""
        self.step_downs = 0
        self.stepped_down_at = float("-inf")

    def entries(self, segment: int) -> list[Entry]:
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
