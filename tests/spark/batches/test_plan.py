"""Plans of a start on a real Kafka, without Spark: the driver folds small ranges itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from deelog_schemas.config import Config, parse
from deelog_spark.batches.checkpoint import Batch, Checkpoint, Totals
from deelog_spark.batches.plan import Planner
from deelog_spark.errors import CheckpointError, LossError
from deelog_spark.folding.diff_record import renderer_of
from deelog_spark.kafka import Cluster
from deelog_spark.sinks.kafka import Writer
from tests.spark.test_diff_job import signals_of
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker
from tests.support.waiting import waiting


class Plans:
    """A planner with the parts that a job gives it, and what the job does with a start's plan."""

    def __init__(self, config: Config) -> None:
        renderer = renderer_of(config)
        self.cluster, self.writer = Cluster(config), Writer(config, renderer)
        self.checkpoint = Checkpoint(config["diff.checkpoint.location"])
        self.checkpoint.lock()
        self.planner = Planner(
            config, self.cluster, self.checkpoint, self.writer, renderer, lambda: False, self._no_spark
        )

    def _no_spark(self) -> NoReturn:
        raise AssertionError("the driver does it")

    def started(self) -> Batch:
        """A start without rows, done."""
        state = self.planner.start().done(Totals(), {"change": {}, "reset": {}}, 0)
        self.mark(state)
        self.checkpoint.finish_start(self.planner.identity, state)
        return state

    def mark(self, state: Batch, partitions: tuple[int, ...] = (0, 1)) -> None:
        """Marks the diff topic as the job does when it writes a batch."""
        for partition in partitions:
            self.writer.write(partition, [], state.checkpoint, state.number, state.end[partition])

    def planned_by_spark(self, state: Batch) -> None:
        """What Spark writes before it runs a batch."""
        path = self.checkpoint.spark / "offsets" / str(state.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"v1\n{{}}\n{json.dumps({'t': {str(p): end for p, end in state.end.items()}})}")

    def close(self) -> None:
        self.writer.close()
        self.cluster.close()
        self.checkpoint.release()


@pytest.fixture
def config(kafka: Broker, prefix: str, tmp_path: Path) -> Config:
    return config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"))


@pytest.fixture
def cache(config: Config) -> Cache:
    return Cache(config)


@pytest.fixture
def plans(config: Config, cache: Cache) -> Iterator[Plans]:
    made = Plans(config)
    yield made
    made.close()


def following(state: Batch, more: int = 1) -> Batch:
    """The batch after a state, with so many offsets of each partition."""
    end = {partition: offset + more for partition, offset in state.end.items()}
    return replace(state, number=state.number + 1, begin=state.end, end=end)


# -- a checkpoint that is older than the diff topic ------------------------------------------------------------------


def test_a_batch_that_the_diff_topic_has_and_the_state_has_not_is_gone_on_with(plans: Plans, cache: Cache) -> None:
    """As after a kill: the first batch, and a later one that has rows of one partition only."""
    start = plans.started()
    fill(cache)
    first = following(start)
    second = following(first)
    for state, partitions in ((first, (0, 1)), (second, (1,))):
        plans.planned_by_spark(state)
        plans.mark(state, partitions)
        assert plans.planner.resume() == start
        plans.checkpoint.write_state(state)
        assert plans.planner.resume() == start


@pytest.mark.parametrize("planned", [False, True], ids=["without the next batch", "with the next batch"])
def test_a_checkpoint_that_is_older_than_the_diff_topic_is_refused(plans: Plans, cache: Cache, planned: bool) -> None:
    """A snapshot of its disk was put back: batches of the same numbers would get other records."""
    start = plans.started()
    fill(cache)
    first = following(start)
    if planned:
        plans.planned_by_spark(first)
    plans.mark(following(first), (1,))
    with pytest.raises(CheckpointError, match=r"\[1\]: .* up to offset 2 .*, and .* up to 0: .*older.* delete it"):
        plans.planner.resume()


def test_a_batch_that_spark_has_forgotten_is_not_planned_again_with_another_end(plans: Plans, cache: Cache) -> None:
    start = plans.started()
    fill(cache)
    plans.mark(following(start), (0,))
    with pytest.raises(CheckpointError, match=r"\[0\]: .* up to offset 1 .*, and .* up to 0: "):
        plans.planner.resume()


def fill(cache: Cache) -> None:
    """Some records in both partitions."""
    for number in range(3):
        cache.put(cache.key(0, number), b"v")
        cache.put(cache.key(5, number), b"v")


# -- records that were lost before a start ---------------------------------------------------------------------------


def cut(cache: Cache) -> int:
    """Deletes all records of partition 1 of the change topic, as retention does. Returns its begin."""
    end = cache.ends()[1]
    for future in cache.admin.delete_records([TopicPartition(cache.topics.changes, 1, end)]).values():
        future.result(30)
    return end


