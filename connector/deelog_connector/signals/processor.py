"""Signals from the topic `<topic.prefix>-signal`, in Debezium's format (`deelog_schemas.signals`).

The topic is for all nodes of the prefix: each reads all of it, from its beginning. The last `pause-writing` or
`resume-writing` is in force, also for a node that starts later, and an incomplete incremental snapshot goes on.
One-time signals (`reset-segment`, `log`) are not repeated. Weighed in
docs/decisions.md, "A pause is read from the signals".

No content of a signal is fatal: others may write there. A signal without effect is logged and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from deelog_connector.core import ConnectorCore
from deelog_connector.core.state import KnownTopic
from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import InRecord, Reader
from deelog_connector.runtime.run_state import Event, RunState
from deelog_connector.signals.incremental_snapshots import Snapshots
from deelog_connector.signals.notifications import ranges
from deelog_schemas import signals
from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.signals import Signal

log = logging.getLogger(__name__)

MAX_REPLAY: Final = 100_000
"""Newest records of the topic that are read at the start."""
POLL_SECONDS: Final = 0.5
"""Seconds that one read of the topic may wait for records."""


class Target(Protocol):
    """The connector of one cache as signals use it."""

    core: ConnectorCore
    snapshots: Snapshots
    state: RunState

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Signals:
    """Acts on signals for the cache of `target`. `counts` by type, or by why it had no effect."""

    def __init__(self, config: Config, target: Target) -> None:
        self._target, self._cache, self._topic = target, config.topics.cache, config.topics.signal
        self._key = str(config["topic.prefix"]).encode()
        self._progress_key = signals.progress_key(config["topic.prefix"])
        self._next: int | None = None
        """The offset of the next record; None before the first catch-up."""
        self._seen, self._made_again = KnownTopic(), False
        self.counts: Counter[str] = Counter()

    def configured(self, config: Config) -> None:
        """Another topic from the next `catch_up` on, or the same."""
        if config.topics.signal != self._topic:
            self._topic, self._next, self._seen = config.topics.signal, None, KnownTopic()

    @property
    def caught_up(self) -> bool:
        """Whether earlier signals of this topic were read."""
        return self._next is not None

    def topic_is(self, topic_id: str) -> None:
        """Takes the topic's id. Whoever follows one that was made again must begin again."""
        if self._seen.is_another(topic_id) and self._next is not None:
            log.error("%s was deleted and made again: it is read from its beginning", self._topic)
            self._next, self._made_again = 0, True

    def first_offset(self, end: int) -> int:
        """Where to begin to read the topic, which ends at the offset `end`."""
        self._made_again = False
        if self._next is None:
            return max(0, end - MAX_REPLAY)
        self._next = min(self._next, end)  # a topic that was made again
        return self._next

    async def catch_up(self, reader: Reader) -> None:
        """Reads the topic's present records before anything is written; after one that succeeded, does nothing."""
        if self._next is not None:
            return
        paused, snapshots = False, self._target.snapshots
        snapshots.replaying = True
        while not reader.caught_up:
            for record in await reader.read(0.05):
                paused = self._replay(record, paused)
        self._next = reader.next_offset(0)
        snapshots.replaying = False
        if paused:
            log.warning("cache %s: pause-writing on %s is in force: nothing is written", self._cache, self._topic)
            self._target.pause()

    async def follow(self, reader: Reader) -> None:
        """Follows the topic after `catch_up`, until the reader cannot go on; then closes the reader."""
        try:
            while not self._made_again:
                try:
                    records = await reader.read(POLL_SECONDS)
                except KafkaUnusable as error:
                    log.warning("signals: %s", error)
                    if not isinstance(error, KafkaUnavailable):
                        return
                    await asyncio.sleep(1.0)
                    continue
                if self._made_again:
                    return  # they may be of the former one
                for record in records:
                    # Where the log is shorter for a moment than its end was, it is read from its beginning.
                    if self._next is None or record.offset >= self._next:
                        self.take(record)
                        self._next = record.offset + 1
                        await asyncio.sleep(0)
        finally:
            await asyncio.shield(reader.close())

    def _replay(self, record: InRecord, paused: bool) -> bool:
        """Returns whether it is paused after this record, if it was `paused` before."""
        if record.key == self._progress_key:
            self._progress(record)
        if record.key != self._key:
            return paused
        try:
            signal = signals.decode_signal(record.value)
        except RecordError:
            return paused  # was logged by the nodes of that time
        handler = HANDLERS[type(signal)]
        if not signal.concerns(self._cache):
            return paused
        if handler.goes_on:
            handler.act(signal, self._cache, self._target)
        return paused if handler.pauses is None else handler.pauses

    def take(self, record: InRecord) -> None:
        """Acts on one record of the signal topic."""
        if record.key == self._progress_key:
            self._progress(record)
        elif record.key == self._key:
            self._act(record.value, f"{record.topic}@{record.offset}")
        else:
            self.counts["other"] += 1

    def _progress(self, record: InRecord) -> None:
        try:
            note = signals.decode_progress(record.value)
        except RecordError as error:
            self._malformed(f"{record.topic}@{record.offset}", error)
            return
        if note.cache == self._cache:
            self._target.snapshots.progressed(note)

    # -- actions ------------------------------------------------------------------------------------------------------

    def _act(self, raw: bytes | None, where: str) -> None:
        try:
            signal = signals.decode_signal(raw)
        except signals.UnknownSignal as error:
            self.counts["unknown"] += 1
            log.warning("a signal (%s) is ignored: %s", where, error)
            return
        except RecordError as error:
            self._malformed(where, error)
            return
        if not signal.concerns(self._cache):
            self.counts["other"] += 1
            return
        problem = HANDLERS[type(signal)].act(signal, self._cache, self._target)
        self.counts[signal.kind if problem is None else "refused"] += 1
        if problem is None:
            log.info("signal %s (%s, %s)", _line(signal.id) or "without id", signal.kind, where)
        else:
            log.warning(
                "signal %s (%s, %s) is refused: %s",
                _line(signal.id) or "without id",
                signal.kind,
                where,
                _line(problem),
            )

    def _malformed(self, where: str, error: RecordError) -> None:
        self.counts["malformed"] += 1
        log.warning("a signal (%s) is malformed and ignored: %s", where, error)


