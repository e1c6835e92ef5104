"""Topic metadata and end offsets from the brokers, and the creation of topics."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.client import LOOK_SECONDS, admin_client, described_group, failure, hear, reason
from deelog_connector.kafka_port import REQUEST_SECONDS, PartitionEnd, TopicState
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections
from deelog_schemas.kafka.progress import STALL_SECONDS

A = TypeVar("A")

_AGAIN_SECONDS: Final = 0.05


class KafkaAdmin:
    """The calls of `kafka_port.Brokers` that ask an admin client, and more. They block.

    `seconds` is how long one request may take.
    """

    def __init__(self, config: Config, seconds: float = REQUEST_SECONDS) -> None:
        self._config, self._seconds = config, seconds
        self._client: AdminClient | None = None
        self._connections = Connections("admin", {})
        self._known_silent: dict[str, set[int]] = {}
        """By topic: partitions whose leader did not answer at the last look."""
        self._renews: set[str] = set()
        """Topics with such partitions whose last look has dropped its client."""

    @property
    def _admin(self) -> AdminClient:
        client = self._client  # another thread may drop it at any time
        if client is None:
            client, self._connections = admin_client(self._config)
            self._client = client
        return client

    def close(self) -> None:
        """Drops the client; the next request makes a new one."""
        self._client = None

    def _asked(self, ask: Callable[..., Mapping[A, Future[Any]]], *args: Any) -> Mapping[A, Future[Any]]:
        """The futures of `ask(client, *args)`, all done. Raises `KafkaUnavailable` where they are not in time.

        Holds the client until then: if another thread dropped it meanwhile, they would never be done.
        """
        admin = self._admin
        futures = ask(admin, *args)
        if concurrent.futures.wait(futures.values(), 2 * self._seconds).not_done:
            self.close()
            raise KafkaUnavailable("the brokers did not answer in time")
        return futures

    def _asked_of_any(self, ask: Callable[[AdminClient, float], Mapping[A, Future[Any]]]) -> Mapping[A, Future[Any]]:
        """As `_asked`, for requests that any broker answers; `ask` gets the seconds that it may take.

        librdkafka sends them to the broker that metadata call the controller, and with KRaft that is any one, for as
        long as the client lives. It may be one that this machine does not reach: a new client is told of another.
        """
        first = min(STALL_SECONDS, self._seconds)
        futures = self._asked(ask, first)
        if first < self._seconds and any(_is_timed_out(future) for future in futures.values()):
            self.close()
            futures = self._asked(ask, self._seconds - first)
        return futures

    def _away(
        self, what: str, error: KafkaException, right: str = "", topic: str = "", group: str = ""
    ) -> KafkaUnavailable:
        # After a broker's restart, librdkafka 2.16 requests offsets with the old leader epoch and never refreshes it
        # (FENCED_LEADER_EPOCH, seen for minutes): a new client does.
        self.close()
        asked = {"topic": (right, topic), "group": (right, group), "cluster": (right, "")}
        return failure(what, error, self._connections, **asked)

    def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        count = self.partitions(topic) or self._created(topic, partitions or 1, settings)
        if partitions is not None and count != partitions:
            raise KafkaUnusable(
                f"topic {topic} has {count} partitions, and must have {partitions}: {self._remedy(topic)}"
            )

    def _remedy(self, topic: str) -> str:
        """What to do about a topic with another number of partitions."""
        topics = self._config.topics
        if topic not in (topics.changes, topics.positions):
            return "delete it, and it is made again"
        return (
            "the map of segments is fixed when the topics are created; set topic.creation.default.partitions to what "
            f"they have, or use another topic.prefix; where {topics.changes} and {topics.positions} have not the same, "
            "one was made again by hand: delete both, and all is sent anew"
        )

    def _created(self, topic: str, partitions: int, settings: Mapping[str, str]) -> int:
        self._must_be_seen(topic)
        replication = self._config["topic.creation.default.replication.factor"]
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(settings))
        try:
            self._asked_of_any(lambda admin, s: admin.create_topics([new], request_timeout=s))[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                what = f"topic {topic} does not exist and cannot be created"
                why = reason(error, self._connections, topic=("Create", topic), cluster=("Create", ""))
                raise KafkaUnusable(f"{what}: {why}") from error
        return self._awaited(topic)

    def _must_be_seen(self, topic: str) -> None:
        """Raises `KafkaUnauthorized` where a topic is hidden from this user, whether it exists or not."""
        try:
            self._described(topic)
        except KafkaException as error:
            denied = missing_acl(error.args[0], "admin", topic=("Describe", topic))
            if denied is not None:
                raise KafkaUnauthorized(denied) from error

    def _awaited(self, topic: str) -> int:
        """The partitions of a topic that is there. The broker that is asked may hear of it later than others."""
        until = time.monotonic() + self._seconds
        while (count := self.partitions(topic)) == 0:
            if time.monotonic() > until:
                raise KafkaUnusable(f"topic {topic} was created but does not appear")
            time.sleep(_AGAIN_SECONDS)
        return count

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 where it does not exist, or is hidden from this user."""
        until = time.monotonic() + self._seconds
        while True:
            admin = self._admin
            try:
                known = admin.list_topics(timeout=LOOK_SECONDS).topics.get(topic)
                return len(known.partitions) if known is not None and known.error is None else 0
            except KafkaException as error:
                hear(admin, self._connections)
                if self._connections.hopeless or time.monotonic() > until:
                    servers = ",".join(self._config["bootstrap.servers"])
                    raise self._away(f"no broker answers at bootstrap.servers={servers}", error) from error

    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""
        try:
            return str(self._admin.list_topics(timeout=self._seconds).cluster_id)
        except KafkaException as error:
            raise self._away("no broker answers", error) from error

    def state(self, topic: str) -> TopicState:
        try:
            found = self._described(topic)
        except KafkaException as error:
            raise self._away(f"topic {topic}", error, "Describe", topic) from error
        lead = {p.id: len(p.isr) if p.leader is not None else 0 for p in found.partitions}
        lacking = any(lead[p.id] < len(p.replicas) for p in found.partitions)
        least = int(self.settings(topic)["min.insync.replicas"]) if lacking else 1
        # A broker asks for no more replicas than there are (KIP-966).
        unwritable = {p.id for p in found.partitions if lead[p.id] < min(least, len(p.replicas))}
        led = [p.id for p in found.partitions if p.leader is not None]
        return TopicState(str(found.topic_id), frozenset(unwritable | self._silent(topic, led)))

    def _silent(self, topic: str, partitions: Collection[int]) -> set[int]:
        """Those of them whose leader does not answer here, while others answer.

        Raises `KafkaUnavailable` where none answers.
        """
        silent = self._unanswered(topic, partitions, STALL_SECONDS)
        if not silent <= self._known_silent.get(topic, set()):
            # It may have been the client that had lost them, or the broker is slow.
            self.close()
            silent = self._unanswered(topic, silent, self._seconds)
        elif silent:
            # By a new client every other time: one waits longer for its first answer, one may have lost the leader.
            self._renews ^= {topic}
            if topic in self._renews:
                self.close()
        if silent and len(silent) == len(partitions):
            raise KafkaUnavailable(f"topic {topic}: the leaders of its partitions did not answer in time")
        self._known_silent[topic] = silent
        return silent

    def _unanswered(self, topic: str, partitions: Collection[int], seconds: float) -> set[int]:
        futures = self._offsets(topic, partitions, seconds)
        return {where.partition for where, future in futures.items() if _is_timed_out(future)}

    def _described(self, topic: str) -> Any:
        topics = TopicCollection([topic])
        return self._asked_of_any(lambda admin, s: admin.describe_topics(topics, request_timeout=s))[topic].result()

    def settings(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        until = time.monotonic() + self._seconds
        while True:
            try:
                asked = self._asked_of_any(lambda a, s: a.describe_configs([resource], request_timeout=s))
                return {name: str(entry.value) for name, entry in asked[resource].result().items()}
            except KafkaException as error:
                # The broker that is asked may hear of a new topic later than others.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > until:
                    what = f"cannot read the settings of topic {topic}"
                    raise self._away(what, error, "DescribeConfigs", topic) from error
            time.sleep(_AGAIN_SECONDS)

    def members(self, group: str) -> frozenset[str]:
        try:
            found = described_group(self._admin, group, self._seconds)
            return frozenset(str(member.client_id) for member in found.members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return frozenset()
            raise self._away(f"cannot read the members of group {group}", error, "Describe", group=group) from error

    def ends(self, topic: str, partitions: Iterable[int], committed: bool = True) -> list[PartitionEnd]:
        ends = []
        for where, future in self._offsets(topic, partitions, self._seconds, committed).items():
            try:
                result = future.result()
            except KafkaException as error:
                raise self._away(f"no end of {topic}[{where.partition}]", error, "Describe", topic) from error
            if _is_timed_out(future):
                raise KafkaUnavailable(f"no end of {topic}[{where.partition}]: the brokers did not answer in time")
            epoch = result.leader_epoch
            ends.append(PartitionEnd(where.partition, result.offset, -1 if epoch is None else epoch))
        return ends

    def _offsets(
        self, topic: str, partitions: Iterable[int], seconds: float, committed: bool = True
    ) -> Mapping[TopicPartition, Future[Any]]:
        asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in partitions}  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        if not asked:
            return {}
        return self._asked(lambda admin: admin.list_offsets(asked, isolation_level=level, request_timeout=seconds))


def _is_timed_out(future: Future[Any]) -> bool:
    """Whether a broker has not answered in time. Of offsets, librdkafka 2.16 tells it by one of -1001."""
    error = future.exception()
    if error is None:
        return bool(getattr(future.result(), "offset", 0) < 0)
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT
