"""The job after a connector that filters, transforms, and writes bytes in hexadecimal."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deelog_connector.transforms import Record, Transform
from deelog_schemas.header import Kind
from deelog_spark import DiffJob, latest
from tests.connector.cache import cache, started
from tests.connector.cache import config_of as connector_config
from tests.connector.cache import run as run_connector
from tests.spark.reference import expected, in_topic
from tests.support.changes import config_of
from tests.support.kafka import Broker
from tests.support.topics import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = {"cache.value.format": "bytes", "binary.handling.mode": "hex"}


class Reversed(Transform):
    """Drops some keys, and reverses values."""

    def apply(self, record: Record) -> Record | None:
        if zlib.crc32(record.key.encode()) % 2:
            return None
        return record if record.after is None else record.with_value(record.after.value[::-1])


@pytest.mark.parametrize("there_before", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_diff_topic_tells_what_is_left(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, there_before: bool
) -> None:
    config = config_of(kafka.bootstrap, prefix, str(tmp_path), topic_creation_default_partitions=2, **FORMAT)
    mine = {"transforms": "r", "transforms.r.type": f"{__name__}.Reversed"}
    captured = connector_config(kafka.bootstrap, prefix, **FORMAT, **mine)

    def tell() -> None:
        job = DiffJob(config, spark)
        try:
            job.start(available_now=True)
            assert job.await_termination(240)
        finally:
            job.stop()

    held: dict[bytes, bytes] = {}

    async def work() -> None:
        async with cache(captured, release=True) as found:
            await started(found)
            if there_before:
                tell()
            for number in range(600):
                await found.put(b"k%d" % (number % 100), None if number % 11 == 0 else b"\xff\0%d" % number)
            await found.drained()
            for segment in range(4):
                found.core.request_reset(segment, "signal")
            await found.put(b"k1", b"\xfe")
            await found.drained()
            held.update(found.entries_of)

    run_connector(work())
    tell()
    assert any(r.header.kind is Kind.SKIPPED for r in read_topic(kafka.bootstrap, config.topics.changes))
    told = in_topic(config, 2)
    if there_before:
        assert told == expected(config, 2)
    wanted = {key: value[::-1] for key, value in held.items() if not zlib.crc32(key) % 2}
    entries: dict[bytes, Any] = {t.key: t.after for ts in told.values() for t in ts}
    assert {key: after.value for key, after in entries.items() if after is not None} == wanted
    rows = latest(spark, config).select("key", "value").collect()
    assert {row["key"].encode(): bytes(row["value"]) for row in rows} == wanted
