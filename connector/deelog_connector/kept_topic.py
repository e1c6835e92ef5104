"""A compacted topic of which whoever starts reads the whole: it must not forget, and it may be lost while nodes run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from deelog_connector.core.state import KnownTopic
from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import COMPACTED, Brokers, TopicState


@dataclass(slots=True)
class ReadTopic(KnownTopic):
    """A topic that is read as a whole, and what is known of it whoever reads it."""

    read: dict[int, int] = field(default_factory=dict)
    """By partition, the offset behind the last record that was read."""
    lost: str = ""
    """What it has lost, until that has had its consequences."""


async def state_of(brokers: Brokers, topic: str, make: Callable[[], Awaitable[object]]) -> TopicState:
    """The topic's state; calls `make` first where it is gone. Raises what that and `Brokers.state` raise."""
    try:
        return await brokers.state(topic)
    except KafkaUnavailable:
        await make()
        return await brokers.state(topic)


class KeptTopic:
    """One such topic, with as many partitions (None: one, or more). Its calls raise what those of `Brokers` raise."""

    def __init__(self, brokers: Brokers, topic: str, partitions: int | None, seen: KnownTopic | None = None) -> None:
        self._brokers, self._topic, self._partitions = brokers, topic, partitions
        self._seen = seen or KnownTopic()
        self.unwritable = frozenset[int]()
        """The partitions that took no records at the last look."""

    async def make(self) -> Mapping[str, str]:
        """Creates it unless it exists; its settings. Raises `KafkaUnusable` where it forgets what is old."""
        await self._brokers.ensure(self._topic, self._partitions, COMPACTED)
        settings = await self._brokers.settings(self._topic)
        policy = settings["cleanup.policy"]
        if policy != "compact":
            raise KafkaUnusable(
                f"topic {self._topic} has cleanup.policy={policy}: what was written long ago would be forgotten; set "
                "it to compact"
            )
        return settings

    async def is_another(self) -> bool:
        """Whether it was made again since the last look. Makes it where it is gone."""
        state = await state_of(self._brokers, self._topic, self.make)
        self.unwritable = state.unwritable
        return self._seen.is_another(state.topic_id)