def _reset_segment(signal: signals.ResetSegment, cache: str, target: Target) -> str | None:
    if bad := [s for s in signal.segments if s >= target.core.segments]:
        return f"segment {bad[0]} does not exist (segment.count={target.core.segments})"
    mine = _primary_of(target)
    for segment in signal.segments:
        if segment in mine:
            log.info("segment %d: reset requested by signal %s: %s", segment, _line(signal.id), _line(signal.reason))
        target.core.ask_reset(segment, "signal")
    return None


def _execute_snapshot(signal: signals.ExecuteSnapshot, cache: str, target: Target) -> str | None:
    return target.snapshots.ask(signal.id, signal.segments)


def _stop_snapshot(signal: signals.StopSnapshot, cache: str, target: Target) -> str | None:
    target.snapshots.stop()
    return None


def _pause_writing(signal: signals.PauseWriting, cache: str, target: Target) -> str | None:
    if not target.state.wants_pause:
        target.pause()
        target.snapshots.paused(True)
    return None


def _resume_writing(signal: signals.ResumeWriting, cache: str, target: Target) -> str | None:
    if target.state.stopped:
        return "the connector was stopped over REST, and goes on when it is resumed there"
    if target.state.after(Event.RESUME) != target.state:
        target.resume()
        target.snapshots.paused(False)
    return None


def _log(signal: signals.Log, cache: str, target: Target) -> str | None:
    message = _line(signal.message)
    place = f"cache {cache}, primary of segments {ranges(_primary_of(target)) or 'none'}"
    log.info("%s", message.replace("{}", place))
    return None


def _line(text: str) -> str:
    """Text of a signal, as it may be logged: it makes no second line."""
    return "".join(c if c.isprintable() else " " for c in text)


def _primary_of(target: Target) -> set[int]:
    return {segment.number for segment in target.core.primaries()}


class _Handler(NamedTuple):
    """Handles a signal for one cache; `act` returns None, or why it is refused.

    `goes_on`: a starting node acts on earlier signals of this type too. `pauses`: only on the last one.
    """

    act: Callable[[Any, str, Target], str | None]
    goes_on: bool = False
    pauses: bool | None = None


HANDLERS: Final[dict[type[Signal], _Handler]] = {
    signals.ResetSegment: _Handler(_reset_segment),
    signals.ExecuteSnapshot: _Handler(_execute_snapshot, goes_on=True),
    signals.StopSnapshot: _Handler(_stop_snapshot, goes_on=True),
    signals.PauseWriting: _Handler(_pause_writing, pauses=True),
    signals.ResumeWriting: _Handler(_resume_writing, pauses=False),
    signals.Log: _Handler(_log),
}
