"""The job with the real connector under each `reset.strategy`: the same differences."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deelog_connector.core.reset_strategy import Strategy
from deelog_schemas.config import Config
from deelog_schemas.operation import Reason
from deelog_spark import DiffJob
from tests.connector import cache as connector
from tests.spark.reference import in_topic
from tests.support.changes import config_of
from tests.support.kafka import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2


def differences(config: Config) -> list[tuple[object, ...]]:
    """The differences that the job has written."""
    return [
        (number, t.op, t.key, t.before, t.after, t.position, t.cause)
        for number, rows in sorted(in_topic(config, PARTITIONS).items())
        for t in rows
    ]


def tell(config: Config, spark: SparkSession) -> None:
    """Runs the job to the end of the topic."""
    job = DiffJob(config, spark)
    try:
        job.start(available_now=True)
        assert job.await_termination(240)
    finally:
        job.stop()


async def first_life(kafka: Broker, prefix: str, strategy: Strategy) -> None:
    """Writes entries, clears one segment, and ends without a release."""
    config = connector.config_of(kafka.bootstrap, prefix, reset_strategy=strategy)
    async with connector.cache(config, 1) as found:
        await connector.started(found)
        for number in range(60):
            await found.put(b"k%d" % number, b"v%d" % number)
        await found.drained()
        for entry in found.entries(3):
            del found.entries_of[entry.key]
        clear = found.core.append(3, Reason.CLEAR, b"", None, None, 1, True)
        found.core.acked(3, clear.sequence)
        await found.drained()


async def second_life(kafka: Broker, prefix: str, strategy: Strategy) -> dict[bytes, bytes]:
    """The cache has lost a third of the entries, kept a third, and changed a third. Returns its entries at the end."""
    config = connector.config_of(kafka.bootstrap, prefix, reset_strategy=strategy)
    async with connector.cache(config, 2) as found:
        found.entries_of = {b"k%d" % n: b"v%d" % n if n % 3 else b"other" for n in range(60) if n % 3 < 2}
        await connector.started(found)
        await found.put(b"k1", None)
        await found.put(b"k2", b"back")
        await found.drained()
        assert (found.connector.stats.reset_deletes > 0) is strategy.takes_back
        return found.entries_of


@pytest.mark.slow
def test_the_differences_are_the_same_under_every_strategy(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The job starts with the first resets, at their base offsets, and runs when the second ones come."""
    told = {}
    for strategy in (Strategy.MARKER, Strategy.TOMBSTONES):
        name = f"{prefix}-{strategy}"
        config = config_of(kafka.bootstrap, name, str(tmp_path / strategy), topic_creation_default_partitions=2)
        asyncio.run(first_life(kafka, name, strategy))
        tell(config, spark)
        cached = asyncio.run(second_life(kafka, name, strategy))
        tell(config, spark)
        told[strategy] = differences(config)
        last = {t.key: t.after for rows in in_topic(config, PARTITIONS).values() for t in rows}
        assert {key: after.value for key, after in last.items() if after is not None} == cached
    assert told[Strategy.MARKER] == told[Strategy.TOMBSTONES]
    assert {(op, cause) for _, op, _, _, _, _, cause in told[Strategy.MARKER]} >= {
        ("c", "reset"),
        ("u", "reset"),
        ("d", "reset"),
        ("d", "change"),
    }
