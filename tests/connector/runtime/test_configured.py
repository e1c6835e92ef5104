"""The effects of a configuration on the core, and on the encoder and decoder of records."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from deelog_connector.core.effects import OperationsItem
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import InRecord, OutRecord
from deelog_connector.runtime.configured import codecs_of, settings_of
from deelog_connector.runtime.executor import SCAN_SECONDS
from deelog_connector.transforms.pipeline import DeadLetter, PipedOperations, Pipeline
from deelog_schemas.operation import Operation, TracedOperation
from tests.connector.cache import config_of

DELETE = Operation(1, 1, "remove", b"k", None, None, 1000, True)


def records(item: Any, **fields: Any) -> list[OutRecord]:
    encoder, _ = codecs_of(config_of("h:1", "p", **fields), "n1@1", "test", Librdkafka())
    return list(encoder.records([item]))


def test_every_setting_of_the_core_is_configured() -> None:
    config = config_of(
        "h:1",
        "p",
        **{
            "max.batch.size": 1001,
            "incremental.snapshot.chunk.size": 1002,
            "commit.interval.ms": 1003,
            "heartbeat.interval.ms": 1004,
            "max.queue.size": 2005,
            "max.queue.size.in.bytes": 20_000_006,
            "reset.strategy": "tombstones",
            "reset.interval.ms": 60_007,
            "snapshot.mode": "no_data",
        },
    )
    settings = settings_of(config, None)
    assert (settings.segments, settings.partitions) == (8, 2)
    assert (settings.max_batch_size, settings.chunk_size) == (1001, 1002)
    assert (settings.commit_interval, settings.heartbeat_interval) == (1.003, 1.004)
    assert (settings.max_operations, settings.max_bytes) == (2005, 20_000_006)
    assert (settings.reset_strategy, settings.reset_interval) == (Strategy.TOMBSTONES, 60.007)
    assert (settings.snapshot_mode, settings.patience) == (SnapshotMode.NO_DATA, SCAN_SECONDS)


@pytest.mark.parametrize(
    ("fields", "may_skip"),
    [
        ({}, False),
        ({"skipped.operations": "d"}, True),
    ],
)
def test_only_what_leaves_something_out_may_skip(fields: dict[str, str], may_skip: bool) -> None:
    config = config_of("h:1", "p", **{"skipped.operations": "none", **fields})
    assert settings_of(config, Pipeline.of(config, time, Counter())).may_skip is may_skip


@pytest.mark.parametrize(("given", "count"), [("true", 2), ("false", 1)])
def test_tombstones(given: str, count: int) -> None:
    assert len(records(OperationsItem(0, 0, [DELETE]), **{"tombstones.on.delete": given})) == count


@pytest.mark.parametrize(("given", "names"), [("true", ["deelog", "traceparent"]), ("false", ["deelog"])])
def test_tracing(given: str, names: list[str]) -> None:
    traced = TracedOperation.of(DELETE, (("traceparent", b"00-1-2-01"),))
    found = records(OperationsItem(0, 0, [traced]), **{"tracing.headers.enabled": given})
    assert [name for name, _ in found[0].headers] == names


def test_dead_letters() -> None:
    letter = DeadLetter(DELETE, (1, 1), "", "a.Step", "boom", "ValueError")
    mode = {"event.processing.failure.handling.mode": "dead-letter", "errors.deadletterqueue.topic.name": "letters"}
    assert [record.topic for record in records(PipedOperations(0, 0, [letter]), **mode)] == ["letters"]


def test_records_name_topic_and_node_and_can_be_decoded() -> None:
    config = config_of("h:1", "p")
    encoder, decoder = codecs_of(config, "n1@1", "test", Librdkafka())
    (change, _) = encoder.records([OperationsItem(3, 1, [DELETE])])
    assert (change.topic, change.partition) == (config.topics.changes, 1)
    raw = InRecord(change.topic, 1, 5, change.key, change.value, change.headers)  # type: ignore[arg-type]
    assert [(one.segment, one.key) for one in decoder.scanned([raw])] == [(3, b"k")]
