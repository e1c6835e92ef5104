"""Executes the core's effects: transactions, scans and fences in Kafka, and calls to the cache."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from deelog_connector.cache_side import StreamSide
from deelog_connector.core.effects import (
    Cause,
    Commit,
    Correct,
    Corrected,
    Count,
    Decided,
    Effect,
    EndHanging,
    Fence,
    FindHanging,
    Hanging,
    HangingAbort,
    OpenProducer,
    OperationsItem,
    PositionRead,
    ReadRows,
    Released,
    RowsItem,
    Scan,
    SnapshotRead,
    SnapshotRefused,
    SteppedDown,
    Superseded,
)
from deelog_connector.core.segment import Phase
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, NodeSuperseded, TransformFailed
from deelog_connector.kafka_port import InRecord, PartitionEnd, Reader, WriteFailed
from deelog_connector.runtime.clients import Clients
from deelog_connector.runtime.context import Context
from deelog_connector.runtime.encode import Decoder, Encoder
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_connector.transforms.pipeline import SLOW_SECONDS, PipedItem, Pipeline
from deelog_schemas.config import ConfigError
from deelog_schemas.errors import RecordError

log = logging.getLogger(__name__)

SCAN_SECONDS: Final = 15.0
"""Seconds that a scan waits for its own record, before it is looked for what hides it."""
TURN_SECONDS: Final = 1.0
"""Seconds that it waits at the end of what can be read before others have its reader, which are few."""
REST_SECONDS: Final = 0.5
"""Seconds until it asks for a reader again."""
HANGING_SECONDS: Final = 3.0
"""Seconds after which a transaction that is still the first one open counts as one that nobody ends."""
GATHER_SECONDS: Final = 2.0
"""Seconds that a scan for the keys of consumers takes before other scans of its partition run."""
POLL_SECONDS: Final = 0.02
"""Seconds that one read of a scan may wait for records."""
RETRY_SECONDS: Final = 0.2
DENIED_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Unread:
    """What a scan has still to read, and until when it waits for it: others may have all readers meanwhile."""

    offset: int
    until: float | None = None


class _Open(NamedTuple):
    """The first record behind the last stable offset of a partition, if there is one, and the end of all records."""

    first: InRecord | None
    end: float


def ask_stream(stream: StreamSide, effect: Effect) -> None:
    """Tells a stream's interceptor what the core asks of it, or lets it know."""
    match effect:
        case Count(segment, generation, position):
            stream.count(segment, generation, position)
        case Decided(segment, written):
            stream.decided(segment, written)
        case ReadRows(segment, reset_id):
            stream.read_rows(segment, reset_id)
        case Correct(segment, keys):
            stream.correct(segment, keys)
        case PositionRead(segment, state):
            stream.position_read(segment, state)


_NAMED: Final = 5
"""The most segments that a line of the log names."""


