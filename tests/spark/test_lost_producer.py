"""A producer of the job that stands still while brokers answer others: the batch goes on with a new one."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_schemas.kafka.progress import ProducerLost
from deelog_spark import DiffJob, diff_job
from deelog_spark.errors import RightsError
from deelog_spark.folding.diff_record import renderer_of
from deelog_spark.session import is_lost
from deelog_spark.sinks.kafka import Writer
from tests.spark.reference import expected, in_topic
from tests.spark.scenes import Carried
from tests.spark.two_brokers import OnTheFirst
from tests.support.changes import config_of
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOST = ProducerLost(KafkaError(KafkaError._TIMED_OUT, "it stands"))


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("size", [20_000, 0], ids=["by the driver", "by executors"])
def test_the_batch_goes_on_with_a_new_one_and_the_job_stays(
    pair: tuple[EmbeddedKafka, EmbeddedKafka],
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    carried_by_driver: Carried,
    caplog: pytest.LogCaptureFixture,
    size: int,
) -> None:
    first, second = pair
    carried_by_driver(size)
    config = config_of(first.bootstrap, prefix, str(tmp_path / "cp"))
    cache = OnTheFirst(config)
    job = DiffJob(config, spark)
    try:
        job.start()
        for segment in range(8):
            cache.put(cache.key(segment, 0), b"v")
        waiting(lambda: sum(map(len, in_topic(config, 2).values())) == 8, 120, "the first batch")
        second.pause()
        try:
            with caplog.at_level(logging.WARNING, "deelog.diff"):
                for segment in range(8):
                    cache.put(cache.key(segment, 1), b"w")
                waiting(lambda: "a new one goes on" in caplog.text, 120, "a producer that is replaced")
        finally:
            second.resume()
        waiting(lambda: in_topic(config, 2) == expected(config, 2), 120, "the second batch")
        assert not job.await_termination(0)
    finally:
        job.stop()


def test_an_attempt_fences_first_and_is_more_patient(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_job, "_REPLACING", diff_job._REPLACING.copy(wait=tenacity.wait_none()))
    job, done = DiffJob(config_of("127.0.0.1:1", prefix, str(tmp_path))), list[object]()
    plans: Any = SimpleNamespace(partitions=2)
    monkeypatch.setattr(job._writer, "fence", done.append)
    monkeypatch.setattr(job._writer, "hidden", lambda *_, **__: [])

    def work() -> Any:
        done.append(job._patience)
        raise LOST

    with pytest.raises(ProducerLost):
        job._replacing(plans, work)
    again = [range(2), 6.0], [range(2), 12.0], [range(2), 24.0], [range(2), 48.0], [range(2), 60.0]
    assert done == [3.0, *itertools.chain(*again)]
    with pytest.raises(ValueError, match="another"):
        job._replacing(plans, lambda: int("another"))
    assert job._patience == 3.0


@pytest.mark.spark
def test_a_producer_that_a_task_has_lost_is_known_by_its_name() -> None:
    from pyspark.errors import PythonException

    assert is_lost(LOST)
    assert is_lost(PythonException(f"Traceback:\n  …\ndeelog_schemas.kafka.progress.{ProducerLost.__name__}: …"))
    assert not is_lost(PythonException("Traceback:\n  …\nKafkaException: …"))
    assert not is_lost(ValueError(ProducerLost.__name__))


class Full:
    """A producer whose queue is full for a while."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.taken, self.polls = refusals, 0, 0

    def produce(self, *_: Any, **__: Any) -> None:
        if self.refusals > self.polls:
            raise BufferError
        self.taken += 1

    def poll(self, seconds: float) -> None:
        assert seconds < 1
        self.polls += 1


def test_a_record_waits_for_room_in_the_queue_while_that_gets_shorter(prefix: str, tmp_path: Path) -> None:
    config = config_of("127.0.0.1:1", prefix, str(tmp_path))
    writer, checked = Writer(config, renderer_of(config)), list[object]()
    began = list[object]()
    progress: Any = SimpleNamespace(check=checked.append, begin=lambda: began.append(list(checked)))
    producer: Any = Full(3)
    writer._enqueue(producer, progress, "t", b"v")
    assert (producer.taken, checked) == (1, [producer] * 3)
    assert began == [checked], "there was room: what is left stands from now on"
    writer._enqueue(producer, progress, "t", b"v")
    assert (producer.taken, len(began)) == (2, 1)

    def stands(_: object) -> None:
        raise LOST

    progress = SimpleNamespace(check=stands)
    with pytest.raises(ProducerLost):
        writer._enqueue(Full(1), progress, "t", b"v")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError._UNKNOWN_PARTITION, ProducerLost), (KafkaError.TOPIC_AUTHORIZATION_FAILED, RightsError)],
)
def test_an_end_that_is_not_answered_asks_for_a_new_producer(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    config = config_of("127.0.0.1:1", prefix, str(tmp_path))
    writer, asked = Writer(config, renderer_of(config)), list[int]()

    def unanswered(partition: int) -> bool:
        asked.append(partition)
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(writer, "_hides", unanswered)
    with pytest.raises(error):
        writer.hidden([3], patience=0.1)
    assert set(asked) == {3}
    assert (len(asked) > 1) == (error is ProducerLost)
    assert writer.hidden([]) == []