def lost_without_a_base(config: Config) -> tuple[Plans, Cache]:
    """As with `snapshot.mode=no_data`: segment 4 has a base offset, the others of partition 1 have none."""
    cache, plans = Cache(config, cleanup="compact,delete"), Plans(config)
    for segment in (0, 5):
        cache.put(cache.key(segment, 0), b"v")
    state = plans.started()
    cache.put(cache.key(5, 0), None)
    assert cut(cache) > state.end[1]
    cache.put(cache.key(4, 0), b"w")
    cache.reset(4)
    plans.checkpoint.forget()
    return plans, cache


def test_segments_without_a_base_wait_for_a_reset_where_records_are_lost(config: Config) -> None:
    plans, cache = lost_without_a_base(parse({**config.raw, "on.data.loss": "reset"}, "diff"))
    with closing(plans):
        segments = plans.planner.start().segments
        assert {n for n, segment in segments.items() if segment.open is not None} == {5, 6, 7}
        assert signals_of(cache)[-1]["data"]["segments"] == [5, 6, 7]


def test_lost_records_of_segments_without_a_base_stop_a_start(config: Config) -> None:
    plans, _ = lost_without_a_base(config)
    with closing(plans), pytest.raises(LossError, match=r"\[1\]: .* segments 5, 6, 7 have no base .*reset-segment"):
        plans.planner.start()


@pytest.mark.parametrize(
    ("policy", "remedy"),
    [
        ("fail", r"set on\.data\.loss=reset, or delete the checkpoint "),
        ("reset", r"start the job again: it starts over and asks for resets$"),
    ],
)
def test_a_running_job_that_has_lost_records_names_what_helps(config: Config, policy: str, remedy: str) -> None:
    config = parse({**config.raw, "on.data.loss": policy}, "diff")
    cache = Cache(config, cleanup="compact,delete")
    with closing(Plans(config)) as plans:
        state = plans.started()
        cache.put(cache.key(5, 0), b"v")
        end = cut(cache)
        said = (
            rf"\[1\]: offset 0 is to be read next, but the partition holds \[{end}, {end}\): records are lost; {remedy}"
        )
        with pytest.raises(LossError, match=said):
            plans.planner.check_loss(state)


def test_a_first_start_takes_what_the_log_still_has(config: Config) -> None:
    cache, plans = Cache(config, cleanup="compact,delete"), Plans(config)
    with closing(plans):
        cache.put(cache.key(5, 0), b"v")
        cut(cache)
        cache.put(cache.key(5, 1), b"w")
        for _ in range(2):  # the second one finds the claim of the first
            plan = plans.planner.start()
            assert plan.rows == 1
            assert plan.segments[5].open is None


# -- a change topic that was made again ------------------------------------------------------------------------------


def made_again(cache: Cache) -> None:
    """Segment 0 has a base offset of the old topic. The new one has grown past it, by records of segment 1 only."""
    for number in range(4):
        cache.put(cache.key(0, number), b"v")
    cache.reset(0)
    create_again(cache)
    cache.claim(1)
    cache.reset(1)
    for number in range(9):
        cache.put(cache.key(1, number), b"w")


def create_again(cache: Cache) -> None:
    """Deletes the change topic and creates it."""
    topic = cache.topics.changes
    cache.admin.delete_topics([topic])[topic].result(30)
    waiting(lambda: topic not in cache.admin.list_topics(timeout=10).topics, 30, "the end of the topic")
    cache.admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    cache.look()


def test_a_base_of_an_earlier_topic_is_lost(config: Config) -> None:
    config = parse({**config.raw, "on.data.loss": "reset"}, "diff")
    cache = Cache(config)
    made_again(cache)
    with closing(Plans(config)) as plans:
        segments = plans.planner.start().segments
        assert {n for n, segment in segments.items() if segment.open is not None} == {0}
        assert signals_of(cache)[-1]["data"]["segments"] == [0]


def test_a_base_of_an_earlier_topic_stops_a_start(config: Config) -> None:
    made_again(Cache(config))
    said = r"\[0\]: the base of segment 0 is of an earlier topic of this name: set on\.data\.loss=reset"
    with closing(Plans(config)) as plans, pytest.raises(LossError, match=said):
        plans.planner.start()


def test_a_base_beyond_the_end_stops_a_start(config: Config) -> None:
    """Of a node that had not read the topic's id yet."""
    cache = Cache(config)
    cache.topic_id = ""
    cache.put(cache.key(0, 0), b"v")
    cache.reset(0)
    create_again(cache)
    said = r"the base of segment 0 \(offset \d+\) is not in what the partition holds, \[0, 0\)"
    with closing(Plans(config)) as plans, pytest.raises(LossError, match=said):
        plans.planner.start()
