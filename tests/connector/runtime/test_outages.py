"""Kafka paused, gone for a while, and slow to come up, under a connector that goes on being written to.

DEELOG_TEST_AWAY_SECONDS (6) is how long Kafka is gone in the longer of these tests; with 60 they take some minutes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import pytest

from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.opening import KafkaUnavailable
from deelog_connector.kafka.tail import Tail
from deelog_connector.runtime import connector
from deelog_schemas.header import Kind
from deelog_schemas.records import ON_POSITIONS
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic

log = logging.getLogger(__name__)
AWAY_SECONDS = float(os.environ.get("DEELOG_TEST_AWAY_SECONDS", "6"))
LIMIT = 400
"""Operations in the op log."""


async def keep_writing(found: Cache, seconds: float) -> None:
    """A steady client."""
    until, i = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        i += 1
        await found.put(b"k%d" % (i % 50), b"v%d" % i)
        await asyncio.sleep(0.002)


def test_a_paused_kafka_loses_nothing(own_kafka: Broker, prefix: str) -> None:
    """Longer than a transaction may last: the broker aborts it, the writer looks again and writes the rest once."""

    async def work() -> None:
        config = config_of(own_kafka.bootstrap, prefix, **{"transaction.timeout.ms": "2000"})
        async with cache(config) as found:
            await started(found)
            writing = asyncio.create_task(keep_writing(found, 8.0))
            await asyncio.sleep(0.5)
            own_kafka.pause()
            await asyncio.sleep(6.0)
            own_kafka.resume()
            await writing
            await found.drained(60)
            content, readers = derived(read_topic(own_kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            assert sum(r.repeats for r in readers.values()) == 0
            assert all(r.resets == ["start"] for r in readers.values())

    run(work())


def test_kafka_gone_and_back_loses_nothing(own_kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(own_kafka.bootstrap, prefix)
        async with cache(config) as found:
            await started(found)
            writing = asyncio.create_task(keep_writing(found, 8.0))
            own_kafka.kill()
            await asyncio.sleep(3.0)
            await asyncio.to_thread(own_kafka.start)
            await writing
            await found.drained(60)
            content, readers = derived(read_topic(own_kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            assert sum(r.repeats for r in readers.values()) == 0
            assert all(r.resets == ["start"] for r in readers.values())

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
            waited = time.monotonic() - before
            assert found.core.budget.operations <= 201
            assert found.connector.stats.overflow[policy] > 0
            assert (waited > 0.2) == (policy == "block"), waited
            own_kafka.resume()
            await found.drained(60)
            content, readers = derived(read_topic(own_kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            resets = [x for r in readers.values() for x in r.resets]
            assert ("overflow" in resets) == (policy != "coalesce")

    run(work())


@pytest.mark.timeout(AWAY_SECONDS + 300)
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
            writes, free, longest = 0, 0, 0.0
            until = time.monotonic() + AWAY_SECONDS
            while time.monotonic() < until:
                before = time.monotonic()
                await found.put(b"k%d" % (writes % 150), b"v%d" % writes)
                if not found.connector.stats.overflow:
                    free, longest = writes, max(longest, time.monotonic() - before)
                writes += 1
                assert found.core.budget.operations <= LIMIT
                await asyncio.sleep(0.002)
            assert free >= LIMIT - 10
            # A wait for Kafka lasts as long as Kafka is away; a busy machine alone has taken 0.1 s.
            assert longest < AWAY_SECONDS / 10, "a write waited although there was room"
            assert writes > free + 5, "the client stood still once the op log was full"
            assert found.connector.stats.overflow[policy] > 0
            unwritten = found.core.unwritten()
            await asyncio.to_thread(own_kafka.start)
            back = time.monotonic()
            await found.drained(60)
            log.warning(
                "%s: %.0f s away, %d writes, %d before the op log was full, %d unwritten at the end, all written %.1f "
                "s after Kafka was back, overflow %s, resets %s",
                policy,
                AWAY_SECONDS,
                writes,
                free,
                unwritten,
                time.monotonic() - back,
                found.connector.stats.overflow,
                found.connector.stats.resets,
            )
            content, readers = derived(read_topic(own_kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            assert sum(r.repeats for r in readers.values()) == 0
            resets = {x for r in readers.values() for x in r.resets} - {"start"}
            assert resets == (set() if policy == "coalesce" else {"overflow"})

    run(work(), AWAY_SECONDS + 170)


def test_partitions_without_a_leader_are_waited_for_at_start(
    kafka: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen right after topics were made: `Not leader for partition`, of each of the three first questions."""
    asked = {"Tail": 0, "ends": 0, "topic_id": 0}

    class AskedTail(Tail):
        def __init__(self, *args: Any, **more: Any) -> None:
            refuse_once("Tail")
            super().__init__(*args, **more)

    class AskedAdmin(KafkaAdmin):
        def ends(self, *args: Any) -> Any:
            refuse_once("ends")
            return super().ends(*args)

        def topic_id(self, *args: Any) -> Any:
            refuse_once("topic_id")
            return super().topic_id(*args)

    def refuse_once(what: str) -> None:
        asked[what] += 1
        if asked[what] == 1:
            raise KafkaUnavailable(f"{what}: Broker: Not leader for partition")

    monkeypatch.setattr(connector, "Tail", AskedTail)
    monkeypatch.setattr(connector, "KafkaAdmin", AskedAdmin)

    async def work() -> None:
        async with cache(config_of(kafka.bootstrap, prefix)) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
        assert min(asked.values()) >= 2

    run(work())


def test_positions_of_idle_segments_are_renewed(kafka: Broker, prefix: str) -> None:
    """Each segment's, unchanged, about once an interval, and never again behind its release."""

    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix, **{"heartbeat.interval.ms": 500})
        topic = config.topics.positions
        async with cache(config, release=True) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
            idle = time.monotonic()
            for _ in range(30):  # keeps one segment busy: it needs no renewal
                await found.put(b"a", b"2")
                await asyncio.sleep(0.1)
            await found.drained()
            seconds = time.monotonic() - idle
            written = {s: found.core.last_sequence(s) for s in range(8)}
        records = read_topic(kafka.bootstrap, topic, allowed=ON_POSITIONS)
        renewed = {
            s: [r for r in records if r.header.segment == s and r.header.kind is Kind.POSITION_RENEWAL]
            for s in range(8)
        }
        busy = next(s for s in written if written[s] == max(written.values()))
        for segment, renewals in renewed.items():
            if segment != busy:
                assert seconds / 0.5 / 2 <= len(renewals) <= seconds / 0.5 + 3
                assert {r.header.sequence for r in renewals} == {written[segment]}
        assert len(renewed[busy]) < min(len(renewals) for s, renewals in renewed.items() if s != busy)
        last = {s: [r.header.kind for r in records if r.header.segment == s][-2:] for s in range(8)}
        assert all(kinds == [Kind.RELEASE_STATE, Kind.CLAIM_STATE] for kinds in last.values())

    run(work())
