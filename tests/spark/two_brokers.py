"""A cache whose diff topic has one partition on each of two brokers."""

from __future__ import annotations

from confluent_kafka.admin import NewTopic

from tests.support.changes import LAG, Cache


class OnTheFirst(Cache):
    """Its topics are on the first broker; of the diff topic the second partition is on the other one."""

    def _create(self, cleanup: str, more: dict[str, str]) -> None:
        kept = {"cleanup.policy": cleanup, "min.compaction.lag.ms": str(LAG), "delete.retention.ms": str(LAG)}
        topics = self.topics
        placed = {topics.changes: [[1], [1]], topics.positions: [[1], [1]], topics.signal: [[1]]}
        placed[topics.diff] = [[1], [2]]
        made = [
            NewTopic(name, num_partitions=len(place), replica_assignment=place, config=kept)
            for name, place in placed.items()
        ]
        for future in self.admin.create_topics(made).values():
            future.result(30)
