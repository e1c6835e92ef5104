"""A transaction that ends while its partition of the diff topic has no leader: it stays open there, whatever became of
it. What is hidden is written again, what was aborted never shows, and each difference is there once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_schemas.header import Kind, pack
from deelog_spark import DiffJob
from deelog_spark.batches.checkpoint import START
from deelog_spark.errors import DiffError
from deelog_spark.folding.diff_record import RESET, Row, renderer_of
from deelog_spark.sinks.kafka import BatchMarker, Writer
from tests.spark.reference import expected, in_topic
from tests.spark.scenes import Carried
from tests.spark.two_brokers import OnTheFirst
from tests.support.changes import config_of
from tests.support.topics import messages
from tests.support.two_brokers import two_brokers
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
AWAY = 1
"""The partition on the second broker."""
SECONDS = 120
_LASTING = ThreadPoolExecutor(1)
"""A broker ends with the thread that has started it, and those that write a batch end soon."""


class Scene:
    """A cache on two brokers, and the loss of the second one at a chosen moment."""

    def __init__(self, pair: tuple[EmbeddedKafka, EmbeddedKafka], prefix: str, folder: Path) -> None:
        self.first, self.second = pair
        self.config = config_of(self.first.bootstrap, prefix, str(folder / "cp"))
        self.cache = OnTheFirst(self.config)
        self.topic = self.config.topics.diff

    def lose(self) -> None:
        """Kills the second broker; returns when the first one says that the partition has no leader."""
        self.second.kill()
        waiting(lambda: self._leader() == -1, SECONDS, "the end of the leader")

    def regain(self) -> None:
        _LASTING.submit(self.second.start).result()
        waiting(lambda: self._leader() != -1, SECONDS, "a leader")

    def _leader(self) -> int:
        return self.cache.admin.list_topics(self.topic, 10).topics[self.topic].partitions[AWAY].leader

    def rows(self, count: int = 3) -> list[Row]:
        header = pack(Kind.CHANGE, 7, 1, 1, 1)
        return [Row(AWAY, 10, n, RESET, "c", header, b"k%d" % n, b"v") for n in range(count)]

    def written(self) -> list[bytes | None]:
        """The keys in the partition that readers of committed records see."""
        return [m.key() for m in messages(self.first.bootstrap, self.topic) if m.partition() == AWAY]


@pytest.fixture
def scene(pair: tuple[EmbeddedKafka, EmbeddedKafka], prefix: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(pair, prefix, tmp_path)
    yield made
    if made.second.pid is None:
        made.regain()


def commit_without_a_leader(scene: Scene, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next commit with rows for the partition is answered, and its marker is lost there."""
    commit, begun, done = writer._progress[AWAY].commit, list[str](), list[str]()

    def committed(producer: Any, again: Any) -> None:
        mine: Any = writer._producers.get(AWAY)
        if begun or producer is not mine or not len(mine):
            commit(producer, again)
            return
        begun.append("rows")
        producer.flush(SECONDS)
        scene.lose()
        commit(producer, again)
        scene.regain()
        done.append("committed")

    monkeypatch.setattr(writer._progress[AWAY], "commit", committed)
    return done


def test_what_was_aborted_without_a_leader_does_not_show_with_the_next_batch(scene: Scene) -> None:
    writer = Writer(scene.config, renderer_of(scene.config))
    writer.claim([AWAY], "cp")

    def rows() -> Iterator[Row]:
        yield from scene.rows()
        writer._producers[AWAY].flush(SECONDS)
        scene.lose()
        raise ConnectionError("the task is gone")

    with pytest.raises(ConnectionError):
        writer.write(AWAY, rows(), "cp", START, 11)
    writer.fence([AWAY])  # aborts it, and nobody takes the marker
    scene.regain()
    assert writer.write(AWAY, scene.rows(2), "cp", START, 11).records == 2
    waiting(lambda: scene.written() == [b"k0", b"k1"], 30, "the rows of the second attempt")
    writer.close()


def test_what_was_committed_without_a_leader_is_taken_back_and_written_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(scene.config, renderer_of(scene.config))
    writer.claim([AWAY], "cp")
    commit_without_a_leader(scene, writer, monkeypatch)
    assert writer.hidden([AWAY]) == []
    writer.write(AWAY, scene.rows(), "cp", START, 11)
    assert writer.stored(AWAY) == BatchMarker("cp", START, 11)
    assert writer.hidden([AWAY], 1) == [AWAY]
    writer.fence([AWAY])
    assert writer.hidden([AWAY], 1) == [AWAY]
    writer.take_back(AWAY, BatchMarker("cp", START, 0))
    assert (writer.hidden([AWAY]), scene.written()) == ([], [])
    assert writer.stored(AWAY) == BatchMarker("cp", START, 0)
    assert writer.write(AWAY, scene.rows(), "cp", START, 11).records == 3
    waiting(lambda: scene.written() == [b"k0", b"k1", b"k2"], 30, "the rows")
    writer.close()


