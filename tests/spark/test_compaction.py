"""Topics that Kafka compacts while the job runs and while it is stopped, on a real broker with a fast cleaner."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from deelog_schemas.records import Record
from deelog_spark import DiffJob
from deelog_spark.batches.checkpoint import Checkpoint
from tests.spark.processes import WAIT, until_read
from tests.spark.reference import expected, held, in_topic, read
from tests.spark.scenes import Player
from tests.spark.test_diff_job import run
from tests.support.changes import LAG, Cache, config_of
from tests.support.kafka import Broker
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAG_MS = 1000
"""A job that was away for longer starts over."""
KEPT = {"min.compaction.lag.ms": str(LAG)}
"""Nothing is removed: job and test read it all before, however slow they are."""
REMOVED = {"min.compaction.lag.ms": "0"}
CLEANER_SECONDS = 3.0
"""How long the cleaner is waited for, each time."""
HURRY = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.001"}


def alter(cache: Cache, kind: ResourceType, name: str, settings: dict[str, str]) -> None:
    """Changes settings of a broker or topic."""
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    for future in cache.admin.incremental_alter_configs(
        [ConfigResource(kind, name, incremental_configs=entries)]
    ).values():
        future.result(30)


@pytest.mark.slow
def test_compacted_while_the_job_runs_and_while_it_is_away(
    own_kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The job emits the differences of a reader of every record. A start without state emits only new ones."""
    config = config_of(own_kafka.bootstrap, prefix, str(tmp_path / "cp"), reader_max_lag_ms=LAG_MS, segment_count=16)
    cache = Cache(config, delete_retention_ms="0")
    (broker,) = cache.admin.list_topics(timeout=30).brokers
    alter(cache, ResourceType.BROKER, str(broker), {"log.cleaner.backoff.ms": "100"})
    alter(cache, ResourceType.TOPIC, config.topics.changes, HURRY)
    player = Player(cache, 5, repeats=False)

    def play() -> None:
        """Plays turns and ends every reset: one whose rows are removed cannot be read again."""
        for _ in range(20):
            player.turn()
        player.finish()

    names = changes, diff = config.topics.changes, config.topics.diff
    seen: dict[str, dict[tuple[int, int], Record]] = {name: {} for name in names}

    def look(name: str) -> int:
        """How many records a topic has now. The records of every look are kept in `seen`."""
        now = read(config, name, cache.partitions)
        seen[name] |= {(record.partition, record.offset): record for record in now}
        return len(now)

    def ever(name: str) -> list[Record]:
        """The records of every look, this one included."""
        look(name)
        return [record for _, record in sorted(seen[name].items())]

    def compacted(name: str) -> bool:
        """Whether Kafka has removed some records of a topic, all of which were read.

        What is in the last segments stays, and may be all that there is to remove: then it takes more records.
        """
        there = look(name)
        alter(cache, ResourceType.TOPIC, name, REMOVED)
        try:
            waiting(lambda: look(name) < there, CLEANER_SECONDS, f"the compaction of {name}")
        except TimeoutError:
            return False
        finally:
            alter(cache, ResourceType.TOPIC, name, KEPT)
        return True

    job = DiffJob(config, spark)
    try:
        job.start()
        alter(cache, ResourceType.TOPIC, diff, HURRY | KEPT)

        def gone() -> bool:
            """Whether most records of either topic are."""
            play()
            until_read(cache)
            for name in names:
                compacted(name)
            return all(look(name) < len(seen[name]) / 2 for name in names)

        waiting(gone, WAIT, "most records to be gone")
    finally:
        job.stop()
    wanted = expected(config, cache.partitions, records=ever(changes))
    told = ever(diff)
    assert in_topic(config, cache.partitions, records=told) == wanted
    assert {row.cause for rows in wanted.values() for row in rows} == {"change", "reset"}

    before = held(in_topic(config, cache.partitions, records=told))
    ends = {record.partition: record.offset for record in told}

    def gone_meanwhile() -> bool:
        """Whether records are that the job has not read."""
        play()
        return compacted(changes)

    waiting(gone_meanwhile, WAIT, "the compaction of what the job has not read")
    state = Checkpoint(config["diff.checkpoint.location"]).now()
    assert state is not None
    waiting(lambda: time.time() * 1000 > state.written_ms + LAG_MS, WAIT, "records older than the lag")
    run(config, spark)
    rest = [record for record in ever(diff) if record.offset > ends[record.partition]]
    new = in_topic(config, cache.partitions, records=rest)
    after = {key: (entry.value, entry.expires_at) for key, entry in cache.entries().items()}
    stored = {key: (row.value, row.expires_at) for key, row in before.items()}
    changed = {key for key in stored.keys() | after.keys() if stored.get(key) != after.get(key)}
    assert sorted(row.key for rows in new.values() for row in rows) == sorted(changed)
    found = held(in_topic(config, cache.partitions, records=ever(diff)))
    assert {key: (row.value, row.expires_at) for key, row in found.items()} == after
