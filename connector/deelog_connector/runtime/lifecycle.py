"""Operations on a running connector: pause, resume, stop, restart and configure.

REST calls it, and signals may; it acts on all caches of the connector at once. Where the states come from is weighed in
docs/decisions.md, "The state of a process is asked of its connectors".

- *paused*: nothing is written. Op logs keep captured changes up to their limit; then a reset is due.
- *stopped*: what was acknowledged is written, and the producer is closed. Capture goes on as while paused.
- *restarted*: every client is replaced, and references are resolved again; op logs stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from deelog_connector.core.segment import Segment
from deelog_connector.errors import KafkaTooSlowError, NotStoppedError
from deelog_connector.runtime.connector import Connector
from deelog_connector.runtime.run_state import Event
from deelog_connector.runtime.shell import Shell
from deelog_schemas.config import Config
from deelog_schemas.config.field import words
from deelog_schemas.config.secrets import references
from deelog_schemas.errors import ConfigError, FieldError
from deelog_schemas.header import Position
from deelog_schemas.keys import segments_of

log = logging.getLogger(__name__)

SUSPEND_SECONDS: Final = 30.0
"""Seconds that Kafka may take to accept acknowledged operations before a stop fails."""
END_SECONDS: Final = 5.0
"""Seconds that the end of a connector waits for earlier requests."""
_LOOK_SECONDS: Final = 0.05

_NAMES: Final = words(
    """
    name connector.class topic.prefix topic.delimiter cache.name node.id segment.count
    topic.creation.default.partitions cache.key.format key.converter binary.handling.mode
    """
)
"""They name the cache, its topics and its entries, or map them to segments: with others it is another connector."""
_OF_THE_CACHE: Final = words(
    """
    cache.policy cache.max.entries cache.backups cache.listen cache.peer.listen cache.advertised.host unclean.election
    cache.failure.timeout.ms cache.acks cache.value.format before.image skip.messages.without.change max.entry.bytes
    max.block.ms tracing.headers.enabled metrics.port metrics.host rest.port rest.host.name rest.token
    rest.readonly.token rest.ssl.certificate.location rest.ssl.key.location rest.ssl.ca.location
    redis.url redis.databases redis.username redis.password redis.sentinels redis.sentinel.master
    redis.sentinel.username redis.sentinel.password redis.writer redis.reasons
    redis.ssl.certificate.location redis.ssl.key.location redis.ssl.ca.location
    """
)
"""What the cache, its interceptor and its listeners read once, when the process starts."""
_OF_THE_JOB: Final = words("on.data.loss errors.tolerance")
"""What the diff job alone reads, beside `diff.*`."""
_TUNED: Final = words(
    """
    producer.override.linger.ms producer.override.queue.buffering.max.ms producer.override.batch.size
    producer.override.batch.num.messages producer.override.compression.type producer.override.compression.codec
    producer.override.compression.level producer.override.queue.buffering.max.messages
    producer.override.queue.buffering.max.kbytes
    """
)
"""Fields of the clients that are about batches, and not about where, as whom and with which files they connect."""
_REMEDY: Final = "change it in the file that the process was started with, and start it again"


class State(StrEnum):
    """Kafka Connect's names."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    RESTARTING = "RESTARTING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Task:
    """One range of this node's segments: those of one partition of a cache's topic. Its number never changes."""

    number: int
    cache: str
    partition: int
    segments: tuple[int, ...]
    state: State
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Offset:
    """The last operation of a segment that was read back from Kafka."""

    cache: str
    segment: int
    epoch: int
    sequence: int


