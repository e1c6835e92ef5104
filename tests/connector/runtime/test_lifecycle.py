"""What is asked of a running connector at a bad moment: while Kafka is away, while it restarts, while it ends.

Bad input tried here: a reference whose file lacks the key or is gone, requests that come two at once, a pause and a
restart on the way out, a queue that is smaller than a transaction.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import deelog_interceptors
from deelog_connector.core.segment import Phase
from deelog_connector.errors import (
    KafkaTooSlowError,
    KafkaUnusable,
    NotStoppedError,
    TransformFailed,
)
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka.session import Session
from deelog_connector.runtime import Lifecycle
from deelog_connector.runtime import lifecycle as module
from deelog_connector.runtime.connector import Connector
from deelog_connector.runtime.lifecycle import Offset, State, Task
from deelog_connector.runtime.run_state import Event, RunState
from deelog_connector.runtime.shell import Shell
from deelog_schemas.config import Config, ConfigError, Role, parse
from deelog_schemas.errors import DeelogError
from deelog_schemas.keys import segments_of
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.connector.signals.test_processor import send
from tests.support.kafka import Broker
from tests.support.memory import Memory
from tests.support.topics import derived, read_topic
from tests.support.waiting import awaiting


def with_secret(bootstrap: str, prefix: str, folder: Path) -> tuple[Config, Path]:
    """A configuration whose producer and consumer have a secret in a file; nothing here asks for it."""
    secrets = folder / "secrets.properties"
    secrets.write_text("password=first\n")
    reference = f"${{file:{secrets}:password}}"
    names = [f"{one}.override.sasl.password" for one in ("producer", "consumer", "admin")]
    return config_of(bootstrap, prefix, **dict.fromkeys(names, reference)), secrets


def asked(found: Cache) -> Lifecycle:
    return Lifecycle(found.config, {"c": found.connector})


@contextmanager
def paused(kafka: Broker) -> Iterator[None]:
    kafka.pause()
    try:
        yield
    finally:
        kafka.resume()


async def written(found: Cache, bootstrap: str) -> None:
    """It writes, and the topic says what the cache holds."""
    await found.put(b"behind", b"%d" % time.monotonic_ns())
    await found.drained()
    content, readers = derived(read_topic(bootstrap, found.config.topics.changes))
    assert content == found.entries_of
    assert sum(reader.repeats for reader in readers.values()) == 0


def test_a_session_is_opened_with_the_secret_of_now(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    config, secrets = with_secret(kafka.bootstrap, prefix, tmp_path)

    async def work() -> None:
        port = Librdkafka()
        session = await port.session(config, f"{prefix}/node", lambda: 1_000_000)
        await session.open()
        secrets.write_text("password=second\n")
        assert session._settings()["sasl.password"] == "second"
        await session.open()
        await session.discard()
        await port.close()

    run(work())


def test_a_restart_that_cannot_be_changes_nothing(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    config, secrets = with_secret(kafka.bootstrap, prefix, tmp_path)
    only_admin = parse({k: v for k, v in config.raw.items() if not k.startswith("admin.")}, config.role)

    async def work() -> None:
        async with cache(only_admin) as found:
            await started(found)
            await found.put(b"a", b"1")
            secrets.write_text("passwort=misspelt\n")
            with pytest.raises(ConfigError, match=r"sasl\.password"):
                await asked(found).restart()
            assert asked(found).state is State.RUNNING
            secrets.write_text("password=right\n")
            await written(found, kafka.bootstrap)
            await asked(found).restart()
            await written(found, kafka.bootstrap)

    run(work())


def test_a_file_that_is_gone_for_a_moment_ends_nothing(
    kafka: Broker, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, secrets = with_secret(kafka.bootstrap, prefix, tmp_path)

    async def work() -> None:
        async with cache(config) as found:
            await started(found)
            secrets.rename(tmp_path / "away")
            clients = found.connector._shell.clients
            await clients.brokers.close()  # as after an error of Kafka: each client is made anew
            await clients.session.discard()
            await found.put(b"a", b"1")
            await found.until(lambda: caplog.text.count("secrets.properties") >= 4)
            assert not found.connector.failure.done()
            (tmp_path / "away").rename(secrets)
            await written(found, kafka.bootstrap)

    run(work())


@pytest.mark.slow
def test_a_restart_while_kafka_is_away_is_given_up_in_time(own_kafka: Broker, prefix: str) -> None:
    """A commit is under way and cannot end: it is not waited for, and nothing is lost by it."""

    async def work() -> None:
        async with cache(
            config_of(own_kafka.bootstrap, prefix, **{"transaction.timeout.ms": "5000"}), seconds=1.0
        ) as found:
            await started(found)
            with paused(own_kafka):
                await found.put(b"a", b"1")
                await found.until(lambda: bool(found.core._transactions.segments))
                with pytest.raises(KafkaUnusable):
                    await asyncio.wait_for(asked(found).restart(), 60)
            await written(found, own_kafka.bootstrap)
            await asked(found).restart()
            await written(found, own_kafka.bootstrap)

    run(work())


def test_the_offsets_of_what_is_stopped_stand_still(
    kafka: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions come back late, and more is written while what was acknowledged at the stop is waited for."""

    async def work() -> None:
        async with cache(config_of(kafka.bootstrap, prefix)) as found:
            await started(found)
            core, lifecycle, loop = found.connector.core, asked(found), asyncio.get_running_loop()
            read = core.state_read
            monkeypatch.setattr(core, "state_read", lambda record: loop.call_later(0.3, read, record))

            async def write_on() -> None:
                for number in range(100_000):
                    await found.put(b"k%d" % (number % 100), b"v%d" % number)
                    await asyncio.sleep(0.001)

            writing = asyncio.create_task(write_on())
            await found.until(lambda: core.counts.written > 100)
            await lifecycle.stop()
            offsets = {o.segment: (o.epoch, o.sequence) for o in lifecycle.offsets()}
            writing.cancel()
            _, readers = derived(read_topic(kafka.bootstrap, found.config.topics.changes))
            assert offsets == {number: reader.mark for number, reader in readers.items()}
            monkeypatch.undo()
            await lifecycle.resume()
            await written(found, kafka.bootstrap)

    run(work())


