"""Kafka paused, gone for a while, and slow to come up, under a connector that goes on being written to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka.librdkafka import Brokers
from deelog_connector.kafka.reader import Reader
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.records import ON_POSITIONS
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic
from tests.support.waiting import waiting

LIMIT = 400
"""Operations in the op log."""


@asynccontextmanager
async def written_to(found: Cache) -> AsyncIterator[None]:
    """A steady client."""

    async def write() -> None:
        for i in itertools.count():
            await found.put(b"k%d" % (i % 50), b"v%d" % i)
            await asyncio.sleep(0.002)

    writing = asyncio.create_task(write())
    try:
        yield
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing


async def whole_and_never_reset(found: Cache, kafka: Broker) -> None:
    """The topic says what the cache holds, by changes alone, each there once."""
    await found.drained()
    content, readers = derived(read_topic(kafka.bootstrap, found.config.topics.changes))
    assert content == found.entries_of
    assert sum(r.repeats for r in readers.values()) == 0
    assert all(r.resets == ["start"] for r in readers.values())


@pytest.mark.slow
def test_a_paused_kafka_loses_nothing(own_kafka: Broker, prefix: str) -> None:
    """Longer than a transaction may last: the broker aborts it, the writer looks again and writes the rest once."""
    seconds = 1

    async def work() -> None:
        async with cache(config_of(own_kafka.bootstrap, prefix, transaction_timeout_ms=1000 * seconds)) as found:
            await started(found)
            async with written_to(found):
                await found.until(lambda: found.core.counts.written > 100)
                own_kafka.pause()
                await asyncio.sleep(3 * seconds)  # by Kafka's clock
                own_kafka.resume()
                paused_at = found.core.counts.written
                await found.until(lambda: found.core.counts.written > paused_at)
            await whole_and_never_reset(found, own_kafka)

    run(work())


def test_kafka_gone_and_back_loses_nothing(own_kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        async with cache(config_of(own_kafka.bootstrap, prefix)) as found:
            await started(found)
            async with written_to(found):
                own_kafka.kill()
                await found.until(lambda: found.core.unwritten() > 200)
                await asyncio.to_thread(own_kafka.start)
            await whole_and_never_reset(found, own_kafka)

    run(work())


@pytest.mark.parametrize("policy", ["block", "coalesce", "reset"])
def test_an_op_log_that_is_full(own_kafka: Broker, prefix: str, policy: str) -> None:
    async def work() -> None:
        fields = {"max.queue.size": "200", "max.batch.size": "100", "oplog.overflow": policy}
        config = config_of(own_kafka.bootstrap, prefix, **fields)
        async with cache(config) as found:
            await started(found)
            own_kafka.pause()
            before = time.monotonic()
            for i in range(300):
                await found.put(b"k%d" % (i % 20), b"v%d" % i)
            assert found.core.budget.operations <= 201
            assert found.connector.stats.overflow[policy] > 0
            assert policy != "block" or time.monotonic() - before >= found.config["max.block.ms"] / 1000
            own_kafka.resume()
            await found.drained(60)
            content, readers = derived(read_topic(own_kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            resets = [x for r in readers.values() for x in r.resets]
            assert ("overflow" in resets) == (policy != "coalesce")

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["block", "coalesce", "reset"])
def test_writes_go_on_while_kafka_is_away_and_the_policy_decides_beyond_the_limit(
    own_kafka: Broker, prefix: str, policy: str
) -> None:
    """Not one write waits before the op log is full. What the policy gave up is repaired when Kafka is back."""

    async def work() -> None:
        fields = {"max.queue.size": LIMIT, "max.batch.size": 100, "oplog.overflow": policy}
        config = config_of(own_kafka.bootstrap, prefix, **fields)
        async with cache(config) as found:
            await started(found)
            own_kafka.kill()
            # Kafka comes back when all is written: a write that waited for it would wait for ever.
            for number in range(LIMIT - 10):
                await found.put(b"k%d" % (number % 150), b"v%d" % number)
            assert found.connector.stats.overflow == {}
            for number in range(LIMIT - 10, LIMIT + 20):
                await found.put(b"k%d" % (number % 150), b"v%d" % number)
                assert found.core.budget.operations <= LIMIT
            assert found.connector.stats.overflow[policy] > 0
            await asyncio.to_thread(own_kafka.start)
            await found.drained()
            content, readers = derived(read_topic(own_kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            assert sum(r.repeats for r in readers.values()) == 0
            resets = {x for r in readers.values() for x in r.resets} - {"start"}
            assert resets == (set() if policy == "coalesce" else {"overflow"})

    run(work())


def test_partitions_without_a_leader_are_waited_for_at_start(
    kafka: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen right after topics were made: `Not leader for partition`, of each of the three first questions."""
    asked = {"seek": 0, "ends": 0, "topic_id": 0}

    def refuse_once(of: type, what: str) -> None:
        call = getattr(of, what)

        async def refused(self: Any, *args: Any) -> Any:
            asked[what] += 1
            if asked[what] == 1:
                raise KafkaUnavailable(f"{what}: Broker: Not leader for partition")
            return await call(self, *args)

        monkeypatch.setattr(of, what, refused)

    refuse_once(Reader, "seek")
    refuse_once(Brokers, "ends")
    refuse_once(Brokers, "topic_id")

    async def work() -> None:
        async with cache(config_of(kafka.bootstrap, prefix)) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
        assert min(asked.values()) >= 2

    run(work())


def test_positions_of_idle_segments_are_renewed(kafka: Broker, prefix: str) -> None:
    """Each segment's, unchanged, about once an interval, and never again after its release."""
    interval = 0.4

    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix, heartbeat_interval_ms=int(interval * 1000))
        busy = segment_of(b"a", 8)

        def renewals() -> dict[int, list[int]]:
            """By segment, the sequences of its renewals."""
            found: dict[int, list[int]] = {segment: [] for segment in range(8)}
            for record in read_topic(kafka.bootstrap, config.topics.positions, allowed=ON_POSITIONS):
                if record.header.kind is Kind.POSITION_RENEWAL:
                    found[record.header.segment].append(record.header.sequence)
            return found

        async def keep_busy(found: Cache) -> None:
            for number in itertools.count():
                await found.put(b"a", b"%d" % number)
                await asyncio.sleep(0.001)  # sooner than anything is committed

        async with cache(config, release=True) as found:
            idle_since = time.monotonic()
            await started(found)
            writing = asyncio.create_task(keep_busy(found))
            await asyncio.to_thread(
                waiting,
                lambda: all(len(there) >= 4 for s, there in renewals().items() if s != busy),
                60,
                "four renewals of each idle segment",
            )
            writing.cancel()
            await found.drained()
            there, seconds = renewals(), time.monotonic() - idle_since
            assert len(there[busy]) < min(len(there[s]) for s in range(8) if s != busy)
            for segment in set(range(8)) - {busy}:
                assert len(there[segment]) <= seconds / interval + 1
                assert set(there[segment]) == {found.core.last_sequence(segment)}
        records = read_topic(kafka.bootstrap, config.topics.positions, allowed=ON_POSITIONS)
        last = {s: [r.header.kind for r in records if r.header.segment == s][-2:] for s in range(8)}
        assert all(kinds == [Kind.RELEASE_STATE, Kind.CLAIM_STATE] for kinds in last.values())

    run(work())
