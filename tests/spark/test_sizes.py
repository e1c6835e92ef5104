"""The largest and the smallest possible entries, through the whole job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Producer

from deelog_schemas.keys import segment_of
from deelog_spark.batches import columns
from deelog_spark.folding.diff_record import CHANGE, Row
from deelog_spark.kafka import Cluster
from tests.spark.reference import expected, in_topic
from tests.spark.scenes import Carried
from tests.spark.test_diff_job import check, configured, run
from tests.support.changes import Cache
from tests.support.kafka import Broker
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = b"a"


@pytest.mark.parametrize(
    ("size", "largest"), [(960_000, "1000000"), pytest.param(10_000_000, "10500000", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "small", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by executors"]
)
def test_large_values_of_a_short_key(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    carried_by_driver: Carried,
    size: int,
    largest: str,
    small: int,
) -> None:
    """Changes of the largest size, and a difference of a reset, which has two such values."""
    carried_by_driver(small)
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config, max_message_bytes=largest)
    run(config, spark)
    cache.put(KEY, b"1" * size)
    cache.put(KEY, b"2" * size)
    run(config, spark)
    cache.put(KEY, b"3" * size, lost=True)
    cache.reset(segment_of(KEY, cache.segments))
    run(config, spark)
    check(cache, config)
    assert [(told.op, told.cause) for told in in_topic(config, 2)[segment_of(KEY, 8)]] == [
        ("c", "change"),
        ("u", "change"),
        ("u", "reset"),
    ]


@pytest.mark.slow
def test_a_diff_topic_follows_when_larger_records_are_allowed(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)
    cluster = Cluster(config)
    cluster.alter(config.topics.changes, {"max.message.bytes": "3000000"})
    cluster.close()
    waiting(lambda: _takes(kafka, config.topics.changes, 2_900_000), 60, "the broker to take larger records")
    cache.put(KEY, b"1" * 2_900_000)
    run(config, spark)
    assert in_topic(config, 2) == expected(config, 2)
    assert [len(told) for told in in_topic(config, 2).values()] == [1]


def _takes(kafka: Broker, topic: str, size: int) -> bool:
    """Whether the broker takes a record of that size: a moment after its setting says so. No reader sees it."""
    errors: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-size", "message.max.bytes": 2 * size}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1" * size, KEY, 0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    producer.abort_transaction(30)
    return errors == [None]


def test_rows_that_are_large_go_by_fewer() -> None:
    """An Arrow column has at most 2 GB."""
    value = b"v" * (5 << 20)
    rows = [Row(0, offset, 0, CHANGE, "", b"", b"k", value if offset < 9 else b"") for offset in range(100)]
    batches = list(columns.batches_of(rows))
    assert [len(batch) for batch in batches] == [4, 4, 92]
    assert list(columns.rows_of(iter(batches))) == rows