def test_a_marker_that_stays_open_is_told_and_a_start_over_ends_it(prefix: str, tmp_path: Path) -> None:
    """The group's offsets lose their leader at the end of a transaction: no reader of committed offsets gets one."""
    with two_brokers(tmp_path / "kafka", groups=2) as pair:
        scene = Scene(pair, prefix, tmp_path)
        writer = Writer(scene.config, renderer_of(scene.config))
        writer.claim([0], "cp")

        def rows() -> Iterator[Row]:
            yield from (row._replace(partition=0) for row in scene.rows())
            writer._producers[0].flush(SECONDS)
            scene.lose()

        writer.write(0, rows(), "cp", START, 11)
        scene.regain()
        with pytest.raises(DiffError, match=r"stays open.*delete the checkpoint"):
            writer.write(0, scene.rows(), "cp", 1, 12)
        fresh = Writer(scene.config, renderer_of(scene.config))
        fresh.fence([0])
        assert fresh.stored(0, claims=True) == BatchMarker("cp starts", START, 0)
        fresh.claim([0], "another")
        assert fresh.stored(0) == BatchMarker("another starts", START, 0)
        assert fresh.claimed([0], "another")
        for each in (writer, fresh):
            each.close()


def test_a_client_that_has_lost_a_leader_is_replaced(scene: Scene) -> None:
    """Behind a pause of the broker a consumer may go on saying that it knows no such partition, and ask nobody."""

    class Lost:
        def get_watermark_offsets(self, *_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    writer = Writer(scene.config, renderer_of(scene.config))
    for level in ("read_committed", "read_uncommitted"):
        writer._consumers[level] = cast(Consumer, Lost())
    assert writer.hidden([0, AWAY], patience=10) == []
    writer.close()


def test_a_transaction_of_somebody_else_is_named(scene: Scene) -> None:
    stranger = Producer({"bootstrap.servers": scene.first.bootstrap, "transactional.id": "stranger", "log_level": 0})
    stranger.init_transactions(SECONDS)
    stranger.begin_transaction()
    stranger.produce(scene.topic, b"v", b"k", partition=AWAY)
    stranger.flush(SECONDS)
    writer = Writer(scene.config, renderer_of(scene.config))
    with pytest.raises(DiffError, match=r"that is not the diff job's stays open .* find-hanging"):
        writer.claim([AWAY], "cp")
    stranger.abort_transaction(SECONDS)
    writer.claim([AWAY], "cp")
    writer.close()


@pytest.mark.spark
@pytest.mark.parametrize("when", ["start", "batch"])
def test_the_job_writes_what_is_hidden_again(
    scene: Scene,
    spark: SparkSession,
    carried_by_driver: Carried,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    carried_by_driver(20_000)
    cache, config = scene.cache, scene.config

    def told() -> list[tuple[bytes, str]]:
        return [(record.key, record.op) for records in in_topic(config, 2).values() for record in records]

    for segment in range(8):
        cache.put(cache.key(segment, 0), b"v")
    job = DiffJob(config, spark)
    try:
        done = list[str]()
        if when == "start":
            done = commit_without_a_leader(scene, job._writer, monkeypatch)
        with caplog.at_level(logging.WARNING, "deelog.diff"):
            job.start()
            if when == "batch":
                done = commit_without_a_leader(scene, job._writer, monkeypatch)
            for segment in range(8):
                cache.put(cache.key(segment, 1), b"w")
            waiting(lambda: done or job.await_termination(0), SECONDS, "the commit without a leader")
            waiting(lambda: len(told()) >= 16, SECONDS, "all differences")
        assert f"{scene.topic}[{AWAY}]: what was written there stays hidden" in caplog.text
        assert not job.await_termination(0)
    finally:
        job.stop()
    assert sorted(told()) == sorted((cache.key(segment, n), "c") for segment in range(8) for n in range(2))


@pytest.mark.spark
def test_a_job_that_ended_behind_such_a_commit_goes_on_without_a_loss(
    scene: Scene, spark: SparkSession, carried_by_driver: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_by_driver(20_000)
    cache, config = scene.cache, scene.config
    job = DiffJob(config, spark).start()
    try:
        commit_without_a_leader(scene, job._writer, monkeypatch)

        def killed(*_: object, **__: object) -> list[int]:
            raise ConnectionError("the driver is gone")

        monkeypatch.setattr(job._writer, "hidden", killed)
        for segment in range(8):
            cache.put(cache.key(segment, 0), b"v")
        with pytest.raises(Exception, match="the driver is gone"):
            job.await_termination(SECONDS)
    finally:
        job.stop()
    job = DiffJob(config, spark).start(available_now=True)
    try:
        assert job.await_termination(SECONDS)
    finally:
        job.stop()
    assert in_topic(config, 2) == expected(config, 2)