class Lifecycle:
    """One connector of this process: its configuration, and the runtime connector of each of its caches by name.

    Call it on the connectors' loop. Methods that change something wait for one another.
    """

    def __init__(self, config: Config, connectors: dict[str, Connector]) -> None:
        self.config = self.file = config
        """The present configuration, and that of the process's start."""
        self.connectors = connectors
        self._restarting = False
        self._queued = False
        """Whether a restart that nobody waits for has not begun."""
        self._lock = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()

    async def join(self, cache: str, make: Callable[[Config], Connector]) -> Connector:
        """Makes another cache's connector, of the present configuration, and adds it before its start.

        It is paused or stopped if the others are.
        """
        async with self._lock:
            connector = make(_of_cache(self.config, cache))
            others = self._working()
            if others and all(one.state.wants_pause or one.state.stopped for one in others):
                connector.pause()
                if all(one.state.stopped for one in others):
                    connector.apply(Event.STOP)
            self.connectors[cache] = connector
            return connector

    async def end(self, *connectors: Connector) -> None:
        """Ends pauses of these connectors, or of all, so that they write what they captured; later requests skip them.

        Waits for running requests; if all connectors end, only for `END_SECONDS`. Call it before they are stopped.
        """
        leaving = connectors or tuple(self.connectors.values())
        for connector in leaving:
            connector.apply(Event.LEAVE)
        if self._work:
            await asyncio.wait(self._work, timeout=END_SECONDS)
        if not connectors:
            for task in list(self._work):
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
        for connector in leaving:
            connector.end()

    # -- status ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The connector's name."""
        return str(self.config["name"])

    @property
    def started(self) -> bool:
        """Whether all caches have started."""
        return all(connector.started for connector in self.connectors.values())

    @property
    def state(self) -> State:
        """The state of the connector: stopped or paused if all of its caches are."""
        every = list(self.connectors.values())
        if any(map(_failure, every)):
            return State.FAILED
        if self._restarting or self._queued:
            return State.RESTARTING
        if not every:
            return State.RUNNING  # a connector without caches, at its start or end
        if not self.started:
            return State.UNASSIGNED
        if all(connector.state.closed for connector in every):
            return State.STOPPED
        return State.PAUSED if all(connector.state.paused for connector in every) else State.RUNNING

    @property
    def trace(self) -> str | None:
        """Why it has failed, in one line without a stack trace."""
        return next(filter(None, map(_failure, self.connectors.values())), None)

    def tasks(self) -> list[Task]:
        """All tasks, including those without a segment now; none while stopped, as in Connect."""
        if self.state is State.STOPPED:
            return []
        tasks: list[Task] = []
        for cache, connector in self.connectors.items():
            settings = connector.core.settings
            mine = {segment.number: segment for segment in connector.core.primaries()}
            for partition in range(settings.partitions):
                numbers = segments_of(partition, settings.partitions, settings.segments)
                held = [mine[number] for number in numbers if number in mine]
                state, trace = self._state_of(connector, held)
                segments = tuple(segment.number for segment in held)
                tasks.append(Task(len(tasks), cache, partition, segments, state, trace))
        return tasks

    def _state_of(self, connector: Connector, held: list[Segment]) -> tuple[State, str | None]:
        failed = _failure(connector)
        stopped = [segment for segment in held if segment.stopped_by]
        if failed or stopped:
            return State.FAILED, failed or f"segment {stopped[0].number}: {stopped[0].stopped_by}"
        if self._restarting or self._queued:
            return State.RESTARTING, None
        if not held:
            return State.UNASSIGNED, None
        if held[0].partition in connector.core.withheld:
            return (
                State.FAILED,
                f"partition {held[0].partition} takes no records, or did so lately: see the log",
            )
        return (State.PAUSED if connector.state.paused else State.RUNNING), None

    def offsets(self) -> list[Offset]:
        """The offsets of this node's segments that have one and need no reset."""
        return [
            Offset(cache, segment.number, *position)
            for cache, connector in self.connectors.items()
            for segment in sorted(connector.core.primaries(), key=lambda s: s.number)
            if (position := _written(segment)) is not None
        ]

    def topics(self) -> list[str]:
        """The topics written to since the start."""
        return sorted(
            topic
            for connector in self.connectors.values()
            if connector.core.counts.transactions
            for topic in (connector.config.topics.changes, connector.config.topics.positions)
        )

    # -- actions --------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stops writing. A stopped connector opens its producer."""
        async with self._lock:
            for connector in self._working():
                connector.pause()
                connector.apply(Event.REOPEN)

    async def resume(self) -> None:
        """Writes again, beginning with what was captured meanwhile."""
        async with self._lock:
            for connector in self._working():
                connector.resume()

    async def stop(self) -> None:
        """Writes what is acknowledged, unless paused, and closes the producer.

        Raises `KafkaTooSlowError`, and `TransformFailed` where one halts it meanwhile.
        """
        await self._finish(self._stop())

    async def restart(self, tasks: bool = False) -> None:
        """Replaces the clients; with `tasks` also resets segments that a refused record stopped. The state stays."""
        await self._finish(self._restart(lambda: self.config, tasks))

    def restart_soon(self) -> None:
        """Begins `restart(tasks=True)`, unless one waits for its turn, and returns at once; an error is logged."""
        if not self._queued:
            self._queued = True
            self._spawn(self._restart(self._begun, True)).add_done_callback(_log_failure)

    async def configure(self, config: Callable[[], Config]) -> None:
        """Applies another configuration, which `config` makes from the present one after earlier requests.

        Raises what `config` raises, and `ConfigError` with every field that a restart does not apply.
        """
        await self._finish(self._restart(config, False))

    def check(self, config: Config) -> None:
        """Raises `ConfigError` with every changed field that a restart cannot change."""
        errors = [
            FieldError(name, why, config.masked().get(name))
            for name in sorted({*self.config, *config})
            if (why := _fixed(name)) and not _same(self.config, config, name)
        ]
        if config["snapshot.mode"] == "initial_only" != self.config["snapshot.mode"]:
            problem = "ends the process, and with it the cache, after the snapshot: start another process with it"
            errors.append(FieldError("snapshot.mode", problem, "initial_only"))
        if errors:
            raise ConfigError(errors)

    def restart_task(self, task: Task) -> None:
        """Resets the task's segments that a refused record stopped; the others go on."""
        self.connectors[task.cache].repair(task.segments)

    def reset(self, wanted: list[tuple[str, int]]) -> None:
        """Resets these segments at the next resume. Raises `NotStoppedError`."""
        if self.state is not State.STOPPED:
            raise NotStoppedError(f"{self.name} is not stopped")
        for cache, segment in wanted:
            self.connectors[cache].core.ask_reset(segment, "offsets")

    # -- inside ---------------------------------------------------------------------------------------------------

    def _working(self) -> list[Connector]:
        """The connectors that can take requests: neither ending nor failed."""
        return [c for c in self.connectors.values() if not c.state.ending and not c.failure.done()]

    async def _stop(self) -> None:
        async with self._lock:
            running = [c for c in self._working() if not c.state.closed]
            begun = [c for c in running if c.started]
            for connector in running:
                if connector not in begun:  # it has nothing to write yet, and it may start at any moment
                    connector.apply(Event.SUSPEND)
            outcomes = await asyncio.gather(*(c.suspend(SUSPEND_SECONDS) for c in begun), return_exceptions=True)
            working = self._working()  # a connector that ends meanwhile writes what it captured by itself
            failed = [e for c, e in zip(begun, outcomes, strict=True) if isinstance(e, BaseException) and c in working]
            for connector in running:  # all or none
                connector.apply(Event.CONTINUE if failed else Event.STOP)
            if failed and isinstance(failed[0], TimeoutError):
                raise KafkaTooSlowError(str(failed[0])) from failed[0]
            if failed:
                raise failed[0]

    async def _until_started(self) -> None:
        """What is starting was made of the present configuration. A start that fails is not waited for any more."""
        while not all(connector.started for connector in self._working()):  # noqa: ASYNC110 - each may end instead
            await asyncio.sleep(_LOOK_SECONDS)

    def _begun(self) -> Config:
        self._queued = False
        return self.config

    async def _restart(self, config_of: Callable[[], Config], tasks: bool) -> None:
        async with self._lock:
            config = config_of()
            self.check(config)
            await self._until_started()
            self._restarting = True
            prepared: list[tuple[Connector, Shell]] = []
            failed: list[Exception] = []
            try:
                for cache, connector in list(self.connectors.items()):
                    if connector in self._working():
                        try:
                            prepared.append((connector, await connector.prepared(_of_cache(config, cache))))
                        except Exception:
                            if connector in self._working():
                                raise
                self.config = config  # until here nothing has changed, from here on all of them will
                while prepared:
                    connector, shell = prepared.pop(0)
                    if connector not in self._working():  # it has left meanwhile
                        await connector.discard(shell)
                        continue
                    try:
                        await connector.replace(shell)
                    except Exception as error:  # noqa: BLE001 - raised once the others have been replaced
                        failed.append(error)
                    if tasks:
                        connector.repair(range(config["segment.count"]))
            finally:
                self._restarting = False
                for connector, shell in prepared:
                    await connector.discard(shell)
            if failed:
                raise failed[0]

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs to its end even if the caller is cancelled: half a restart is worse than none."""
        task = self._spawn(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)  # nobody else hears of it
            raise

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task


def _of_cache(config: Config, cache: str) -> Config:
    return config if config["cache.name"] else config.of_cache(cache)


def _fixed(name: str) -> str:
    """Why a restart cannot change this field; empty where it can."""
    if name in _NAMES or name.startswith("key.converter."):
        return "names the cache or its map, which a running connector keeps: start another connector with it"
    if name in _OF_THE_CACHE:
        return f"is read by the process once: {_REMEDY}"
    if name in _OF_THE_JOB or name.startswith("diff."):
        return "is read by the diff job alone: change it in its file"
    # Whoever may configure a connector shall not learn its secrets, nor send changes to another Kafka.
    connects = name == "bootstrap.servers" or ".override." in name or ".schema.registry." in name or ".auth." in name
    if connects and name not in _TUNED:
        return f"says where, as whom or with which files the process connects: {_REMEDY}"
    return ""


def _failure(connector: Connector) -> str | None:
    if connector.halted is not None:
        return f"{type(connector.halted).__name__}: {connector.halted}"
    failure = connector.failure
    if not failure.done() or failure.cancelled():
        return None
    error = failure.exception()
    return None if error is None else f"{type(error).__name__}: {error}"


def _written(segment: Segment) -> Position | None:
    if segment.written is None or segment.owed is not None:
        return None
    sequence = segment.written
    return next(((epoch, sequence) for epoch, last in segment.history if last >= sequence), None)


def _same(one: Config, other: Config, name: str) -> bool:
    """Whether both have the same value, explicit or by default; references are compared as written."""
    texts = one.raw.get(name), other.raw.get(name)
    if texts[0] == texts[1]:
        return True
    if any(text is not None and references(text) for text in texts) or name not in one or name not in other:
        return False
    return bool(one[name] == other[name])


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("what was asked for did not come to its end: %s", error)