def test_what_is_asked_at_once_is_done_in_turn(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        async with cache(config_of(kafka.bootstrap, prefix)) as found:
            await started(found)
            lifecycle = asked(found)

            def changed(name: str, value: str) -> Config:
                return parse({**lifecycle.config.raw, name: value}, lifecycle.config.role)

            fields = {"max.batch.size": "100", "heartbeat.interval.ms": "2000"}
            await asyncio.gather(*(lifecycle.configure(lambda p=p: changed(*p)) for p in fields.items()))  # type: ignore[misc]
            assert {name: lifecycle.config.raw[name] for name in fields} == fields
            assert found.core.settings.max_batch_size == 100

    run(work())


def test_a_cache_that_leaves_or_comes_during_a_restart(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        first, second, third = (config_of(kafka.bootstrap, f"{prefix}{n}") for n in range(3))
        async with cache(first) as one, cache(second) as two, cache(third) as three:
            for found in (one, two, three):
                await started(found)
            lifecycle = Lifecycle(first, {"a": one.connector, "b": two.connector})
            real = one.connector.replace
            joining: list[asyncio.Task[Connector]] = []

            async def slow(shell: Shell) -> None:
                del lifecycle.connectors["b"]
                joining.append(asyncio.create_task(lifecycle.join("d", lambda _: three.connector)))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert "d" not in lifecycle.connectors
                await real(shell)

            one.connector.replace = slow  # type: ignore[method-assign]
            await lifecycle.restart()
            await joining[0]
            assert list(lifecycle.connectors) == ["a", "d"]
            for found in (one, two, three):
                await written(found, kafka.bootstrap)

    run(work())


def test_a_pause_or_resume_during_a_restart_stands_behind_it(kafka: Broker, prefix: str) -> None:
    """Signals are read on while it restarts: whoever sent one finds it obeyed."""

    async def work() -> None:
        async with cache(config_of(kafka.bootstrap, prefix)) as found:
            await started(found)
            lifecycle, connector = asked(found), found.connector
            real = connector.replace

            async def meanwhile(shell: Shell) -> None:
                kind = "resume-writing" if connector.state.wants_pause else "pause-writing"
                wanted = not connector.state.wants_pause
                send(kafka, prefix, kind)
                await found.until(lambda: connector.state.wants_pause is wanted)
                await real(shell)

            connector.replace = meanwhile  # type: ignore[method-assign]
            await lifecycle.restart()
            assert (lifecycle.state, connector.stats.signals.get("refused")) == (State.PAUSED, None)
            await found.put(b"a", b"1")
            await lifecycle.restart()
            assert lifecycle.state is State.RUNNING
            await written(found, kafka.bootstrap)

    run(work())


def test_one_that_failed_does_not_hold_up_the_others(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        configs = [config_of(kafka.bootstrap, f"{prefix}{n}") for n in range(2)]
        async with cache(configs[0]) as good, cache(configs[1]) as bad:
            await started(good)
            bad.connector.failure.set_exception(RuntimeError("broken"))
            lifecycle = Lifecycle(configs[0], {"good": good.connector, "bad": bad.connector})
            await lifecycle.stop()
            assert good.connector.state.stopped
            await lifecycle.resume()
            await written(good, kafka.bootstrap)
            bad.connector.failure.exception()

    run(work())


@pytest.mark.slow
def test_at_its_end_nobody_pauses_it(own_kafka: Broker, prefix: str) -> None:
    """A restart is under way, which waits for Kafka; then a pause comes."""

    async def work() -> None:
        found = Cache(config_of(own_kafka.bootstrap, prefix), 1, seconds=1.0)
        await found.connector.start()
        await started(found)
        lifecycle = asked(found)
        with paused(own_kafka):
            await found.put(b"a", b"1")
            restarting = asyncio.ensure_future(lifecycle.restart())
            await asyncio.wait_for(lifecycle.end(), 60)
            found.connector.pause()
            await lifecycle.pause()
        await asyncio.wait([restarting], timeout=60)
        assert restarting.done()
        assert not found.connector.state.paused
        await found.drained()
        await found.connector.stop()
        content, readers = derived(read_topic(own_kafka.bootstrap, found.config.topics.changes))
        assert content == found.entries_of
        assert all(reader.resets == ["start"] for reader in readers.values())

    run(work())


def test_a_full_queue_does_not_hold_up_the_end(own_kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(own_kafka.bootstrap, prefix, **{"producer.override.queue.buffering.max.messages": "10"})
        found = Cache(config, 1, seconds=1.0)
        await found.connector.start()
        await started(found)
        # One transaction takes all: one of less than ten records that is under way would leave the queue with room.
        found.connector.apply(Event.PAUSE)
        await found.until(lambda: found.core.idle)
        with paused(own_kafka):
            for number in range(200):
                await found.put(b"k%d" % number, b"v")
            found.connector.apply(Event.RESUME)
            producer = cast("Session", found.connector._shell.clients.session._session)._producer
            assert producer is not None
            await found.until(lambda: len(producer) >= 10)
            await asyncio.wait_for(found.connector.stop(release=False), 60)
        assert found.core.unwritten() == 200
        assert derived(read_topic(own_kafka.bootstrap, config.topics.changes))[0] == {}

    run(work())


# -- several caches on a Kafka in memory ----------------------------------------------------------------------------


@asynccontextmanager
async def several(memory: Memory, *names: str) -> AsyncIterator[tuple[Lifecycle, list[Cache]]]:
    """Started caches of one connector."""
    raw = config_of(memory.bootstrap, "p").raw
    config = parse({name: text for name, text in raw.items() if name != "cache.name"}, Role.CONNECTOR)
    caches = {name: Cache(config.of_cache(name), 1, port=memory.port()) for name in names}
    for found in caches.values():
        await found.connector.start()
        await started(found)
    try:
        yield Lifecycle(config, {name: found.connector for name, found in caches.items()}), list(caches.values())
    finally:
        for found in caches.values():
            await found.connector.stop(release=False)


def tuned(lifecycle: Lifecycle) -> Callable[[], Config]:
    return lambda: parse({**lifecycle.config.raw, "max.batch.size": "7"}, lifecycle.config.role)


def test_a_cache_that_ends_in_its_restart_leaves_it_to_the_others(memory: Memory) -> None:
    async def work() -> None:
        async with several(memory, "a", "b") as (lifecycle, (one, two)):
            shell = one.connector._shell
            restarting = asyncio.create_task(lifecycle.configure(tuned(lifecycle)))
            await one.until(lambda: one.connector._shell is not shell)
            memory.kafka.up = False
            await asyncio.sleep(1)
            await one.connector.stop(release=False)
            memory.kafka.up = True
            await restarting
            assert two.connector.config["max.batch.size"] == 7
            await two.put(b"a", b"1")
            await two.drained()

    memory.run(work())


@pytest.mark.parametrize("turns", [*range(0, 60, 2), None])
def test_a_restart_overlooks_a_cache_that_is_closed_before_its_turn(memory: Memory, turns: int | None) -> None:
    """Also one that is not released: the restart finds it closed, or is preparing it."""

    async def work() -> None:
        async with several(memory, "a", "b") as (lifecycle, (one, two)):
            if turns is None:
                await one.connector.stop(release=False)
            shell = two.connector._shell
            restarting = asyncio.create_task(lifecycle.restart())
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            await one.connector.stop(release=False)
            await restarting
            assert two.connector._shell is not shell
            await two.put(b"a", b"1")
            await two.drained()

    memory.run(work())


@pytest.mark.parametrize("in_order", [True, False])
def test_a_stop_overlooks_a_cache_that_is_closed_meanwhile(memory: Memory, in_order: bool) -> None:
    async def work() -> None:
        async with several(memory, "a", "b") as (lifecycle, (one, two)):
            for found in (one, two):
                await found.put(b"a", b"1")
            memory.kafka.up = False
            stopping = asyncio.create_task(lifecycle.stop())
            await asyncio.sleep(0.2)
            if in_order:
                await lifecycle.end(one.connector)
                await asyncio.sleep(1)
            await one.connector.stop(release=False)
            del lifecycle.connectors["a"]
            memory.kafka.up = True
            await stopping
            assert (lifecycle.state, two.core.counts.written) == (State.STOPPED, 1)

    memory.run(work())


def test_a_cache_that_is_starting_when_the_others_are_stopped_starts_stopped(memory: Memory) -> None:
    async def work() -> None:
        async with several(memory, "a") as (lifecycle, _):
            late = Cache(lifecycle.config.of_cache("b"), 1, port=memory.port())
            await lifecycle.join("b", lambda _: late.connector)
            starting = asyncio.create_task(late.connector.start())
            await asyncio.sleep(0)
            await lifecycle.stop()
            await starting
            assert lifecycle.state is State.STOPPED
            await lifecycle.resume()
            await started(late)
            await late.connector.stop(release=False)

    memory.run(work())


@pytest.mark.parametrize("too_slow", [False, True])
def test_a_cache_that_starts_while_another_one_is_drained_writes_nothing(memory: Memory, too_slow: bool) -> None:
    """It would be stopped in the middle of a transaction. Where the stop fails, it writes as the others do."""

    async def work() -> None:
        async with several(memory, "a") as (lifecycle, (one,)):
            late = Cache(lifecycle.config.of_cache("b"), 1, port=memory.port())
            await lifecycle.join("b", lambda _: late.connector)
            starting = asyncio.create_task(late.connector.start())
            await asyncio.sleep(0)
            await one.put(b"a", b"1")
            go_on, real = asyncio.Event(), one.connector.suspend

            async def slow(seconds: float) -> None:
                await go_on.wait()
                if too_slow:
                    raise TimeoutError("Kafka did not take it")
                await real(seconds)

            one.connector.suspend = slow  # type: ignore[method-assign]
            stopping = asyncio.create_task(lifecycle.stop())
            await starting
            late.own_all()
            await late.put(b"b", b"1")
            await asyncio.sleep(3)
            assert (late.core.counts.transactions, stopping.done()) == (0, False)
            go_on.set()
            if too_slow:
                with pytest.raises(KafkaTooSlowError):
                    await stopping
                assert lifecycle.state is State.RUNNING
            else:
                await stopping
                assert lifecycle.state is State.STOPPED
                await lifecycle.resume()
            await late.drained()
            await late.connector.stop(release=False)

    memory.run(work())


def test_a_cache_that_is_starting_is_configured_as_the_others_are(memory: Memory) -> None:
    async def work() -> None:
        async with several(memory, "a") as (lifecycle, (one,)):
            late = Cache(lifecycle.config.of_cache("b"), 1, port=memory.port())
            failing = Cache(lifecycle.config.of_cache("c"), 1, port=memory.port())
            for name, found in (("b", late), ("c", failing)):
                await lifecycle.join(name, lambda _, found=found: found.connector)  # type: ignore[misc]
            starting = asyncio.create_task(late.connector.start())
            configuring = asyncio.create_task(lifecycle.configure(tuned(lifecycle)))
            await starting
            await asyncio.sleep(1)
            assert not configuring.done()
            await failing.connector.stop(release=False)  # as a start that fails does
            await configuring
            assert {found.connector.config["max.batch.size"] for found in (one, late)} == {7}
            await started(late)
            await late.connector.stop(release=False)

    memory.run(work())


def test_a_connector_whose_old_clients_cannot_be_closed_has_failed(memory: Memory) -> None:
    async def work() -> None:
        async with several(memory, "a") as (lifecycle, (one,)):

            async def close() -> None:
                raise RuntimeError("a bug of a client")

            one.connector._shell.clients._idle[0].close = close  # type: ignore[method-assign]
            with pytest.raises(RuntimeError, match="a bug of a client"):
                await lifecycle.restart()
            assert (lifecycle.state, lifecycle.trace) == (State.FAILED, "RuntimeError: a bug of a client")

    memory.run(work())


def test_restarts_that_nobody_waits_for_do_not_pile_up(memory: Memory) -> None:
    """One that is under way, and one after it."""

    async def work() -> None:
        async with several(memory, "a") as (lifecycle, (one,)):
            shell, shells = one.connector._shell, set()
            for _ in range(20):
                lifecycle.restart_soon()
                await asyncio.sleep(0)
            pausing = asyncio.create_task(lifecycle.pause())
            while not pausing.done():
                shells.add(one.connector._shell)
                await asyncio.sleep(0.001)
            assert len(shells - {shell}) == 2
            assert lifecycle.state is State.PAUSED
            lifecycle.restart_soon()
            await lifecycle.restart()
            assert one.connector._shell not in shells, "the next one is begun"

    memory.run(work())


# -- rules that need no Kafka: the connectors are doubles -----------------------------------------------------------

PLAIN = config_of("h:1", "p")


def segment(number: int, phase: Phase = Phase.WRITING, **more: Any) -> SimpleNamespace:
    """A segment whose operation 5 of epoch 2 is written."""
    fields = {"stopped_by": "", "written": 5, "owed": None, "history": ((1, 3), (2, 9)), "epoch": 2}
    return SimpleNamespace(number=number, partition=number // 4, phase=phase, **{**fields, **more})


class Double:
    """A connector that remembers what it is asked for."""

    def __init__(self, *segments: SimpleNamespace, config: Config = PLAIN) -> None:
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.config, self.state, self.started = config, RunState(), True
        self.halted: DeelogError | None = None
        self.asked: list[Any] = []
        self.too_slow: Exception | None = None
        """What a stop or a restart of it raises."""
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.core = SimpleNamespace(
            settings=SimpleNamespace(partitions=2, segments=8),
            withheld=frozenset(),
            counts=SimpleNamespace(transactions=0),
            primaries=lambda: list(segments),
            request_reset=lambda *reset: self.asked.append(reset),
            ask_reset=lambda *reset: self.asked.append(reset),
        )

    @property
    def holds(self) -> set[str]:
        return set(map(str, self.state.holds))

    def apply(self, event: Event) -> None:
        self.state = self.state.after(event)

    def pause(self) -> None:
        self.apply(Event.PAUSE)

    def resume(self) -> None:
        self.apply(Event.RESUME)

    def end(self) -> None:
        self.apply(Event.END)

    def wake(self) -> None:
        self.asked.append("wake")

    repair = Connector.repair

    async def suspend(self, seconds: float) -> None:
        if self.too_slow is not None:
            self.apply(Event.CONTINUE)
            raise self.too_slow
        self.asked.append("suspend")
        self.apply(Event.SUSPEND)

    async def prepared(self, config: Config) -> SimpleNamespace:
        if self.too_slow is not None:
            raise self.too_slow
        self.asked.append("prepared")
        return SimpleNamespace(config=config)

    async def discard(self, shell: SimpleNamespace) -> None:
        self.asked.append("closed")

    async def replace(self, shell: SimpleNamespace) -> None:
        await self.goes_on.wait()
        self.config = shell.config
        self.asked.append("replaced")
        self.apply(Event.RENEW)


def of(*doubles: Double) -> Lifecycle:
    return Lifecycle(PLAIN, {f"c{number}": cast("Connector", one) for number, one in enumerate(doubles)})


def test_the_state_is_what_all_caches_have_in_common() -> None:
    async def work() -> None:
        one, two = Double(), Double()
        lifecycle = of(one, two)
        assert (str(of().state), str(lifecycle.state)) == ("RUNNING", "RUNNING")
        one.pause()
        assert str(lifecycle.state) == "RUNNING"
        two.pause()
        assert str(lifecycle.state) == "PAUSED"
        await lifecycle.stop()
        assert str(lifecycle.state) == "STOPPED"
        two.started = False
        assert (lifecycle.state, lifecycle.started) == (State.UNASSIGNED, False)
        two.halted = TransformFailed("transform t")
        assert (lifecycle.state, lifecycle.trace) == (State.FAILED, "TransformFailed: transform t")

    run(work(), 20)


async def joined(lifecycle: Lifecycle, cache: str) -> Double:
    return cast("Double", await lifecycle.join(cache, lambda config: cast("Connector", Double(config=config))))


def test_a_cache_that_comes_later_is_paused_or_stopped_as_the_others_are() -> None:
    async def work() -> None:
        for events, holds in (
            ([], set()),
            ([Event.PAUSE], {"paused"}),
            ([Event.STOP], {"paused", "stopped"}),
        ):
            one, two = Double(), Double()
            lifecycle = of(one, two)
            for event in events:
                one.apply(event)
            early = await joined(lifecycle, "early")
            assert early.holds == set(), "one of the others writes"
            for event in events:
                two.apply(event)
                early.apply(event)
            later = await joined(lifecycle, "later")
            assert later.holds == holds
            assert set(lifecycle.connectors) == {"c0", "c1", "early", "later"}
        alone = await joined(of(), "c")
        assert alone.holds == set()

    run(work(), 20)


def test_one_that_ends_or_failed_is_asked_nothing() -> None:
    async def work() -> None:
        working, ending, failed = Double(), Double(), Double()
        ending.apply(Event.LEAVE)
        failed.failure.set_exception(RuntimeError("broken"))
        lifecycle = of(working, ending, failed)
        await lifecycle.pause()
        assert [one.state.wants_pause for one in (working, ending, failed)] == [True, False, False]
        await lifecycle.stop()
        await lifecycle.restart()
        assert (ending.asked, failed.asked) == ([], [])
        assert lifecycle.trace == "RuntimeError: broken"
        failed.failure.exception()

    run(work(), 20)


def test_a_stop_writes_out_and_a_pause_or_resume_opens_the_producer_again() -> None:
    async def work() -> None:
        one = Double()
        lifecycle = of(one)
        await lifecycle.stop()
        assert (one.asked, one.holds) == (["suspend"], {"stopped"})
        await lifecycle.stop()
        assert one.asked == ["suspend"], "it is stopped already"
        await lifecycle.pause()
        assert one.holds == {"paused"}
        await lifecycle.stop()
        await lifecycle.resume()
        assert one.holds == set()

    run(work(), 20)


def test_all_are_stopped_or_none() -> None:
    async def work() -> None:
        one, two = Double(), Double()
        two.too_slow = TimeoutError("Kafka did not take it")
        with pytest.raises(KafkaTooSlowError, match="Kafka did not take it"):
            await of(one, two).stop()
        assert (one.holds, two.holds) == (set(), set())
        two.too_slow = ValueError("a bug")
        with pytest.raises(ValueError, match="a bug"):
            await of(one, two).stop()

    run(work(), 20)


@pytest.mark.parametrize("event", [None, Event.PAUSE, Event.STOP])
def test_a_restart_leaves_the_state_as_it_was(event: Event | None) -> None:
    async def work() -> None:
        one = Double()
        if event is not None:
            one.apply(event)
        before, lifecycle = one.state, of(one)
        await lifecycle.restart()
        assert one.state == before
        assert one.asked == ["prepared", "replaced"]
        assert lifecycle.state is not State.RESTARTING

    run(work(), 20)


def test_a_restart_tries_again_what_halted() -> None:
    async def work() -> None:
        one = Double()
        one.apply(Event.HALT)
        await of(one).restart()
        assert one.holds == set()

    run(work(), 20)


@pytest.mark.parametrize(("tasks", "reset"), [(True, [(2, "refused")]), (False, [])])
def test_a_restart_of_tasks_repairs_the_segments_that_were_stopped(tasks: bool, reset: list[Any]) -> None:
    async def work() -> None:
        one = Double(segment(1), segment(2, Phase.STOPPED, stopped_by="too large"))
        lifecycle = of(one)
        await lifecycle.restart(tasks)
        assert [asked for asked in one.asked if isinstance(asked, tuple)] == reset

    run(work(), 20)


def test_a_configuration_comes_into_force_if_every_field_of_it_can() -> None:
    async def work() -> None:
        one = Double()
        lifecycle = of(one)
        changed = config_of("h:1", "p", **{"max.batch.size": 7})
        await lifecycle.configure(lambda: changed)
        assert lifecycle.config is changed
        assert one.config is changed
        one.asked.clear()
        with pytest.raises(ConfigError, match=r"segment\.count.*names the cache or its map") as raised:
            await lifecycle.configure(lambda: config_of("h:1", "p", **{"segment.count": 16, "max.batch.size": 8}))
        assert [error.field for error in raised.value.errors] == ["segment.count"]
        assert (one.asked, one.holds) == ([], set())
        assert lifecycle.config is changed

    run(work(), 20)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("topic.prefix", "q", "names the cache or its map"),
        ("key.converter.schemas.enable", "true", "names the cache or its map"),
        ("skip.messages.without.change", "true", "is read by the process once"),
        ("value.converter.schemas.enable", "true", ""),
        ("skipped.operations", "d", ""),
        ("snapshot.mode", "no_data", ""),
        ("snapshot.mode", "initial_only", "ends the process"),
        ("binary.handling.mode", "hex", "names the cache or its map"),
        ("producer.override.linger.ms", "7", ""),
        ("producer.override.sasl.password", "secret", "where, as whom or with which files"),
        ("bootstrap.servers", "elsewhere:9092", "where, as whom or with which files"),
        ("diff.topic", "d", "is read by the diff job alone"),
        ("notification.sink.topic.name", "notes", ""),
    ],
)
def test_a_restart_changes_all_but_what_names_the_cache_or_is_the_caches(name: str, value: str, why: str) -> None:
    async def work() -> None:
        changed = parse({**PLAIN.raw, name: value}, PLAIN.role)
        if not why:
            of().check(changed)
            return
        with pytest.raises(ConfigError, match=why) as raised:
            of().check(changed)
        assert [error.field for error in raised.value.errors] == [name]

    run(work(), 20)


def test_what_an_interceptor_reads_is_not_changed_by_a_restart_of_the_connector() -> None:
    """But for what the connector reads too, as the one that counts, and what is asked for each time."""
    folder = Path(deelog_interceptors.__file__).parent
    read = {name for file in folder.rglob("*.py") for name in re.findall(r"config\[\"([^\"]+)\"\]", file.read_text())}
    assert "cache.listen" in read
    asked = {"commit.interval.ms", "heartbeat.interval.ms", "redis.read.keys.per.second"}
    assert {name for name in read if not module._fixed(name)} == asked
    for secret in ("value.converter.schema.registry.url", "value.converter.basic.auth.user.info"):
        assert "as whom" in module._fixed(secret)


def test_no_connector_is_replaced_unless_each_can_be() -> None:
    async def work() -> None:
        one, two = Double(), Double()
        two.too_slow = KafkaUnusable("away")
        lifecycle = of(one, two)
        with pytest.raises(KafkaUnusable, match="away"):
            await lifecycle.configure(lambda: config_of("h:1", "p", **{"max.batch.size": 7}))
        assert (one.asked, one.config, lifecycle.config) == (["prepared", "closed"], PLAIN, PLAIN)
        two.too_slow = None
        prepared = two.prepared

        async def leaving(config: Config) -> SimpleNamespace:
            two.apply(Event.LEAVE)
            return await prepared(config)

        two.prepared = leaving  # type: ignore[method-assign]
        await lifecycle.restart()
        assert (one.asked[-1], two.asked) == ("replaced", ["prepared", "closed"])

    run(work(), 20)


def test_one_whose_restart_fails_does_not_keep_the_others_from_theirs() -> None:
    async def work() -> None:
        one, two = Double(), Double()

        async def fails(shell: SimpleNamespace) -> None:
            raise RuntimeError("a bug")

        one.replace = fails  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a bug"):
            await of(one, two).restart()
        assert two.asked == ["prepared", "replaced"]

    run(work(), 20)


def test_only_what_is_stopped_can_have_its_offsets_reset() -> None:
    async def work() -> None:
        one = Double(segment(1))
        lifecycle = of(one)
        with pytest.raises(NotStoppedError, match="test is not stopped"):
            lifecycle.reset([("c0", 1)])
        await lifecycle.stop()
        lifecycle.reset([("c0", 1)])
        assert one.asked[-1] == (1, "offsets")

    run(work(), 20)


def test_a_task_is_a_partition_of_a_cache() -> None:
    async def work() -> None:
        first, second = segments_of(0, 2, 8), segments_of(1, 2, 8)
        one, two = Double(segment(first[0]), segment(first[1])), Double(segment(second[0]))
        lifecycle = of(one, two)
        assert lifecycle.tasks() == [
            Task(0, "c0", 0, (first[0], first[1]), State.RUNNING),
            Task(1, "c0", 1, (), State.UNASSIGNED),
            Task(2, "c1", 0, (), State.UNASSIGNED),
            Task(3, "c1", 1, (second[0],), State.RUNNING),
        ]
        one.pause()
        assert lifecycle.tasks()[0].state is State.PAUSED
        await lifecycle.stop()
        assert lifecycle.tasks() == []
        stopped = of(Double(segment(first[0], Phase.STOPPED, stopped_by="too large"), segment(first[1])))
        assert (stopped.tasks()[0].state, stopped.tasks()[0].trace) == (State.FAILED, f"segment {first[0]}: too large")
        stopped.restart_task(stopped.tasks()[0])
        assert cast("Double", stopped.connectors["c0"]).asked == [(first[0], "refused"), "wake"]

    run(work(), 20)


def test_offsets_name_the_epoch_that_the_last_written_operation_is_of() -> None:
    async def work() -> None:
        one = Double(
            segment(4, written=3),
            segment(1, written=4),
            segment(2, written=None),
            segment(3, owed="overflow"),
        )
        assert of(one).offsets() == [Offset("c0", 1, 2, 4), Offset("c0", 4, 1, 3)]

    run(work(), 20)


def test_active_topics_are_those_that_were_written_to() -> None:
    async def work() -> None:
        one = Double()
        lifecycle = of(one)
        assert lifecycle.topics() == []
        one.core.counts.transactions = 1
        assert lifecycle.topics() == sorted([PLAIN.topics.changes, PLAIN.topics.positions])

    run(work(), 20)


def test_at_the_end_nobody_asks_anything_and_what_was_asked_is_given_up() -> None:
    async def work() -> None:
        one, leaving = Double(), Double()
        lifecycle = of(one, leaving)
        await lifecycle.pause()
        await lifecycle.end(cast("Connector", leaving))
        assert (one.holds, leaving.holds) == ({"paused"}, {"ending"})
        await lifecycle.end()
        await lifecycle.pause()
        assert one.holds == {"ending"}

    run(work(), 20)


def test_a_restart_shows_while_it_lasts_and_the_end_gives_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.0)

    async def work() -> None:
        one = Double(segment(0), segment(1))
        one.goes_on.clear()
        lifecycle = of(one)
        lifecycle.restart_soon()
        assert str(lifecycle.state) == "RESTARTING"
        await awaiting(lambda: one.asked, 20, "the preparation")
        assert "RESTARTING" in [str(task.state) for task in lifecycle.tasks()]
        await lifecycle.end()
        assert (one.asked, one.holds) == (["prepared"], {"ending"})
        assert str(lifecycle.state) == "RUNNING"

    run(work(), 20)


def test_a_restart_that_nobody_waits_for_is_logged_where_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        one = Double()
        one.too_slow = TimeoutError("too slow")
        of(one).restart_soon()
        await awaiting(lambda: caplog.messages, 20, "the line in the log")
        assert "what was asked for did not come to its end: too slow" in caplog.messages[0]
        caplog.clear()
        one.too_slow = None
        (lifecycle := of(one)).restart_soon()
        await lifecycle.stop()  # after it

    run(work(), 20)
    assert caplog.messages == []


@pytest.mark.parametrize("cancelled", [True, False])
def test_an_error_is_raised_or_else_logged(caplog: pytest.LogCaptureFixture, cancelled: bool) -> None:
    async def work() -> None:
        one = Double()

        async def fails(shell: SimpleNamespace) -> None:
            await one.goes_on.wait()
            raise RuntimeError("a bug")

        one.replace = fails  # type: ignore[method-assign]
        one.goes_on.clear()
        caller = asyncio.create_task(of(one).restart())
        await awaiting(lambda: one.asked, 20, "the preparation")
        if cancelled:
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        one.goes_on.set()
        if cancelled:
            await awaiting(lambda: caplog.messages, 20, "the line in the log")
            assert caplog.messages == ["what was asked for did not come to its end: a bug"]
        else:
            with pytest.raises(RuntimeError, match="a bug"):
                await caller
            assert caplog.messages == []

    run(work(), 20)


def test_references_are_compared_as_they_are_written(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "s").write_text("password=one\nother=one\n")

        def with_password(key: str) -> Config:
            return config_of("h:1", "p", **{"rest.token": f"${{file:{tmp_path}/s:{key}}}"})

        lifecycle = Lifecycle(with_password("password"), {})
        lifecycle.check(with_password("password"))
        with pytest.raises(ConfigError, match=r"rest\.token"):
            lifecycle.check(with_password("other"))
        with pytest.raises(ConfigError, match=r"rest\.token"):
            lifecycle.check(PLAIN)
        # A default that is written out means the same.
        of().check(config_of("h:1", "p", **{"before.image": "key"}))

    run(work(), 20)
