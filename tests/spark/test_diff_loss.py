"""Faults of Kafka that the job must survive or report: lost records, an unavailable broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from deelog_spark import DiffJob
from deelog_spark.errors import LossError
from tests.spark.processes import WAIT
from tests.spark.reference import expected, in_topic
from tests.spark.test_diff_job import configured, run, signals_of
from tests.support.changes import Cache
from tests.support.kafka import Broker, is_silent
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
    assert signals_of(cache)[-1]["data"]["segments"] == [0, 1]
    cache.put(cache.key(0, 0), None)
    for segment in (0, 1):
        cache.reset(segment, "signal")
    run(config, spark)
    found = {t.key: t.after for ts in in_topic(config, 2).values() for t in ts}
    assert {k: e for k, e in found.items() if e is not None} == cache.entries()


@pytest.mark.slow
def test_broker_paused_and_restarted(own_kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(own_kafka, prefix, tmp_path)
    cache = Cache(config)
    job = DiffJob(config, spark).start()
    try:
        cache.put(cache.key(0, 0), b"a")
        caught_up(job, cache)
        own_kafka.pause()
        waiting(lambda: is_silent(cache.admin, 5), 60, "the broker to fall silent")
        assert not job.await_termination(0)
        own_kafka.resume()
        cache.put(cache.key(0, 0), b"b")
        caught_up(job, cache)
        own_kafka.restart()
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
