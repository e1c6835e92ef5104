"""Faults of Kafka that the job must survive or report: lost records, an unavailable broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from deelog_schemas.config import Config
from deelog_spark import DiffJob
from deelog_spark.errors import LossError
from tests.spark.processes import WAIT
from tests.spark.reference import expected, in_topic
from tests.spark.test_diff_job import configured, run, signals_of
from tests.support.changes import Cache
from tests.support.kafka import Broker, is_silent, running_broker
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cut(cache: Cache) -> None:
    """Deletes all records of partition 0 of the change topic, as retention does."""
    end = TopicPartition(cache.topics.changes, 0, cache.ends()[0])
    for future in cache.admin.delete_records([end]).values():
        future.result(30)


def test_lost_records_stop_the_job(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config, cleanup="compact,delete")
    cache.put(cache.key(0, 0), b"v")
    cache.reset(0)
    run(config, spark)
    cache.put(cache.key(0, 0), b"w")
    cut(cache)
    with pytest.raises(LossError, match=r"\[0\]: offset \d+ is to be read next.*on\.data\.loss=reset"):
        run(config, spark)
    again = configured(kafka, prefix, tmp_path, diff_checkpoint_location=str(tmp_path / "cp2"))
    with pytest.raises(LossError, match=r"\[0\]: the base of segment 0"):
        run(again, spark)


def test_lost_records_are_asked_for(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path, on_data_loss="reset")
    cache = Cache(config, cleanup="compact,delete")
    for segment in (0, 1, 5):
        cache.put(cache.key(segment, 0), b"v")
        cache.reset(segment)
    told = run(config, spark)
    assert told["resets_rows"]["c"] == 3
    cache.put(cache.key(0, 0), b"lost")
    cache.put(cache.key(0, 1), b"lost")
    cut(cache)
    cache.put(cache.key(1, 0), b"held")
    cache.put(cache.key(5, 0), b"w")
    told = run(config, spark)
    assert told["resets_rows"] == {"c": 3, "u": 1, "d": 0}, "totals go on; only what was not lost is told"
    assert signals_of(cache)[-1]["data"]["segments"] == [0, 1, 2, 3], "2 and 3 have no base: what they lost is unknown"
    cache.put(cache.key(0, 0), None)
    for segment in (0, 1):
        cache.reset(segment, "signal")
    run(config, spark)
    found = {t.key: t.after for ts in in_topic(config, 2).values() for t in ts}
    assert {k: e for k, e in found.items() if e is not None} == cache.entries()


def cut_up_to(cache: Cache, offset: int) -> None:
    """Deletes the records of partition 0 of the change topic before this offset."""
    for future in cache.admin.delete_records([TopicPartition(cache.topics.changes, 0, offset)]).values():
        future.result(30)


def test_a_reset_that_was_open_and_is_gone_does_not_hold_up_the_next(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config, cleanup="compact,delete")
    cache.put(cache.key(0, 0), b"v")
    cache.put(cache.key(0, 1), b"v")
    cache.reset(0)
    run(config, spark)
    cache.begin(0)
    cache.rows(0, [cache.key(0, 0)])  # its owner dies
    cache.put(cache.key(1, 0), b"w")
    run(config, spark)
    cut_up_to(cache, cache.ends()[0])
    cache.claim(0)
    cache.put(cache.key(0, 1), None)
    cache.reset(0)
    run(config, spark)
    found = {t.key: t.after for ts in in_topic(config, 2).values() for t in ts}
    assert {k: e for k, e in found.items() if e is not None} == cache.entries()


def again(config: Config, kafka: Broker, prefix: str, tmp_path: Path, **more: str) -> Config:
    """With a checkpoint that does not exist yet."""
    return configured(kafka, prefix, tmp_path, diff_checkpoint_location=str(tmp_path / "cp2"), **more)


@pytest.mark.parametrize("policy", ["fail", "reset"])
def test_a_base_of_an_earlier_topic_is_lost_and_deletes_nothing(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, policy: str
) -> None:
    """The change topic was made again, and its nodes have not written yet."""
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    for number in range(5):
        cache.put(cache.key(0, number), b"v")
    cache.reset(0)
    run(config, spark)
    before = in_topic(config, 2)
    topic = cache.topics.changes
    cache.admin.delete_topics([topic])[topic].result(30)
    waiting(lambda: topic not in cache.admin.list_topics(timeout=10).topics, 30, "the end of the topic")
    cache.admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    later = again(config, kafka, prefix, tmp_path, on_data_loss=policy)
    if policy == "fail":
        with pytest.raises(LossError, match=r"the base of segment 0 is of an earlier topic of this name"):
            run(later, spark)
    else:
        run(later, spark)
        assert signals_of(cache)[-1]["data"]["segments"] == [0]
    assert in_topic(config, 2) == before


def test_without_a_base_nothing_is_deleted_where_the_head_of_the_log_is_gone(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """As with `snapshot.mode=no_data`."""
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config, cleanup="compact,delete")
    for number in range(3):
        cache.put(cache.key(0, number), b"v")
    run(config, spark)
    cut_up_to(cache, cache.ends()[0])
    cache.put(cache.key(0, 1), b"w")
    run(again(config, kafka, prefix, tmp_path), spark)
    found = {t.key: t.after for ts in in_topic(config, 2).values() for t in ts}
    assert {k: e for k, e in found.items() if e is not None} == cache.entries()


@pytest.mark.kafka
@pytest.mark.slow
def test_broker_paused_and_restarted(prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    # A broker that is fenced behind its pause drops markers of what is committed meanwhile (docs/decisions.md, "One
    # partition that takes no records"). A node of deelog ends such transactions; this test's writer does not.
    with running_broker(tmp_path / "kafka", {"broker.session.timeout.ms": "60000"}) as broker:
        config = configured(broker, prefix, tmp_path)
        cache = Cache(config)
        job = DiffJob(config, spark).start()
        try:
            cache.put(cache.key(0, 0), b"a")
            caught_up(job, cache)
            broker.pause()
            waiting(lambda: is_silent(cache.admin, 5), 60, "the broker to fall silent")
            assert not job.await_termination(0)
            broker.resume()
            cache.put(cache.key(0, 0), b"b")
            caught_up(job, cache)
            broker.restart()
            cache.put(cache.key(0, 0), b"c")
            cache.reset(0)
            caught_up(job, cache)
        finally:
            job.stop()
        assert in_topic(config, 2) == expected(config, 2)


def caught_up(job: DiffJob, cache: Cache) -> None:
    """Waits until the job has read everything. Raises the error that ended it."""
    path = Path(job.config["diff.checkpoint.location"]) / "progress.json"

    def read_all() -> bool:
        assert not job.await_termination(0)
        return bool(json.loads(path.read_text())["input_offsets"] == {str(p): n for p, n in cache.ends().items()})

    waiting(read_all, WAIT, "the job to catch up")
