"""What is asked of a running connector at a bad moment: while Kafka is away, while it restarts, while it ends.

Bad input tried here: a reference whose file lacks the key or is gone, requests that come two at once, a pause and a
restart on the way out, a queue that is smaller than a transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deelog_connector.errors import DeletedError, KafkaUnusable
from deelog_connector.kafka import admin, consumer, writer
from deelog_connector.runtime import Lifecycle
from deelog_connector.runtime.lifecycle import State
from deelog_schemas.config import Config, ConfigError, parse
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.connector.signals.test_processor import send
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic


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
def impatient() -> Iterator[None]:
    """While Kafka is paused on purpose: a request is given up after a second."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (admin, consumer, writer):
            patched.setattr(module, "REQUEST_SECONDS", 1.0)
        yield


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
    session = writer.Writer(config, f"{prefix}/node", 1_000_000)
    session.open()
    secrets.write_text("password=second\n")
    assert session.settings()["sasl.password"] == "second"
    session.open()
    session.discard()


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
            found.connector._clients.admin.close()  # as after an error of Kafka: each client is made anew
            found.connector._clients.writer.discard()
            await found.put(b"a", b"1")
            await found.until(lambda: caplog.text.count("secrets.properties") >= 4)
            assert not found.connector.failure.done()
            (tmp_path / "away").rename(secrets)
            await written(found, kafka.bootstrap)

    run(work())


def test_a_restart_while_kafka_is_away_is_given_up_in_time(own_kafka: Broker, prefix: str) -> None:
    """A commit is under way and cannot end: it is not waited for, and nothing is lost by it."""

    async def work() -> None:
        async with cache(config_of(own_kafka.bootstrap, prefix, **{"transaction.timeout.ms": "5000"})) as found:
            await started(found)
            with impatient(), paused(own_kafka):
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
            deleting = asyncio.ensure_future(lifecycle.delete())
            await found.until(lifecycle._lock.locked)
            with pytest.raises(DeletedError):
                await lifecycle.resume()
            await deleting
            assert (lifecycle.deleted, found.connector.paused) == (True, True)

    run(work())


def test_a_cache_that_leaves_or_comes_during_a_restart(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        first, second, third = (config_of(kafka.bootstrap, f"{prefix}{n}") for n in range(3))
        async with cache(first) as one, cache(second) as two, cache(third) as three:
            for found in (one, two, three):
                await started(found)
            lifecycle = Lifecycle(first, {"a": one.connector, "b": two.connector})
            real = one.connector.restart
            joining: list[asyncio.Task[None]] = []

            async def slow(config: Config) -> None:
                del lifecycle.connectors["b"]
                joining.append(asyncio.create_task(lifecycle.join("d", three.connector)))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert "d" not in lifecycle.connectors  # all are stopped just now, which is nobody's wish
                await real(config)

            one.connector.restart = slow  # type: ignore[method-assign]
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
            real = connector.restart

            async def meanwhile(config: Config) -> None:
                kind = "resume-writing" if connector.wants_pause else "pause-writing"
                wanted = not connector.wants_pause
                send(kafka, prefix, kind)
                await found.until(lambda: connector.wants_pause is wanted)
                await real(config)

            connector.restart = meanwhile  # type: ignore[method-assign]
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
            assert good.connector.stopped
            await lifecycle.resume()
            await written(good, kafka.bootstrap)
            bad.connector.failure.exception()

    run(work())


def test_at_its_end_nobody_pauses_it(own_kafka: Broker, prefix: str) -> None:
    """A restart is under way, which waits for Kafka; then a pause comes."""

    async def work() -> None:
        found = Cache(config_of(own_kafka.bootstrap, prefix), 1)
        await found.connector.start()
        await started(found)
        lifecycle = asked(found)
        with impatient(), paused(own_kafka):
            await found.put(b"a", b"1")
            restarting = asyncio.ensure_future(lifecycle.restart())
            await found.until(lambda: found.core.paused)
            await asyncio.wait_for(lifecycle.end(), 60)
            found.connector.pause()
            await lifecycle.pause()
        await asyncio.wait([restarting], timeout=60)
        assert restarting.done()
        assert not found.connector.paused
        await found.drained()
        await found.connector.stop()
        content, readers = derived(read_topic(own_kafka.bootstrap, found.config.topics.changes))
        assert content == found.entries_of
        assert all(reader.resets == ["start"] for reader in readers.values())

    run(work())


def test_a_full_queue_does_not_hold_up_the_end(own_kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(own_kafka.bootstrap, prefix, **{"producer.override.queue.buffering.max.messages": "10"})
        found = Cache(config, 1)
        await found.connector.start()
        await started(found)
        with impatient(), paused(own_kafka):
            for number in range(200):
                await found.put(b"k%d" % number, b"v")
            producer = found.connector._clients.writer._producer
            assert producer is not None
            await found.until(lambda: len(producer) >= 10)
            await asyncio.wait_for(found.connector.stop(release=False), 60)
        assert found.core.unwritten() == 200
        assert derived(read_topic(own_kafka.bootstrap, config.topics.changes))[0] == {}

    run(work())
