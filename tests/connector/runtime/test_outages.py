"""Kafka paused, gone for a while, and slow to come up, under a connector that goes on being written to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deelog_connector.errors import KafkaUnavailable
from deelog_proof.memory.port import Brokers, Reader
from deelog_schemas.header import Kind
from deelog_schemas.keys import partition_of, segment_of
from deelog_schemas.records import ON_POSITIONS, Record
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.support.kafka import Broker
from tests.support.memory import Memory
from tests.support.topics import derived, read_topic
from tests.support.waiting import awaiting

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


def whole_and_never_reset(found: Cache, records: list[Record], but: int | None = None) -> None:
    """The topic says what the cache holds, by changes alone, each there once. Segments of partition `but` may be reset
    once for what Kafka has lost."""
    content, readers = derived(records)
    assert content == found.entries_of
    assert sum(r.repeats for r in readers.values()) == 0
    partitions, segments = found.core.settings.partitions, found.core.settings.segments
    for number, reader in readers.items():
        lost = [["start", "truncated"]] if partition_of(number, partitions, segments) == but else []
        assert reader.resets in [["start"], *lost]


def test_a_paused_kafka_loses_nothing(memory: Memory, prefix: str) -> None:
    """Longer than a transaction may last: the broker aborts it, the writer looks again and writes the rest once."""
    seconds = 1

    async def work() -> None:
        async with cache(
            config_of(memory.bootstrap, prefix, transaction_timeout_ms=1000 * seconds), port=memory.port()
        ) as found:
            await started(found)
            async with written_to(found):
                await found.until(lambda: found.core.counts.written > 100)
                memory.kafka.up = False
                await asyncio.sleep(3 * seconds)  # by Kafka's clock
                memory.kafka.up = True
                paused_at = found.core.counts.written
                await found.until(lambda: found.core.counts.written > paused_at)
            await found.drained()
            whole_and_never_reset(found, memory.records(found.config.topics.changes))

    memory.run(work())


@pytest.mark.slow
def test_kafka_gone_and_back_loses_nothing(own_kafka: Broker, prefix: str) -> None:
    """On a real Kafka, which takes its time: connections break under all clients, and a leader is found anew."""

    async def work() -> None:
        async with cache(config_of(own_kafka.bootstrap, prefix)) as found:
            await started(found)
            async with written_to(found):
                own_kafka.kill()
                await found.until(lambda: found.core.unwritten() > 200)
                await asyncio.to_thread(own_kafka.start)
            await found.drained()
            whole_and_never_reset(found, read_topic(own_kafka.bootstrap, found.config.topics.changes))

    run(work())


@pytest.mark.parametrize("policy", ["block", "coalesce", "reset"])
def test_writes_go_on_while_kafka_is_away_and_the_policy_decides_beyond_the_limit(
    memory: Memory, prefix: str, policy: str
) -> None:
    """Not one write waits before the op log is full. What the policy gave up is repaired when Kafka is back."""

    async def work() -> None:
        fields = {"max.queue.size": LIMIT, "max.batch.size": 100, "oplog.overflow": policy}
        config = config_of(memory.bootstrap, prefix, **fields)
        async with cache(config, port=memory.port()) as found:
            await started(found)
            memory.kafka.up = False
            begun = memory.loop.time()
            for number in range(LIMIT - 10):
                await found.put(b"k%d" % (number % 150), b"v%d" % number)
            assert memory.loop.time() == begun
            assert found.connector.stats.overflow == {}
            for number in range(LIMIT - 10, LIMIT + 20):
                await found.put(b"k%d" % (number % 150), b"v%d" % number)
                assert found.core.budget.operations <= LIMIT
            assert found.connector.stats.overflow[policy] > 0
            assert (round(memory.loop.time() - begun, 6) >= config["max.block.ms"] / 1000) == (policy == "block")
            memory.kafka.up = True
            await found.drained()
            content, readers = derived(memory.records(config.topics.changes))
            assert content == found.entries_of
            assert sum(r.repeats for r in readers.values()) == 0
            resets = {x for r in readers.values() for x in r.resets} - {"start"}
            assert resets == (set() if policy == "coalesce" else {"overflow"})

    memory.run(work())


def test_partitions_without_a_leader_are_waited_for_at_start(
    memory: Memory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen right after topics were made: `Not leader for partition`, of each of the three first questions."""
    asked = {"seek": 0, "ends": 0, "state": 0}

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
    refuse_once(Brokers, "state")

    async def work() -> None:
        async with cache(config_of(memory.bootstrap, prefix), port=memory.port()) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
        assert min(asked.values()) >= 2

    memory.run(work())


def test_positions_of_idle_segments_are_renewed(memory: Memory, prefix: str) -> None:
    """Each segment's, unchanged, about once an interval, and never again after its release."""
    interval = 0.4

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, heartbeat_interval_ms=int(interval * 1000))
        busy = segment_of(b"a", 8)

        def renewals() -> dict[int, list[int]]:
            """By segment, the sequences of its renewals."""
            found: dict[int, list[int]] = {segment: [] for segment in range(8)}
            for record in memory.records(config.topics.positions, allowed=ON_POSITIONS):
                if record.header.kind is Kind.POSITION_RENEWAL:
                    found[record.header.segment].append(record.header.sequence)
            return found

        async def keep_busy(found: Cache) -> None:
            for number in itertools.count():
                await found.put(b"a", b"%d" % number)
                await asyncio.sleep(0.001)  # sooner than anything is committed

        async with cache(config, release=True, port=memory.port()) as found:
            idle_since = memory.loop.time()
            await started(found)
            writing = asyncio.create_task(keep_busy(found))
            await awaiting(
                lambda: all(len(there) >= 4 for s, there in renewals().items() if s != busy),
                60,
                "four renewals of each idle segment",
            )
            writing.cancel()
            await found.drained()
            there, seconds = renewals(), memory.loop.time() - idle_since
            assert len(there[busy]) < min(len(there[s]) for s in range(8) if s != busy)
            for segment in set(range(8)) - {busy}:
                assert len(there[segment]) <= seconds / interval + 1
                assert set(there[segment]) == {found.core.last_sequence(segment)}
        records = memory.records(config.topics.positions, allowed=ON_POSITIONS)
        last = {s: [r.header.kind for r in records if r.header.segment == s][-2:] for s in range(8)}
        assert all(kinds == [Kind.RELEASE_STATE, Kind.CLAIM_STATE] for kinds in last.values())

    memory.run(work())