class Executor:
    """The executor of one shell. `carry_out` returns at once; the core gets the result later, and `wake` is called."""

    def __init__(
        self, context: Context, clients: Clients, tasks: Tasks, retries: Retries, pipeline: Pipeline | None
    ) -> None:
        self.encoder: Encoder
        self.decoder: Decoder
        self._context, self._core, self._port = context, context.core, context.port
        self._clients, self._tasks, self._retries, self._pipeline = clients, tasks, retries, pipeline
        self._has_read = self._has_written = retries.proven
        self._stepped_down: dict[str, list[int]] = {}
        """Segments by reason, for one line of the log."""

    def carry_out_all(self, effects: Iterable[Effect]) -> None:
        """Begins the effects of a poll. Raises `NodeSuperseded`."""
        for effect in effects:
            self.carry_out(effect)
        for reason, segments in self._stepped_down.items():
            log.warning("segments %s: stepped down, %s", _named(segments), reason)
        self._stepped_down.clear()

    def carry_out(self, effect: Effect) -> None:
        """Begins one."""
        if isinstance(effect, Commit):
            self._tasks.spawn(self._commit(effect))
        elif isinstance(effect, Scan):
            self._tasks.spawn(self._scan(effect))
        elif isinstance(effect, OpenProducer):
            self._tasks.spawn(self._open())
        elif isinstance(effect, Fence):
            self._tasks.spawn(self._fence(effect))
        elif isinstance(effect, FindHanging):
            self._tasks.spawn(self._find_hanging(effect))
        elif isinstance(effect, EndHanging):
            self._tasks.spawn(self._end_hanging(effect))
        elif isinstance(effect, Released):
            self._context.cache_side.released(effect.segment)
        elif isinstance(effect, SteppedDown):
            self._stepped_down.setdefault(effect.reason, []).append(effect.segment)
            self._context.cache_side.stepped_down(effect.segment, effect.reason)
        elif isinstance(effect, SnapshotRead | SnapshotRefused):
            self._context.snapshots.heard(effect)
        elif isinstance(effect, Superseded):
            raise NodeSuperseded(effect.by, self._core.member)
        elif isinstance(self._context.cache_side, StreamSide):
            ask_stream(self._context.cache_side, effect)
        elif isinstance(effect, Corrected):
            self._context.cache_side.corrected(effect.segment, list(effect.operations))

    # -- transactions ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            await self._retries.writing(self._permitted, self._clients.session.open, stop=self._context.closed)
        except WriteFailed as error:
            log.warning("no session is opened: %s", error)
            self._core.opening_given_up()
        else:
            self._core.producer_opened(self._clients.session.spare)
        self._context.wake()

    async def _commit(self, effect: Commit) -> None:
        session, encoder, clock = self._clients.session, self.encoder, self._port.clock
        began = clock.monotonic()
        try:
            items = await self._piped(effect)
            partitions = {item.partition for item in effect.items}
            await self._permitted(session.commit, encoder.records(items), partitions)
        except WriteFailed as error:
            log.warning("transaction not committed: %s", error)
            self._context.meter.failed[error.cause] += 1
            if error.denied:  # until the ACL is back: nothing is lost meanwhile, so retry slowly
                await asyncio.sleep(DENIED_SECONDS)
            cause = error.cause
            if cause is Cause.REFUSED and await self._clients.batches_are_too_large():
                cause = Cause.LOST  # the next session makes smaller ones
            self._core.commit_failed(effect.token, cause)
            if cause is Cause.REFUSED:
                self._log_stopped(effect, error.reason)
            self._retries.count(error)
        except TransformFailed as error:
            self._context.halt(error)
            self._core.commit_failed(effect.token, Cause.LOST)
        else:
            self._has_written = True
            self._context.meter.committed(encoder.tally, clock.monotonic() - began)
            self._retries.committed()
            self._core.committed(effect.token)
        self._context.wake()

    def _log_stopped(self, effect: Commit, reason: str) -> None:
        """Logs the segment that the core has stopped, since the broker refused a record of this transaction."""
        sizes = [len(o.value or b"") for i in effect.items if isinstance(i, OperationsItem) for o in i.operations]
        sizes += [len(entry.value) for i in effect.items if isinstance(i, RowsItem) for entry in i.entries]
        concerned = {item.segment for item in effect.items}
        for segment in self._core.primaries():
            if segment.phase is Phase.STOPPED and segment.number in concerned:
                why = f"{segment.stopped_by}: {reason}; its largest value is {max(sizes, default=0)} bytes"
                log.error("segment %d is stopped: %s. Mend it, then signal reset-segment", segment.number, why)

    async def _permitted(self, write: Callable[..., Awaitable[None]], *args: Any) -> None:
        """A node that is refused before it has ever written is misconfigured, and ends. Later its changes are kept."""
        try:
            await write(*args)
        except WriteFailed as error:
            if error.denied and not self._has_written:
                raise KafkaUnauthorized(error.reason) from error
            raise

    async def _piped(self, effect: Commit) -> Sequence[PipedItem]:
        pipeline = self._pipeline
        if pipeline is None:
            return effect.items
        work = asyncio.ensure_future(self._port.work(pipeline, effect.items))
        # A restart cancels this, and the pipeline then ends with `Closing`: an error nobody retrieves ends a node.
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not (await asyncio.wait({work}, timeout=SLOW_SECONDS))[0]:
            now = self._port.clock.monotonic()
            since, alias = pipeline.at or (now, "")
            log.warning("transform %s: %.0f s on one record; nothing is written meanwhile", alias, now - since)
        return work.result()

    async def _fence(self, effect: Fence) -> None:
        name = self._clients.transactional_id(effect.producer)
        log.info("fencing %s for %d segments", name, len(effect.takeovers))
        await self._retries.writing(self._clients.fence, effect.producer)
        self._core.fenced(effect.producer, effect.takeovers)
        self._context.wake()

    async def _find_hanging(self, effect: FindHanging) -> None:
        looks = [await self._open_on(topic, partition) for topic, partition in self._clients.places(effect.partition)]
        if any(look is not None and look.first is not None for look in looks):
            await asyncio.sleep(HANGING_SECONDS)
        found, hidden = list[Hanging | HangingAbort | None](), False
        for (topic, partition), before in zip(self._clients.places(effect.partition), looks, strict=True):
            if before is not None and before.first is None:
                continue
            now = None if before is None else await self._open_on(topic, partition)
            if before is None or now is None:
                hidden = True
            elif now.first is not None:
                # A transaction that began since the first look hides nothing that anybody waited for then.
                hidden |= now.first.offset < before.end
                if before.first is not None and before.first.offset == now.first.offset:
                    found.append(self._hanging(now.first))
        self._core.hanging_found(effect.partition, [each for each in found if each is not None], hidden)
        self._context.wake()

    async def _open_on(self, topic: str, partition: int) -> _Open | None:
        """What is open there now; None: Kafka does not say."""
        try:
            first = await self._clients.brokers.hanging(topic, partition)
            ends = [] if first is None else await self._clients.brokers.ends(topic, [partition], committed=False)
            return _Open(first, ends[0].offset if ends else math.inf)
        except (KafkaUnusable, ConfigError) as error:
            log.warning("%s", error)
            return None

    def _hanging(self, first: InRecord) -> Hanging | HangingAbort | None:
        topics = self._clients.config.topics
        if (node_id := topics.aborts(first.key)) is not None:
            return HangingAbort(node_id)
        try:
            return self.decoder.hanging(first, first.topic == topics.positions)
        except RecordError as error:
            log.warning("a transaction of another client, which is open, holds readers back: %s", error)
            return None

    async def _end_hanging(self, effect: EndHanging) -> None:
        """Once: where records are still hidden later, it is asked for again."""
        try:
            name = self._clients.transactional_id(effect.producer)
            log.warning("partition %d: what %s has left open is aborted", effect.partition, name)
            if not await self._clients.end_hanging(effect.producer, effect.partition):
                self._core.session_lost()
        except (WriteFailed, ConfigError) as error:
            log.warning("%s", error)
        self._core.hanging_ended(effect)
        self._context.wake()

    # -- scans ----------------------------------------------------------------------------------------------------

    async def _scan(self, effect: Scan) -> None:
        wanted, at_end = set(effect.until), False
        while True:
            if effect.partition in self._core.withheld:
                # It would keep one of a few readers from the others, and a stop waits for it. Another one follows once
                # the partition is back.
                early = True
                break
            try:
                await self._ask_the_log(effect)
                early, at_end = await self._read_in_turns(effect, wanted)
                break
            except (KafkaUnusable, ConfigError) as error:
                passing = isinstance(error, KafkaUnavailable) and not isinstance(error, KafkaUnauthorized)
                if not passing and not self._has_read:
                    raise
                log.warning("%s; trying again", error)
                await asyncio.sleep(RETRY_SECONDS)
        if wanted and not early:
            log.warning(
                "partition %d of %s: own record not readable after %.0f s; if a transaction that nobody ends hides it, "
                "that is aborted; if none does, it is gone and written again",
                effect.partition,
                self._clients.config.topics.changes,
                SCAN_SECONDS,
            )
        self._core.scan_ended(effect.partition, early or not wanted, at_end)
        self._context.wake()

    async def _ask_the_log(self, effect: Scan) -> None:
        """Whether it holds what the scan begins behind."""
        topic = self._clients.config.topics.changes
        for place in effect.places:
            end = PartitionEnd(effect.partition, place.offset, place.leader_epoch)
            if not await self._clients.brokers.still_holds(topic, end):
                log.error("%s[%d] was cut below offset %d", topic, effect.partition, place.offset)
                self._core.log_was_cut(effect.partition, place)

    async def _read_in_turns(self, effect: Scan, wanted: set[bytes]) -> tuple[bool, bool]:
        """Passes records to the core until all wanted keys were read.

        Returns whether it ended early, and whether it came to the end of what can be read.
        """
        rest = _Unread(effect.from_offset)
        while (ended := await self._clients.scanning(partial(self._read_up_to, effect, wanted, rest))) is None:
            # A log that is cut meanwhile has lost the record that is waited for, too.
            await asyncio.sleep(REST_SECONDS)
            if effect.partition in self._core.withheld:
                return True, False
        return ended

    async def _read_up_to(
        self, effect: Scan, wanted: set[bytes], rest: _Unread, reader: Reader
    ) -> tuple[bool, bool] | None:
        """One turn; None where the scan waits for what is hidden, and others may read meanwhile."""
        clock, partition = self._port.clock, effect.partition
        await reader.seek({partition: rest.offset})
        began = moved = now = clock.monotonic()
        until = rest.until = began + SCAN_SECONDS if rest.until is None else rest.until
        while now < max(until, began + TURN_SECONDS):
            raw = await reader.read(POLL_SECONDS)
            # A read without records says nothing: a refusal takes a few of them.
            self._has_read |= bool(raw) or reader.caught_up
            if raw:
                records = await self._port.work(self.decoder.scanned, raw, effect.keys)
                self._core.scanned(partition, records)
                wanted.difference_update(record.key for record in records)
                if not wanted:
                    break
            now = clock.monotonic()
            if raw:
                moved = now
                if effect.keys and now - began > GATHER_SECONDS:
                    return True, False
            # The last turn comes to the end of the log again.
            if reader.caught_up and now - moved > TURN_SECONDS and until - now > REST_SECONDS + TURN_SECONDS:
                rest.offset = reader.next_offset(partition)
                return None
        return False, reader.caught_up


def _named(segments: Sequence[int]) -> str:
    """Segments for a line of the log, the first of many."""
    first = ", ".join(map(str, sorted(segments)[:_NAMED]))
    return first if len(segments) <= _NAMED else f"{first} and {len(segments) - _NAMED} more"
